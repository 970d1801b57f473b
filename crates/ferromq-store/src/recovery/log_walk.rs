//! Walks the records of the log at open: follows their lengths one by one, checks them on all cores.
//!
//! A thread claims a chunk under a lock by following lengths, checks it outside the lock, and hands finished chunks on
//! in log order. The walk finds where valid records end; `log_end` decides what that means.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    error::{Result, StoreError},
    files::{
        disk::{Disk, Region},
        mapped_file::MappedFile,
        mapped_file_queue::MappedFileQueue,
    },
    record::message::{
        self, BLANK_LEN, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MessageView, PHYSICAL_OFFSET_AT, Peek,
    },
};

type File<D> = Arc<MappedFile<<D as Disk>::Region>>;

/// Bytes of a chunk: large enough to make the lock cheap, small enough to keep all cores busy.
const CHUNK_BYTES: u64 = 512 << 10;
/// Most checked chunks per thread that wait to be handed on: bounds memory.
const AHEAD: usize = 8;
/// More threads would wait for memory, not for a core.
const MAX_THREADS: usize = 8;

/// Which checks a record must pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Checks {
    /// Compare checksums.
    pub(crate) crc: bool,
    /// From here on, also search for blocks that never reached the disk.
    pub(crate) torn_from: u64,
    /// Read nothing from here on: in an open store an appender may be writing there.
    pub(crate) limit: u64,
}

impl Checks {
    /// All checks but the search for lost blocks.
    pub(crate) const ALL: Self = Self { crc: true, torn_from: u64::MAX, limit: u64::MAX };

    /// The record at `at`, if it is valid.
    pub(crate) fn record<'a, R: Region>(self, file: &'a MappedFile<R>, at: u64) -> Option<Found<'a>> {
        let bytes = file.read(at..file.end().min(self.limit));
        let room = file.end() - at;
        match message::peek(bytes) {
            Peek::Message(_) => {
                let view = MessageView::decode(bytes, self.crc).ok()?;
                // Bytes of an older file or of a body do not state this offset.
                let is_sound =
                    view.physical_offset == at && !(at >= self.torn_from && is_torn(&view, file.base()));
                is_sound.then_some(Found::Message(view))
            }
            Peek::Blank => is_blank_sound(bytes, room).then_some(Found::Blank),
            Peek::Nothing => is_too_short(room).then_some(Found::Blank),
        }
    }
}

/// What was found at an offset of the log.
pub(crate) enum Found<'a> {
    Message(MessageView<'a>),
    /// The rest of the file is unused.
    Blank,
}

/// Whether a block of the record's topic or properties, which the checksum does not cover, never reached the disk.
///
/// A lost block reads as zeros up to a block's edge. Our own records have no zero byte there. Another broker's
/// properties with a whole block of zeros would be cut too.
fn is_torn(view: &MessageView<'_>, base: u64) -> bool {
    const BLOCK: usize = 512;
    let end = (view.physical_offset - base) as usize + view.total_size as usize;
    let start = end - view.properties.len();
    let first = (BLOCK - start % BLOCK).min(view.properties.len());
    let (head, rest) = view.properties.split_at_checked(first).unwrap_or_default();
    let is_lost = |block: &[u8]| !block.is_empty() && block.iter().all(|byte| *byte == 0);
    view.topic.contains('\0') || is_lost(head) || rest.chunks(BLOCK).any(is_lost)
}

/// Whether a blank record fills all the room left.
fn is_blank_sound(bytes: &[u8], room: u64) -> bool {
    let expected = [(room as u32).to_be_bytes(), MAGIC_BLANK.to_be_bytes()].concat();
    bytes.len() as u64 >= BLANK_LEN && bytes.starts_with(&expected)
}

/// Whether the end of a file that was cut short lacks room for a blank record; it is never written.
fn is_too_short(room: u64) -> bool {
    (1..BLANK_LEN).contains(&room)
}

/// Consecutive records of one file, found by their lengths.
struct Claim<D: Disk> {
    number: u64,
    file: File<D>,
    range: Range<u64>,
}

/// A checked chunk.
struct Checked<T> {
    /// The output of `check` for the valid records.
    made: T,
    range: Range<u64>,
    /// Whether all records are valid; otherwise they are up to the end of the range.
    is_whole: bool,
}

/// Where the next chunk begins.
struct Cursor<D: Disk> {
    at: u64,
    number: u64,
    file: Option<File<D>>,
    is_done: bool,
    /// The error of opening an existing file: it ends the walk, but not the log.
    error: Option<StoreError>,
}

/// Checked chunks that wait for their turn in log order.
struct InLogOrder<T> {
    next: u64,
    waiting: BTreeMap<u64, Checked<T>>,
}

/// The chunks handed on, in log order.
struct Applied<A> {
    apply: A,
    error: Option<StoreError>,
    /// End of the valid records handed on so far, without blank records.
    broken_at: Option<u64>,
}

/// A walk.
struct Scan<'a, D: Disk, T, C, A> {
    files: &'a MappedFileQueue<D>,
    limit: u64,
    check: C,
    cursor: Mutex<Cursor<D>>,
    ordered: Mutex<InLogOrder<T>>,
    applied: Mutex<Applied<A>>,
    is_stopped: AtomicBool,
    most_waiting: usize,
}

/// Walks the records from `from` to `limit` or to the first break; returns where it stopped.
///
/// `check` gets consecutive records of a file and returns its output for the valid ones and where they end. `apply`
/// gets the outputs in log order, one at a time.
pub(crate) fn scan<D: Disk, T: Send>(
    files: &MappedFileQueue<D>,
    from: u64,
    limit: u64,
    check: impl Fn(&MappedFile<D::Region>, Range<u64>) -> (T, u64) + Sync,
    apply: impl FnMut(T, Range<u64>) -> Result<()> + Send,
) -> Result<u64> {
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get()).min(MAX_THREADS);
    let scan = Scan {
        files,
        limit,
        check,
        cursor: Mutex::new(Cursor { at: from, number: 0, file: None, is_done: false, error: None }),
        ordered: Mutex::new(InLogOrder { next: 0, waiting: BTreeMap::new() }),
        applied: Mutex::new(Applied { apply, error: None, broken_at: None }),
        is_stopped: AtomicBool::new(false),
        most_waiting: threads * AHEAD,
    };
    // A short walk ends before a thread would start.
    let has_more = scan.step() && scan.step();
    if has_more {
        thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| while scan.step() {});
            }
            while scan.step() {}
        });
    }
    scan.finish()
}

impl<D, T, C, A> Scan<'_, D, T, C, A>
where
    D: Disk,
    C: Fn(&MappedFile<D::Region>, Range<u64>) -> (T, u64),
    A: FnMut(T, Range<u64>) -> Result<()>,
{
    /// Claims, checks and hands on one chunk. Returns whether there may be more.
    fn step(&self) -> bool {
        if self.is_stopped.load(Ordering::Acquire) {
            return false;
        }
        let Some(claim) = self.claim() else { return false };
        let (made, to) = (self.check)(&claim.file, claim.range.clone());
        let is_whole = to >= claim.range.end;
        let checked = Checked { made, range: claim.range.start..to, is_whole };
        let waiting = {
            let mut ordered = self.ordered.lock();
            ordered.waiting.insert(claim.number, checked);
            ordered.waiting.len()
        };
        if waiting > self.most_waiting {
            self.hand_on(self.applied.lock());
        } else if let Some(applied) = self.applied.try_lock() {
            self.hand_on(applied);
        }
        true
    }

    /// Claims a chunk by following the records' lengths.
    fn claim(&self) -> Option<Claim<D>> {
        let mut cursor = self.cursor.lock();
        while !cursor.is_done && cursor.at < self.limit {
            let at = cursor.at;
            let is_inside = |file: &&File<D>| file.base() <= at && at < file.end();
            let file = match cursor.file.as_ref().filter(is_inside) {
                Some(file) => Arc::clone(file),
                None => match self.files.open(at) {
                    Ok(Some(file)) => Arc::clone(cursor.file.insert(file)),
                    Ok(None) => break,
                    Err(error) => {
                        cursor.error = Some(error);
                        break;
                    }
                },
            };
            let (end, next) = follow(&file, at, self.limit.min(file.end()));
            cursor.at = next.unwrap_or(end);
            cursor.is_done = next.is_none();
            if end > at {
                let number = cursor.number;
                cursor.number += 1;
                return Some(Claim { number, file, range: at..end });
            }
        }
        cursor.is_done = true;
        None
    }

    fn hand_on(&self, mut applied: MutexGuard<'_, Applied<A>>) {
        loop {
            let next = {
                let mut ordered = self.ordered.lock();
                let number = ordered.next;
                let Some(next) = ordered.waiting.remove(&number) else { return };
                ordered.next += 1;
                next
            };
            if applied.error.is_some() || applied.broken_at.is_some() {
                continue;
            }
            if !next.is_whole {
                applied.broken_at = Some(next.range.end);
                self.is_stopped.store(true, Ordering::Release);
            }
            if let Err(error) = (applied.apply)(next.made, next.range) {
                applied.error = Some(error);
                self.is_stopped.store(true, Ordering::Release);
            }
        }
    }

    fn finish(self) -> Result<u64> {
        self.hand_on(self.applied.lock());
        let applied = self.applied.into_inner();
        match (applied.error, applied.broken_at) {
            (Some(error), _) => Err(error),
            (None, Some(at)) => Ok(at),
            (None, None) => {
                let cursor = self.cursor.into_inner();
                cursor.error.map_or(Ok(cursor.at), Err)
            }
        }
    }
}

/// Follows lengths from `at`. Returns the end of the chunk's records and where to continue; `None` if no record begins
/// there.
fn follow<R: Region>(file: &MappedFile<R>, at: u64, limit: u64) -> (u64, Option<u64>) {
    let mut end = at;
    let mut bytes = file.read(at..file.end());
    loop {
        match message::peek(bytes) {
            Peek::Message(size) => {
                let Some(rest) = bytes.get(size as usize..) else { return (end, None) };
                bytes = rest;
                end += u64::from(size);
                // A file that was cut short may end without a blank record.
                if end >= limit || end - at >= CHUNK_BYTES {
                    return (end, Some(end));
                }
            }
            Peek::Blank if is_blank_sound(bytes, bytes.len() as u64) => return (end, Some(file.end())),
            Peek::Nothing if is_too_short(bytes.len() as u64) => return (end, Some(file.end())),
            Peek::Blank | Peek::Nothing => return (end, None),
        }
    }
}

/// The start of the first valid or blank record in `range`. Checks every byte, but reads nothing from `limit` on.
pub(crate) fn find_record<D: Disk>(
    files: &MappedFileQueue<D>,
    range: Range<u64>,
    limit: u64,
) -> Result<Option<u64>> {
    const STEP: u64 = 1 << 20;
    let checks = Checks { limit, ..Checks::ALL };
    let mut at = range.start;
    while at < range.end {
        let Some(file) = files.open(at)? else {
            let Some(next) = files.begin_after(at) else { break };
            at = next;
            continue;
        };
        // Holes contain no records.
        at = file.next_data(at).min(file.end());
        if at == file.end() {
            continue;
        }
        let hole = file.next_hole(at).clamp(at + 1, file.end());
        let end = range.end.min(hole).min(at.saturating_add(STEP));
        let bytes = file.read(at..hole.min(limit).min(end + PHYSICAL_OFFSET_AT as u64 + 8));
        let candidates = (at..end).zip(bytes.windows(8));
        let found = candidates
            .filter(|(_, head)| may_begin(head))
            .find(|(place, _)| checks.record(&file, *place).is_some());
        if let Some((place, _)) = found {
            return Ok(Some(place));
        }
        at = end;
    }
    Ok(None)
}

/// Whether the length and the magic code of a record come first: rejects almost all offsets cheaply.
fn may_begin(head: &[u8]) -> bool {
    let magic =
        head.get(4..).and_then(|magic| magic.first_chunk::<4>()).map(|magic| u32::from_be_bytes(*magic));
    matches!(magic, Some(MAGIC_V1 | MAGIC_V2 | MAGIC_BLANK))
}
