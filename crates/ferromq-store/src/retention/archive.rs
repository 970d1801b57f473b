//! The archive hook, which takes a file before it is deleted.
//!
//! `ferromq/archived` names the file that the hook took last. After a crash between hook and removal the hook does not
//! get that file twice, and another file of the same name is not mistaken for it. `cleaner` chooses and removes the
//! files.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};

use crate::{
    error::{IoResult, Result},
    files::{
        anchor::{self, Anchor},
        disk::Disk,
        mapped_file_queue::MappedFileQueue,
    },
};

const MAGIC: &[u8; 8] = b"FMQARCH1";
/// Pause after the first failure of a hook. Each further failure doubles it, up to [`LONGEST_PAUSE_MS`].
const FIRST_PAUSE_MS: i64 = 10_000;
const LONGEST_PAUSE_MS: i64 = 600_000;

/// A file of the commit log that is about to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredFile {
    /// Its path. The file stays there, unchanged, until the hook has returned.
    pub path: PathBuf,
    /// The physical offsets it holds.
    pub range: Range<u64>,
    /// Store time of its first message, milliseconds since 1970.
    pub oldest_ms: i64,
    /// Store time of its last message.
    pub newest_ms: i64,
}

/// Takes a file before it is deleted. An error keeps the file, and the hook is called again later.
pub(crate) type ArchiveHook = Arc<dyn Fn(&ExpiredFile) -> std::result::Result<(), String> + Send + Sync>;

/// Why the hook did not take a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotTaken {
    pub(crate) reason: String,
    /// When the hook is tried again, if time alone decides.
    pub(crate) retry_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Taken {
    range: Range<u64>,
    /// Its first record.
    anchor: Anchor,
}

#[derive(Default)]
struct State {
    taken: Option<Taken>,
    /// Whether `taken` is on disk.
    is_noted: bool,
    failures: u32,
    failed: Option<NotTaken>,
}

/// The hook, and the outcome of its last call.
#[derive(Default)]
pub(crate) struct Archive {
    hook: RwLock<Option<ArchiveHook>>,
    state: Mutex<State>,
}

impl Archive {
    /// Reads the last file taken. It counts only while the log still holds that file's first record.
    pub(crate) fn load<D: Disk>(disk: &D, root: &Path, log: &MappedFileQueue<D>) -> Result<Self> {
        let path = path(root);
        let bytes = disk.read_file(&path).if_found().or_io("read", &path)?;
        let taken = bytes.and_then(|bytes| decode(&bytes)).filter(|taken| taken.anchor.is_held_by(log));
        let state = State { is_noted: taken.is_some(), taken, ..State::default() };
        Ok(Self { hook: RwLock::default(), state: Mutex::new(state) })
    }

    pub(crate) fn set_hook(&self, hook: Option<ArchiveHook>) {
        *self.hook.write() = hook;
        let mut state = self.state.lock();
        (state.failures, state.failed) = (0, None);
    }

    /// Hands a file to the hook unless it was taken before, and records that durably. Blocks as long as the hook does.
    ///
    /// One caller at a time. `is_asked` ignores the pause after a failure. Returns whether the hook took the file now.
    pub(crate) fn take<D: Disk>(
        &self,
        (disk, root, is_gone): (&D, &Path, impl Fn() -> bool),
        file: &ExpiredFile,
        anchor: Anchor,
        now_ms: i64,
        is_asked: bool,
    ) -> std::result::Result<bool, NotTaken> {
        let taken = Taken { range: file.range.clone(), anchor };
        let is_new = {
            let state = self.state.lock();
            let is_new = state.taken.as_ref() != Some(&taken);
            if !is_new && state.is_noted {
                return Ok(false);
            }
            let is_early = |failed: &&NotTaken| failed.retry_ms.is_some_and(|retry_ms| retry_ms > now_ms);
            if let Some(failed) = state.failed.as_ref().filter(is_early).filter(|_| !is_asked) {
                return Err(failed.clone());
            }
            is_new
        };
        if is_new {
            let Some(hook) = self.hook.read().clone() else {
                return Err(NotTaken { reason: "no archive hook is set".to_owned(), retry_ms: None });
            };
            // No lock is held here: the hook may replace itself or call the store.
            let called = call(&hook, file);
            let mut state = self.state.lock();
            called.map_err(|reason| fail(&mut state, reason, now_ms))?;
            (state.taken, state.is_noted) = (Some(taken.clone()), false);
        }
        if is_gone() {
            // The hook closed the store, and another process may own it now.
            return Err(NotTaken { reason: "the store is closed".to_owned(), retry_ms: None });
        }
        let path = path(root);
        let noted = disk.replace_file(&path, &encode(&taken)).or_io("write", &path);
        let mut state = self.state.lock();
        noted.map_err(|error| fail(&mut state, error.to_string(), now_ms))?;
        (state.is_noted, state.failures, state.failed) = (true, 0, None);
        Ok(is_new)
    }
}

/// Calls the hook. A panic counts as a failure and does not end the cleaning thread.
fn call(hook: &ArchiveHook, file: &ExpiredFile) -> std::result::Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| hook(file)))
        .unwrap_or_else(|_| Err("the archive hook panicked".to_owned()))
}

fn fail(state: &mut State, reason: String, now_ms: i64) -> NotTaken {
    let pause = FIRST_PAUSE_MS.saturating_mul(1 << state.failures.min(16)).min(LONGEST_PAUSE_MS);
    state.failures = state.failures.saturating_add(1);
    let retry_ms = Some(now_ms.saturating_add(pause));
    state.failed = Some(NotTaken { reason: reason.clone(), retry_ms });
    NotTaken { reason, retry_ms }
}

/// Content between anchor and checksum: first physical offset of the file 8, its end 8.
fn encode(taken: &Taken) -> Vec<u8> {
    let content = [taken.range.start.to_be_bytes(), taken.range.end.to_be_bytes()].concat();
    anchor::seal(MAGIC, taken.anchor, &content)
}

/// An unreadable file counts as nothing taken: the hook gets the file once more.
fn decode(bytes: &[u8]) -> Option<Taken> {
    let (anchor, content) = anchor::unseal(MAGIC, bytes)
        .inspect_err(|reason| {
            tracing::warn!(reason, "ferromq/archived ignored: a file may be archived twice")
        })
        .ok()?;
    let (start, end) = content.split_first_chunk::<8>()?;
    let end = u64::from_be_bytes(end.try_into().ok()?);
    Some(Taken { range: u64::from_be_bytes(*start)..end, anchor })
}

fn path(root: &Path) -> PathBuf {
    root.join("ferromq").join("archived")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_taken_file_survives_encoding_and_damage_is_refused() {
        let anchor = Anchor { physical_offset: 5, store_timestamp: 6, body_crc: 7 };
        let taken = Taken { range: 5..900, anchor };
        let bytes = encode(&taken);
        assert_eq!(decode(&bytes), Some(taken));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None);
        }
        assert_eq!(decode(&anchor::seal(MAGIC, anchor, &[0; 15])), None);
        assert_eq!(decode(&anchor::seal(MAGIC, anchor, &[0; 17])), None);
    }

    #[test]
    fn pauses_grow_up_to_ten_minutes() {
        let mut state = State::default();
        let pauses: Vec<i64> =
            (0..9).map(|_| fail(&mut state, String::new(), 0).retry_ms.unwrap() / 1000).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
    }
}
