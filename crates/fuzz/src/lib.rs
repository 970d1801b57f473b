//! The targets of the fuzzer; those of the store are shared with its tests, which replay the corpus.
#![allow(missing_docs)]

#[path = "../../ferromq-store/tests/common/mod.rs"]
mod common;

pub use common::fuzz_targets::{index, record, recovery};

use ferromq_transport::remoting::{Limits, codec};

/// Decodes any bytes as a frame of the remoting protocol; what decodes encodes again.
pub fn remoting(data: &[u8]) {
    if let Ok(command) = codec::decode(data.to_vec().into(), &Limits::default()) {
        let _ = codec::encode(&command);
    }
}
