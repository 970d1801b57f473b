//! Damaged or missing ranges of the commit log, found by a recovery or by a read.
//!
//! `ferromq/damages` keeps them across restarts. This module stores, looks up and logs them; `log_end` finds them.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::RwLock;

use crate::{
    error::{IoResult, Result, StoreError},
    files::{
        anchor::{self, Anchor},
        disk::Disk,
    },
    record::reader::Reader,
};

const MAGIC: &[u8; 8] = b"FMQDAMG1";
/// Most damages kept apart; beyond that the last two are merged.
const MAX_DAMAGES: usize = 10_000;

/// Why a range of the log is not served, or a file of it does not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DamageReason {
    /// The file does not exist.
    Missing,
    /// The file is shorter than it was.
    Short,
    /// No valid record begins where one should, or a record does not match its checksum.
    Corrupt,
    /// The log is sound, but the named consume queue or index cannot be written now. Its missing entries are derived
    /// from this range once it can be.
    SetAside,
    /// The file cannot be read now. Its messages are kept and served once it can be.
    Unreadable,
    /// The file cannot be written now; the store retries and uses its state in memory. Nothing is lost: this range of
    /// the log holds the same.
    Unwritten,
    /// Retention removed these messages before the named consume queue could be written again.
    Removed {
        /// Queue offset of the first one.
        first: u64,
        /// How many.
        count: u64,
    },
}

impl fmt::Display for DamageReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the file is missing",
            Self::Short => "the file is shorter than it was",
            Self::Corrupt => "records are damaged",
            Self::SetAside => "it cannot be written now and is set aside: its messages wait in the log",
            Self::Unreadable => "it cannot be read now: its messages are kept until it can be",
            Self::Unwritten => "it cannot be written now: its state of this range is in memory and in the log",
            Self::Removed { first, count } => {
                let last = first.saturating_add(*count).saturating_sub(1);
                return write!(f, "retention removed the messages at queue offsets {first} to {last} before it could be written");
            }
        })
    }
}

/// A range of the commit log whose records are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file that is damaged or missing.
    pub file: PathBuf,
    /// Physical offsets.
    pub range: Range<u64>,
    /// What is wrong.
    pub reason: DamageReason,
}

/// All damages of a log, in order, none touching another.
#[derive(Debug, Default)]
pub(crate) struct Damages {
    list: RwLock<Vec<Damage>>,
    /// Almost always clear, so that reads skip the lock.
    has_any: AtomicBool,
    is_changed: AtomicBool,
}

impl Damages {
    pub(crate) fn all(&self) -> Vec<Damage> {
        self.list.read().clone()
    }

    /// The damaged range that holds a place.
    pub(crate) fn at(&self, physical_offset: u64) -> Option<Range<u64>> {
        self.overlapping(&(physical_offset..physical_offset.saturating_add(1)))
    }

    /// The first damaged range that has a byte of `range`.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> Option<Range<u64>> {
        if !self.has_any.load(Ordering::Acquire) {
            return None;
        }
        let list = self.list.read();
        let first = list.partition_point(|damage| damage.range.end <= range.start);
        list.get(first).map(|damage| damage.range.clone()).filter(|found| found.start < range.end)
    }

    /// Adds a damage and logs it, unless it is known. Damages that touch become one.
    pub(crate) fn add(&self, damage: Damage) {
        if damage.range.is_empty() {
            return;
        }
        let mut list = self.list.write();
        let is_known =
            |known: &Damage| known.range.start <= damage.range.start && known.range.end >= damage.range.end;
        if list.iter().any(is_known) {
            return;
        }
        tracing::error!(
            file = %damage.file.display(),
            physical_offset = damage.range.start,
            bytes = damage.range.end - damage.range.start,
            reason = %damage.reason,
            "commit log damaged: the range is not served"
        );
        insert(&mut list, damage);
        self.has_any.store(true, Ordering::Release);
        self.is_changed.store(true, Ordering::Release);
    }

    /// Forgets damages that lie wholly below the first kept byte.
    pub(crate) fn forget_below(&self, log_start: u64) {
        let mut list = self.list.write();
        let before = list.len();
        list.retain(|damage| damage.range.end > log_start);
        if list.len() != before {
            self.is_changed.store(true, Ordering::Release);
        }
    }

    /// Loads the damages of the last run, unless the file belongs to another log. `is_held`: whether the log still
    /// holds the record of an anchor.
    pub(crate) fn load<D: Disk>(
        &self,
        disk: &D,
        root: &Path,
        is_held: impl Fn(Anchor) -> bool,
    ) -> Result<()> {
        let path = path(root);
        let Some(bytes) = disk.read_file(&path).if_found().or_io("read", &path)? else { return Ok(()) };
        let read = anchor::unseal(MAGIC, &bytes).and_then(|(anchor, content)| Ok((anchor, decode(content)?)));
        match read {
            Ok((anchor, found)) if is_held(anchor) => {
                let mut list = self.list.write();
                found.into_iter().for_each(|damage| insert(&mut list, damage));
                self.has_any.store(!list.is_empty(), Ordering::Release);
            }
            Ok(_) => {
                tracing::info!(file = %path.display(), "list of damages belongs to another log: ignored")
            }
            Err(reason) => tracing::warn!(file = %path.display(), reason, "list of damages ignored"),
        }
        Ok(())
    }

    /// Writes the list if it changed.
    pub(crate) fn save<D: Disk>(&self, disk: &D, root: &Path, anchor: Anchor) -> Result<()> {
        if !self.is_changed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let path = path(root);
        let bytes = anchor::seal(MAGIC, anchor, &encode(&self.list.read()));
        disk.replace_file(&path, &bytes).map_err(|source| {
            self.is_changed.store(true, Ordering::Release);
            StoreError::io("write", &path, source)
        })
    }
}

/// Inserts a damage in order and merges those that touch it.
fn insert(list: &mut Vec<Damage>, damage: Damage) {
    let touches = |known: &Damage| {
        known.range.start <= damage.range.end && damage.range.start <= known.range.end
            && known.file == damage.file
            // Recovery finds a whole range, a read single records inside it.
            && known.reason == damage.reason
    };
    let mut range = damage.range.clone();
    list.retain(|known| {
        let is_inside = damage.range.start <= known.range.start && known.range.end <= damage.range.end;
        if touches(known) {
            range = range.start.min(known.range.start)..range.end.max(known.range.end);
        }
        !is_inside && !touches(known)
    });
    let at = list.partition_point(|known| known.range.start < range.start);
    list.insert(at, Damage { range, ..damage });
    if list.len() > MAX_DAMAGES
        && let Some(last) = list.pop()
        && let Some(before) = list.last_mut()
    {
        before.range.end = last.range.end;
    }
}

/// Layout of each damage: start 8, end 8, reason 1, length of the path 2, path.
fn encode(list: &[Damage]) -> Vec<u8> {
    let mut out = Vec::new();
    for damage in list {
        let reason: u8 = match damage.reason {
            DamageReason::Missing => 1,
            DamageReason::Short => 2,
            DamageReason::Corrupt => 3,
            // Known only while the store is open.
            DamageReason::SetAside
            | DamageReason::Unreadable
            | DamageReason::Unwritten
            | DamageReason::Removed { .. } => continue,
        };
        let file = damage.file.to_string_lossy();
        out.extend_from_slice(&damage.range.start.to_be_bytes());
        out.extend_from_slice(&damage.range.end.to_be_bytes());
        out.push(reason);
        let name = file.as_bytes().get(..file.len().min(u16::MAX.into())).unwrap_or_default();
        out.extend_from_slice(&(name.len() as u16).to_be_bytes());
        out.extend_from_slice(name);
    }
    out
}

fn decode(bytes: &[u8]) -> std::result::Result<Vec<Damage>, &'static str> {
    const CUT: &str = "it ends in the middle";
    let (mut reader, mut list) = (Reader::new(bytes), Vec::new());
    while !reader.is_empty() {
        let (start, end) = (reader.u64().ok_or(CUT)?, reader.u64().ok_or(CUT)?);
        let reason = reader.u8().ok_or(CUT)?;
        let file = reader.short_bytes().ok_or(CUT)?;
        let reason = match reason {
            1 => DamageReason::Missing,
            2 => DamageReason::Short,
            3 => DamageReason::Corrupt,
            _ => return Err("an unknown reason"),
        };
        let range = start..end;
        if range.is_empty() {
            return Err("an empty range");
        }
        list.push(Damage { file: PathBuf::from(String::from_utf8_lossy(file).into_owned()), range, reason });
    }
    Ok(list)
}

fn path(root: &Path) -> PathBuf {
    root.join("ferromq").join("damages")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn damage(range: Range<u64>) -> Damage {
        Damage { file: PathBuf::from("f"), range, reason: DamageReason::Corrupt }
    }

    fn ranges(damages: &Damages) -> Vec<Range<u64>> {
        damages.all().into_iter().map(|damage| damage.range).collect()
    }

    #[test]
    fn damages_that_touch_become_one_and_are_found_by_any_of_their_bytes() {
        let damages = Damages::default();
        assert_eq!(damages.at(5), None);
        for range in [30..40, 10..20, 12..14, 20..22, 28..30, 50..51] {
            damages.add(damage(range));
        }
        assert_eq!(ranges(&damages), [10..22, 28..40, 50..51]);
        assert_eq!(damages.at(9), None);
        assert_eq!(damages.at(10), Some(10..22));
        assert_eq!(damages.at(22), None);
        assert_eq!(damages.overlapping(&(22..29)), Some(28..40));
        assert_eq!(damages.overlapping(&(22..28)), None);
        damages.forget_below(22);
        assert_eq!(ranges(&damages), [28..40, 50..51]);
    }

    proptest! {
        #[test]
        fn a_list_comes_back_as_written(
            list in prop::collection::vec(("[a-z/]{0,9}", any::<u32>(), 1..9u64, 0..3usize), 0..5)
        ) {
            let reasons = [DamageReason::Missing, DamageReason::Short, DamageReason::Corrupt];
            let list: Vec<Damage> = list
                .into_iter()
                .map(|(file, start, len, reason)| Damage {
                    file: file.into(),
                    range: u64::from(start)..u64::from(start) + len,
                    reason: reasons[reason],
                })
                .collect();
            prop_assert_eq!(decode(&encode(&list)).unwrap(), list);
        }

        #[test]
        fn decoding_any_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&bytes);
        }
    }
}
