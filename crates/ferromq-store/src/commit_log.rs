//! The single append-only log: gives out physical offsets, queue offsets and store timestamps.
//!
//! It knows records, but nothing of what is derived from them. Who waits for a flush is `flush`'s business.

use std::{
    net::SocketAddr,
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    Appended, Clock, Disk, Location, NewMessage, Record, Result, StoreConfig, StoreError,
    consume_queue::ConsumeQueue,
    mapped_file::MappedFile,
    mapped_file_queue::MappedFileQueue,
    message::{
        self, BLANK_LEN, Encoded, MAGIC_BLANK, MessageView, PHYSICAL_OFFSET_AT, Peek, QUEUE_OFFSET_AT, patch,
    },
    prepare::Ahead,
    signal::Signal,
};

/// One record of an append, encoded but for what the log gives it.
pub(crate) struct Pending<D: Disk> {
    pub(crate) encoded: Encoded,
    /// The queue that gives out the queue offset; none for records that never enter a queue.
    pub(crate) queue: Option<Arc<ConsumeQueue<D>>>,
}

/// The place of the next record, under the append lock.
struct Tail<D: Disk> {
    file: Option<Arc<MappedFile<D::Region>>>,
    end: u64,
    last_timestamp: i64,
    is_closed: bool,
}

/// The commit log.
pub(crate) struct CommitLog<D: Disk> {
    disk: D,
    files: MappedFileQueue<D>,
    tail: Mutex<Tail<D>>,
    /// End of the complete records; published after their bytes are written.
    written: AtomicU64,
    /// End of what a flush has covered.
    flushed: AtomicU64,
    flushing: Mutex<()>,
    flushes: AtomicU64,
    /// Grows whenever a flush or a failure decides what becomes of those who wait.
    decisions: AtomicU64,
    /// Wakes the thread that flushes and tells who waits.
    pub(crate) flush_due: Signal,
    pub(crate) ahead: Ahead,
    is_poisoned: AtomicBool,
    is_full: AtomicBool,
    reserve: u64,
    is_sync: bool,
}

impl<D: Disk> CommitLog<D> {
    /// A log over files already loaded; [`Self::begin_at`] says where it goes on.
    pub(crate) fn new(disk: D, files: MappedFileQueue<D>, config: &StoreConfig, is_sync: bool) -> Self {
        Self {
            disk,
            files,
            tail: Mutex::new(Tail { file: None, end: 0, last_timestamp: 0, is_closed: true }),
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            flushing: Mutex::new(()),
            flushes: AtomicU64::new(0),
            decisions: AtomicU64::new(0),
            flush_due: Signal::default(),
            ahead: Ahead::default(),
            is_poisoned: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            reserve: config.disk_reserve,
            is_sync,
        }
    }

    /// Says where the log ends, before the first append. Everything below is taken as flushed.
    pub(crate) fn begin_at(&self, end: u64, last_timestamp: i64) {
        let file = self.files.find(end);
        *self.tail.lock() = Tail { file, end, last_timestamp, is_closed: false };
        self.written.store(end, Ordering::Release);
        self.flushed.store(end, Ordering::Release);
        self.ahead.begin_at(end, self.is_sync);
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

    /// End of what is durable.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    /// End of what readers may see: under synchronous flush never past what is durable.
    pub(crate) fn readable(&self) -> u64 {
        if self.is_sync { self.flushed() } else { self.written() }
    }

    pub(crate) fn is_sync(&self) -> bool {
        self.is_sync
    }

    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.is_poisoned.load(Ordering::Acquire)
    }

    pub(crate) fn decisions(&self) -> u64 {
        self.decisions.load(Ordering::Acquire)
    }

    pub(crate) fn poison(&self) {
        self.is_poisoned.store(true, Ordering::Release);
        self.decide();
    }

    /// Whichever thread flushed or failed: those who wait must hear of it.
    fn decide(&self) {
        self.decisions.fetch_add(1, Ordering::AcqRel);
        self.flush_due.ring();
    }

    /// Refuses appends until there is space again: a write elsewhere met a full disk.
    pub(crate) fn set_full(&self) {
        self.is_full.store(true, Ordering::Release);
    }

    /// Refuses every append from now on; those under way have ended when this returns.
    pub(crate) fn close(&self) {
        self.tail.lock().is_closed = true;
    }

    /// Largest record a file can hold.
    pub(crate) fn max_record_len(&self) -> u64 {
        self.files.file_size().saturating_sub(BLANK_LEN)
    }

    /// Writes records one after the other and gives them their places. All or none.
    ///
    /// `bytes` holds what [`message::encode`] made, `messages` the bodies.
    pub(crate) fn append(
        &self,
        clock: &Clock,
        messages: &[NewMessage<'_>],
        pending: &[Pending<D>],
        bytes: &mut [u8],
    ) -> Result<Appended> {
        if self.is_full.load(Ordering::Acquire) {
            self.check_space(0)?;
            self.is_full.store(false, Ordering::Release);
        }
        let mut locations = Vec::with_capacity(pending.len());
        let mut tail = self.tail.lock();
        if tail.is_closed {
            return Err(StoreError::Closed);
        }
        if self.is_poisoned() {
            return Err(StoreError::Poisoned);
        }
        let planned_end = self.make_room(&tail, pending)?;
        let begin = (tail.file.clone(), tail.end);
        let store_timestamp = clock.now_ms().max(tail.last_timestamp);
        for (message, record) in messages.iter().zip(pending) {
            let queue_offset = record.queue.as_ref().map_or(0, |queue| queue.take_next_offset());
            let location = Location { queue_offset, physical_offset: 0, len: record.encoded.len };
            match self.write_record(&mut tail, message.body, record, location, store_timestamp, bytes) {
                Ok(location) => locations.push(location),
                Err(error) => {
                    let given = pending.iter().take(locations.len() + 1);
                    given
                        .filter_map(|record| record.queue.as_ref())
                        .for_each(|queue| queue.give_back_offset());
                    let needed = planned_end - begin.1;
                    self.undo(&mut tail, begin, planned_end);
                    return Err(self.full_or(error, needed));
                }
            }
        }
        tail.last_timestamp = store_timestamp;
        let end = tail.end;
        self.written.store(end, Ordering::Release);
        drop(tail);
        self.ask_for_preparation(end);
        Ok(Appended { locations, store_timestamp, end })
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
        let Encoded { head_at, tail_at, tail_end, len, sys_flag } = record.encoded;
        let needed = tail.end + u64::from(len) + BLANK_LEN;
        if tail.file.as_ref().is_none_or(|file| needed > file.end()) {
            self.roll(tail)?;
        }
        let Some(file) = &tail.file else { return Err(StoreError::Closed) };
        patch(bytes, head_at + QUEUE_OFFSET_AT, location.queue_offset.to_be_bytes());
        patch(bytes, head_at + PHYSICAL_OFFSET_AT, tail.end.to_be_bytes());
        patch(bytes, head_at + message::store_timestamp_at(sys_flag), store_timestamp.to_be_bytes());
        let parts = [
            bytes.get(head_at..tail_at).unwrap_or_default(),
            body,
            bytes.get(tail_at..tail_end).unwrap_or_default(),
        ];
        file.write(tail.end, &parts)?;
        let location = Location { physical_offset: tail.end, ..location };
        tail.end += u64::from(len);
        Ok(location)
    }

    /// Fills the end of the file with a blank record and goes on in the next one.
    fn roll(&self, tail: &mut Tail<D>) -> Result<()> {
        if let Some(file) = &tail.file {
            let room = (file.end() - tail.end) as u32;
            file.write(tail.end, &[&room.to_be_bytes(), &MAGIC_BLANK.to_be_bytes()])?;
            tail.end = file.end();
        }
        tail.file = Some(self.files.ensure(tail.end)?);
        Ok(())
    }

    /// Gets files and zeroed space for all records before the first byte is written. Returns their end.
    fn make_room(&self, tail: &Tail<D>, pending: &[Pending<D>]) -> Result<u64> {
        let mut end = tail.end;
        let mut file_end = tail.file.as_ref().map_or(end, |file| file.end());
        for record in pending {
            let len = u64::from(record.encoded.len);
            if end + len + BLANK_LEN > file_end {
                end = file_end;
                file_end = self.file_at(end)?.end();
            }
            end += len;
        }
        if end > self.ahead.zeroed() {
            self.zero_until(end)?;
        }
        Ok(end)
    }

    /// Forgets what was written after `begin`, so that no later record is followed by its remains.
    fn undo(&self, tail: &mut Tail<D>, begin: (Option<Arc<MappedFile<D::Region>>>, u64), planned_end: u64) {
        let mut at = begin.1;
        while at < planned_end {
            let Some(file) = self.files.find(at) else { break };
            if file.erase(at..file.end().min(planned_end)).is_err() {
                self.poison();
            }
            at = file.end();
        }
        (tail.file, tail.end) = begin;
    }

    /// The file that begins at or holds `offset`, made if there is space for it.
    pub(crate) fn file_at(&self, offset: u64) -> Result<Arc<MappedFile<D::Region>>> {
        if let Some(file) = self.files.find(offset) {
            return Ok(file);
        }
        self.check_space(self.files.file_size())?;
        match self.files.ensure(offset) {
            Err(StoreError::Full { path, free, needed, .. }) => {
                Err(StoreError::Full { path, free, needed, reserve: self.reserve })
            }
            other => other,
        }
    }

    /// `Full` where a write of `needed` bytes met a full disk: the file's blocks were not reserved.
    pub(crate) fn full_or(&self, error: StoreError, needed: u64) -> StoreError {
        match error {
            StoreError::Io { source, .. } if StoreError::is_full(&source) => {
                let path = self.files.directory().to_path_buf();
                let free = self.disk.free_space(&path).unwrap_or(0);
                StoreError::Full { path, free, needed, reserve: self.reserve }
            }
            other => other,
        }
    }

    /// `Full` where less than the reserve would stay free after writing `needed` bytes more.
    fn check_space(&self, needed: u64) -> Result<()> {
        let path = self.files.directory();
        let free = self.disk.free_space(path).map_err(|source| StoreError::io("look at", path, source))?;
        if free < self.reserve.saturating_add(needed) {
            return Err(StoreError::Full { path: path.to_path_buf(), free, needed, reserve: self.reserve });
        }
        Ok(())
    }

    /// Refuses appends while less than the reserve is free. Called now and then.
    pub(crate) fn watch_space(&self) {
        if matches!(self.check_space(0), Err(StoreError::Full { .. })) {
            self.set_full();
        }
    }

    /// Makes everything written so far durable and returns its end. A failure poisons the log.
    pub(crate) fn flush(&self) -> Result<u64> {
        let _flushing = self.flushing.lock();
        if self.is_poisoned() {
            return Err(StoreError::Poisoned);
        }
        let (from, to) = (self.flushed(), self.written());
        if from < to {
            if let Err(error) = self.files.flush(from..to) {
                self.poison();
                tracing::error!(%error, physical_offset = from, "flush failed, writing stops");
                return Err(error);
            }
            self.flushes.fetch_add(1, Ordering::Relaxed);
            self.flushed.store(to, Ordering::Release);
            self.decide();
        }
        Ok(to)
    }

    /// The record of `size` bytes at `physical_offset`, if it lies in a kept file and readers may see it.
    pub(crate) fn record(&self, physical_offset: u64, size: u32) -> Option<Record<D::Region>> {
        let end = physical_offset.checked_add(u64::from(size))?;
        if end > self.readable() {
            return None;
        }
        let file = self.files.find(physical_offset)?;
        (end <= file.end()).then(|| Record::new(file, physical_offset..end))
    }

    /// As [`Self::record`], looking first into the file of the record before it.
    pub(crate) fn record_in(
        &self,
        file: &mut Option<Arc<MappedFile<D::Region>>>,
        physical_offset: u64,
        size: u32,
    ) -> Option<Record<D::Region>> {
        let end = physical_offset.checked_add(u64::from(size))?;
        let is_inside = |file: &MappedFile<D::Region>| file.base() <= physical_offset && end <= file.end();
        if file.as_deref().is_none_or(|file| !is_inside(file)) {
            *file = self.files.find(physical_offset);
        }
        let file = file.as_ref().filter(|file| is_inside(file) && end <= self.readable())?;
        Some(Record::new(Arc::clone(file), physical_offset..end))
    }

    /// The record that begins at `physical_offset`; checked, because the offset may come from anywhere.
    pub(crate) fn checked_record(&self, physical_offset: u64) -> Option<Record<D::Region>> {
        let readable = self.readable();
        let file = self.files.find(physical_offset)?;
        let bytes = file.read(physical_offset..file.end().min(readable));
        let view = MessageView::decode(bytes, true).ok()?;
        let end = physical_offset + u64::from(view.total_size);
        (view.physical_offset == physical_offset).then(|| Record::new(file, physical_offset..end))
    }

    /// Walks over the records in `range`, which readers may see. `visit` gets each record's place and bytes.
    ///
    /// Returns where it stopped: the range's end, or the place where no record begins.
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

/// Checks what a producer may store, before anything is written.
pub(crate) fn check_limits(
    message: &NewMessage<'_>,
    max_body: u64,
    max_record: u64,
    host: SocketAddr,
) -> Result<()> {
    let limits = [
        ("message body", message.body.len() as u64, max_body),
        ("properties", message.properties.len() as u64, message::MAX_PROPERTIES_LEN as u64),
        ("topic", message.topic.len() as u64, message::MAX_TOPIC_LEN as u64),
    ];
    for (what, len, limit) in limits {
        if len > limit {
            return Err(StoreError::TooLarge { what, len, limit });
        }
    }
    // Recovery takes a zero byte there for a block that never reached the disk.
    if message.topic.as_bytes().contains(&0) {
        return Err(StoreError::Invalid { what: "topic", reason: "it holds a zero byte" });
    }
    if message.properties.contains(&0) {
        return Err(StoreError::Invalid { what: "properties", reason: "they hold a zero byte" });
    }
    let len = message::encoded_len(message, host);
    if len > max_record {
        return Err(StoreError::TooLarge { what: "record", len, limit: max_record });
    }
    Ok(())
}

/// Where the commit log lies in a store directory.
pub(crate) fn directory(root: &Path) -> std::path::PathBuf {
    root.join("commitlog")
}
