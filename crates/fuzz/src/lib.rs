//! The fuzzing targets, shared with the tests, which replay the corpus.
#![allow(missing_docs)]

#[path = "../../ferromq-store/tests/common/mod.rs"]
mod common;
#[path = "../../ferromq-transport/tests/fuzz_targets/mod.rs"]
mod transport;

pub use common::fuzz_targets::{index, record, recovery};
pub use transport::remoting;
