//! What happens between opening the files and the first append: find the log's end, cut what is torn behind
//! it, redo the derived files.
//!
//! It reads what the checkpoint and the abort file say; how entries and slots are cut is their files' business.

use std::{sync::Arc, time::Instant};

use crate::{
    Disk, Result, StoreError,
    dispatch::{Dispatcher, Resume},
    mapped_file::MappedFile,
    message::{self, BLANK_LEN, MAGIC_BLANK, MessageView, Peek},
    queue_list::QueueList,
    stop,
    store::Inner,
};

/// Bytes behind the end that are looked at after a clean stop.
const CLEAN_TAIL: u64 = 64 << 10;

type File<D> = Arc<MappedFile<<D as Disk>::Region>>;

/// How the store was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastStop {
    /// Closed: everything is on disk.
    Clean,
    /// Killed while we had it open.
    Unclean,
    /// Killed while another broker had it open, whose index promises less.
    UncleanForeign,
}

impl LastStop {
    pub(crate) fn is_clean(self) -> bool {
        self == Self::Clean
    }

    /// Says whether it was us who had the store open.
    pub(crate) fn is_ours(self) -> bool {
        self == Self::Unclean
    }
}

/// What a recovery did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Recovered {
    pub(crate) messages: u64,
    pub(crate) cut_bytes: u64,
}

/// What the walk over the log's tail found.
#[derive(Default)]
struct Walked {
    end: u64,
    last_timestamp: i64,
    messages: u64,
}

/// Recovers log, consume queues and index, and returns the dispatcher that goes on from there.
pub(crate) fn recover<D: Disk>(inner: &Inner<D>, last_stop: LastStop) -> Result<(Recovered, Dispatcher<D>)> {
    let began = Instant::now();
    let marks = inner.checkpoint.marks();
    let durable_end = marks.durable_end as u64;
    let files = inner.log.files().snapshot();
    let walk_start = start_of_walk(&files, last_stop, marks.walk_from_timestamp());
    let walked = walk(&files, walk_start, (!last_stop.is_clean()).then_some(durable_end));
    if walked.end < durable_end {
        let file = files.iter().rev().find(|file| file.base() <= walked.end);
        return Err(StoreError::Corrupt {
            file: file.map_or(inner.log.files().directory(), |file| file.path()).to_path_buf(),
            offset: walked.end - file.map_or(0, |file| file.base()),
            reason: "records that were on disk are missing or damaged",
        });
    }
    let is_ours = last_stop.is_clean() && stop::closed_at(inner) == Some(walked.end);
    let cut_bytes =
        if is_ours && has_clean_tail(&files, walked.end)? { 0 } else { cut_tail(inner, &files, walked.end)? };
    inner.log.begin_at(walked.end, walked.last_timestamp);
    if !last_stop.is_clean() {
        // After a crash or a failed flush the page cache may hold what the disk does not.
        rewrite(&files, durable_end.max(inner.log.start()), walked.end)?;
        inner.log.files().flush(durable_end.max(inner.log.start())..walked.end)?;
    }
    let (mut from, resume) = recover_derived(inner, last_stop, walk_start, walked.end)?;
    let listed = inner.listed();
    if listed.is_none() {
        // Nobody noted which queues there were: what the log has must be in them.
        from = inner.log.start();
    } else if last_stop.is_clean() && !is_ours {
        // Another broker had the store since; its last file shows where a queue has a gap.
        from = from.min(files.last().map_or(0, |file| file.base()));
    }
    let dispatcher = redo(inner, from, walked.end, resume, listed.as_ref())?;
    inner.queues.all().iter().for_each(|queue| queue.continue_after_entries());
    inner.set_dispatched(walked.end, walked.last_timestamp);
    let recovered = Recovered { messages: walked.messages, cut_bytes };
    let elapsed = began.elapsed();
    let walked_bytes = walked.end.saturating_sub(walk_start);
    tracing::info!(
        clean = last_stop.is_clean(),
        messages = recovered.messages,
        redone = dispatcher.messages,
        cut_bytes,
        physical_offset = walked.end,
        elapsed_us = elapsed.as_micros() as u64,
        mib_per_second = walked_bytes as f64 / 1048576.0 / elapsed.as_secs_f64().max(1e-6),
        "store recovered"
    );
    Ok((recovered, dispatcher))
}

/// The physical offset where the walk begins: all before it is known to be sound.
fn start_of_walk<R: crate::Region>(files: &[Arc<MappedFile<R>>], last_stop: LastStop, timestamp: i64) -> u64 {
    let is_sound = |file: &&Arc<MappedFile<R>>| match record_at(file, file.base(), true) {
        Some(Found::Message(view)) => last_stop.is_clean() || view.store_timestamp <= timestamp,
        _ => false,
    };
    let found = files.iter().rev().find(is_sound).or(files.first());
    found.map_or(0, |file| file.base())
}

enum Found<'a> {
    Message(MessageView<'a>),
    Blank,
}

/// The record at `at`, if a sound one lies there.
fn record_at<R: crate::Region>(file: &MappedFile<R>, at: u64, check_crc: bool) -> Option<Found<'_>> {
    let bytes = file.read(at..file.end());
    match message::peek(bytes) {
        Peek::Message(_) => {
            let view = MessageView::decode(bytes, check_crc).ok()?;
            // Bytes of an older file, or of a body, are no record of this place.
            (view.physical_offset == at).then_some(Found::Message(view))
        }
        Peek::Blank => is_blank_sound(bytes).then_some(Found::Blank),
        Peek::Nothing => None,
    }
}

/// Says whether a block of the record's topic or properties never arrived, which the checksum does not cover.
///
/// Where a file was not written it is zero, so a lost block shows as zeros up to a block's edge. What we append has
/// no zero byte there; another broker's properties that do, a whole block of them, would be cut too.
fn is_torn(view: &MessageView<'_>, base: u64) -> bool {
    const BLOCK: usize = 512;
    let end = (view.physical_offset - base) as usize + view.total_size as usize;
    let start = end - view.properties.len();
    let first = (BLOCK - start % BLOCK).min(view.properties.len());
    let (head, rest) = view.properties.split_at_checked(first).unwrap_or_default();
    let is_lost = |block: &[u8]| !block.is_empty() && block.iter().all(|byte| *byte == 0);
    view.topic.contains('\0') || is_lost(head) || rest.chunks(BLOCK).any(is_lost)
}

/// A blank record says how much room it fills: all there is.
fn is_blank_sound(bytes: &[u8]) -> bool {
    let expected = [(bytes.len() as u32).to_be_bytes(), MAGIC_BLANK.to_be_bytes()].concat();
    bytes.len() as u64 >= BLANK_LEN && bytes.starts_with(&expected)
}

/// Walks over sound records from `start` on. After an unclean stop the bodies are checked, and at and after
/// `doubt_from` the rest of each record too.
fn walk<R: crate::Region>(files: &[Arc<MappedFile<R>>], start: u64, doubt_from: Option<u64>) -> Walked {
    let mut walked = Walked { end: start, ..Walked::default() };
    for file in files.iter().filter(|file| file.base() >= start) {
        loop {
            let is_doubtful = doubt_from.is_some_and(|from| walked.end >= from);
            match record_at(file, walked.end, doubt_from.is_some()) {
                Some(Found::Message(view)) if is_doubtful && is_torn(&view, file.base()) => return walked,
                Some(Found::Message(view)) => {
                    walked.messages += 1;
                    walked.last_timestamp = walked.last_timestamp.max(view.store_timestamp);
                    walked.end += u64::from(view.total_size);
                }
                Some(Found::Blank) => {
                    walked.end = file.end();
                    break;
                }
                None => return walked,
            }
        }
    }
    walked
}

/// Says whether zeros follow the end, as we leave it. Reading on to the end of a large file would take seconds.
fn has_clean_tail<R: crate::Region>(files: &[Arc<MappedFile<R>>], end: u64) -> Result<bool> {
    let Some(file) = files.iter().find(|file| (file.base()..file.end()).contains(&end)) else {
        return Ok(true);
    };
    let mut bytes = vec![0; (file.end() - end).min(CLEAN_TAIL) as usize];
    file.read_into(end, &mut bytes)?;
    Ok(bytes.iter().all(|byte| *byte == 0))
}

/// Zeroes what lies behind the end, so that it can never be read as records later, and removes later files.
fn cut_tail<D: Disk>(inner: &Inner<D>, files: &[File<D>], end: u64) -> Result<u64> {
    let mut cut = 0;
    for file in files.iter().filter(|file| file.end() > end) {
        if file.base() < end || files.len() == 1 {
            let written_to = file.erase(end..file.end())?;
            cut += written_to - end;
            file.flush(end..file.end())?;
            continue;
        }
        // Removed below without being read: most often it was only prepared. One that was not counts whole.
        let mut head = [0; 8];
        file.read_into(file.base(), &mut head)?;
        if head != [0; 8] {
            cut += file.end() - file.base();
        }
    }
    inner.log.files().truncate(end)?;
    inner.log.files().sync_directory()?;
    Ok(cut)
}

fn rewrite<R: crate::Region>(files: &[Arc<MappedFile<R>>], from: u64, to: u64) -> Result<()> {
    for file in files.iter().filter(|file| file.end() > from && file.base() < to) {
        file.rewrite(from.max(file.base())..to.min(file.end()))?;
    }
    Ok(())
}

/// Cuts what the derived files may hold in excess, and says from where on they must be redone.
fn recover_derived<D: Disk>(
    inner: &Inner<D>,
    last_stop: LastStop,
    walk_start: u64,
    end: u64,
) -> Result<(u64, Resume)> {
    let log_start = inner.log.start();
    let is_clean = last_stop.is_clean();
    let limit = if is_clean { end } else { walk_start };
    let mut queues_to = log_start;
    for queue in inner.queues.all() {
        queues_to = queues_to.max(queue.recover(log_start, limit, is_clean)?.unwrap_or(0));
    }
    let queues_to = queues_to.min(if is_clean { end } else { limit.max(log_start) });
    let marks = inner.checkpoint.marks();
    let indexed_to = inner.index.recover(end, marks.index_timestamp, last_stop)?;
    // The index is flushed before the checkpoint says so; only then keys of old messages cannot be missing.
    let promised = match last_stop {
        LastStop::Clean => queues_to,
        LastStop::Unclean => (marks.durable_end as u64).min(end),
        LastStop::UncleanForeign => log_start,
    };
    let promised = if inner.index.was_missing() { log_start } else { promised };
    let index_from = indexed_to.unwrap_or(log_start).max(promised).max(log_start);
    Ok((queues_to.min(index_from), Resume { indexed_to: Some(index_from) }))
}

/// Dispatches again from `from` on. Where that shows that a queue lost entries, all queues are emptied and
/// redone from the log's start: entries behind a gap would hide those that are missing.
fn redo<D: Disk>(
    inner: &Inner<D>,
    from: u64,
    end: u64,
    resume: Resume,
    listed: Option<&QueueList>,
) -> Result<Dispatcher<D>> {
    let log_start = inner.log.start();
    let mut dispatcher = Dispatcher::new(resume);
    redo_range(inner, &mut dispatcher, from, end)?;
    let find = |topic: &str, queue_id| inner.queues.find(topic, queue_id).map(|queue| queue.extent());
    let lost = listed.and_then(|listed| listed.lost(log_start, find));
    // From the log's start on a gap is what retention left.
    let has_gap = dispatcher.found_gap && from > log_start;
    if lost.is_none() && !has_gap {
        return Ok(dispatcher);
    }
    tracing::warn!(?lost, has_gap, "consume queues are incomplete: redoing them from the log's start");
    for queue in inner.queues.all() {
        queue.clear()?;
    }
    let again = Resume { indexed_to: inner.index.last_physical_offset().or(resume.indexed_to) };
    dispatcher = Dispatcher::new(again);
    redo_range(inner, &mut dispatcher, log_start, end)?;
    // A queue whose messages were all deleted goes on where it was: an offset is given out once.
    for ((topic, queue_id), extent) in listed.iter().flat_map(|listed| &listed.queues) {
        let queue = inner.queues.find_or_make(topic, *queue_id);
        if queue.max_offset() == 0 {
            queue.begin_empty_at(extent.max_offset);
        }
    }
    Ok(dispatcher)
}

fn redo_range<D: Disk>(inner: &Inner<D>, dispatcher: &mut Dispatcher<D>, from: u64, end: u64) -> Result<()> {
    let mut at = from;
    while at < end {
        let to = dispatcher.round(inner, at, end)?;
        if to <= at {
            let file = inner.log.files().find(at);
            return Err(StoreError::Corrupt {
                offset: at - file.as_ref().map_or(0, |file| file.base()),
                file: file
                    .map_or(inner.log.files().directory().to_path_buf(), |file| file.path().to_path_buf()),
                reason: "no record begins where one should",
            });
        }
        at = to;
    }
    Ok(())
}
