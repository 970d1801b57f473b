//! The memory that connections of both protocols may hold: requests that arrive or are answered, and answers that peers
//! have not taken yet.
//!
//! All connections of a server share a [`Budget`]. Each has an [`Allowance`] of it, so that a peer that stops in the
//! middle of its requests, or reads no answer, waits before the others do. Part of the budget is reserved for small
//! requests: they proceed while a few peers hold the rest. However many connections come from one address, they leave a
//! part of that rest to other addresses. A [`Share`] counts what one holder took; dropping it returns that. The budget
//! counts memory, not bytes on the wire.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::{IpAddr, Ipv6Addr},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex as SyncMutex;
use tokio::{
    sync::{Mutex, Notify},
    time::{Instant, timeout_at},
};
use tonic::Status;

/// Memory of an open stream, beside the bytes on it.
const STREAM_BYTES: usize = 4 << 10;
/// Most open streams (telemetry, reflection, health) of one connection: the clients of one process share it.
pub(crate) const MAX_STREAMS: usize = 256;
/// Most bytes of a small request, which may use the reserved part of the budget.
const SMALL_REQUEST: usize = 64 << 10;
/// The reserved part of the budget, and the part of that which one connection may hold to use it, as divisors.
const RESERVE_DIVISOR: isize = 8;
const RESERVE_USE_DIVISOR: isize = 16;
/// The fraction of the memory for large requests that the connections from one address may hold.
const ADDRESS_FRACTION: [isize; 2] = [3, 4];
/// After a wait of this length, one request may exceed a limit: the holders of the memory may be waiting too.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// The memory of all connections.
#[derive(Debug)]
pub(crate) struct Budget {
    total: isize,
    left: AtomicIsize,
    /// Limit of one connection.
    connection: isize,
    /// Limit of the connections from one address.
    address: isize,
    addresses: SyncMutex<HashMap<IpAddr, AddressEntry>>,
    /// The last part, which only small requests take.
    reserve: isize,
    /// Number of requests that wait for memory; [`Self::freed`] is notified if there are any.
    waiting: AtomicUsize,
    freed: Notify,
    /// Whether a request exceeds the budget.
    is_overdrawn: AtomicBool,
}

impl Budget {
    pub(crate) fn new(bytes: usize, connection: usize) -> Arc<Self> {
        let total = signed(bytes);
        let [part, of] = ADDRESS_FRACTION;
        Arc::new(Self {
            total,
            address: ((total - total / RESERVE_DIVISOR) / of * part).max(signed(connection).min(total)),
            addresses: SyncMutex::default(),
            left: AtomicIsize::new(total),
            connection: signed(connection).min(total),
            reserve: total / RESERVE_DIVISOR,
            waiting: AtomicUsize::new(0),
            freed: Notify::new(),
            is_overdrawn: AtomicBool::new(false),
        })
    }

    /// Returns the allowance of a new connection from `peer`.
    pub(crate) fn allowance(self: &Arc<Self>, peer: IpAddr) -> Arc<Allowance> {
        Arc::new(Allowance {
            address: self.address_of(network(peer)),
            budget: Arc::clone(self),
            left: AtomicIsize::new(self.connection),
            streams: AtomicUsize::new(0),
            turn: Mutex::const_new(()),
            is_overdrawn: AtomicBool::new(false),
        })
    }

    /// Counts one more connection from an address.
    fn address_of(&self, key: IpAddr) -> Arc<Address> {
        let begin = || {
            let left = AtomicIsize::new(self.address);
            let address = Arc::new(Address { key, left, is_overdrawn: AtomicBool::new(false) });
            AddressEntry { count: 0, address }
        };
        let mut addresses = self.addresses.lock();
        let connections = addresses.entry(key).or_insert_with(begin);
        connections.count += 1;
        Arc::clone(&connections.address)
    }

    /// Bytes that are held now.
    pub(crate) fn held(&self) -> u64 {
        let held = self.total - self.left.load(Ordering::Relaxed);
        u64::try_from(held).unwrap_or(0)
    }

    fn put_back(&self, bytes: isize) {
        self.left.fetch_add(bytes, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.freed.notify_waiters();
        }
    }
}

/// The memory of the connections from one address.
#[derive(Debug)]
struct Address {
    key: IpAddr,
    left: AtomicIsize,
    /// Whether a request exceeds their limit.
    is_overdrawn: AtomicBool,
}

/// The connections from one address; the last one removes the entry.
#[derive(Debug)]
struct AddressEntry {
    count: usize,
    address: Arc<Address>,
}

/// The network of an IPv6 address, whose owner has all addresses in it; an IPv4 address itself.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// The memory of one connection.
#[derive(Debug)]
pub(crate) struct Allowance {
    budget: Arc<Budget>,
    address: Arc<Address>,
    left: AtomicIsize,
    streams: AtomicUsize,
    /// Held by a request that waits for memory: the requests of a connection wait one after the other.
    turn: Mutex<()>,
    /// Whether a request exceeds the connection's limit.
    is_overdrawn: AtomicBool,
}

impl Allowance {
    /// Returns an empty share.
    pub(crate) fn share(self: &Arc<Self>) -> Share {
        Share { allowance: Arc::clone(self), taken: AtomicUsize::new(0), over: Overdrawn::default() }
    }

    /// Opens one more long-lived stream.
    pub(crate) fn stream(self: &Arc<Self>) -> Result<OpenStream, Status> {
        let streams = &self.streams;
        let one_more = |open: usize| (open < MAX_STREAMS).then_some(open + 1);
        if streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Err(Status::resource_exhausted(format!(
                "the connection has {MAX_STREAMS} telemetry, reflection and health streams, its limit; end some"
            )));
        }
        // From here on, its drop decrements the count.
        let stream = OpenStream(self.share());
        stream.0.take(STREAM_BYTES)?;
        Ok(stream)
    }

    /// Returns whether the connection and the server hold little enough to begin an answer of unknown size.
    pub(crate) fn has_room(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
            && self.budget.left.load(Ordering::Relaxed) > self.budget.reserve / 2
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        let mut addresses = self.budget.addresses.lock();
        if let Entry::Occupied(mut connections) = addresses.entry(self.address.key) {
            connections.get_mut().count -= 1;
            if connections.get().count == 0 {
                connections.remove();
            }
        }
    }
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

/// Counts a stream as open until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenStream(Share);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.allowance.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The limit that a request would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OverBudget {
    /// That of the connection, in bytes.
    Connection(isize),
    /// That of the connections from the same address, in bytes.
    Address(isize),
    /// That of the server.
    Server,
}

impl From<OverBudget> for Status {
    fn from(over: OverBudget) -> Self {
        match over {
            OverBudget::Connection(limit) => Self::resource_exhausted(format!(
                "requests and unread answers of the connection would exceed its limit of {limit} bytes; read answers \
                 or send less at a time"
            )),
            OverBudget::Address(limit) => Self::resource_exhausted(format!(
                "requests and unread answers of the connections from this address would exceed their limit of {limit} \
                 bytes; read answers or send less at a time"
            )),
            OverBudget::Server => Self::resource_exhausted(
                "requests and unread answers would exceed the memory limit of the server; try again",
            ),
        }
    }
}

/// What one holder took; dropping it returns that.
#[derive(Debug)]
pub(crate) struct Share {
    allowance: Arc<Allowance>,
    taken: AtomicUsize,
    over: Overdrawn,
}

/// The limits that a share may exceed. One share at a time may exceed each. A share that may exceed a larger limit may
/// exceed the smaller ones, too: else two shares with one permission each could wait for each other.
#[derive(Debug, Default)]
struct Overdrawn {
    connection: AtomicBool,
    address: AtomicBool,
    server: AtomicBool,
}

impl Overdrawn {
    fn is_over_connection(&self) -> bool {
        self.connection.load(Ordering::SeqCst) || self.is_over_address()
    }

    fn is_over_address(&self) -> bool {
        self.address.load(Ordering::SeqCst) || self.is_over_server()
    }

    fn is_over_server(&self) -> bool {
        self.server.load(Ordering::SeqCst)
    }

    /// Moves the permissions to another share.
    fn take(&self) -> Self {
        let take = |mark: &AtomicBool| AtomicBool::new(mark.swap(false, Ordering::SeqCst));
        Self { connection: take(&self.connection), address: take(&self.address), server: take(&self.server) }
    }
}

impl Share {
    /// Takes `bytes` more, or nothing.
    pub(crate) fn take(&self, bytes: usize) -> Result<(), OverBudget> {
        self.try_take(bytes, false)
    }

    /// As [`Self::take`]. With `may_be_alone`, a share that is alone under a limit may exceed it.
    fn try_take(&self, bytes: usize, may_be_alone: bool) -> Result<(), OverBudget> {
        let Allowance { budget, left, address, .. } = &*self.allowance;
        let (own, wanted) = (self.taken.load(Ordering::Relaxed), signed(bytes));
        let is_over_server = may_be_alone && self.over.is_over_server();
        let is_over_address = may_be_alone && self.over.is_over_address();
        let is_over_connection = may_be_alone && self.over.is_over_connection();
        let of_connection = |left: isize| {
            let after = left.checked_sub(wanted)?;
            let is_alone = may_be_alone && left >= budget.connection - signed(own);
            (after >= 0 || is_alone || is_over_connection).then_some(after)
        };
        let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, of_connection);
        let before = before.map_err(|_| OverBudget::Connection(budget.connection))?;
        let holds = budget.connection - before + wanted;
        let may_use_reserve = own + bytes <= SMALL_REQUEST && holds <= budget.reserve / RESERVE_USE_DIVISOR;
        let of_address = |left: isize| {
            let after = left.checked_sub(wanted)?;
            let is_alone = may_be_alone && left >= budget.address - signed(own);
            (may_use_reserve || after >= 0 || is_alone || is_over_address).then_some(after)
        };
        if address.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, of_address).is_err() {
            left.fetch_add(wanted, Ordering::Relaxed);
            return Err(OverBudget::Address(budget.address));
        }
        let floor = if may_use_reserve { 0 } else { budget.reserve };
        let of_server = |left: isize| {
            let after = left.checked_sub(wanted)?;
            let is_alone = may_be_alone && left >= budget.total - signed(own);
            (after >= floor || is_alone || is_over_server).then_some(after)
        };
        if budget.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, of_server).is_err() {
            left.fetch_add(wanted, Ordering::Relaxed);
            address.left.fetch_add(wanted, Ordering::Relaxed);
            return Err(OverBudget::Server);
        }
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Takes `bytes` more as soon as there is room.
    ///
    /// The requests of a connection wait one after the other. After [`STUCK_AFTER`], one request of a connection may
    /// exceed the connection's limit, one of an address the address's, and one of the server the budget. So requests
    /// that wait for each other's memory finish.
    pub(crate) async fn wait(&self, bytes: usize) {
        let is_first = || {
            bytes <= SMALL_REQUEST || self.over.is_over_connection() || self.allowance.turn.try_lock().is_ok()
        };
        if is_first() && self.try_take(bytes, true).is_ok() {
            return;
        }
        // The request that has the turn may wait for memory that this one holds.
        let _turn =
            if self.over.is_over_connection() { None } else { Some(self.allowance.turn.lock().await) };
        let budget = &self.allowance.budget;
        let _waiting = WaitingCount::new(&budget.waiting);
        // Small requests return memory all the time: a wake-up does not restart the wait.
        let mut until = Instant::now() + STUCK_AFTER;
        loop {
            let mut freed = pin!(budget.freed.notified());
            freed.as_mut().enable();
            let Err(over) = self.try_take(bytes, true) else { return };
            if Instant::now() < until && timeout_at(until, freed).await.is_ok() {
                continue;
            }
            self.overdraw(over);
            until = Instant::now() + STUCK_AFTER;
        }
    }

    /// Lets the share exceed the limit it waits for, unless another share does.
    fn overdraw(&self, over: OverBudget) {
        let Allowance { budget, address, is_overdrawn, .. } = &*self.allowance;
        let (is_taken, own) = match over {
            OverBudget::Connection(_) => (is_overdrawn, &self.over.connection),
            OverBudget::Address(_) => (&address.is_overdrawn, &self.over.address),
            OverBudget::Server => (&budget.is_overdrawn, &self.over.server),
        };
        if !is_taken.swap(true, Ordering::SeqCst) {
            own.store(true, Ordering::SeqCst);
        }
    }

    /// Takes up to `most` bytes: what is available, or `least` as soon as there is room. Returns how many.
    pub(crate) async fn take_some(&self, least: usize, most: usize) -> usize {
        let Allowance { budget, left, address, .. } = &*self.allowance;
        let of_server = budget.left.load(Ordering::Relaxed) - budget.reserve;
        let of_peer = left.load(Ordering::Relaxed).min(address.left.load(Ordering::Relaxed));
        let available = usize::try_from(of_server.min(of_peer)).unwrap_or(0);
        let some = most.min(available);
        if some >= least && self.try_take(some, false).is_ok() {
            return some;
        }
        let least = least.min(most);
        self.wait(least).await;
        least
    }

    /// Counts `bytes` that are held already and cannot be refused; later requests wait or are refused.
    pub(crate) fn count(&self, bytes: usize) {
        self.allowance.left.fetch_sub(signed(bytes), Ordering::Relaxed);
        self.allowance.address.left.fetch_sub(signed(bytes), Ordering::Relaxed);
        self.allowance.budget.left.fetch_sub(signed(bytes), Ordering::SeqCst);
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sets the count to `bytes`, which are held, whatever was taken for them.
    pub(crate) fn settle(&self, bytes: usize) {
        let taken = self.taken.load(Ordering::Relaxed);
        if taken > bytes {
            self.give_back(taken - bytes);
        } else if taken < bytes {
            self.count(bytes - taken);
        }
    }

    /// Bytes that are counted.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns up to `bytes` of what was taken.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.return_bytes(self.reduce(bytes));
    }

    /// Moves up to `bytes` of what was taken to a new share.
    pub(crate) fn split(&self, bytes: usize) -> Self {
        Self {
            allowance: Arc::clone(&self.allowance),
            taken: AtomicUsize::new(self.reduce(bytes)),
            over: self.over.take(),
        }
    }

    /// The allowance of its connection.
    pub(crate) fn of_connection(&self) -> Arc<Allowance> {
        Arc::clone(&self.allowance)
    }

    /// Reduces the count by up to `bytes`; returns by how many.
    fn reduce(&self, bytes: usize) -> usize {
        let less = |taken: usize| Some(taken.saturating_sub(bytes));
        let before = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or(0);
        before.min(bytes)
    }

    fn return_bytes(&self, bytes: usize) {
        if bytes > 0 {
            self.allowance.left.fetch_add(signed(bytes), Ordering::Relaxed);
            self.allowance.address.left.fetch_add(signed(bytes), Ordering::Relaxed);
            self.allowance.budget.put_back(signed(bytes));
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Allowance { budget, address, is_overdrawn, .. } = &*self.allowance;
        let Overdrawn { connection, address: of_address, server } = &mut self.over;
        for (own, is_taken) in
            [(connection, is_overdrawn), (of_address, &address.is_overdrawn), (server, &budget.is_overdrawn)]
        {
            if *own.get_mut() {
                is_taken.store(false, Ordering::SeqCst);
            }
        }
        let taken = std::mem::take(self.taken.get_mut());
        self.return_bytes(taken);
    }
}

/// Counts a waiting request until it is dropped.
struct WaitingCount<'a>(&'a AtomicUsize);

impl<'a> WaitingCount<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for WaitingCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Bytes that keep a share until they are dropped.
pub(crate) fn kept<S: Send + 'static>(bytes: Bytes, share: S) -> Bytes {
    struct BytesWithShare<S>(Bytes, S);
    impl<S> AsRef<[u8]> for BytesWithShare<S> {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Bytes::from_owner(BytesWithShare(bytes, share))
}

#[cfg(test)]
mod tests;
