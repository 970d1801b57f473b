//! Decompresses bodies as RocketMQ's clients do.
//!
//! Bit 1 of the system flag marks a compressed body; bits 8 to 10 name the algorithm.

use std::{borrow::Cow, io::Read};

use flate2::read::{MultiGzDecoder, ZlibDecoder};
use lz4_flex::frame::FrameDecoder;

use ferromq_store::formats::message::MAX_DECOMPRESSED;

const COMPRESSED: i32 = 1;
const KIND_AT: u32 = 8;
const KIND_BITS: i32 = 7;

/// Body and system flag of a row. A body that does not decompress is returned as stored; otherwise the compression bits
/// are cleared, so the flag always describes the returned body.
pub(super) fn of_row(sys_flag: i32, body: &[u8]) -> (Cow<'_, [u8]>, i32) {
    match decompressed(sys_flag, body) {
        Ok(plain) if sys_flag & COMPRESSED != 0 => (plain, sys_flag & !(COMPRESSED | KIND_BITS << KIND_AT)),
        Ok(plain) => (plain, sys_flag),
        Err(_) => (Cow::Borrowed(body), sys_flag),
    }
}

/// The producer's body, decompressed if the system flag says so.
///
/// # Errors
/// A sentence that names the algorithm and the fault.
pub fn decompressed(sys_flag: i32, body: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    if sys_flag & COMPRESSED == 0 {
        return Ok(Cow::Borrowed(body));
    }
    let read = match sys_flag >> KIND_AT & KIND_BITS {
        1 => read("lz4", FrameDecoder::new(body)),
        2 => match ruzstd::decoding::StreamingDecoder::new(body) {
            Ok(decoder) => read("zstd", decoder),
            Err(error) => Err(format!("the zstd body does not decompress: {error}")),
        },
        // No bit distinguishes gzip, used by gRPC clients, from zlib; old producers write 0.
        0 | 3 if body.starts_with(&[0x1f, 0x8b]) => read("gzip", MultiGzDecoder::new(body)),
        0 | 3 => read("zlib", ZlibDecoder::new(body)),
        kind => Err(format!("the body has the unknown compression type {kind}")),
    };
    read.map(Cow::Owned)
}

fn read(kind: &str, decoder: impl Read) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    decoder
        .take(MAX_DECOMPRESSED as u64 + 1)
        .read_to_end(&mut body)
        .map_err(|error| format!("the {kind} body does not decompress: {error}"))?;
    if body.len() > MAX_DECOMPRESSED {
        return Err(format!("the body is larger than {MAX_DECOMPRESSED} bytes when decompressed"));
    }
    Ok(body)
}
