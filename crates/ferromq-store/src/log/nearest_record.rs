//! Where messages begin: a refusal of a place in the log names one.
//!
//! A record tells its own physical offset, so its beginning is recognized wherever the search comes from. This
//! module reads the log only; whether a record is the one its queue lists is `lookup`'s business.

use crate::{
    files::disk::Disk,
    log::commit_log::CommitLog,
    record::message::{MAGIC_V1, MAGIC_V2, PHYSICAL_OFFSET_AT},
};

/// Bytes of a record that tell whether one begins there: up to the end of its physical offset.
const HEAD_LEN: usize = PHYSICAL_OFFSET_AT + 8;
/// Where the magic code lies.
const MAGIC_AT: usize = 4;
/// A search ends after so many bytes: far more than the largest record, far less than a minute.
const MAX_SEARCH: u64 = 64 << 20;

/// The begin of the message that lies at `at`, else of the last one before it, else of the first one kept.
///
/// `is_sound` has the last word on a candidate: bytes of a body may look like a record.
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
    // The last byte of the log that may belong to the message looked for.
    let mut last = at.min(end.checked_sub(1)?);
    let lowest = last.saturating_sub(MAX_SEARCH).max(start);
    loop {
        let Some(file) = log.files().find(last) else {
            // A file is missing: what lies before it is as near as it gets.
            last = log.files().end_before(last)?.checked_sub(1).filter(|before| *before >= lowest)?;
            continue;
        };
        let from = file.base().max(lowest);
        let bytes = file.read(from..(last + HEAD_LEN as u64).min(end).min(file.end()));
        let heads = bytes.windows(HEAD_LEN).enumerate().map(|(number, head)| (from + number as u64, head));
        let found = heads.rev().find(|(place, head)| tells(head, *place) && is_sound(*place));
        if let Some((place, _)) = found {
            return Some(place);
        }
        last = from.checked_sub(1).filter(|before| *before >= lowest)?;
    }
}

/// Says whether these bytes are the head of a record that was written to `place`.
fn tells(head: &[u8], place: u64) -> bool {
    let magic = head.get(MAGIC_AT..).and_then(|rest| rest.first_chunk::<4>());
    let told = head.get(PHYSICAL_OFFSET_AT..).and_then(|rest| rest.first_chunk::<8>());
    magic.is_some_and(|magic| matches!(u32::from_be_bytes(*magic), MAGIC_V1 | MAGIC_V2))
        && told.is_some_and(|told| u64::from_be_bytes(*told) == place)
}
