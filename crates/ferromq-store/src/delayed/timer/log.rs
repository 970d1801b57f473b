//! RocketMQ's `timerlog/`: units of 52 bytes, one for each message put into the wheel, chained backwards by slot.
//!
//! Big-endian: size 52, place of the unit before it in its slot or -1, magic, time of the putting, milliseconds from there
//! to the due time, physical offset and size of the message, hash of its topic, and 8 bytes RocketMQ reserves, where we put the due time. A file whose rest takes no
//! unit ends with a blank one. What the due time means is `state`'s business.

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
/// Size, place before, magic.
const BLANK: usize = 16;
const BLANK_MAGIC: i32 = -875_286_124;
const DEFAULT: i32 = 1;
const ROLL: i32 = 2;
const DELETE: i32 = 4;
/// Bits RocketMQ takes for a magic.
const KNOWN: i32 = 0xF;

/// One unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) before: Option<u64>,
    pub(crate) magic: i32,
    pub(crate) written_at: i64,
    /// The begin of the span of the unit's slot, milliseconds since 1970.
    pub(crate) time: i64,
    pub(crate) physical_offset: u64,
    pub(crate) size: u32,
    pub(crate) topic_hash: i32,
    /// When the message is due to the millisecond; RocketMQ, which reserves these bytes, leaves them 0.
    pub(crate) due: i64,
}

impl Unit {
    pub(crate) fn magic(is_rolled: bool, is_delete: bool) -> i32 {
        DEFAULT | if is_rolled { ROLL } else { 0 } | if is_delete { DELETE } else { 0 }
    }

    /// The message is stored anew on its way, whatever it is.
    pub(crate) fn is_rolled(&self) -> bool {
        self.magic & ROLL != 0
    }

    /// The message takes another one back.
    pub(crate) fn is_delete(&self) -> bool {
        self.magic & DELETE != 0
    }

    /// Its bytes; `None` for a time that is more than 32 bits of milliseconds away from the putting.
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

    /// The unit in these bytes, where they begin with one.
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

/// The files in a row.
pub(crate) struct TimerLog<D: Disk> {
    files: Arc<MappedFileQueue<D>>,
    end: u64,
    flushed: u64,
}

impl<D: Disk> TimerLog<D> {
    /// Finds the files; where they end is told by [`Self::recover`].
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

    /// Where the first unit that is kept lies.
    pub(crate) fn start(&self) -> u64 {
        self.files.span().map_or(0, |span| span.start)
    }

    /// Goes over all units in order until one is not sound or `visit` says no; what follows is cut off.
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

    /// The units that were found end at `end`, by the word of whoever closed the store. Says whether that may be.
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
            // Later units of ours must not be followed by old ones.
            let written_to = file.erase(end..file.end())?;
            self.files.flush(end..written_to)?;
        }
        (self.end, self.flushed) = (end, end);
        Ok(())
    }

    /// Removes all units.
    pub(crate) fn clear(&mut self) -> Result<()> {
        self.files.clear()?;
        (self.end, self.flushed) = (0, 0);
        Ok(())
    }

    /// The unit at `at`, where there is one. Errors: `Io` where its file cannot be read now.
    pub(crate) fn read(&self, at: u64) -> Result<Option<Unit>> {
        let Some(file) = self.files.open(at)? else { return Ok(None) };
        Ok(Unit::decode(&file.copy::<UNIT>(at)?))
    }

    /// Where the next unit goes; a blank is written where it does not fit into the file.
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

    /// Appends a unit at the place [`Self::next_place`] told.
    pub(crate) fn append(&mut self, unit: &Unit) -> Result<()> {
        self.files.write(self.end, &encoded(unit)?)?;
        self.end += UNIT_LEN;
        Ok(())
    }

    /// The unit at `at`, the last one, does not count.
    pub(crate) fn take_back(&mut self, at: u64) {
        self.end = at;
        self.flushed = self.flushed.min(at);
    }

    /// Where the messages lie, from `first` on, that have units.
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

    /// Writes over a unit.
    pub(crate) fn rewrite(&mut self, at: u64, unit: &Unit) -> Result<()> {
        self.files.write(at, &encoded(unit)?)?;
        self.flushed = self.flushed.min(at);
        Ok(())
    }

    /// What is to be flushed next. It counts as flushed, unless [`Self::not_flushed`] says it is not.
    pub(crate) fn begin_flush(&mut self) -> (Arc<MappedFileQueue<D>>, Range<u64>) {
        let units = self.flushed..self.end;
        self.flushed = self.end;
        (Arc::clone(&self.files), units)
    }

    pub(crate) fn not_flushed(&mut self, from: u64) {
        self.flushed = self.flushed.min(from);
    }

    /// Removes files whose messages are all in removed files of the commit log, but never the last one.
    pub(crate) fn clean(&self, log_start: u64) -> Result<()> {
        let spans = self.files.spans();
        let is_gone = |begin: u64| {
            // The next file's first message is younger than all of this one's.
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
    let (what, reason) = ("a time of delivery", "it is more than 24 days from where the clock is");
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
