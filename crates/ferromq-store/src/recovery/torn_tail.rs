//! Checks, counts and cuts the bytes after the log's end, and rewrites those before it.
//!
//! `log_end` decides where the end is.

use std::ops::Range;

use crate::{
    error::Result,
    files::{disk::Disk, mapped_file_queue::MappedFileQueue},
    record::message::MAGIC_BLANK,
    recovery::log_walk::{Checks, Found, find_record},
};

/// Bytes after the end that are checked for zeros. Reading a large file to its end would take seconds.
const LOOKED_AT: u64 = 64 << 10;
/// Bytes after the end in which messages are counted.
const COUNTED: u64 = 64 << 20;

/// What was cut.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cut {
    pub(crate) bytes: u64,
    /// Valid records among them.
    pub(crate) messages: u64,
}

/// Whether only zeros, or no file, follow `end`. If the file of `end` is gone, the next one is checked.
pub(crate) fn is_zero<D: Disk>(files: &MappedFileQueue<D>, end: u64) -> Result<bool> {
    let from = if files.contains(end) { Some(end) } else { files.begin_after(end) };
    let Some(from) = from else { return Ok(true) };
    let Some(file) = files.open(from)? else { return Ok(true) };
    let mut bytes = vec![0; (file.end() - from).min(LOOKED_AT) as usize];
    file.read_into(from, &mut bytes)?;
    Ok(bytes.iter().all(|byte| *byte == 0))
}

/// Zeroes the bytes after the end, so that they can never be read as records, and removes later files.
pub(crate) fn cut<D: Disk>(files: &MappedFileQueue<D>, end: u64) -> Result<Cut> {
    // Count before cutting; without written bytes there is nothing to read.
    let mut cut = Cut { bytes: 0, messages: count_messages(files, end)? };
    let spans = files.spans();
    for span in spans.iter().filter(|span| span.end > end) {
        let Some(file) = files.open_writable(span.start)? else { continue };
        // The first file stays, even if it is empty.
        if file.base() < end || spans.first() == Some(span) {
            let from = end.max(file.base());
            let written_to = file.erase(from..file.end())?;
            cut.bytes += written_to - from;
            file.flush(from..file.end())?;
            continue;
        }
        // Removed below without a read: usually it was only prepared. If it has data, it counts whole.
        let mut head = [0; 8];
        file.read_into(file.base(), head.get_mut(..file.len().min(8) as usize).unwrap_or_default())?;
        if head != [0; 8] {
            cut.bytes += file.len();
        }
    }
    files.truncate(end)?;
    files.sync_directory()?;
    Ok(cut)
}

/// Counts the valid records after the end.
fn count_messages<D: Disk>(files: &MappedFileQueue<D>, end: u64) -> Result<u64> {
    let checks = Checks { torn_from: 0, ..Checks::ALL };
    let limit = files.span().map_or(end, |span| span.end).min(end.saturating_add(COUNTED));
    let mut at = end;
    let mut messages = 0;
    while at < limit {
        let file = files.open(at)?;
        match file.as_ref().and_then(|file| checks.record(file, at)) {
            Some(Found::Message(view)) => {
                messages += 1;
                at += u64::from(view.total_size);
            }
            Some(Found::Blank) => at = file.map_or(limit, |file| file.end()),
            None => match find_record(files, at + 1..limit, u64::MAX)? {
                Some(next) => at = next,
                None => break,
            },
        }
    }
    Ok(messages)
}

/// The range around an offset without a valid record; `None` if there is one. Reads nothing at or after `end`, where an
/// appender may be writing.
pub(crate) fn damage_at<D: Disk>(
    files: &MappedFileQueue<D>,
    place: u64,
    end: u64,
) -> Result<Option<Range<u64>>> {
    let checks = Checks { crc: false, torn_from: u64::MAX, limit: end };
    let Some(file) = files.open(place)? else { return Ok(None) };
    let limit = file.end().min(end);
    let mut at = file.base();
    while at <= place && at < limit {
        match checks.record(&file, at) {
            Some(Found::Message(view)) => at += u64::from(view.total_size),
            Some(Found::Blank) => return Ok(None),
            None => {
                let next = find_record(files, at + 1..limit, end)?.unwrap_or(limit);
                if place < next {
                    return Ok(Some(at..next));
                }
                at = next;
            }
        }
    }
    Ok(None)
}

/// Writes a range of the log again unchanged, so that the next flush includes it.
pub(crate) fn rewrite<D: Disk>(files: &MappedFileQueue<D>, range: Range<u64>) -> Result<()> {
    for span in files.spans().into_iter().filter(|span| span.end > range.start && span.start < range.end) {
        if let Some(file) = files.open_writable(span.start)? {
            file.rewrite(range.start.max(span.start)..range.end.min(span.end))?;
        }
    }
    Ok(())
}

/// Where the log continues if files at its end are missing: after every assigned offset.
///
/// Recreates the missing files, each with a blank record.
pub(crate) fn continue_after_missing<D: Disk>(
    files: &MappedFileQueue<D>,
    end: u64,
    durable_end: Option<u64>,
) -> Result<u64> {
    let span_end = files.end();
    let Some(durable_end) = durable_end.filter(|durable_end| *durable_end > span_end) else { return Ok(end) };
    let mut at = files.span().map_or(durable_end / files.file_size() * files.file_size(), |span| span.end);
    while at < durable_end {
        let file = files.ensure(at)?;
        let room = file.end() - file.base();
        file.write(file.base(), &[&(room as u32).to_be_bytes(), &MAGIC_BLANK.to_be_bytes()])?;
        file.flush(file.base()..file.base() + 8)?;
        at = file.end();
    }
    files.sync_directory()?;
    Ok(at)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::{
        config::StoreConfig, record::encode::NewMessage, store::message_store::MessageStore,
        time::clock::Clock,
    };

    #[test]
    fn nothing_from_the_end_on_is_looked_at_for_damage() {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig {
            commit_log_file_size: 1 << 20,
            disk_reserve: 0,
            index_slots: 9,
            index_entries: 9,
            ..StoreConfig::default()
        };
        let store = MessageStore::open(directory.path(), config, Clock::manual(1)).unwrap();
        let host = SocketAddr::from(([127, 0, 0, 1], 1));
        let message = NewMessage {
            topic: "t",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 1,
            born_host: host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"body",
            properties: b"",
        };
        let end = store.log().append(&[message, message]).unwrap().end;
        let files = store.queues().log.files();
        assert_eq!(damage_at(files, end / 2, end).unwrap(), None);
        // The second record is half written, as by an appender.
        assert_eq!(damage_at(files, end / 2, end - 1).unwrap(), Some(end / 2..end - 1));
        assert_eq!(find_record(files, 1..end - 1, end - 1).unwrap(), None);
        assert_eq!(find_record(files, 1..end - 1, end).unwrap(), Some(end / 2));
    }
}
