//! Limits connections: by the file descriptors of this process, which all its servers and their stores share, and by
//! their address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use nix::sys::resource::{Resource, getrlimit};
use parking_lot::Mutex;
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
    addresses: Arc<Addresses>,
    _of_store: CountGuard,
}

/// Open connections by address.
#[derive(Debug, Default)]
struct Addresses {
    /// Most connections of an address.
    limit: Option<usize>,
    open: Mutex<HashMap<IpAddr, usize>>,
}

impl Addresses {
    /// Counts one more connection, if its address may have one. Without a limit nothing is counted.
    fn take(self: &Arc<Self>, address: IpAddr) -> Result<Option<AddressGuard>, Crowded> {
        let Some(limit) = self.limit else { return Ok(None) };
        let address = address.to_canonical();
        let mut open = self.open.lock();
        let count = open.entry(address).or_default();
        if *count >= limit {
            return Err(Crowded::Address { limit });
        }
        *count += 1;
        Ok(Some(AddressGuard { addresses: Arc::clone(self), address }))
    }
}

/// Counts a connection of an address until it is dropped.
#[derive(Debug)]
struct AddressGuard {
    addresses: Arc<Addresses>,
    address: IpAddr,
}

impl Drop for AddressGuard {
    fn drop(&mut self) {
        let mut open = self.addresses.open.lock();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Crowded {
    /// Too many connections are open.
    #[error("{limit} are open; raise max_connections")]
    Server {
        /// Most open connections.
        limit: usize,
    },
    /// Too many connections of the address are open.
    #[error("{limit} from its address are open; raise max_connections_by_address")]
    Address {
        /// Most open connections of an address.
        limit: usize,
    },
}

/// The right of one connection to be open.
#[derive(Debug)]
pub(crate) struct Slot {
    _permit: OwnedSemaphorePermit,
    _counted: CountGuard,
    _of_address: Option<AddressGuard>,
}

impl Slots {
    /// Allows up to `max_connections`; with `None`, as many as the descriptors of the process leave. The server's
    /// store, if any, keeps up to `store_files` open.
    pub(crate) fn new(
        max_connections: Option<usize>,
        max_by_address: Option<usize>,
        store_files: usize,
    ) -> Self {
        let addresses = Arc::new(Addresses { limit: max_by_address, open: Mutex::default() });
        Self { addresses, ..Self::of(&PROCESS, max_connections, store_files) }
    }

    fn of(descriptors: &Arc<Descriptors>, max_connections: Option<usize>, store_files: usize) -> Self {
        let has_own_limit = max_connections.is_some();
        let max_connections = max_connections.unwrap_or(DEFAULT_MAX_CONNECTIONS);
        Self {
            max_connections,
            semaphore: Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS))),
            has_own_limit,
            descriptors: Arc::clone(descriptors),
            addresses: Arc::default(),
            _of_store: CountGuard::new(descriptors, |descriptors| &descriptors.of_stores, store_files as u64),
        }
    }

    /// Takes a slot for one more connection from an address.
    ///
    /// # Errors
    /// `Crowded` if too many are open.
    pub(crate) fn take(&self, address: IpAddr) -> Result<Slot, Crowded> {
        let of_address = self.addresses.take(address)?;
        let full = || Crowded::Server { limit: self.limit() };
        let permit = Arc::clone(&self.semaphore).try_acquire_owned().map_err(|_| full())?;
        let counted = self.descriptors.take(self.has_own_limit).ok_or_else(full)?;
        Ok(Slot { _permit: permit, _counted: counted, _of_address: of_address })
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

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

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
        let mut open: Vec<_> = (0..40).map(|_| name_server.take(HERE).unwrap()).collect();
        open.extend((0..24).map(|_| broker.take(HERE).unwrap()));
        assert!(name_server.take(HERE).is_err() && broker.take(HERE).is_err());
        open.pop();
        open.push(name_server.take(HERE).unwrap());
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
        let open: Vec<_> = (0..200).map(|_| limited.take(HERE).unwrap()).collect();
        assert!(limited.take(HERE).is_err() && other.take(HERE).is_err());
        assert_eq!(limited.limit(), 200);
        drop(open);
        assert!(other.take(HERE).is_ok());
    }

    #[test]
    fn an_address_has_its_own_limit_and_gets_room_again() {
        let slots = Slots::new(Some(100), Some(2), 0);
        let mapped = "::ffff:127.0.0.1".parse().unwrap();
        let (first, second) = (slots.take(HERE).unwrap(), slots.take(mapped).unwrap());
        assert_eq!(slots.take(HERE).unwrap_err(), Crowded::Address { limit: 2 });
        assert!(slots.take("10.0.0.1".parse().unwrap()).is_ok());
        drop(first);
        assert!(slots.take(mapped).is_ok());
        drop(second);
        assert!(slots.addresses.open.lock().is_empty());
    }
}
