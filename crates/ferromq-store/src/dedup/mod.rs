//! Numbered messages: a message that a writer sends again is stored once.

pub(crate) mod sequence;
pub(crate) mod sequences_file;
pub(crate) mod writers;

pub use crate::record::properties::SEQUENCE;
pub use sequence::{MAX_WRITER_LEN, Sequence};
