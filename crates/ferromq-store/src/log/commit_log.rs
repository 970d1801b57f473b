//! The append-only log: assigns physical offsets, queue offsets and store timestamps.
//!
//! It knows records, but nothing derived from them. `flush` decides when records are durable.

use std::{
    hint::black_box,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    config::StoreConfig,
    dedup::{
        sequence::Numbered,
        writers::{Dedup, TakenSequences},
    },
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
        encoded::Encoded,
        log_record::Record,
        message::{
            self, BLANK_LEN, MAGIC_BLANK, MIN_RECORD_LEN, MessageView, NewMessage, PHYSICAL_OFFSET_AT, Peek,
            QUEUE_OFFSET_AT, patch,
        },
        property_crc,
    },
    sync::signal::Signal,
    time::clock::Clock,
};

type File<D> = Arc<MappedFile<<D as Disk>::Region>>;

/// Largest record whose end is prefetched; longer ones take several reads anyway.
const NEAR_END: u64 = 16 << 10;
/// `locked_at_ms` while no append is under way.
const NOT_LOCKED: i64 = i64::MAX;
/// Bytes of a cache line.
const LINE: u64 = 64;

/// An encoded record; the log fills in its offsets and its timestamp.
pub(crate) struct Pending<D: Disk> {
    pub(crate) encoded: Encoded,
    /// The queue that assigns the queue offset; `None` for records that never enter a queue.
    pub(crate) queue: Option<Arc<ConsumeQueue<D>>>,
}

impl<D: Disk> Clone for Pending<D> {
    fn clone(&self) -> Self {
        Self { encoded: self.encoded, queue: self.queue.clone() }
    }
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
    disk: D,
    files: MappedFileQueue<D>,
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
    is_full: AtomicBool,
    reserve: AtomicU64,
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

    /// Refuses appends until there is space: another write met a full disk.
    pub(crate) fn set_full(&self) {
        self.is_full.store(true, Ordering::Release);
    }

    /// Refuses all appends from now on. Appends under way have ended when this returns.
    pub(crate) fn close(&self) {
        self.tail.lock().is_open = false;
    }

    /// Largest record a file can hold.
    pub(crate) fn max_record_len(&self) -> u64 {
        self.files.file_size().saturating_sub(BLANK_LEN)
    }

    /// Writes records and assigns their offsets: all or none, except the duplicates that `once` finds.
    ///
    /// `bytes` holds the output of [`message::encode`], `messages` the bodies.
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
            None => self.write_records(&mut tail, messages, pending, bytes, store_timestamp),
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
        let written = if taken.is_new.iter().all(|is_new| *is_new) {
            self.write_records(tail, messages, pending, bytes, store_timestamp)
        } else {
            self.write_some(tail, (messages, pending, bytes), store_timestamp, &taken)
        };
        match &written {
            Ok(_) => once.dedup.count_duplicates(&taken),
            Err(_) => once.dedup.give_back(&taken),
        }
        written
    }

    fn write_some(
        &self,
        tail: &mut Tail<D>,
        (messages, pending, bytes): (&[NewMessage<'_>], &[Pending<D>], &mut [u8]),
        store_timestamp: i64,
        taken: &TakenSequences,
    ) -> Result<Vec<Location>> {
        let is_new = || taken.is_new.iter();
        let new_messages: Vec<_> =
            messages.iter().zip(is_new()).filter(|(_, new)| **new).map(|(message, _)| *message).collect();
        let new_pending: Vec<_> =
            pending.iter().zip(is_new()).filter(|(_, new)| **new).map(|(record, _)| record.clone()).collect();
        if let Some(last) = new_pending.last() {
            // It may be tied to a duplicate that is not stored.
            message::mark_last(bytes, &last.encoded);
        }
        let written = self.write_records(tail, &new_messages, &new_pending, bytes, store_timestamp)?;
        let mut written = written.into_iter();
        let place = |new: &bool| new.then(|| written.next()).flatten().unwrap_or(Location::THERE_ALREADY);
        Ok(is_new().map(place).collect())
    }

    fn write_records(
        &self,
        tail: &mut Tail<D>,
        messages: &[NewMessage<'_>],
        pending: &[Pending<D>],
        bytes: &mut [u8],
        store_timestamp: i64,
    ) -> Result<Vec<Location>> {
        let mut locations = Vec::with_capacity(pending.len());
        let (planned_end, files) = self.make_room(tail, pending)?;
        let begin = (tail.file.clone(), tail.end);
        for (message, record) in messages.iter().zip(pending) {
            let queue_offset = record.queue.as_ref().map_or(0, |queue| queue.take_next_offset());
            let location = Location { queue_offset, physical_offset: 0, len: record.encoded.len };
            match self.write_record(tail, message.body, record, location, store_timestamp, bytes) {
                Ok(location) => locations.push(location),
                Err(error) => {
                    let given = pending.iter().take(locations.len() + 1);
                    given
                        .filter_map(|record| record.queue.as_ref())
                        .for_each(|queue| queue.give_back_offset());
                    let needed = planned_end - begin.1;
                    self.undo(tail, begin, planned_end, &files);
                    return Err(self.full_or(error, needed));
                }
            }
        }
        Ok(locations)
    }

    fn write_record(
        &self,
        tail: &mut Tail<D>,
        body: &[u8],
        record: &Pending<D>,
        location: Location,
        store_timestamp: i64,
        bytes: &mut [u8],
    ) -> Result<Location> {
        let Encoded { head_at, tail_at, tail_end, len, sys_flag, .. } = record.encoded;
        let needed = tail.end + u64::from(len) + BLANK_LEN;
        if tail.file.as_ref().is_none_or(|file| needed > file.end()) {
            self.roll(tail)?;
        }
        let Some(file) = &tail.file else { return Err(StoreError::Closed) };
        patch(bytes, head_at + QUEUE_OFFSET_AT, location.queue_offset.to_be_bytes());
        patch(bytes, head_at + PHYSICAL_OFFSET_AT, tail.end.to_be_bytes());
        patch(bytes, head_at + message::store_timestamp_at(sys_flag), store_timestamp.to_be_bytes());
        property_crc::seal(bytes, &record.encoded);
        let parts = [
            bytes.get(head_at..tail_at).unwrap_or_default(),
            body,
            bytes.get(tail_at..tail_end).unwrap_or_default(),
        ];
        if self.is_sync() {
            file.write_flushed_soon(tail.end, &parts)?;
        } else {
            file.write(tail.end, &parts)?;
        }
        let location = Location { physical_offset: tail.end, ..location };
        tail.end += u64::from(len);
        Ok(location)
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

    /// Reserves files and zeroed space for all records before the first byte is written. Returns their end and the
    /// files after the current one.
    fn make_room(&self, tail: &Tail<D>, pending: &[Pending<D>]) -> Result<(u64, Vec<File<D>>)> {
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
            end += len;
        }
        if end > self.ahead.zeroed() {
            self.zero_until(end)?;
        }
        Ok((end, files))
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

    /// Turns an I/O error of a full disk into `Full`: the file's blocks were not reserved.
    pub(crate) fn full_or(&self, error: StoreError, needed: u64) -> StoreError {
        match error {
            StoreError::Io { source, .. } if StoreError::is_full(&source) => {
                let path = self.files.directory().to_path_buf();
                let free = self.disk.free_space(&path).unwrap_or(0);
                StoreError::Full { path, free, needed, reserve: self.reserve() }
            }
            other => other,
        }
    }

    /// Returns `Full` if writing `needed` bytes would leave less than the reserve free on the directory with the most
    /// room. Directories whose system cannot report free space do not count; without others there is no reserve.
    fn check_space(&self, needed: u64) -> Result<()> {
        let (mut roomiest, mut known, mut unknown) = ((0, self.files.directory()), 0, 0);
        for path in self.files.writable_directories() {
            match self.disk.free_space(path) {
                Err(error) if error.kind() == std::io::ErrorKind::Unsupported => unknown += 1,
                Err(source) => return Err(StoreError::io("look at", path, source)),
                Ok(free) => (roomiest, known) = (roomiest.max((free, path)), known + 1),
            }
        }
        let (free, path) = roomiest;
        let reserve = self.reserve();
        let is_unknown = known == 0 && unknown > 0;
        if !is_unknown && free < reserve.saturating_add(needed) {
            return Err(StoreError::Full { path: path.to_path_buf(), free, needed, reserve });
        }
        Ok(())
    }

    /// Refuses appends while less than the reserve is free. Called periodically.
    pub(crate) fn watch_space(&self) {
        match self.check_space(0) {
            Ok(()) => self.is_full.store(false, Ordering::Release),
            Err(StoreError::Full { .. }) => self.set_full(),
            // The next new file checks again.
            Err(error) => tracing::debug!(%error, "free space unknown"),
        }
    }

    /// Bytes that must stay free.
    pub(crate) fn reserve(&self) -> u64 {
        self.reserve.load(Ordering::Acquire)
    }

    pub(crate) fn set_reserve(&self, bytes: u64) {
        self.reserve.store(bytes, Ordering::Release);
    }

    /// Whether appends are refused for lack of space.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    /// The record of `size` bytes at `physical_offset`, if its file is kept and readers may see it. `file` caches the
    /// file of the previous record.
    ///
    /// Errors: `Io` if the record's file cannot be opened now.
    pub(crate) fn record_in(
        &self,
        file: &mut Option<Arc<MappedFile<D::Region>>>,
        physical_offset: u64,
        size: u32,
    ) -> Result<Option<Record<D::Region>>> {
        let Some(end) = physical_offset.checked_add(u64::from(size)) else { return Ok(None) };
        let file = self.file_in(file, physical_offset, end)?;
        Ok(file.map(|file| Record::new(Arc::clone(file), physical_offset..end)))
    }

    /// Finds the open file that holds an offset, trying `file` first. Returns whether the answer is known without
    /// opening a file: the file is open, or does not exist.
    pub(crate) fn find_open(
        &self,
        file: &mut Option<Arc<MappedFile<D::Region>>>,
        physical_offset: u64,
    ) -> bool {
        let is_inside = |file: &MappedFile<D::Region>| (file.base()..file.end()).contains(&physical_offset);
        if file.as_deref().is_some_and(is_inside) {
            return true;
        }
        let found = self.files.find_open(physical_offset);
        let is_known = found.is_some();
        *file = found.flatten();
        is_known
    }

    /// When the record at `physical_offset` was stored. `file` caches the file of the previous record.
    pub(crate) fn store_timestamp(
        &self,
        file: &mut Option<Arc<MappedFile<D::Region>>>,
        physical_offset: u64,
        size: u32,
    ) -> Option<i64> {
        let end = physical_offset.checked_add(u64::from(size))?;
        let bytes = self.file_in(file, physical_offset, end).ok()??.read(physical_offset..end);
        message::is_at(bytes, physical_offset, size).then(|| message::store_timestamp(bytes))?
    }

    /// The file that holds the whole range, if readers may see it. `file` caches the previous one.
    fn file_in<'a>(
        &self,
        file: &'a mut Option<Arc<MappedFile<D::Region>>>,
        from: u64,
        end: u64,
    ) -> Result<Option<&'a Arc<MappedFile<D::Region>>>> {
        let is_inside = |file: &MappedFile<D::Region>| file.base() <= from && end <= file.end();
        if self.damages.overlapping(&(from..end)).is_some() {
            return Ok(None);
        }
        if file.as_deref().is_none_or(|file| !is_inside(file)) {
            *file = self.files.open(from)?;
        }
        Ok(file.as_ref().filter(|file| is_inside(file) && end <= self.readable()))
    }

    /// The record at `physical_offset`, of the length that its head states; nothing else is checked.
    ///
    /// Reads the probable end along with the head: both are likely cache misses, and this overlaps them.
    pub(crate) fn named_record(
        &self,
        file: &mut Option<Arc<MappedFile<D::Region>>>,
        physical_offset: u64,
        probable_end: Option<u64>,
    ) -> Option<Record<D::Region>> {
        let is_near = |end: &u64| *end > physical_offset && *end - physical_offset < NEAR_END;
        if let Some(end) = probable_end.filter(is_near)
            && let Ok(Some(file)) = self.file_in(file, physical_offset, end)
        {
            let tail = file.read(end.saturating_sub(LINE).max(physical_offset)..end);
            black_box((tail.first().copied(), tail.last().copied()));
        }
        let head_end = physical_offset.checked_add(u64::from(MIN_RECORD_LEN))?;
        let head = self.file_in(file, physical_offset, head_end).ok()??.read(physical_offset..head_end);
        let Peek::Message(size) = message::peek(head) else { return None };
        let record = self.record_in(file, physical_offset, size).ok()??;
        record.is_at(physical_offset, size).then_some(record)
    }

    /// The record at `physical_offset`, fully checked: the offset may come from a client.
    pub(crate) fn checked_record(&self, physical_offset: u64) -> Option<Record<D::Region>> {
        let readable = self.readable();
        let file = self.files.find(physical_offset)?;
        let bytes = file.read(physical_offset..file.end().min(readable));
        let view = MessageView::decode(bytes, true).ok()?;
        let end = physical_offset + u64::from(view.total_size);
        (view.physical_offset == physical_offset).then(|| Record::new(file, physical_offset..end))
    }

    /// When the record at `physical_offset` was stored; checked as [`Self::checked_record`] does.
    pub(crate) fn stored_at(&self, physical_offset: u64) -> Option<i64> {
        let record = self.checked_record(physical_offset)?;
        message::store_timestamp(record.bytes())
    }

    /// Visits the records in `range`, which readers must be allowed to see, with each one's offset and bytes.
    ///
    /// Returns where it stopped: the end of the range, or the first offset at which no record begins.
    pub(crate) fn walk<E>(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(u64, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<u64, E> {
        let mut at = range.start;
        while at < range.end {
            let Some(file) = self.files.find(at) else { break };
            let mut bytes = file.read(at..file.end().min(range.end));
            loop {
                match message::peek(bytes) {
                    Peek::Message(size) => {
                        let Some((record, rest)) = bytes.split_at_checked(size as usize) else {
                            return Ok(at);
                        };
                        visit(at, record)?;
                        at += u64::from(size);
                        bytes = rest;
                    }
                    Peek::Blank => {
                        at = file.end();
                        break;
                    }
                    Peek::Nothing if !bytes.is_empty() && file.end() - at < BLANK_LEN => {
                        at = file.end();
                        break;
                    }
                    Peek::Nothing => {
                        if bytes.is_empty() && at < range.end {
                            break;
                        }
                        return Ok(at);
                    }
                }
            }
        }
        Ok(at)
    }
}

/// Checks the limits of a producer's message before anything is written.
pub(crate) fn check_limits(message: &NewMessage<'_>, config: &StoreConfig, max_record: u64) -> Result<()> {
    let properties = message::stored_properties_len(message.properties, config.property_crc) as u64;
    let limits = [
        ("message body", message.body.len() as u64, u64::from(config.max_message_size)),
        ("properties", properties, message::MAX_PROPERTIES_LEN as u64),
        ("topic", message.topic.len() as u64, message::MAX_TOPIC_LEN as u64),
    ];
    for (what, len, limit) in limits {
        if len > limit {
            return Err(StoreError::TooLarge { what, len, limit });
        }
    }
    if message.sys_flag & message::INNER_BATCH != 0 {
        return Err(StoreError::Invalid {
            what: "system flag",
            reason: "128, an inner batch, is not supported",
        });
    }
    // Recovery takes a zero byte there for a block that never reached the disk.
    if message.topic.as_bytes().contains(&0) {
        return Err(StoreError::Invalid { what: "topic", reason: "it holds a zero byte" });
    }
    if message.properties.contains(&0) {
        return Err(StoreError::Invalid { what: "properties", reason: "they hold a zero byte" });
    }
    let len = message::encoded_len(message, config.store_host, config.property_crc);
    if len > max_record {
        return Err(StoreError::TooLarge { what: "record", len, limit: max_record });
    }
    Ok(())
}
