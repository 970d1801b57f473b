//! How many connections the descriptors of this process leave room for: all servers of a process share them, beside the
//! stores those serve.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicU64, Ordering},
};

use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most connections of a server that is not told otherwise.
const MOST_CONNECTIONS: usize = 16_384;
/// Descriptors for logs, small files, outgoing connections and the moment in which a connection is refused.
const SPARE: u64 = 64;

/// Those of this process.
static PROCESS: LazyLock<Arc<Descriptors>> = LazyLock::new(|| {
    Arc::new(Descriptors {
        allowed: || getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft),
        of_stores: AtomicU64::new(0),
        open: AtomicU64::new(0),
    })
});

/// What a process does with its descriptors.
#[derive(Debug)]
struct Descriptors {
    /// The soft limit, as it is now.
    allowed: fn() -> u64,
    /// What stores keep open at most.
    of_stores: AtomicU64,
    /// Connections of all servers.
    open: AtomicU64,
}

impl Descriptors {
    /// How many connections there may be.
    fn room(&self) -> u64 {
        let allowed = (self.allowed)();
        // Several stores that are not told otherwise want half of all each.
        let of_stores = self.of_stores.load(Ordering::Relaxed).min(allowed / 2);
        allowed.saturating_sub(of_stores).saturating_sub(SPARE).max(1)
    }

    /// One connection more, where there is room or `is_certain`.
    fn take(self: &Arc<Self>, is_certain: bool) -> Option<Counted> {
        let counted = Counted::new(self, |descriptors| &descriptors.open, 1);
        (is_certain || self.open.load(Ordering::Relaxed) <= self.room()).then_some(counted)
    }
}

/// Counts as long as it is there.
#[derive(Debug)]
struct Counted {
    descriptors: Arc<Descriptors>,
    counter: fn(&Descriptors) -> &AtomicU64,
    count: u64,
}

impl Counted {
    fn new(descriptors: &Arc<Descriptors>, counter: fn(&Descriptors) -> &AtomicU64, count: u64) -> Self {
        counter(descriptors).fetch_add(count, Ordering::Relaxed);
        Self { descriptors: Arc::clone(descriptors), counter, count }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.counter)(&self.descriptors).fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// The connections a server may have.
#[derive(Debug)]
pub(crate) struct Slots {
    most: usize,
    own: Arc<Semaphore>,
    /// Told how many; else the process's descriptors decide, too.
    is_told: bool,
    descriptors: Arc<Descriptors>,
    _of_store: Counted,
}

/// The right of one connection to be open.
#[derive(Debug)]
pub(crate) struct Slot {
    _own: OwnedSemaphorePermit,
    _counted: Counted,
}

impl Slots {
    /// Up to `most` connections; `None`: as many as the descriptors of the process leave. Its store, if any, keeps up to
    /// `store_files` open.
    pub(crate) fn new(most: Option<usize>, store_files: usize) -> Self {
        Self::of(&PROCESS, most, store_files)
    }

    fn of(descriptors: &Arc<Descriptors>, most: Option<usize>, store_files: usize) -> Self {
        let is_told = most.is_some();
        let most = most.unwrap_or(MOST_CONNECTIONS);
        Self {
            most,
            own: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            is_told,
            descriptors: Arc::clone(descriptors),
            _of_store: Counted::new(descriptors, |descriptors| &descriptors.of_stores, store_files as u64),
        }
    }

    /// One connection more, unless too many are open.
    pub(crate) fn take(&self) -> Option<Slot> {
        let own = Arc::clone(&self.own).try_acquire_owned().ok()?;
        Some(Slot { _own: own, _counted: self.descriptors.take(self.is_told)? })
    }

    /// How many there may be; of all servers of the process, where that is less.
    pub(crate) fn limit(&self) -> usize {
        let room = usize::try_from(self.descriptors.room()).unwrap_or(usize::MAX);
        if self.is_told { self.most } else { self.most.min(room) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(allowed: fn() -> u64) -> Arc<Descriptors> {
        Arc::new(Descriptors { allowed, of_stores: AtomicU64::new(0), open: AtomicU64::new(0) })
    }

    #[test]
    fn connections_leave_a_store_its_descriptors_and_nothing_where_there_is_none() {
        let limit = |allowed: fn() -> u64, files| Slots::of(&process(allowed), None, files).limit();
        assert_eq!([limit(|| 64, 32), limit(|| 256, 128), limit(|| 1024, 512)], [1, 64, 448]);
        assert_eq!([limit(|| 20_000, 4096), limit(|| u64::MAX, 4096)], [15_840, 16_384]);
        assert_eq!([limit(|| 1024, 0), limit(|| 1024, 100)], [960, 860]);
    }

    #[test]
    fn servers_of_a_process_share_what_its_stores_leave() {
        let process = process(|| 256);
        let name_server = Slots::of(&process, None, 0);
        assert_eq!(name_server.limit(), 192);
        let broker = Slots::of(&process, None, 128);
        let mut open: Vec<_> = (0..40).map(|_| name_server.take().unwrap()).collect();
        open.extend((0..24).map(|_| broker.take().unwrap()));
        assert!(name_server.take().is_none() && broker.take().is_none());
        open.pop();
        open.push(name_server.take().unwrap());
        // A second store wants as much again: half is left all the same.
        let other = Slots::of(&process, None, 128);
        assert_eq!([name_server.limit(), other.limit()], [64, 64]);
        drop((broker, other));
        assert_eq!(name_server.limit(), 192);
        drop(open);
        assert_eq!(process.open.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_server_that_is_told_how_many_takes_them_and_others_have_what_is_left() {
        let process = process(|| 256);
        let (told, other) = (Slots::of(&process, Some(200), 0), Slots::of(&process, None, 0));
        let open: Vec<_> = (0..200).map(|_| told.take().unwrap()).collect();
        assert!(told.take().is_none() && other.take().is_none());
        assert_eq!(told.limit(), 200);
        drop(open);
        assert!(other.take().is_some());
    }
}
