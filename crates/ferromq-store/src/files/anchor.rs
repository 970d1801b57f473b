//! The anchor of a file in `DIR/ferromq/`: the log's last record when the file was written.
//!
//! A Java broker ignores these files, so its work can make them stale. Each file therefore names a record; if the log
//! does not hold that record, the file is ignored.

use crate::{
    files::mapped_file_queue::MappedFileQueue,
    record::{message::MessageView, reader::Reader},
};

/// Length of the fields before the content: magic 8, the anchor's physical offset 8, store timestamp 8, CRC of the body
/// 4.
const HEAD_LEN: usize = 28;
/// The anchor's physical offset if the log held no record.
const NO_RECORD: u64 = u64::MAX;

/// Identifies a record of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    /// Physical offset of the record, in bytes.
    pub physical_offset: u64,
    pub(crate) store_timestamp: i64,
    pub(crate) body_crc: u32,
}

impl Anchor {
    /// The anchor of an empty log.
    pub const NONE: Self = Self { physical_offset: NO_RECORD, store_timestamp: 0, body_crc: 0 };

    /// The anchor of a record.
    pub fn of(view: &MessageView<'_>) -> Self {
        Self {
            physical_offset: view.physical_offset,
            store_timestamp: view.store_timestamp,
            body_crc: view.body_crc,
        }
    }

    /// Whether the log can still be the anchor's: no other record lies at its offset.
    ///
    /// A missing or damaged record does not invalidate the anchor.
    pub(crate) fn is_held_by<D: crate::files::disk::Disk>(self, log: &MappedFileQueue<D>) -> bool {
        let Some(file) = log.find(self.physical_offset) else { return true };
        let bytes = file.read(self.physical_offset..file.end());
        match MessageView::decode(bytes, true) {
            Ok(view) if view.physical_offset == self.physical_offset => Self::of(&view) == self,
            _ => true,
        }
    }
}

/// Encodes a file: `magic`, the anchor, `content` and a CRC32 over all of it. Integers are big-endian.
pub(crate) fn seal(magic: &[u8; 8], anchor: Anchor, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_LEN + content.len() + 4);
    out.extend_from_slice(magic);
    out.extend_from_slice(&anchor.physical_offset.to_be_bytes());
    out.extend_from_slice(&anchor.store_timestamp.to_be_bytes());
    out.extend_from_slice(&anchor.body_crc.to_be_bytes());
    out.extend_from_slice(content);
    out.extend_from_slice(&crc32fast::hash(&out).to_be_bytes());
    out
}

/// Decodes the anchor and the content of a file that [`seal`] encoded. Errors: the broken rule.
pub fn unseal<'a>(magic: &[u8; 8], bytes: &'a [u8]) -> Result<(Anchor, &'a [u8]), &'static str> {
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or("too short")?;
    let rest = body.strip_prefix(magic).ok_or("wrong magic or version")?;
    if crc32fast::hash(body) != u32::from_be_bytes(*crc) {
        return Err("wrong CRC");
    }
    let mut reader = Reader::new(rest);
    let mut anchor = || {
        let (physical_offset, store_timestamp) = (reader.u64()?, reader.i64()?);
        Some(Anchor { physical_offset, store_timestamp, body_crc: reader.u32()? })
    };
    let anchor = anchor().ok_or("too short")?;
    Ok((anchor, reader.rest()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAGIC: &[u8; 8] = b"FMQTEST1";

    proptest! {
        #[test]
        fn what_is_sealed_is_read_again_and_no_part_of_it_is(
            at in any::<(u64, i64, u32)>(),
            content in prop::collection::vec(any::<u8>(), 0..50),
            cut in any::<prop::sample::Index>(),
            bit in 0u8..8,
        ) {
            let anchor = Anchor { physical_offset: at.0, store_timestamp: at.1, body_crc: at.2 };
            let mut bytes = seal(MAGIC, anchor, &content);
            prop_assert_eq!(unseal(MAGIC, &bytes), Ok((anchor, &content[..])));
            prop_assert!(unseal(b"FMQTEST2", &bytes).is_err());
            let at = cut.index(bytes.len());
            prop_assert!(unseal(MAGIC, &bytes[..at]).is_err());
            bytes[at] ^= 1 << bit;
            prop_assert!(unseal(MAGIC, &bytes).is_err());
        }

        #[test]
        fn unsealing_any_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut bytes = [&MAGIC[..], &bytes].concat();
            bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
            let _ = unseal(MAGIC, &bytes);
        }
    }
}
