//! The checkpoint file: how far the log and its derived files are known to be durable.
//!
//! 4,096 bytes, the first 40 used, as in RocketMQ.

use std::path::Path;

use parking_lot::Mutex;

use crate::{
    error::{IoResult, Result},
    files::{
        disk::{Allocation, Disk},
        mapped_file::MappedFile,
    },
};

const LEN: u64 = 4096;
const FIELDS: usize = 40;

/// The fields of the file. Timestamps are store timestamps of messages, milliseconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckpointMarks {
    /// Messages stored up to here are durable in the commit log.
    pub log_timestamp: i64,
    /// … and in the consume queues.
    pub queues_timestamp: i64,
    /// Index files that end here are complete and durable.
    pub index_timestamp: i64,
    /// What the master had flushed when a slave last heard of it; kept as found.
    pub master_flushed_offset: i64,
    /// End of the durable and dispatched log. RocketMQ keeps its confirm offset here: the start of the log's last
    /// record when its broker started.
    pub durable_end: i64,
}

impl CheckpointMarks {
    fn encode(self) -> [u8; FIELDS] {
        let mut bytes = [0; FIELDS];
        let fields = [
            self.log_timestamp,
            self.queues_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.durable_end,
        ];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_be_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; FIELDS]) -> Self {
        let mut fields = bytes.as_chunks::<8>().0.iter().map(|field| i64::from_be_bytes(*field).max(0));
        let mut next = || fields.next().unwrap_or(0);
        Self {
            log_timestamp: next(),
            queues_timestamp: next(),
            index_timestamp: next(),
            master_flushed_offset: next(),
            durable_end: next(),
        }
    }

    /// Decodes the marks of a file; `None` if it is too short.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk::<FIELDS>().map(Self::decode)
    }

    /// Recovery need not walk before a file that begins with a message stored up to here. RocketMQ's margin: its
    /// timestamps may run a little ahead of its disk.
    pub(crate) fn walk_from_timestamp(self) -> i64 {
        (self.log_timestamp.min(self.queues_timestamp) - 3000).max(0)
    }
}

/// The open checkpoint file.
pub(crate) struct Checkpoint<D: Disk> {
    file: MappedFile<D::Region>,
    marks: Mutex<CheckpointMarks>,
}

impl<D: Disk> Checkpoint<D> {
    /// Opens the checkpoint of a store directory; creates it if it does not exist. One of another length was never
    /// complete: it is replaced by an empty one.
    pub(crate) fn open(disk: &D, root: &Path) -> Result<Self> {
        let path = root.join("checkpoint");
        let found = disk.len(&path).if_found().or_io("open", &path)?;
        if found != Some(LEN) {
            if let Some(len) = found {
                tracing::warn!(file = %path.display(), len, "checkpoint has a wrong length: its marks are ignored");
            }
            // Created with its full length: an empty file cannot be mapped.
            disk.replace_file(&path, &[0; LEN as usize]).or_io("open", &path)?;
        }
        let region = disk.open(&path, Allocation::Sparse).or_io("open", &path)?;
        let file = MappedFile::new(0, path, region);
        let mut bytes = [0; FIELDS];
        file.read_into(0, &mut bytes)?;
        Ok(Self { file, marks: Mutex::new(CheckpointMarks::decode(&bytes)) })
    }

    pub(crate) fn marks(&self) -> CheckpointMarks {
        *self.marks.lock()
    }

    /// Applies `change` to the marks, writes and flushes them.
    pub(crate) fn update(&self, change: impl FnOnce(&mut CheckpointMarks)) -> Result<()> {
        let mut marks = self.marks.lock();
        let mut changed = *marks;
        change(&mut changed);
        if changed == *marks {
            return Ok(());
        }
        self.file.write(0, &[&changed.encode()])?;
        self.file.flush(0..LEN)?;
        *marks = changed;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_back_as_written() {
        let marks = CheckpointMarks {
            log_timestamp: 1,
            queues_timestamp: 2,
            index_timestamp: 3,
            master_flushed_offset: 4,
            durable_end: 5,
        };
        assert_eq!(CheckpointMarks::decode(&marks.encode()), marks);
        assert_eq!(marks.encode()[32..], 5i64.to_be_bytes());
    }
}
