//! All file I/O: the two traits, mapped files, queues of files, and the limit on open files.

pub mod anchor;
pub(crate) mod directories;
pub(crate) mod disk;
mod file_removal;
#[allow(unsafe_code)]
pub(crate) mod mapped_file;
pub(crate) mod mapped_file_queue;
pub(crate) mod open_files;
pub(crate) mod real_disk;
pub(crate) mod space;
pub(crate) mod store_directory;
#[cfg(test)]
mod tests;
pub(crate) mod write_retry;

pub use disk::{Allocation, Disk, Region};
pub use mapped_file::MappedRegion;
pub use real_disk::{DirectoryLock, RealDisk, release_in_forked_child};
pub use space::Space;
