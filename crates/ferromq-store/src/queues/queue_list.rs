//! `ferromq/queues`: the consume queues and their extents when last noted.
//!
//! Queues can be derived again from the log, but a queue without files looks like one that never existed. The noted
//! extents were durable, so a queue that now has less has lost entries.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    error::{IoResult, Result},
    files::{
        anchor::{self, Anchor},
        disk::Disk,
    },
    record::reader::Reader,
};

const MAGIC: &[u8; 8] = b"FMQQUEU1";

/// The extent of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueExtent {
    /// First queue offset.
    pub min_offset: u64,
    /// Queue offset after the last message.
    pub max_offset: u64,
}

/// All queues with messages, by topic and queue id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueList {
    /// Start of the kept log.
    pub(crate) log_start: u64,
    /// Index files by name, each with the physical offset of its last record.
    pub(crate) indexes: BTreeMap<u64, u64>,
    /// Extents by topic and queue ID.
    pub queues: BTreeMap<(Box<str>, u32), QueueExtent>,
}

impl QueueList {
    /// Reads the list of a store directory and the record at which it was noted; `None` if it is missing or unreadable.
    pub(crate) fn load<D: Disk>(disk: &D, root: &Path) -> Result<Option<(Anchor, Self)>> {
        let path = path(root);
        let Some(bytes) = disk.read_file(&path).if_found().or_io("read", &path)? else { return Ok(None) };
        match Self::read(&bytes) {
            Ok(list) => Ok(Some(list)),
            Err(reason) => {
                tracing::warn!(file = %path.display(), reason, "list of queues ignored");
                Ok(None)
            }
        }
    }

    pub(crate) fn save<D: Disk>(&self, disk: &D, root: &Path, anchor: Anchor) -> Result<()> {
        let path = path(root);
        let bytes = anchor::seal(MAGIC, anchor, &self.encode());
        disk.replace_file(&path, &bytes).or_io("write", &path)
    }

    /// Log start 8; number of index files 4, each with its name 8 and the physical offset of its last record 8; each
    /// queue with topic length 2, topic, queue ID 4, min offset 8, max offset 8.
    fn encode(&self) -> Vec<u8> {
        let mut out = self.log_start.to_be_bytes().to_vec();
        out.extend((self.indexes.len() as u32).to_be_bytes());
        for (name, end) in &self.indexes {
            out.extend(name.to_be_bytes());
            out.extend(end.to_be_bytes());
        }
        for ((topic, queue_id), extent) in &self.queues {
            out.extend((topic.len() as u16).to_be_bytes());
            out.extend(topic.as_bytes());
            out.extend(queue_id.to_be_bytes());
            out.extend(extent.min_offset.to_be_bytes());
            out.extend(extent.max_offset.to_be_bytes());
        }
        out
    }

    /// Decodes the list and the record at which it was noted. Errors: the broken rule.
    pub fn read(bytes: &[u8]) -> std::result::Result<(Anchor, Self), &'static str> {
        let (anchor, content) = anchor::unseal(MAGIC, bytes)?;
        Ok((anchor, Self::decode(content).ok_or("it is truncated")?))
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let (log_start, count) = (reader.u64()?, reader.u32()?);
        let mut list = Self { log_start, ..Self::default() };
        for _ in 0..count {
            list.indexes.insert(reader.u64()?, reader.u64()?);
        }
        while !reader.is_empty() {
            let topic = std::str::from_utf8(reader.short_bytes()?).ok()?;
            let queue_id = reader.u32()?;
            let extent = QueueExtent { min_offset: reader.u64()?, max_offset: reader.u64()? };
            list.queues.insert((topic.into(), queue_id), extent);
        }
        Some(list)
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
        fn a_list_comes_back_as_written(
            log_start in any::<u64>(),
            indexes in proptest::collection::btree_map(any::<u64>(), any::<u64>(), 0..3),
            queues in proptest::collection::btree_map(("[a-z%]{1,9}", any::<u32>()), any::<(u64, u64)>(), 0..5),
        ) {
            let extent = |(min_offset, max_offset)| QueueExtent { min_offset, max_offset };
            let queues = queues.into_iter().map(|((topic, id), at)| ((topic.into(), id), extent(at))).collect();
            let list = QueueList { log_start, indexes, queues };
            prop_assert_eq!(QueueList::decode(&list.encode()), Some(list));
        }

        #[test]
        fn decoding_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = QueueList::decode(&bytes);
        }
    }
}
