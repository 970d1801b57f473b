//! RocketMQ's file `timerwheel`: for each span of time, the first and last unit of its chain in the timer log.
//!
//! Slots of 32 bytes, big-endian. A slot's place is its time, in spans, modulo the number of slots. The wheel is
//! derived from the timer log.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::checkpoint_files::{PRECISION_NAME, decode_precision};
use crate::{
    error::{IoResult, Result},
    files::{
        disk::{Allocation, Disk},
        mapped_file::MappedFile,
    },
};

const SLOT: usize = 32;
const SLOT_LEN: u64 = SLOT as u64;
/// Fewer slots leave no gap between the furthest filled slot and half the wheel.
const MIN_HALF: u64 = 63;
/// Slots checked at once, and in one call.
const STEP: u64 = 2048;
const LOOK: i64 = 64 * STEP as i64;

/// One slot: the chain of units whose messages are due in its span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WheelSlot {
    /// Milliseconds since 1970 at which the span begins.
    pub(crate) time: i64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Messages, less the recalls.
    pub(crate) count: i32,
}

impl WheelSlot {
    fn encode(self, precision: i64) -> [u8; SLOT] {
        let mut bytes = [0; SLOT];
        let (time, rest) = bytes.split_at_mut(8);
        time.copy_from_slice(&(self.time / precision).to_be_bytes());
        let (first, rest) = rest.split_at_mut(8);
        first.copy_from_slice(&self.first.to_be_bytes());
        let (last, rest) = rest.split_at_mut(8);
        last.copy_from_slice(&self.last.to_be_bytes());
        let (count, _) = rest.split_at_mut(4);
        count.copy_from_slice(&self.count.to_be_bytes());
        bytes
    }

    /// The slot in 32 bytes; `None` if it is unused.
    pub(crate) fn decode(bytes: &[u8], precision: i64) -> Option<Self> {
        let (time, rest) = bytes.split_first_chunk::<8>()?;
        let (first, rest) = rest.split_first_chunk::<8>()?;
        let (last, rest) = rest.split_first_chunk::<8>()?;
        let (count, _) = rest.split_first_chunk::<4>()?;
        let time = i64::from_be_bytes(*time).checked_mul(precision).filter(|time| *time > 0)?;
        // RocketMQ writes -1 for none.
        let last = u64::try_from(i64::from_be_bytes(*last)).ok()?;
        Some(Self { time, first: u64::from_be_bytes(*first), last, count: i32::from_be_bytes(*count) })
    }
}

fn precision_path(root: &Path) -> PathBuf {
    root.join("ferromq").join(PRECISION_NAME)
}

/// The span of a slot in milliseconds, recorded when we made the wheel, because the file does not hold it. `None` if
/// unknown.
pub(crate) fn noted_precision<D: Disk>(disk: &D, root: &Path) -> Result<Option<i64>> {
    let path = precision_path(root);
    let bytes = disk.read_file(&path).if_found().or_io("read", &path)?;
    Ok(bytes.and_then(|bytes| decode_precision(&bytes).ok()))
}

fn note_precision<D: Disk>(disk: &D, root: &Path, precision: i64) -> Result<()> {
    let path = precision_path(root);
    disk.replace_file(&path, &precision.to_be_bytes()).or_io("write", &path)
}

/// The outcome of a search for the next used slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looked {
    Found(WheelSlot),
    Nothing,
    /// None before this time; the search continues there.
    Until(i64),
}

pub(crate) struct Wheel<D: Disk> {
    file: Arc<MappedFile<D::Region>>,
    precision: i64,
    slots: u64,
}

impl<D: Disk> Wheel<D> {
    pub(crate) fn path(root: &Path) -> PathBuf {
        root.join("timerwheel")
    }

    /// Opens the file if its length is valid. The length gives the number of slots.
    pub(crate) fn open(disk: &D, root: &Path, precision: i64) -> Result<Option<Self>> {
        let path = Self::path(root);
        let Some(len) = disk.len(&path).if_found().or_io("open", &path)? else { return Ok(None) };
        if len < 2 * MIN_HALF * SLOT_LEN || len % (2 * SLOT_LEN) != 0 {
            tracing::warn!(file = %path.display(), len, "timer wheel has an invalid length: rebuilt");
            return Ok(None);
        }
        let region = disk.open(&path, Allocation::Sparse).or_io("open", &path)?;
        let file = Arc::new(MappedFile::new(0, path, region));
        let slots = file.len() / SLOT_LEN;
        Ok(Some(Self { file, precision, slots }))
    }

    /// Replaces the file with an empty one of twice `half` slots.
    pub(crate) fn make(disk: &D, root: &Path, precision: i64, half: u32) -> Result<Self> {
        let (path, staged) = (Self::path(root), root.join("ferromq").join("timerwheel.new"));
        disk.remove(&staged).if_found().or_io("create", &path)?;
        let slots = u64::from(half) * 2;
        let region = disk.create(&staged, slots * SLOT_LEN, Allocation::Sparse).or_io("create", &path)?;
        note_precision(disk, root, 0)?;
        disk.rename(&staged, &path).and_then(|()| disk.sync_dir(root)).or_io("create", &path)?;
        note_precision(disk, root, precision)?;
        Ok(Self { file: Arc::new(MappedFile::new(0, path, region)), precision, slots })
    }

    pub(crate) fn half(&self) -> u32 {
        (self.slots / 2) as u32
    }

    /// The time that the wheel covers. Messages further apart share slots.
    pub(crate) fn span_ms(&self) -> i64 {
        self.slots.cast_signed() * self.precision
    }

    fn place(&self, time: i64) -> u64 {
        (time.div_euclid(self.precision)).rem_euclid(self.slots.cast_signed()).cast_unsigned() * SLOT_LEN
    }

    /// The slot of the span that begins at `time`, if it is used.
    pub(crate) fn get(&self, time: i64) -> Option<WheelSlot> {
        let at = self.place(time);
        let bytes = self.file.copy::<SLOT>(at).ok()?;
        WheelSlot::decode(&bytes, self.precision).filter(|slot| slot.time == time)
    }

    pub(crate) fn put(&self, slot: WheelSlot) -> Result<()> {
        self.file.write(self.place(slot.time), &[&slot.encode(self.precision)])
    }

    pub(crate) fn blank(&self, time: i64) -> Result<()> {
        self.file.write(self.place(time), &[&[0; SLOT]])
    }

    /// Searches for the first used slot whose span begins at `from` or later and before `end`. Checks a bounded number
    /// of slots, in under a millisecond.
    pub(crate) fn look(&self, from: i64, end: i64) -> Looked {
        let stop = end.min(from.saturating_add(LOOK.saturating_mul(self.precision)));
        match self.next_before(from, stop) {
            Some(slot) => Looked::Found(slot),
            None if stop >= end => Looked::Nothing,
            None => Looked::Until(stop),
        }
    }

    /// The first used slot whose span begins at `from` or later and before `end`, within one round.
    fn next_before(&self, from: i64, end: i64) -> Option<WheelSlot> {
        let begin = self.place(from);
        let round = self.slots * SLOT_LEN;
        let wanted = u64::try_from((end - from).div_euclid(self.precision)).unwrap_or(0).min(self.slots);
        let stop = begin + wanted * SLOT_LEN;
        let spans = |place: u64| (place / SLOT_LEN).cast_signed() * self.precision;
        self.next_in(begin, stop.min(round), from - spans(begin))
            .or_else(|| self.next_in(0, stop.saturating_sub(round), from - spans(begin) + self.span_ms()))
    }

    /// The first used slot whose span begins at `from` or later, within one round.
    pub(crate) fn next(&self, from: i64) -> Option<WheelSlot> {
        self.next_before(from, from + self.span_ms())
    }

    /// The first used slot between two places; the span of place 0 begins at `base`.
    fn next_in(&self, from: u64, to: u64, base: i64) -> Option<WheelSlot> {
        let mut at = from;
        while at < to {
            // Holes of the file hold no slots.
            let data = self.file.next_data(at) / SLOT_LEN * SLOT_LEN;
            at = at.max(data);
            let hole = self.file.next_hole(at).next_multiple_of(SLOT_LEN).max(at + SLOT_LEN);
            let stop = to.min(at + STEP * SLOT_LEN).min(hole);
            for bytes in self.file.read(at..stop.max(at)).chunks_exact(SLOT) {
                let time = base + (at / SLOT_LEN).cast_signed() * self.precision;
                let slot = WheelSlot::decode(bytes, self.precision).filter(|slot| slot.time == time);
                if slot.is_some() {
                    return slot;
                }
                at += SLOT_LEN;
            }
        }
        None
    }

    pub(crate) fn count(&self, from: i64) -> i64 {
        let (mut at, mut count) = (from, 0);
        while let Some(slot) = self.next(at).filter(|slot| slot.time < from + self.span_ms()) {
            count += i64::from(slot.count);
            at = slot.time + self.precision;
            if at >= from + self.span_ms() {
                break;
            }
        }
        count
    }

    pub(crate) fn file(&self) -> Arc<MappedFile<D::Region>> {
        Arc::clone(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::real_disk::RealDisk;

    #[test]
    fn one_search_checks_a_bounded_number_of_slots_and_all_searches_cover_the_wheel() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("ferromq")).unwrap();
        let wheel = Wheel::make(&RealDisk, root.path(), 1_000, 200_000).unwrap();
        // Starts in the middle, so that the search wraps around.
        let from = 1_700_000_000_000;
        let end = from + wheel.span_ms();
        let all = |from: i64| {
            let mut looks = vec![wheel.look(from, end)];
            while let Some(&Looked::Until(time)) = looks.last() {
                looks.push(wheel.look(time, end));
            }
            looks
        };
        let until = |looks: i64| Looked::Until(from + looks * LOOK * 1_000);
        assert_eq!(all(from), [until(1), until(2), until(3), Looked::Nothing]);
        for seconds in [0, 1, 131_071, 131_072, 300_000, 399_999] {
            let slot = WheelSlot { time: from + seconds * 1_000, first: 7, last: 7, count: 1 };
            wheel.put(slot).unwrap();
            let looks = all(from);
            assert_eq!((looks.last(), looks.len() as i64), (Some(&Looked::Found(slot)), seconds / LOOK + 1));
            assert_eq!(wheel.next(from), Some(slot));
            wheel.blank(slot.time).unwrap();
        }
    }
}
