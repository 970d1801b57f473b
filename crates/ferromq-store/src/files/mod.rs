//! All I/O: the two traits every file goes through, mapped files, and rows of files with a budget of open ones.

pub mod anchor;
pub(crate) mod directories;
pub(crate) mod disk;
#[allow(unsafe_code)]
pub(crate) mod mapped_file;
pub(crate) mod mapped_file_queue;
pub(crate) mod open_files;
pub(crate) mod real_disk;
pub(crate) mod space;
#[cfg(test)]
mod tests;
pub(crate) mod write_retry;
