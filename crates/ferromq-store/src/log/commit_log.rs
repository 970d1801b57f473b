//! The append-only log: assigns physical offsets, queue offsets and store timestamps.
//!
//! It knows records, but nothing derived from them. `flush` decides when records are durable.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
};

use parking_lot::Mutex;

use crate::{
    config::StoreConfig,
    dedup::{sequence::Numbered, writers::Dedup},
    error::{Result, StoreError},
    files::{disk::Disk, mapped_file::MappedFile, mapped_file_queue::MappedFileQueue},
    log::{
        appended::{Appended, Location},
        damage::Damages,
        flush_mark::FlushMark,
        flush_state::Flushing,
        prepared::PreparedAhead,
        recent_pages::Freshness,
        unflushed::{AppendVerdict, Unflushed},
    },
    queues::consume_queue::ConsumeQueue,
    record::{
        encode::{self, NewMessage, patch},
        encoded::Encoded,
        message::{self, BLANK_LEN, MAGIC_BLANK, PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT},
        property_crc,
    },
    sync::signal::Signal,
    time::clock::Clock,
};

type File<D> = Arc<MappedFile<<D as Disk>::Region>>;

/// `locked_at_ms` while no append is under way.
const NOT_LOCKED: i64 = i64::MAX;

/// An append of so many bytes is written by a system call: it needs no page faults, and no zeroed pages.
const LARGE: u64 = 16 << 10;

/// The places of the records of an append.
struct Room<D: Disk> {
    /// Still without queue offsets.
    locations: Vec<Location>,
    /// End of the last record.
    end: u64,
    /// The files after the current one.
    files: Vec<File<D>>,
}

/// An encoded record; the log fills in its offsets and its timestamp.
pub(crate) struct Pending<D: Disk> {
    pub(crate) encoded: Encoded,
    /// The queue that assigns the queue offset; `None` for records that never enter a queue.
    pub(crate) queue: Option<Arc<ConsumeQueue<D>>>,
}

/// The deduplication of an append.
#[derive(Clone, Copy)]
pub(crate) struct Once<'a> {
    pub(crate) dedup: &'a Dedup,
    /// Clock reading for the window.
    pub(crate) steady_ms: i64,
    /// One entry per message; `None` for messages without a sequence.
    pub(crate) numbered: &'a [Option<Numbered<'a>>],
}

/// Where the next record goes; guarded by the append lock.
pub(crate) struct Tail<D: Disk> {
    file: Option<Arc<MappedFile<D::Region>>>,
    pub(crate) end: u64,
    last_timestamp: i64,
    is_open: bool,
    /// Present if the flush policy limits unflushed messages.
    pub(crate) unflushed: Option<Box<Unflushed>>,
}

impl<D: Disk> Default for Tail<D> {
    fn default() -> Self {
        Self { file: None, end: 0, last_timestamp: 0, is_open: false, unflushed: None }
    }
}

impl<D: Disk> Tail<D> {
    /// Start of the file that the next record goes to.
    pub(crate) fn file_begin(&self) -> u64 {
        self.file.as_ref().map_or(self.end, |file| file.base())
    }
}

/// The commit log.
pub(crate) struct CommitLog<D: Disk> {
    pub(super) disk: D,
    pub(super) files: MappedFileQueue<D>,
    pub(crate) tail: Mutex<Tail<D>>,
    /// End of the complete records; published after their bytes are written.
    written: AtomicU64,
    pub(crate) flushing: Flushing,
    pub(crate) flush_mark: FlushMark<D>,
    /// Wakes the dispatcher when readers may see more.
    pub(crate) arrived: Arc<Signal>,
    pub(crate) ahead: PreparedAhead,
    pub(crate) damages: Damages,
    pub(crate) freshness: Freshness,
    pub(super) is_full: AtomicBool,
    pub(super) reserve: AtomicU64,
    /// When the append under way began to write, else `NOT_LOCKED`.
    locked_at_ms: AtomicI64,
}

impl<D: Disk> CommitLog<D> {
    /// A log over loaded files; [`Self::begin_at`] sets its end.
    pub(crate) fn new(
        disk: D,
        files: MappedFileQueue<D>,
        flush_mark: FlushMark<D>,
        config: &StoreConfig,
    ) -> Self {
        Self {
            disk,
            files,
            tail: Mutex::new(Tail::default()),
            written: AtomicU64::new(0),
            flushing: Flushing::new(config.flush, config.flush_every.clone()),
            flush_mark,
            arrived: Arc::default(),
            ahead: PreparedAhead::default(),
            damages: Damages::default(),
            freshness: Freshness::default(),
            is_full: AtomicBool::new(false),
            reserve: AtomicU64::new(config.disk_reserve),
            locked_at_ms: AtomicI64::new(NOT_LOCKED),
        }
    }

    /// Sets the end of the log before the first append. Everything below counts as flushed.
    pub(crate) fn begin_at(&self, end: u64, last_timestamp: i64) -> Result<()> {
        let file = self.files.open_writable(end)?;
        self.files.keep_open_from(end);
        let unflushed = self.flushing.begin_at(end);
        *self.tail.lock() = Tail { file, end, last_timestamp, is_open: true, unflushed };
        self.written.store(end, Ordering::Release);
        self.freshness.begin_at(end);
        self.ahead.change(end, self.is_sync());
        Ok(())
    }

    pub(crate) fn files(&self) -> &MappedFileQueue<D> {
        &self.files
    }

    /// First byte kept.
    pub(crate) fn start(&self) -> u64 {
        self.files.span().map_or(0, |span| span.start)
    }

    /// End of the complete records.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Milliseconds since the current append began to write; 0 while no append writes.
    pub(crate) fn locked_ms(&self, clock: &Clock) -> u64 {
        let since = self.locked_at_ms.load(Ordering::Relaxed);
        u64::try_from(clock.now_ms().saturating_sub(since)).unwrap_or(0)
    }

    /// Refuses all appends from now on. Appends under way have ended when this returns.
    pub(crate) fn close(&self) {
        self.tail.lock().is_open = false;
    }

    /// Largest record a file can hold.
    pub(crate) fn max_record_len(&self) -> u64 {
        self.files.file_size().saturating_sub(BLANK_LEN)
    }

    /// Returns why an append would be refused now, whatever its messages are.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Closed`, and `Io` if the free space cannot be read.
    pub(crate) fn check_writes(&self) -> Result<()> {
        self.check_space(0)?;
        if self.is_poisoned() {
            return Err(StoreError::Poisoned);
        }
        if self.tail.lock().is_open { Ok(()) } else { Err(StoreError::Closed) }
    }

    /// Writes records and assigns their offsets: all or none, except the duplicates that `once` finds.
    ///
    /// `bytes` holds the output of [`encode::encode`], `messages` the bodies.
    pub(crate) fn append(
        &self,
        clock: &Clock,
        messages: &[NewMessage<'_>],
        pending: &[Pending<D>],
        bytes: &mut [u8],
        once: Option<Once<'_>>,
    ) -> Result<Appended> {
        if self.is_full.load(Ordering::Acquire) {
            self.check_space(0)?;
            self.is_full.store(false, Ordering::Release);
        }
        let mut tail = self.tail.lock();
        if !tail.is_open {
            return Err(StoreError::Closed);
        }
        if self.is_poisoned() {
            return Err(StoreError::Poisoned);
        }
        let queues = || pending.iter().filter_map(|record| record.queue.as_ref());
        if let Some(closed) = queues().find(|queue| !queue.marks.takes_messages()) {
            if closed.marks.is_aside() {
                return Err(closed.refusal());
            }
            return Err(StoreError::QueueClosed {
                topic: closed.topic().to_owned(),
                queue_id: closed.queue_id(),
            });
        }
        let (store_timestamp, begin) = (clock.now_ms().max(tail.last_timestamp), tail.end);
        self.locked_at_ms.store(store_timestamp, Ordering::Relaxed);
        let written = match once {
            None => self.write_records(&mut tail, messages.iter().zip(pending), bytes, store_timestamp),
            Some(once) => self.write_new(&mut tail, (messages, pending, bytes), store_timestamp, once),
        };
        self.locked_at_ms.store(NOT_LOCKED, Ordering::Relaxed);
        let locations = written?;
        tail.last_timestamp = store_timestamp;
        let end = tail.end;
        // An append of duplicates alone wrote nothing: only the log before it can hold it back.
        let counted = tail.unflushed.as_mut().filter(|_| end > begin);
        let verdict = counted.map_or(AppendVerdict::default(), |unflushed| unflushed.add(messages, end));
        self.written.store(end, Ordering::Release);
        drop(tail);
        if verdict != AppendVerdict::default() {
            self.note_append(verdict, end);
        }
        self.ask_for_preparation(end);
        Ok(Appended { locations, store_timestamp, end })
    }

    /// Writes the new messages. Duplicates are acknowledged once the log is durable up to the current end.
    fn write_new(
        &self,
        tail: &mut Tail<D>,
        (messages, pending, bytes): (&[NewMessage<'_>], &[Pending<D>], &mut [u8]),
        store_timestamp: i64,
        once: Once<'_>,
    ) -> Result<Vec<Location>> {
        let taken = once.dedup.take(once.numbered, once.steady_ms)?;
        let all = messages.iter().zip(pending).zip(&taken.is_new);
        let new = all.filter(|(_, is_new)| **is_new).map(|(record, _)| record);
        if let Some((_, last)) = new.clone().next_back() {
            // It may be tied to a duplicate that is not stored.
            encode::mark_last(bytes, &last.encoded);
        }
        let written = self.write_records(tail, new, bytes, store_timestamp);
        let written = written.inspect_err(|_| once.dedup.give_back(&taken))?;
        once.dedup.count_duplicates(&taken);
        let mut written = written.into_iter();
        let place = |new: &bool| new.then(|| written.next()).flatten().unwrap_or(Location::THERE_ALREADY);
        Ok(taken.is_new.iter().map(place).collect())
    }

    fn write_records<'a>(
        &self,
        tail: &mut Tail<D>,
        records: impl Iterator<Item = (&'a NewMessage<'a>, &'a Pending<D>)> + Clone,
        bytes: &mut [u8],
        store_timestamp: i64,
    ) -> Result<Vec<Location>> {
        let Room { mut locations, end: planned_end, files } =
            self.make_room(tail, records.clone().map(|(_, record)| record))?;
        let begin = (tail.file.clone(), tail.end);
        for ((_, record), location) in records.clone().zip(&mut locations) {
            location.queue_offset = record.queue.as_ref().map_or(0, |queue| queue.take_next_offset());
            let Encoded { head_at, sys_flag, .. } = record.encoded;
            patch(bytes, head_at + QUEUE_OFFSET_AT, location.queue_offset.to_be_bytes());
            patch(bytes, head_at + PHYSICAL_OFFSET_AT, location.physical_offset.to_be_bytes());
            patch(bytes, head_at + message::store_timestamp_at(sys_flag), store_timestamp.to_be_bytes());
            property_crc::seal(bytes, &record.encoded);
        }
        let needed = planned_end - begin.1;
        let is_by_call = self.is_sync() || needed >= LARGE;
        let places = locations.iter().map(|location| location.physical_offset);
        if let Err(error) = self.write_at(tail, records.clone().zip(places), bytes, is_by_call) {
            let queues = records.filter_map(|(_, record)| record.queue.as_ref());
            queues.for_each(|queue| queue.give_back_offset());
            self.undo(tail, begin, planned_end, &files);
            return Err(self.full_or(error, needed));
        }
        if !is_by_call {
            self.ahead.mapped.store(tail.end, Ordering::Relaxed);
        }
        Ok(locations)
    }

    /// Writes complete records at their places: all of a file by one system call, or each through the map.
    fn write_at<'a>(
        &self,
        tail: &mut Tail<D>,
        records: impl Iterator<Item = ((&'a NewMessage<'a>, &'a Pending<D>), u64)>,
        bytes: &[u8],
        is_by_call: bool,
    ) -> Result<()>
    where
        D: 'a,
    {
        let mut run = Vec::with_capacity(if is_by_call { 3 * records.size_hint().1.unwrap_or(0) } else { 0 });
        let mut end = tail.end;
        for ((message, record), place) in records {
            if tail.file.is_none() || place != end {
                write_run(tail, &mut run, end)?;
                self.roll(tail)?;
                end = place;
            }
            let Encoded { head_at, tail_at, tail_end, len, .. } = record.encoded;
            let head = bytes.get(head_at..tail_at).unwrap_or_default();
            let parts = [head, message.body, bytes.get(tail_at..tail_end).unwrap_or_default()];
            end += u64::from(len);
            if is_by_call {
                run.extend(parts);
            } else if let Some(file) = &tail.file {
                file.write(tail.end, &parts)?;
                tail.end = end;
            }
        }
        write_run(tail, &mut run, end)
    }

    /// Fills the end of the file with a blank record and goes on in the next one.
    fn roll(&self, tail: &mut Tail<D>) -> Result<()> {
        if let Some(file) = &tail.file {
            let room = file.end() - tail.end;
            // A file that was cut short may lack room for a blank record; readers skip so few bytes.
            if room >= BLANK_LEN {
                file.write(tail.end, &[&(room as u32).to_be_bytes(), &MAGIC_BLANK.to_be_bytes()])?;
            }
            tail.end = file.end();
        }
        tail.file = Some(self.files.ensure(tail.end)?);
        Ok(())
    }

    /// Finds the places of all records, and reserves files and zeroed space for them before the first byte is written.
    fn make_room<'a>(&self, tail: &Tail<D>, pending: impl Iterator<Item = &'a Pending<D>>) -> Result<Room<D>>
    where
        D: 'a,
    {
        let mut locations = Vec::with_capacity(pending.size_hint().1.unwrap_or(0));
        let mut files = Vec::new();
        let mut end = tail.end;
        let mut file_end = tail.file.as_ref().map_or(end, |file| file.end());
        for record in pending {
            let len = u64::from(record.encoded.len);
            if end + len + BLANK_LEN > file_end {
                end = file_end;
                let file = self.file_at(end)?;
                file_end = file.end();
                files.push(file);
            }
            locations.push(Location { queue_offset: 0, physical_offset: end, len: record.encoded.len });
            end += len;
        }
        if end > self.ahead.zeroed() {
            self.zero_until(end)?;
        }
        Ok(Room { locations, end, files })
    }

    /// Erases everything written after `begin`, so that its remains cannot follow a later record.
    fn undo(&self, tail: &mut Tail<D>, begin: (Option<File<D>>, u64), planned_end: u64, files: &[File<D>]) {
        // These handles were opened before the first write, so no open can fail here.
        for file in begin.0.iter().chain(files) {
            let range = begin.1.max(file.base())..file.end().min(planned_end);
            if !range.is_empty()
                && let Err(error) = file.erase(range)
            {
                self.poison(&error);
            }
        }
        (tail.file, tail.end) = begin;
    }

    /// The file that holds `offset`; creates it if there is space.
    pub(crate) fn file_at(&self, offset: u64) -> Result<Arc<MappedFile<D::Region>>> {
        if let Some(file) = self.files.open_writable(offset)? {
            return Ok(file);
        }
        self.check_space(self.files.file_size())?;
        match self.files.ensure(offset) {
            Err(StoreError::Full { path, free, needed, .. }) => {
                Err(StoreError::Full { path, free, needed, reserve: self.reserve() })
            }
            other => other,
        }
    }
}

/// Writes what was gathered for the current file, up to `end`.
fn write_run<D: Disk>(tail: &mut Tail<D>, run: &mut Vec<&[u8]>, end: u64) -> Result<()> {
    if let Some(file) = &tail.file
        && !run.is_empty()
    {
        file.write_by_call(tail.end, run)?;
        run.clear();
        tail.end = end;
    }
    Ok(())
}
