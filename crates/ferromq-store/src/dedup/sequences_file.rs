//! `ferromq/sequences`: a snapshot of the numbered messages, and how it is restored at open.
//!
//! ```text
//! content     between anchor and checksum, see `anchor`; magic "FMQSEQU1"
//! 8  end of the log that the snapshot covers; all of it is on disk
//! 4  number of names; each  2+n  name of a writer or topic
//! each entry: 4 writer  4 topic (indexes of names)  4 partition  4 queue id  8 epoch  8 row  8 store timestamp
//! ```
//! At open, records behind that end are replayed; if the log is not the snapshot's, all records within the window.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use crate::{
    dedup::writers::Dedup,
    dedup::{
        sequence::Numbered,
        writers::{HighestRow, SequenceTable, WriterKey, WriterNames},
    },
    error::{IoResult, Result},
    files::store_directory::StoreDirectory,
    files::{
        anchor::{self, Anchor},
        disk::Disk,
        mapped_file_queue::MappedFileQueue,
    },
    log::commit_log::CommitLog,
    log::damage::{Damage, DamageReason},
    queues::queue_table::ConsumeQueues,
    record::{
        message::{self, MessageView},
        reader::Reader,
    },
    recovery::log_walk::find_record,
    time::clock::Clock,
};

const MAGIC: &[u8; 8] = b"FMQSEQU1";
/// Bytes of the log that may be replayed after a crash, besides older log files.
const REPLAYED_BYTES: u64 = 64 << 20;

fn path(root: &Path) -> PathBuf {
    root.join("ferromq").join("sequences")
}

fn encode(table: &SequenceTable, end: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + table.rows.len() * 40);
    out.extend(end.to_be_bytes());
    out.extend((table.names.texts.len() as u32).to_be_bytes());
    for name in &table.names.texts {
        out.extend((name.len() as u16).to_be_bytes());
        out.extend(name.as_bytes());
    }
    for (WriterKey { writer, topic, partition, queue_id }, HighestRow { epoch, row, at_ms }) in
        table.rows.iter()
    {
        [writer, topic, partition, queue_id].iter().for_each(|number| out.extend(number.to_be_bytes()));
        out.extend(epoch.to_be_bytes());
        out.extend(row.to_be_bytes());
        out.extend(at_ms.to_be_bytes());
    }
    out
}

/// Decodes a snapshot: its anchor, the end of the log at the time, and the table.
pub(crate) fn read(bytes: &[u8]) -> std::result::Result<(Anchor, u64, SequenceTable), &'static str> {
    let (anchor, content) = anchor::unseal(MAGIC, bytes)?;
    let (end, table) = decode(content).ok_or("the table is truncated, or an entry has no name")?;
    Ok((anchor, end, table))
}

fn decode(bytes: &[u8]) -> Option<(u64, SequenceTable)> {
    let mut reader = Reader::new(bytes);
    let (end, count) = (reader.u64()?, reader.u32()?);
    let mut names = WriterNames::default();
    for number in 0..count {
        if names.number(std::str::from_utf8(reader.short_bytes()?).ok()?) != number {
            return None;
        }
    }
    let known = names.texts.len();
    let mut table = SequenceTable::of(names);
    while !reader.is_empty() {
        let (writer, topic) = (reader.u32()?, reader.u32()?);
        if writer as usize >= known || topic as usize >= known {
            return None;
        }
        let key = WriterKey { writer, topic, partition: reader.u32()?, queue_id: reader.u32()? };
        let highest = HighestRow { epoch: reader.u64()?, row: reader.u64()?, at_ms: reader.i64()? };
        table.put(key, highest);
    }
    Some((end, table))
}

/// Saves and restores the snapshot of numbered messages.
pub(crate) struct SequencesFile<D: Disk> {
    pub(crate) home: Arc<StoreDirectory<D>>,
    pub(crate) clock: Clock,
    pub(crate) log: Arc<CommitLog<D>>,
    pub(crate) queues: Arc<ConsumeQueues<D>>,
    pub(crate) dedup: Arc<Dedup>,
}

impl<D: Disk> SequencesFile<D> {
    /// Writes the snapshot if it is due. `anchor` is a record on disk.
    pub(crate) fn save(&self, anchor: Anchor, is_closing: bool) -> Result<()> {
        let stepped_ms = self.clock.stepped_ms();
        let end = {
            let tail = self.log.tail.lock();
            let saved_to = self.dedup.saved_to();
            let behind = tail.end.saturating_sub(saved_to);
            // Retention could not delete the file that holds messages outside the snapshot.
            let is_in_older_file = tail.file_begin() > saved_to;
            let is_needed = behind >= REPLAYED_BYTES || is_in_older_file || is_closing && behind > 0;
            if !is_needed && !self.dedup.is_stepped(stepped_ms) && !self.dedup.trouble.is_failing() {
                return Ok(());
            }
            tail.end
        };
        let path = path(&self.home.root);
        if !is_closing {
            self.dedup.trouble.check(&path)?;
        }
        let began = Instant::now();
        let written = self.write_snapshot(&path, anchor, end, stepped_ms);
        self.dedup.trouble.note(&path, began, &written, "the snapshot of numbered messages");
        written
    }

    fn write_snapshot(&self, path: &Path, anchor: Anchor, end: u64, stepped_ms: i64) -> Result<()> {
        let mut table = self.dedup.copy(|| self.log.tail.lock());
        if self.log.flushed() < self.log.written() {
            // A snapshot must not cover a message that a crash can lose, and the copy may cover messages appended
            // meanwhile.
            self.log.flush()?;
        }
        table.purge(self.dedup.horizon(self.clock.steady_ms()));
        table.move_times(i64::MAX, stepped_ms);
        let bytes = anchor::seal(MAGIC, anchor, &encode(&table, end));
        self.home.disk.replace_file(path, &bytes).or_io("write", path)?;
        self.dedup.set_saved(end, stepped_ms);
        Ok(())
    }

    /// Whether a log file must stay because it may hold numbered messages within the window that the snapshot lacks.
    /// `last_ms` is an upper bound of its last store timestamp.
    pub(crate) fn needs(&self, end: u64, last_ms: i64) -> bool {
        end > self.dedup.saved_to()
            && self.dedup.entries() > 0
            && last_ms >= self.dedup.horizon(self.clock.steady_ms())
    }

    /// The path and error of a snapshot that cannot be written.
    pub(crate) fn damage(&self) -> Option<Damage> {
        let range = self.dedup.saved_to()..self.log.written();
        let damage = |file| Damage { file, range, reason: DamageReason::Unwritten };
        self.dedup.trouble.is_failing().then(|| damage(path(&self.home.root)))
    }

    /// Makes the next [`Self::save`] write the snapshot, because entries in it were dropped.
    pub(crate) fn forget_saved(&self) {
        self.dedup.set_saved(0, self.clock.stepped_ms());
    }

    /// Restores the table after the log is recovered.
    pub(crate) fn load(&self) -> Result<()> {
        let (files, end) = (self.log.files(), self.log.written());
        let found = self.read_snapshot()?;
        let is_found = found.is_some();
        let found = found.filter(|(anchor, to, _)| *to <= end && anchor.is_held_by(files));
        if is_found && found.is_none() {
            // The growing log could later match the stale snapshot's anchor.
            let path = path(&self.home.root);
            self.home.disk.remove(&path).or_io("remove", &path)?;
        }
        let (saved_to, mut table) = found.map_or((0, SequenceTable::default()), |(_, to, table)| (to, table));
        let (now_ms, stepped_ms) = (self.clock.now_ms(), self.clock.stepped_ms());
        let horizon_ms = self.dedup.horizon(now_ms);
        let from = if saved_to > 0 { saved_to } else { young_from(files, horizon_ms)? };
        self.replay(from.max(self.log.start()), end, &mut table)?;
        table.purge(horizon_ms);
        table.move_times(now_ms, -stepped_ms);
        self.dedup.begin(table, saved_to, stepped_ms);
        Ok(())
    }

    fn read_snapshot(&self) -> Result<Option<(Anchor, u64, SequenceTable)>> {
        let path = path(&self.home.root);
        let Some(bytes) = self.home.disk.read_file(&path).if_found().or_io("read", &path)? else {
            return Ok(None);
        };
        let warn = |reason: &&str| {
            tracing::warn!(file = %path.display(), reason, "sequence snapshot ignored: reading the log instead");
        };
        Ok(read(&bytes).inspect_err(warn).ok())
    }

    fn replay(&self, from: u64, end: u64, table: &mut SequenceTable) -> Result<()> {
        let mut at = from;
        while at < end {
            if let Some(damage) = self.log.damages.at(at) {
                at = damage.end;
                continue;
            }
            let limit = self.log.damages.overlapping(&(at..end)).map_or(end, |damage| damage.start);
            let walked = self.log.walk(at..limit, |_, record| {
                if let Ok(view) = MessageView::decode(record, false)
                    && let Ok(Some(numbered)) = Numbered::of(view.topic, view.queue_id, view.properties)
                    && !self.queues.is_of_deleted(&view)
                {
                    let horizon_ms = self.dedup.horizon(view.store_timestamp);
                    table.note(&numbered, view.store_timestamp, horizon_ms);
                }
                Ok::<(), Infallible>(())
            });
            let Ok(stop) = walked;
            at = stop;
            if at < limit {
                // Damage in records that recovery did not read.
                at = find_record(self.log.files(), at + 1..limit, u64::MAX)?.unwrap_or(limit);
            }
        }
        Ok(())
    }
}

/// Start of the first file that may hold records stored at or after `horizon_ms`.
fn young_from<D: Disk>(files: &MappedFileQueue<D>, horizon_ms: i64) -> Result<u64> {
    let spans = files.spans();
    for span in spans.iter().rev() {
        let Some(file) = files.open(span.start)? else { continue };
        let first = message::store_timestamp(file.read(span.start..file.end()));
        if first.is_some_and(|first| first > 0 && first < horizon_ms) {
            return Ok(span.start);
        }
    }
    Ok(spans.first().map_or(0, |span| span.start))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dedup::sequence::Sequence;

    fn table_of(entries: &[(String, u32, u64, u64, i64)]) -> SequenceTable {
        let mut table = SequenceTable::default();
        for (writer, partition, epoch, row, at_ms) in entries {
            let sequence = Sequence { writer, partition: *partition, epoch: *epoch, row: *row };
            table.note(&Numbered { sequence, topic: "orders", queue_id: partition % 4 }, *at_ms, i64::MIN);
        }
        table
    }

    type Named = (Arc<str>, Arc<str>, u32, u32, u64, u64, i64);

    fn named(table: &SequenceTable) -> Vec<Named> {
        let name = |number: u32| Arc::clone(&table.names.texts[number as usize]);
        let mut rows: Vec<_> = table
            .rows
            .iter()
            .map(|(k, h)| (name(k.writer), name(k.topic), k.partition, k.queue_id, h.epoch, h.row, h.at_ms))
            .collect();
        rows.sort();
        rows
    }

    proptest! {
        #[test]
        fn a_snapshot_is_read_as_it_was_written_and_no_part_of_one_is(
            entries in prop::collection::vec(("[a-c]{1,2}", 0..4u32, any::<u64>(), any::<u64>(), any::<i64>()), 0..9),
            end in any::<u64>(), cut in any::<prop::sample::Index>(),
        ) {
            let table = table_of(&entries);
            let anchor = Anchor { physical_offset: 1, store_timestamp: 2, body_crc: 3 };
            let bytes = anchor::seal(MAGIC, anchor, &encode(&table, end));
            let (read_anchor, read_end, again) = read(&bytes).unwrap();
            prop_assert_eq!((read_anchor, read_end, named(&again)), (anchor, end, named(&table)));
            prop_assert!(read(&bytes[..cut.index(bytes.len())]).is_err());
        }

        #[test]
        fn any_bytes_are_a_snapshot_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = read(&bytes);
            let _ = decode(&bytes);
        }

        #[test]
        fn what_is_out_of_the_window_goes_with_its_names_and_the_rest_stays(
            entries in prop::collection::vec(("[a-e]", 0..4u32, 0..9u64, 0..9u64, 0..100i64), 0..30), horizon in 0..100i64,
        ) {
            let mut table = table_of(&entries);
            let young: Vec<_> = named(&table).into_iter().filter(|entry| entry.6 >= horizon).collect();
            table.purge(horizon);
            prop_assert_eq!(named(&table), young);
        }
    }
}
