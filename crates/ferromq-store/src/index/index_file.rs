//! One index file: an on-disk hash table from keys to physical offsets.
//!
//! It has a header of 40 bytes, slots of 4 and entries of 20. The slots of an unfinished file stay in memory, because
//! the entries determine them; they are written when the file is full or the store closes. `key_index` manages the
//! files and decides what to trust after a crash.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;

use crate::{
    error::Result,
    files::{disk::Region, mapped_file::MappedFile},
    record::{names::java_hash, reader::Reader},
};

/// Length of the header, in bytes.
pub const HEADER_LEN: u64 = 40;
/// Length of a hash slot, in bytes.
pub const SLOT_LEN: u64 = 4;
/// Length of an entry, in bytes.
pub const ENTRY_LEN: u64 = 20;
const ENTRY: usize = ENTRY_LEN as usize;

/// A key to add.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexKey {
    pub(crate) hash: u32,
    pub(crate) physical_offset: u64,
    pub(crate) store_timestamp: i64,
}

/// RocketMQ's hash of a topic's key: Java's hash of `topic#key`, made positive.
pub fn key_hash(topic: &str, key: &str) -> u32 {
    let hash = java_hash(java_hash(java_hash(0, topic), "#"), key);
    // Java's `abs` leaves the smallest integer negative, which then becomes 0.
    if hash == i32::MIN { 0 } else { hash.unsigned_abs() }
}

/// The first 40 bytes of an index file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexHeader {
    /// Store timestamp of the first entry, in milliseconds since 1970.
    pub begin_timestamp: i64,
    /// Store timestamp of the last entry, in milliseconds since 1970.
    pub end_timestamp: i64,
    /// Physical offset of the first entry.
    pub begin_physical_offset: u64,
    /// Physical offset of the last entry.
    pub end_physical_offset: u64,
    /// Number of hash slots with an entry.
    pub used_slots: u32,
    /// Number of entries plus one; entry 0 is never used.
    pub count: u32,
}

impl IndexHeader {
    fn encode(self) -> [u8; HEADER_LEN as usize] {
        let mut bytes = [0; HEADER_LEN as usize];
        let fields = [
            self.begin_timestamp as u64,
            self.end_timestamp as u64,
            self.begin_physical_offset,
            self.end_physical_offset,
            u64::from(self.used_slots) << 32 | u64::from(self.count),
        ];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_be_bytes());
        }
        bytes
    }

    /// Decodes a header.
    pub fn decode(bytes: &[u8; HEADER_LEN as usize]) -> Self {
        let mut fields = bytes.as_chunks::<8>().0.iter().map(|field| u64::from_be_bytes(*field));
        let mut next = || fields.next().unwrap_or(0);
        let (begin_timestamp, end_timestamp) = (next() as i64, next() as i64);
        let (begin_physical_offset, end_physical_offset, counts) = (next(), next(), next());
        Self {
            begin_timestamp,
            end_timestamp,
            begin_physical_offset,
            end_physical_offset,
            used_slots: (counts >> 32) as u32,
            count: (counts as u32).max(1),
        }
    }
}

/// An index entry: from the hash of a key to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// Hash of topic and key.
    pub hash: u32,
    /// Physical offset of the record.
    pub physical_offset: u64,
    /// Seconds since the file's begin timestamp.
    seconds: u32,
    /// The previous entry of the same slot; 0 for none.
    pub before: u32,
}

impl IndexEntry {
    fn encode_into(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.hash.to_be_bytes());
        out.extend_from_slice(&self.physical_offset.to_be_bytes());
        out.extend_from_slice(&self.seconds.to_be_bytes());
        out.extend_from_slice(&self.before.to_be_bytes());
    }

    /// Decodes an entry; `None` if `bytes` is too short.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let (hash, physical_offset) = (reader.u32()?, reader.u64()?);
        Some(Self { hash, physical_offset, seconds: reader.u32()?, before: reader.u32()? })
    }
}

/// Number of slots and entries of a file, which its length alone does not determine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexShape {
    /// Hash slots.
    pub slots: u32,
    /// Entries.
    pub entries: u32,
}

impl IndexShape {
    /// Length of a file of this shape, in bytes.
    pub fn file_len(self) -> u64 {
        HEADER_LEN + u64::from(self.slots) * SLOT_LEN + u64::from(self.entries) * ENTRY_LEN
    }

    /// The shape of an existing file: the configured one, or RocketMQ's four entries a slot.
    fn of_len(self, len: u64) -> Option<Self> {
        if len == self.file_len() {
            return Some(self);
        }
        let slots = u32::try_from(len.checked_sub(HEADER_LEN)? / (SLOT_LEN + 4 * ENTRY_LEN)).ok()?;
        let shape = Self { slots, entries: slots.checked_mul(4)? };
        (slots > 0 && shape.file_len() == len).then_some(shape)
    }

    fn slot_at(self, hash: u32) -> u64 {
        HEADER_LEN + u64::from(hash % self.slots) * SLOT_LEN
    }

    /// Position of an entry in the file.
    pub fn entry_at(self, index: u32) -> u64 {
        HEADER_LEN + u64::from(self.slots) * SLOT_LEN + u64::from(index) * ENTRY_LEN
    }
}

struct State {
    header: IndexHeader,
    /// The slots of an unfinished file, or of one whose slots on disk are not trusted.
    slots: Option<Vec<u32>>,
}

/// One index file.
pub(crate) struct IndexFile<R: Region> {
    file: MappedFile<R>,
    shape: IndexShape,
    state: Mutex<State>,
}

impl<R: Region> IndexFile<R> {
    /// Opens an existing file; `None` if its length fits neither the configured shape nor RocketMQ's.
    pub(crate) fn open(path: PathBuf, region: R, configured: IndexShape) -> Result<Option<Self>> {
        let Some(shape) = configured.of_len(region.len()) else { return Ok(None) };
        let file = MappedFile::new(0, path, region);
        let mut bytes = [0; HEADER_LEN as usize];
        file.read_into(0, &mut bytes)?;
        let state = State { header: IndexHeader::decode(&bytes), slots: None };
        Ok(Some(Self { file, shape, state: Mutex::new(state) }))
    }

    /// Creates a file that follows the file with the header `before`.
    pub(crate) fn new(path: PathBuf, region: R, shape: IndexShape, before: Option<IndexHeader>) -> Self {
        // RocketMQ copies the end of the previous file; the first entry replaces both fields.
        let mut header = IndexHeader { count: 1, ..IndexHeader::default() };
        if let Some(before) = before {
            header.begin_timestamp = before.end_timestamp;
            header.end_timestamp = before.end_timestamp;
            header.begin_physical_offset = before.end_physical_offset;
            header.end_physical_offset = before.end_physical_offset;
        }
        let slots = vec![0; shape.slots as usize];
        let state = Mutex::new(State { header, slots: Some(slots) });
        Self { file: MappedFile::new(0, path, region), shape, state }
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(crate) fn shape(&self) -> IndexShape {
        self.shape
    }

    /// Whether the memory holds changes that are not on disk.
    pub(crate) fn is_pending(&self) -> bool {
        self.state.lock().slots.is_some()
    }

    /// Whether `key` is among the entries of the newest record; `None` if all entries belong to that record.
    pub(crate) fn has_newest(&self, key: &IndexKey) -> Option<bool> {
        let newest = (1..self.header().count).rev().filter_map(|index| self.entry(index));
        for entry in newest {
            if entry.physical_offset != key.physical_offset {
                return Some(false);
            }
            if entry.hash == key.hash {
                return Some(true);
            }
        }
        None
    }

    fn entry(&self, index: u32) -> Option<IndexEntry> {
        let at = self.shape.entry_at(index);
        self.file.copy::<ENTRY>(at).ok().and_then(|bytes| IndexEntry::decode(&bytes))
    }

    /// Adds keys until the file is full and returns how many it took. Queries see them on return.
    pub(crate) fn add(&self, keys: &[IndexKey], buffer: &mut Vec<u8>) -> Result<usize> {
        let mut guard = self.state.lock();
        let State { header, slots: Some(slots) } = &mut *guard else { return Ok(0) };
        let room = self.shape.entries.saturating_sub(header.count) as usize;
        let before = *header;
        buffer.clear();
        for key in keys.iter().take(room) {
            let Some(slot) = slots.get_mut((key.hash % self.shape.slots) as usize) else { break };
            let seconds = match header.begin_timestamp {
                0 => 0,
                begin => {
                    (key.store_timestamp.saturating_sub(begin) / 1000).clamp(0, i64::from(i32::MAX)) as u32
                }
            };
            let entry =
                IndexEntry { hash: key.hash, physical_offset: key.physical_offset, seconds, before: *slot };
            entry.encode_into(buffer);
            if *slot == 0 {
                header.used_slots += 1;
            }
            *slot = header.count;
            if header.count == 1 {
                header.begin_timestamp = key.store_timestamp;
                header.begin_physical_offset = key.physical_offset;
            }
            header.count += 1;
            header.end_timestamp = key.store_timestamp;
            header.end_physical_offset = key.physical_offset;
        }
        let written = self.file.write(self.shape.entry_at(before.count), &[buffer]);
        if let Err(error) = written {
            // Slots must not lead to unwritten entries.
            for (index, bytes) in
                (before.count..).zip(buffer.chunks_exact(ENTRY)).collect::<Vec<_>>().into_iter().rev()
            {
                let Some(entry) = IndexEntry::decode(bytes) else { continue };
                if let Some(slot) = slots.get_mut((entry.hash % self.shape.slots) as usize)
                    && *slot == index
                {
                    *slot = entry.before;
                }
            }
            *header = before;
            return Err(error);
        }
        Ok(buffer.len() / ENTRY)
    }

    /// Whether header and entries agree, and whether the file may follow the one with the header `before`.
    pub(crate) fn is_sound_after(&self, before: Option<IndexHeader>) -> bool {
        let header = self.header();
        if header.count <= 1 {
            return true;
        }
        let is_possible = header.count <= self.shape.entries
            && header.used_slots <= self.shape.slots
            && header.begin_timestamp <= header.end_timestamp
            && header.begin_physical_offset <= header.end_physical_offset;
        let ends = [(1, header.begin_physical_offset), (header.count - 1, header.end_physical_offset)];
        let agree = |(index, physical_offset)| {
            self.entry(index).is_some_and(|entry: IndexEntry| entry.physical_offset == physical_offset)
        };
        let follows = before.is_none_or(|before| before.end_physical_offset <= header.begin_physical_offset);
        is_possible && follows && ends.into_iter().all(agree)
    }

    /// Length of the file, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.shape.file_len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().header.count >= self.shape.entries
    }

    pub(crate) fn header(&self) -> IndexHeader {
        self.state.lock().header
    }

    /// Calls `visit` with the physical offset of each entry with this hash, newest first, until it returns `false` or
    /// `entries_left` is 0. Returns whether to continue in the previous file.
    pub(crate) fn find(
        &self,
        hash: u32,
        times: &RangeInclusive<i64>,
        entries_left: &mut u64,
        visit: &mut impl FnMut(u64) -> bool,
    ) -> bool {
        let (header, first) = {
            let state = self.state.lock();
            let slot = |slots: &Vec<u32>| slots.get((hash % self.shape.slots) as usize).copied().unwrap_or(0);
            (state.header, state.slots.as_ref().map(slot))
        };
        // The slots of a full file do not change and may be on disk only, so the lock is released first.
        let mut index = first.unwrap_or_else(|| {
            let at = self.shape.slot_at(hash);
            // In a file with few keys, most slots are holes.
            self.file.copy::<4>(at).map_or(0, u32::from_be_bytes)
        });
        let may_hold = header.begin_timestamp <= *times.end()
            && header.end_timestamp.saturating_add(999) >= *times.start();
        while may_hold && index > 0 && index < header.count {
            if *entries_left == 0 {
                return false;
            }
            *entries_left -= 1;
            let Some(entry) = self.entry(index) else { break };
            // Whole seconds after the beginning; the first entry may count from the previous file's.
            let time = match index {
                1 => header.begin_timestamp,
                _ => header.begin_timestamp.saturating_add(i64::from(entry.seconds) * 1000),
            };
            if time.saturating_add(999) < *times.start() {
                break;
            }
            if entry.hash == hash && time <= *times.end() && !visit(entry.physical_offset) {
                return false;
            }
            if entry.before >= index {
                break;
            }
            index = entry.before;
        }
        header.begin_timestamp >= *times.start()
    }

    /// Makes the entries durable, then the header that counts them; also the slots of a full or closing file.
    pub(crate) fn flush(&self, with_slots: bool) -> Result<()> {
        let (header, slots) = {
            let state = self.state.lock();
            let is_due = with_slots || state.header.count >= self.shape.entries;
            (state.header, if is_due { state.slots.clone() } else { None })
        };
        let whole = 0..self.shape.file_len();
        if let Some(slots) = &slots {
            self.write_slots(slots)?;
        }
        self.file.flush(whole.clone())?;
        self.file.write(0, &[&header.encode()])?;
        self.file.flush(whole)?;
        // No key is added to a full or closing file.
        if slots.is_some() {
            self.state.lock().slots = None;
        }
        Ok(())
    }

    /// Writes the used slots; the others are holes or zero.
    fn write_slots(&self, slots: &[u32]) -> Result<()> {
        const STEP: usize = 16 << 10;
        let mut bytes = Vec::with_capacity(STEP * SLOT_LEN as usize);
        for (number, chunk) in slots.chunks(STEP).enumerate() {
            if chunk.iter().all(|slot| *slot == 0) {
                continue;
            }
            bytes.clear();
            chunk.iter().for_each(|slot| bytes.extend_from_slice(&slot.to_be_bytes()));
            self.file.write(HEADER_LEN + (number * STEP) as u64 * SLOT_LEN, &[&bytes])?;
        }
        Ok(())
    }

    /// Reads the slots of a file that takes more keys.
    pub(crate) fn load_slots(&self) -> Result<()> {
        let mut bytes = vec![0; self.shape.slots as usize * SLOT_LEN as usize];
        self.file.read_into(HEADER_LEN, &mut bytes)?;
        let slots = bytes.as_chunks::<4>().0.iter().map(|slot| u32::from_be_bytes(*slot)).collect();
        self.state.lock().slots = Some(slots);
        Ok(())
    }

    /// Keeps the trusted entries and derives header and slots from them.
    ///
    /// Entries follow the order of the log, so the first that goes back or passes `limit` ends them.
    pub(crate) fn rebuild(&self, limit: u64) -> Result<()> {
        let mut state = self.state.lock();
        let mut slots = vec![0; self.shape.slots as usize];
        // Without a flushed header, the base of the entries' seconds is unknown.
        let has_header = state.header.count > 1;
        let mut header = IndexHeader { count: 1, used_slots: 0, ..state.header };
        let data_end = self.file.next_hole(self.shape.entry_at(1));
        while has_header && header.count < self.shape.entries {
            let at = self.shape.entry_at(header.count);
            if at + ENTRY_LEN > data_end {
                break;
            }
            let Some(entry) = IndexEntry::decode(self.file.read(at..at + ENTRY_LEN)) else { break };
            let is_first = header.count == 1;
            let follows = if is_first {
                entry.physical_offset == header.begin_physical_offset
            } else {
                entry.physical_offset >= header.end_physical_offset && entry.hash | entry.before != 0
            };
            let slot = slots.get_mut((entry.hash % self.shape.slots) as usize);
            let is_sound = follows && entry.physical_offset < limit;
            let Some(slot) = slot.filter(|slot| is_sound && entry.before == **slot) else { break };
            if *slot == 0 {
                header.used_slots += 1;
            }
            *slot = header.count;
            header.count += 1;
            header.end_physical_offset = entry.physical_offset;
            header.end_timestamp = header.begin_timestamp.saturating_add(if is_first {
                0
            } else {
                i64::from(entry.seconds) * 1000
            });
        }
        if header.count == 1 {
            header = IndexHeader { count: 1, ..IndexHeader::default() };
        }
        let cut = self.shape.entry_at(header.count)..self.shape.file_len();
        state.header = header;
        state.slots = Some(slots);
        drop(state);
        self.file.erase(cut).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_hash_is_never_negative() {
        assert_eq!(key_hash("bench", "k1"), java_hash(0, "bench#k1").unsigned_abs());
        for key in ["", "a", "ü", "polygenelubricants"] {
            assert!(key_hash("t", key) <= i32::MAX as u32);
        }
    }

    #[test]
    fn a_shape_is_found_by_the_length_of_a_file() {
        let configured = IndexShape { slots: 500, entries: 2000 };
        let rocketmq = IndexShape { slots: 5_000_000, entries: 20_000_000 };
        assert_eq!(configured.of_len(configured.file_len()), Some(configured));
        assert_eq!(configured.of_len(rocketmq.file_len()), Some(rocketmq));
        assert_eq!(configured.of_len(41), None);
        assert_eq!(configured.of_len(0), None);
    }

    #[test]
    fn a_header_comes_back_as_written() {
        let header = IndexHeader {
            begin_timestamp: 1,
            end_timestamp: 2,
            begin_physical_offset: 3,
            end_physical_offset: 4,
            used_slots: 5,
            count: 6,
        };
        assert_eq!(IndexHeader::decode(&header.encode()), header);
        assert_eq!(IndexHeader::decode(&[0; 40]).count, 1);
    }
}
