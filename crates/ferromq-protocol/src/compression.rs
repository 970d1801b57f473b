//! Compressed bodies, as RocketMQ's clients write and read them (`CompressionType`, `MessageSysFlag`).
//!
//! Bit 1 of the system flag marks a compressed body; bits 8 to 10 name the algorithm. Clients before 4.9.4 know zlib
//! alone, and leave these bits 0. gRPC has no field for them, so there the first bytes name the algorithm.

use std::{
    borrow::Cow,
    fmt::Display,
    io::{Read, Write},
};

use flate2::{
    Compression,
    read::{MultiGzDecoder, ZlibDecoder},
    write::ZlibEncoder,
};
use lz4_flex::frame::{FrameDecoder, FrameEncoder};
use ruzstd::{
    decoding::StreamingDecoder,
    encoding::{CompressionLevel, compress_to_vec},
};

/// Largest decompressed body, in bytes; RocketMQ's own messages are at most 4 MiB.
pub const MAX_DECOMPRESSED: usize = 64 << 20;
/// The bit of the system flag that marks a compressed body.
pub const COMPRESSED: i32 = 1;
/// The level of RocketMQ's producers for zlib.
const ZLIB_LEVEL: u32 = 5;
const KIND_AT: u32 = 8;
const KIND_BITS: i32 = 7;
/// All bits of the system flag that describe compression.
pub const MASK: i32 = COMPRESSED | KIND_BITS << KIND_AT;

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// A zlib stream; every RocketMQ client reads it.
    Zlib,
    /// An LZ4 frame.
    Lz4,
    /// A Zstandard frame.
    Zstd,
}

impl Algorithm {
    /// Its number in RocketMQ's `CompressionType`.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
            Self::Zlib => 3,
        }
    }

    /// The algorithm of a number.
    #[must_use]
    pub const fn of_number(number: i32) -> Option<Self> {
        match number {
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            3 => Some(Self::Zlib),
            _ => None,
        }
    }

    /// Compresses a body.
    #[must_use]
    pub fn compress(self, body: &[u8]) -> Vec<u8> {
        match self {
            Self::Zlib => {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(ZLIB_LEVEL));
                // Writing to a Vec cannot fail.
                let _ = encoder.write_all(body);
                encoder.finish().unwrap_or_default()
            }
            Self::Lz4 => {
                let mut encoder = FrameEncoder::new(Vec::new());
                let _ = encoder.write_all(body);
                encoder.finish().unwrap_or_default()
            }
            Self::Zstd => compress_to_vec(body, CompressionLevel::Fastest),
        }
    }
}

/// The system flag of a body compressed with the algorithm of this number; any other number names none.
#[must_use]
pub const fn sys_flag(number: i32) -> i32 {
    match Algorithm::of_number(number) {
        Some(algorithm) => COMPRESSED | algorithm.number() << KIND_AT,
        None => COMPRESSED,
    }
}

/// The producer's body, decompressed if the system flag says so.
///
/// # Errors
/// A sentence that names the algorithm and the fault.
pub fn decompressed(sys_flag: i32, body: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    const LZ4: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
    const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    if sys_flag & COMPRESSED == 0 {
        return Ok(Cow::Borrowed(body));
    }
    let read = match sys_flag >> KIND_AT & KIND_BITS {
        1 => read("lz4", FrameDecoder::new(body)),
        2 => read_zstd(body),
        // No bit distinguishes gzip, used by gRPC clients, from zlib; old producers write 0.
        0 | 3 if body.starts_with(&GZIP) => read("gzip", MultiGzDecoder::new(body)),
        // No zlib stream begins with these bytes.
        0 if body.starts_with(&LZ4) => read("lz4", FrameDecoder::new(body)),
        0 if body.starts_with(&ZSTD) => read_zstd(body),
        0 | 3 => read("zlib", ZlibDecoder::new(body)),
        kind => Err(format!("the body has the unknown compression type {kind}")),
    };
    read.map(Cow::Owned)
}

fn read_zstd(body: &[u8]) -> Result<Vec<u8>, String> {
    match StreamingDecoder::new(body) {
        Ok(decoder) => read("zstd", decoder),
        Err(error) => Err(failure("zstd", &error)),
    }
}

fn read(kind: &str, decoder: impl Read) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    decoder
        .take(MAX_DECOMPRESSED as u64 + 1)
        .read_to_end(&mut body)
        .map_err(|error| failure(kind, &error))?;
    if body.len() > MAX_DECOMPRESSED {
        return Err(format!("the body is larger than {MAX_DECOMPRESSED} bytes when decompressed"));
    }
    Ok(body)
}

fn failure(kind: &str, error: &dyn Display) -> String {
    format!("the body is marked as compressed, but does not decompress as {kind}: {error}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Algorithm; 3] = [Algorithm::Zlib, Algorithm::Lz4, Algorithm::Zstd];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn a_body_is_read_back_with_and_without_the_number_of_its_algorithm(
            body in prop_oneof![
                prop::collection::vec(any::<u8>(), 1..2_000),
                ("[ab]{1,9}", 1_usize..20_000).prop_map(|(text, count)| text.repeat(count).into_bytes()),
            ],
        ) {
            for algorithm in ALL {
                let compressed = algorithm.compress(&body);
                for flag in [sys_flag(algorithm.number()), COMPRESSED] {
                    let plain = decompressed(flag, &compressed).unwrap();
                    prop_assert_eq!(&*plain, &body, "{:?}", algorithm);
                }
            }
        }

        #[test]
        fn any_bytes_decompress_or_are_an_error(body in prop::collection::vec(any::<u8>(), 0..300), kind in 0..8) {
            let _ = decompressed(COMPRESSED | kind << KIND_AT, &body);
        }
    }

    #[test]
    fn a_number_that_names_no_algorithm_is_left_out_of_the_flag() {
        assert_eq!([0, 1, 2, 3, 4, -1].map(sys_flag), [1, 0x101, 0x201, 0x301, 1, 1]);
    }
}
