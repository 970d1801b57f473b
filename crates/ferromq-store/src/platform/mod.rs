//! What the operating system does beyond std: [`linux`] by system calls, [`portable`] with std alone.
//!
//! Linux uses `linux`. Other systems, and the feature `portable`, use `portable`, so a port begins in one file. Two more
//! calls of Linux act on a mapped file and need `unsafe`: they are in `files::mapped_file`.

#[cfg(all(target_os = "linux", not(feature = "portable")))]
mod linux;
#[cfg(any(not(target_os = "linux"), feature = "portable"))]
mod portable;

#[cfg(all(target_os = "linux", not(feature = "portable")))]
pub(crate) use linux::*;
#[cfg(any(not(target_os = "linux"), feature = "portable"))]
pub(crate) use portable::*;
