//! Finds the record nearest to an offset, for error messages.
//!
//! A record states its own physical offset, so a search recognizes its start. This module reads only the log;
//! `lookup` checks whether a queue lists the record.

use crate::{
    files::disk::Disk,
    log::commit_log::CommitLog,
    record::message::{MAGIC_V1, MAGIC_V2, PHYSICAL_OFFSET_AT},
};

/// Bytes of a record up to the end of its physical offset.
const HEAD_LEN: usize = PHYSICAL_OFFSET_AT + 8;
/// Offset of the magic code in a record.
const MAGIC_AT: usize = 4;
/// Most bytes to search: far more than the largest record.
const MAX_SEARCH: u64 = 64 << 20;

/// The start of the record that holds `at`, else of the last one before it, else of the first kept one.
///
/// `is_sound` rejects false candidates: a body may contain bytes that look like a record.
pub(crate) fn nearest<D: Disk>(
    log: &CommitLog<D>,
    at: u64,
    mut is_sound: impl FnMut(u64) -> bool,
) -> Option<u64> {
    let start = log.start();
    if at < start {
        return is_sound(start).then_some(start);
    }
    let end = log.readable();
    // The last byte that may belong to the record.
    let mut last = at.min(end.checked_sub(1)?);
    let lowest = last.saturating_sub(MAX_SEARCH).max(start);
    loop {
        let Some(file) = log.files().find(last) else {
            // A file is missing: go on before it.
            last = log.files().end_before(last)?.checked_sub(1).filter(|before| *before >= lowest)?;
            continue;
        };
        let from = file.base().max(lowest);
        let bytes = file.read(from..(last + HEAD_LEN as u64).min(end).min(file.end()));
        let heads = bytes.windows(HEAD_LEN).enumerate().map(|(number, head)| (from + number as u64, head));
        let found = heads.rev().find(|(place, head)| is_head_of(head, *place) && is_sound(*place));
        if let Some((place, _)) = found {
            return Some(place);
        }
        last = from.checked_sub(1).filter(|before| *before >= lowest)?;
    }
}

/// Whether `head` is the head of a record that was written at `place`.
fn is_head_of(head: &[u8], place: u64) -> bool {
    let magic = head.get(MAGIC_AT..).and_then(|rest| rest.first_chunk::<4>());
    let stated = head.get(PHYSICAL_OFFSET_AT..).and_then(|rest| rest.first_chunk::<8>());
    magic.is_some_and(|magic| matches!(u32::from_be_bytes(*magic), MAGIC_V1 | MAGIC_V2))
        && stated.is_some_and(|stated| u64::from_be_bytes(*stated) == place)
}
