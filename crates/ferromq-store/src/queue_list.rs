//! `ferromq/queues`: which consume queues there were, and how far each went, when last noted.
//!
//! Consume queues can be redone from the log, but a queue whose files are gone looks like one that never was.
//! What is noted here was durable when it was written, so a queue that now has less has lost something.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{Disk, Result, StoreError};

/// Where a queue began and ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) min_offset: u64,
    pub(crate) max_offset: u64,
}

/// All queues with messages, by topic and queue id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QueueList {
    /// First byte of the log that was kept.
    pub(crate) log_start: u64,
    pub(crate) queues: BTreeMap<(Box<str>, u32), Extent>,
}

impl QueueList {
    /// Reads the list of a store directory; `None` where there is none, or none that can be read.
    pub(crate) fn load<D: Disk>(disk: &D, root: &Path) -> Result<Option<Self>> {
        let path = path(root);
        match disk.read_file(&path) {
            Ok(bytes) => Ok(Self::decode(&bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::io("read", &path, source)),
        }
    }

    pub(crate) fn save<D: Disk>(&self, disk: &D, root: &Path) -> Result<()> {
        let path = path(root);
        disk.replace_file(&path, &self.encode()).map_err(|source| StoreError::io("write", &path, source))
    }

    /// Log start; for each queue topic length 2, topic, queue id 4, min offset 8, max offset 8; a CRC32 4.
    fn encode(&self) -> Vec<u8> {
        let mut out = self.log_start.to_be_bytes().to_vec();
        for ((topic, queue_id), extent) in &self.queues {
            out.extend((topic.len() as u16).to_be_bytes());
            out.extend(topic.as_bytes());
            out.extend(queue_id.to_be_bytes());
            out.extend(extent.min_offset.to_be_bytes());
            out.extend(extent.max_offset.to_be_bytes());
        }
        out.extend(crc32fast::hash(&out).to_be_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (bytes, sum) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(bytes) != u32::from_be_bytes(*sum) {
            return None;
        }
        let (log_start, mut rest) = bytes.split_first_chunk::<8>()?;
        let mut list = Self { log_start: u64::from_be_bytes(*log_start), queues: BTreeMap::new() };
        while !rest.is_empty() {
            let (len, after) = rest.split_first_chunk::<2>()?;
            let (topic, after) = after.split_at_checked(u16::from_be_bytes(*len).into())?;
            let (queue_id, after) = after.split_first_chunk::<4>()?;
            let (min_offset, after) = after.split_first_chunk::<8>()?;
            let (max_offset, after) = after.split_first_chunk::<8>()?;
            let extent = Extent {
                min_offset: u64::from_be_bytes(*min_offset),
                max_offset: u64::from_be_bytes(*max_offset),
            };
            let topic = std::str::from_utf8(topic).ok()?;
            list.queues.insert((topic.into(), u32::from_be_bytes(*queue_id)), extent);
            rest = after;
        }
        Some(list)
    }

    /// The first queue that has less than this list says.
    pub(crate) fn lost(
        &self,
        log_start: u64,
        find: impl Fn(&str, u32) -> Option<Extent>,
    ) -> Option<(&str, u32)> {
        let is_lost = |topic: &str, queue_id, listed: &Extent| {
            find(topic, queue_id).is_none_or(|found| {
                let has_lost_begin = self.log_start == log_start && found.min_offset > listed.min_offset;
                found.max_offset < listed.max_offset || has_lost_begin
            })
        };
        let found = self.queues.iter().find(|((topic, queue_id), listed)| is_lost(topic, *queue_id, listed));
        found.map(|((topic, queue_id), _)| (&**topic, *queue_id))
    }
}

fn path(root: &Path) -> PathBuf {
    root.join("ferromq").join("queues")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_list_comes_back_as_written_and_no_part_of_it_is_taken_for_it(
            log_start in any::<u64>(),
            queues in proptest::collection::btree_map(("[a-z%]{1,9}", any::<u32>()), any::<(u64, u64)>(), 0..5),
            cut in any::<proptest::sample::Index>(),
        ) {
            let extent = |(min_offset, max_offset)| Extent { min_offset, max_offset };
            let queues = queues.into_iter().map(|((topic, id), at)| ((topic.into(), id), extent(at))).collect();
            let list = QueueList { log_start, queues };
            let bytes = list.encode();
            prop_assert_eq!(QueueList::decode(&bytes[..cut.index(bytes.len())]), None);
            prop_assert_eq!(QueueList::decode(&bytes), Some(list));
        }

        #[test]
        fn decoding_any_bytes_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = QueueList::decode(&bytes);
            bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
            let _ = QueueList::decode(&bytes);
        }
    }
}
