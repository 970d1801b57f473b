//! Limits connections by the file descriptors of this process, which all its servers and their stores share.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicU64, Ordering},
};

use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most connections of a server without a configured limit.
const DEFAULT_MAX_CONNECTIONS: usize = 16_384;
/// Descriptors for logs, small files, outgoing connections and connections that are being refused.
const SPARE_DESCRIPTORS: u64 = 64;

/// The descriptors of this process.
static PROCESS: LazyLock<Arc<Descriptors>> = LazyLock::new(|| {
    Arc::new(Descriptors {
        allowed: || getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft),
        of_stores: AtomicU64::new(0),
        open: AtomicU64::new(0),
    })
});

/// How a process uses its descriptors.
#[derive(Debug)]
struct Descriptors {
    /// Reads the soft limit.
    allowed: fn() -> u64,
    /// Most descriptors that stores keep open.
    of_stores: AtomicU64,
    /// Open connections of all servers.
    open: AtomicU64,
}

impl Descriptors {
    /// Most connections of all servers.
    fn room(&self) -> u64 {
        let allowed = (self.allowed)();
        // Each store without a configured limit asks for half of all descriptors.
        let of_stores = self.of_stores.load(Ordering::Relaxed).min(allowed / 2);
        allowed.saturating_sub(of_stores).saturating_sub(SPARE_DESCRIPTORS).max(1)
    }

    /// Counts one more connection, if there is room or `has_own_limit`.
    fn take(self: &Arc<Self>, has_own_limit: bool) -> Option<CountGuard> {
        let counted = CountGuard::new(self, |descriptors| &descriptors.open, 1);
        (has_own_limit || self.open.load(Ordering::Relaxed) <= self.room()).then_some(counted)
    }
}

/// Counts until it is dropped.
#[derive(Debug)]
struct CountGuard {
    descriptors: Arc<Descriptors>,
    counter: fn(&Descriptors) -> &AtomicU64,
    count: u64,
}

impl CountGuard {
    fn new(descriptors: &Arc<Descriptors>, counter: fn(&Descriptors) -> &AtomicU64, count: u64) -> Self {
        counter(descriptors).fetch_add(count, Ordering::Relaxed);
        Self { descriptors: Arc::clone(descriptors), counter, count }
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        (self.counter)(&self.descriptors).fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// Limits the connections of a server.
#[derive(Debug)]
pub(crate) struct Slots {
    max_connections: usize,
    semaphore: Arc<Semaphore>,
    /// `max_connections` was configured; else the process's descriptors are a limit, too.
    has_own_limit: bool,
    descriptors: Arc<Descriptors>,
    _of_store: CountGuard,
}

/// The right of one connection to be open.
#[derive(Debug)]
pub(crate) struct Slot {
    _permit: OwnedSemaphorePermit,
    _counted: CountGuard,
}

impl Slots {
    /// Allows up to `max_connections`; with `None`, as many as the descriptors of the process leave. The server's
    /// store, if any, keeps up to `store_files` open.
    pub(crate) fn new(max_connections: Option<usize>, store_files: usize) -> Self {
        Self::of(&PROCESS, max_connections, store_files)
    }

    fn of(descriptors: &Arc<Descriptors>, max_connections: Option<usize>, store_files: usize) -> Self {
        let has_own_limit = max_connections.is_some();
        let max_connections = max_connections.unwrap_or(DEFAULT_MAX_CONNECTIONS);
        Self {
            max_connections,
            semaphore: Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS))),
            has_own_limit,
            descriptors: Arc::clone(descriptors),
            _of_store: CountGuard::new(descriptors, |descriptors| &descriptors.of_stores, store_files as u64),
        }
    }

    /// Takes a slot for one more connection, unless too many are open.
    pub(crate) fn take(&self) -> Option<Slot> {
        let permit = Arc::clone(&self.semaphore).try_acquire_owned().ok()?;
        Some(Slot { _permit: permit, _counted: self.descriptors.take(self.has_own_limit)? })
    }

    /// Most connections of this server, or of all servers of the process if that is less.
    pub(crate) fn limit(&self) -> usize {
        let room = usize::try_from(self.descriptors.room()).unwrap_or(usize::MAX);
        if self.has_own_limit { self.max_connections } else { self.max_connections.min(room) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(allowed: fn() -> u64) -> Arc<Descriptors> {
        Arc::new(Descriptors { allowed, of_stores: AtomicU64::new(0), open: AtomicU64::new(0) })
    }

    #[test]
    fn connections_leave_a_store_its_descriptors() {
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
        // A second store asks for as much again: half is left all the same.
        let other = Slots::of(&process, None, 128);
        assert_eq!([name_server.limit(), other.limit()], [64, 64]);
        drop((broker, other));
        assert_eq!(name_server.limit(), 192);
        drop(open);
        assert_eq!(process.open.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_server_with_its_own_limit_uses_it_and_others_get_what_is_left() {
        let process = process(|| 256);
        let (limited, other) = (Slots::of(&process, Some(200), 0), Slots::of(&process, None, 0));
        let open: Vec<_> = (0..200).map(|_| limited.take().unwrap()).collect();
        assert!(limited.take().is_none() && other.take().is_none());
        assert_eq!(limited.limit(), 200);
        drop(open);
        assert!(other.take().is_some());
    }
}
