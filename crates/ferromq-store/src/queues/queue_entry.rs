//! One entry of a consume queue: 20 bytes with the physical offset, size and tag hash of a message.

use crate::record::message::MIN_RECORD_LEN;

/// Bytes of an entry: physical offset 8, size 4, tag hash 8, all big-endian.
pub const ENTRY_LEN: u64 = 20;
pub(super) const ENTRY: usize = ENTRY_LEN as usize;
/// The size that RocketMQ writes into fillers, the entries before the first real one.
pub(super) const FILLER_SIZE: u32 = i32::MAX as u32;

/// One entry of a consume queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueEntry {
    /// Physical offset of the record, in bytes.
    pub physical_offset: u64,
    /// Size of the record, in bytes.
    pub size: u32,
    /// Hash of the tag, or the delivery time in milliseconds since 1970.
    pub tag_hash: i64,
}

impl QueueEntry {
    pub(crate) fn encode(self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        let (offset, rest) = bytes.split_at_mut(8);
        let (size, hash) = rest.split_at_mut(4);
        offset.copy_from_slice(&self.physical_offset.to_be_bytes());
        size.copy_from_slice(&self.size.to_be_bytes());
        hash.copy_from_slice(&self.tag_hash.to_be_bytes());
        bytes
    }

    /// Decodes the entry at the start of `bytes`; `None` if no entry is written there.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (offset, rest) = bytes.split_first_chunk::<8>()?;
        let (size, rest) = rest.split_first_chunk::<4>()?;
        let (hash, _) = rest.split_first_chunk::<8>()?;
        let entry = Self {
            physical_offset: u64::from_be_bytes(*offset),
            size: u32::from_be_bytes(*size),
            tag_hash: i64::from_be_bytes(*hash),
        };
        (entry.size > 0 && entry.size <= FILLER_SIZE && entry.physical_offset <= i64::MAX as u64)
            .then_some(entry)
    }

    /// Physical offset of the record's end.
    pub fn end(self) -> u64 {
        self.physical_offset + u64::from(self.size)
    }

    /// An entry for a lost message, which leads to a damaged part of the log.
    pub(crate) fn leading_nowhere(physical_offset: u64) -> Self {
        Self { physical_offset, size: 1, tag_hash: 0 }
    }

    /// Whether the message is lost: no record has this size.
    pub(crate) fn leads_nowhere(self) -> bool {
        self.size < MIN_RECORD_LEN
    }

    /// Whether the entry leads to no record.
    pub fn is_filler(self) -> bool {
        self.size == FILLER_SIZE
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_entry_comes_back_as_written(physical_offset in 0..=i64::MAX as u64, size in 1..FILLER_SIZE, tag_hash in any::<i64>()) {
            let entry = QueueEntry { physical_offset, size, tag_hash };
            prop_assert_eq!(QueueEntry::decode(&entry.encode()), Some(entry));
        }

        #[test]
        fn decoding_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = QueueEntry::decode(&bytes);
        }
    }
}
