//! The digest that a broker sends beside a body, compared with the body as it came.

use ferromq_protocol::{
    protobuf::{Fields, Malformed},
    record::encoded::CRC_BITS,
};
use md5::{Digest, Md5};
use sha1::Sha1;

/// What an error says of a body that differs from its checksum, of a digest or of a record.
pub(super) const MISMATCH: &str = "the body does not match its checksum";

const CRC32: i32 = 1;
const MD5: i32 = 2;
const SHA1: i32 = 3;

/// Compares a body, compressed or not, with its encoded `Digest`. A digest of another type is not compared.
///
/// # Errors
/// If they differ, or if the digest is malformed.
pub(super) fn check(digest: &[u8], body: &[u8]) -> Result<(), String> {
    let (kind, checksum) = parts(digest).map_err(|error| format!("the digest of the body: {}", error.0))?;
    let is_right = match kind {
        CRC32 => is_crc(checksum, crc32fast::hash(body)),
        MD5 => is_hex(checksum, &Md5::digest(body)),
        SHA1 => is_hex(checksum, &Sha1::digest(body)),
        _ => true,
    };
    is_right.then_some(()).ok_or_else(|| MISMATCH.to_owned())
}

fn parts(digest: &[u8]) -> Result<(i32, &str), Malformed> {
    let (mut kind, mut checksum) = (0, "");
    for field in Fields::new(digest) {
        match field? {
            (1, value) => kind = value.int32()?,
            (2, value) => checksum = value.text()?,
            _ => {}
        }
    }
    Ok((kind, checksum))
}

/// Servers write a CRC32 with leading zeros or without. That of a record has its top bit cleared.
fn is_crc(checksum: &str, crc: u32) -> bool {
    u32::from_str_radix(checksum, 16).is_ok_and(|told| told == crc || told == crc & CRC_BITS)
}

/// Servers write two digits for each byte; the case of letters does not matter.
fn is_hex(checksum: &str, bytes: &[u8]) -> bool {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    checksum.chars().map(|digit| digit.to_digit(16)).eq(digits.map(|digit| Some(u32::from(digit))))
}

#[cfg(test)]
mod tests {
    use ferromq_protocol::protobuf::{put_bytes_field, put_varint_field};
    use proptest::prelude::*;

    use super::*;

    fn digest(kind: i32, checksum: &str) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint_field(&mut out, 1, u64::try_from(kind).unwrap());
        put_bytes_field(&mut out, 2, checksum.as_bytes());
        out
    }

    /// Bodies and digests of RocketMQ's types, computed by another program.
    const RIGHT: [(&[u8], i32, &str); 8] = [
        (b"body 36", CRC32, "01FEB7EF"),
        (b"body 36", CRC32, "1feb7ef"),
        (b"body 0", CRC32, "B3A5C8EB"),
        (b"body 0", CRC32, "33A5C8EB"),
        (b"body 36", MD5, "2943140A011208C4F850EB7A36AA1F67"),
        (b"body 36", MD5, "2943140a011208c4f850eb7a36aa1f67"),
        (b"body 36", SHA1, "C6AD0BA1F264606ADD5D1348032194FB2CB83276"),
        (b"body 36", SHA1, "c6ad0ba1f264606add5d1348032194fb2cb83276"),
    ];

    #[test]
    fn a_digest_matches_its_own_body_alone() {
        for (body, kind, checksum) in RIGHT {
            let digest = digest(kind, checksum);
            assert_eq!(check(&digest, body), Ok(()), "{checksum}");
            assert_eq!(check(&digest, b"body 1"), Err(MISMATCH.to_owned()), "{checksum}");
        }
    }

    #[test]
    fn a_digest_of_the_wrong_length_matches_no_body() {
        for (body, kind, checksum) in RIGHT {
            for wrong in ["", &checksum[1..], &format!("{checksum}0"), &format!("{checksum}00000000")] {
                if wrong.trim_start_matches('0') != checksum.trim_start_matches('0') {
                    assert!(check(&digest(kind, wrong), body).is_err(), "{wrong}");
                }
            }
        }
    }

    #[test]
    fn a_digest_of_an_unknown_type_is_not_compared() {
        for kind in [0, 4, 99] {
            assert_eq!(check(&digest(kind, "DEADBEEF"), b"body"), Ok(()));
        }
        assert_eq!(check(&[], b"body"), Ok(()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_compared_or_an_error(
            digest in prop::collection::vec(any::<u8>(), 0..40),
            body in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let _ = check(&digest, &body);
        }
    }
}
