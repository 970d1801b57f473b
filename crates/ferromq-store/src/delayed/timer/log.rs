//! RocketMQ's `timerlog/`: units of 52 bytes, one for each message in the wheel, chained backwards by slot.
//!
//! Big-endian: size 52, place of the previous unit in its slot or -1, magic, time of entry, milliseconds from entry to
//! the due time, physical offset and size of the message, hash of its topic, and 8 bytes that RocketMQ reserves, where
//! we put the exact due time. A blank unit fills the end of a file that has no room for a unit.

use std::{collections::HashSet, ops::Range, path::Path, sync::Arc};

use crate::{
    error::{Result, StoreError},
    files::{
        directories::{DirectoryNames, FileDirectories},
        disk::{Allocation, Disk},
        mapped_file_queue::{FileFormat, MappedFileQueue},
        open_files::{FileKind, OpenFiles},
    },
    record::reader::Reader,
};

pub(crate) const UNIT: usize = 52;
const UNIT_LEN: u64 = UNIT as u64;
/// Size, place of the previous unit, magic.
const BLANK: usize = 16;
const BLANK_MAGIC: i32 = -875_286_124;
const DEFAULT: i32 = 1;
const ROLL: i32 = 2;
const DELETE: i32 = 4;
/// The bits of a magic that RocketMQ accepts.
const KNOWN: i32 = 0xF;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) before: Option<u64>,
    pub(crate) magic: i32,
    pub(crate) written_at: i64,
    /// Begin of the slot's span, milliseconds since 1970.
    pub(crate) time: i64,
    pub(crate) physical_offset: u64,
    pub(crate) size: u32,
    pub(crate) topic_hash: i32,
    /// The exact due time in milliseconds. RocketMQ reserves these bytes and writes 0.
    pub(crate) due: i64,
}

impl Unit {
    pub(crate) fn magic(is_rolled: bool, is_delete: bool) -> i32 {
        DEFAULT | if is_rolled { ROLL } else { 0 } | if is_delete { DELETE } else { 0 }
    }

    /// Whether the unit's message must be stored again on its way.
    pub(crate) fn is_rolled(&self) -> bool {
        self.magic & ROLL != 0
    }

    /// Whether the message recalls another one.
    pub(crate) fn is_delete(&self) -> bool {
        self.magic & DELETE != 0
    }

    /// Its bytes; `None` if the delay does not fit into 32 bits of milliseconds.
    pub(crate) fn encode(&self) -> Option<[u8; UNIT]> {
        let mut out = [0; UNIT];
        let before = self.before.map_or(-1, u64::cast_signed);
        let delay = i32::try_from(self.time.checked_sub(self.written_at)?).ok()?;
        let parts: [&[u8]; 9] = [
            &(UNIT as i32).to_be_bytes(),
            &before.to_be_bytes(),
            &self.magic.to_be_bytes(),
            &self.written_at.to_be_bytes(),
            &delay.to_be_bytes(),
            &self.physical_offset.to_be_bytes(),
            &self.size.to_be_bytes(),
            &self.topic_hash.to_be_bytes(),
            &self.due.to_be_bytes(),
        ];
        let mut at = 0;
        for part in parts {
            if let Some(place) = out.get_mut(at..at + part.len()) {
                place.copy_from_slice(part);
            }
            at += part.len();
        }
        Some(out)
    }

    /// The unit at the beginning of these bytes, if there is one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let (size, before, magic, written_at) = (reader.i32()?, reader.i64()?, reader.i32()?, reader.i64()?);
        let (delay, physical_offset, message_size) = (reader.i32()?, reader.i64()?, reader.i32()?);
        if size != UNIT as i32 || magic & !KNOWN != 0 {
            return None;
        }
        Some(Self {
            before: u64::try_from(before).ok(),
            magic,
            written_at,
            time: written_at.checked_add(i64::from(delay))?,
            physical_offset: u64::try_from(physical_offset).ok()?,
            size: u32::try_from(message_size).ok()?,
            topic_hash: reader.i32()?,
            due: reader.i64()?,
        })
    }
}

pub(crate) struct TimerLog<D: Disk> {
    files: Arc<MappedFileQueue<D>>,
    end: u64,
    flushed: u64,
}

impl<D: Disk> TimerLog<D> {
    /// Opens the files. [`Self::recover`] finds their end.
    pub(crate) fn load(
        disk: &D,
        root: &Path,
        names: &Arc<DirectoryNames<D>>,
        open_files: &Arc<OpenFiles<D::Region>>,
        file_size: u64,
    ) -> Result<Self> {
        let mut files = MappedFileQueue::new(
            disk.clone(),
            FileDirectories::one(names, root.join("timerlog")),
            FileFormat { size: file_size, allocation: Allocation::Sparse, kind: FileKind::Timer },
            Arc::clone(open_files),
        );
        files.load()?;
        Ok(Self { files: Arc::new(files), end: 0, flushed: 0 })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.span().is_none()
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The place of the first unit.
    pub(crate) fn start(&self) -> u64 {
        self.files.span().map_or(0, |span| span.start)
    }

    /// Visits all units in order until one is invalid or `visit` returns `false`, and cuts off the rest.
    pub(crate) fn recover(&mut self, mut visit: impl FnMut(u64, Unit) -> Result<bool>) -> Result<()> {
        let mut end = self.start();
        'files: for span in self.files.spans() {
            if span.start != end {
                break;
            }
            let Some(file) = self.files.open(span.start)? else { break };
            loop {
                let bytes = &file.copy::<UNIT>(end)?;
                if is_blank(bytes) || end + UNIT_LEN > span.end {
                    end = span.end;
                    continue 'files;
                }
                let Some(unit) = Unit::decode(bytes) else { break 'files };
                if !visit(end, unit)? {
                    break 'files;
                }
                end += UNIT_LEN;
            }
        }
        self.cut(end)
    }

    /// Takes `end` from the checkpoint of a clean close as the end of the units. Returns whether it can be the end.
    pub(crate) fn trust(&mut self, end: u64) -> Result<bool> {
        let Some(span) = self.files.span() else { return Ok(end == 0) };
        let is_inside = (span.start..=span.end).contains(&end);
        let has_more = end < span.end && self.read(end)?.is_some();
        if !is_inside || has_more {
            return Ok(false);
        }
        (self.end, self.flushed) = (end, end);
        Ok(true)
    }

    fn cut(&mut self, end: u64) -> Result<()> {
        self.files.truncate(end)?;
        if let Some(file) = self.files.open_writable(end)? {
            // Erase old units, which must not follow new ones.
            let written_to = file.erase(end..file.end())?;
            self.files.flush(end..written_to)?;
        }
        (self.end, self.flushed) = (end, end);
        Ok(())
    }

    pub(crate) fn clear(&mut self) -> Result<()> {
        self.files.clear()?;
        (self.end, self.flushed) = (0, 0);
        Ok(())
    }

    /// The unit at `at`, if there is one. Errors: `Io` if its file cannot be read now.
    pub(crate) fn read(&self, at: u64) -> Result<Option<Unit>> {
        let Some(file) = self.files.open(at)? else { return Ok(None) };
        Ok(Unit::decode(&file.copy::<UNIT>(at)?))
    }

    /// The place of the next unit. Fills the file with a blank unit if the next does not fit.
    pub(crate) fn next_place(&mut self) -> Result<u64> {
        let size = self.files.file_size();
        let file_end = match self.files.span() {
            Some(span) if self.end < span.end => span.end,
            Some(span) => span.end + size,
            None => self.end / size * size + size,
        };
        if self.end + UNIT_LEN + BLANK as u64 > file_end {
            let mut blank = [0; BLANK];
            let (rest, others) = blank.split_at_mut(4);
            rest.copy_from_slice(&((file_end - self.end) as i32).to_be_bytes());
            let (_, magic) = others.split_at_mut(8);
            magic.copy_from_slice(&BLANK_MAGIC.to_be_bytes());
            if file_end - self.end >= BLANK as u64 {
                self.files.write(self.end, &blank)?;
            }
            self.end = file_end;
        }
        Ok(self.end)
    }

    /// Appends a unit at the place that [`Self::next_place`] returned.
    pub(crate) fn append(&mut self, unit: &Unit) -> Result<()> {
        self.files.write(self.end, &encoded(unit)?)?;
        self.end += UNIT_LEN;
        Ok(())
    }

    /// Removes the unit at `at`, which is the last one.
    pub(crate) fn take_back(&mut self, at: u64) {
        self.end = at;
        self.flushed = self.flushed.min(at);
    }

    /// The physical offsets, from `first` on, of messages that have units.
    pub(crate) fn physical_offsets_from(&self, first: u64) -> Result<HashSet<u64>> {
        let mut found = HashSet::new();
        for span in self.files.spans() {
            let Some(file) = self.files.open(span.start)? else { continue };
            let mut at = span.start;
            while let Some(unit) = Unit::decode(file.read(at..(at + UNIT_LEN).min(span.end).min(self.end))) {
                if unit.physical_offset >= first {
                    found.insert(unit.physical_offset);
                }
                at += UNIT_LEN;
            }
        }
        Ok(found)
    }

    pub(crate) fn rewrite(&mut self, at: u64, unit: &Unit) -> Result<()> {
        self.files.write(at, &encoded(unit)?)?;
        self.flushed = self.flushed.min(at);
        Ok(())
    }

    /// The next files and range to flush. They count as flushed unless [`Self::not_flushed`] is called.
    pub(crate) fn begin_flush(&mut self) -> (Arc<MappedFileQueue<D>>, Range<u64>) {
        let units = self.flushed..self.end;
        self.flushed = self.end;
        (Arc::clone(&self.files), units)
    }

    pub(crate) fn not_flushed(&mut self, from: u64) {
        self.flushed = self.flushed.min(from);
    }

    /// Removes files whose messages are all deleted from the commit log, but never the last file.
    pub(crate) fn clean(&self, log_start: u64) -> Result<()> {
        let spans = self.files.spans();
        let is_gone = |begin: u64| {
            // The first message of the next file is younger than all of this file's.
            matches!(self.read(begin), Ok(Some(unit)) if unit.physical_offset < log_start)
        };
        let kept = spans.iter().skip(1).take_while(|span| is_gone(span.start)).last();
        if let Some(span) = kept {
            self.files.remove_below(span.start)?;
        }
        Ok(())
    }
}

fn encoded(unit: &Unit) -> Result<[u8; UNIT]> {
    let (what, reason) = ("a time of delivery", "it is more than 24 days from the current time");
    unit.encode().ok_or(StoreError::Invalid { what, reason })
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.get(12..BLANK).is_some_and(|magic| magic == BLANK_MAGIC.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::names::java_hash;

    #[test]
    fn a_topic_has_the_hash_java_gives_it() {
        assert_eq!(
            (java_hash(0, ""), java_hash(0, "orders"), java_hash(0, "TopicTest")),
            (0, -1_008_770_331, -1_902_610_879)
        );
    }

    proptest! {
        #[test]
        fn a_unit_is_read_as_it_was_written(
            before in prop::option::of(0..=i64::MAX as u64), bits in 0i32..16, at in 0i64..4_000_000_000_000,
            delay in any::<i32>(), place in 0..=i64::MAX as u64, size in 0..=i32::MAX as u32,
            hash in any::<i32>(), due in any::<i64>()
        ) {
            let unit = Unit {
                before, magic: bits, written_at: at, time: at + i64::from(delay), physical_offset: place, size,
                topic_hash: hash, due,
            };
            prop_assert_eq!(unit.encode().and_then(|bytes| Unit::decode(&bytes)), Some(unit));
        }

        #[test]
        fn any_bytes_as_a_unit_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Unit::decode(&bytes);
            let _ = super::super::wheel::WheelSlot::decode(&bytes, 1000);
        }
    }
}
