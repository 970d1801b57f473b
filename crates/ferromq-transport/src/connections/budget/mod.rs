//! The memory that connections of both protocols may hold: requests that arrive or are answered, and answers that
//! peers have not taken yet.
//!
//! All connections of a server share a [`Budget`]; each has an [`Allowance`] of it, so that a peer which stops in the
//! middle of its requests, or reads no answer, has to wait before the others do. Part of the budget is for small
//! requests alone: they go on while a few peers hold the rest. Of that rest the connections from one address leave a part
//! to others, however many they are. What is counted carries a [`Share`], and dropping
//! that gives it back. What is counted is memory, not bytes on the wire.

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

/// What a stream that stays open counts for, besides the bytes on it.
const STREAM: usize = 4 << 10;
/// Streams that stay open (telemetry, reflection, health) on one connection: clients of one process share it.
pub(crate) const MAX_STREAMS: usize = 256;
/// A request that holds no more is small: it may use the part of the budget that larger ones may not.
const SMALL: usize = 64 << 10;
/// The part of the budget for small requests, and what one connection may hold to use it.
const RESERVE: isize = 8;
const OF_RESERVE: isize = 16;
/// What the connections from one address may hold of what is for large requests.
const OF_ADDRESS: [isize; 2] = [3, 4];
/// Where a request has waited so long, one may go over what is bounded: those that hold the room may be waiting too.
const STUCK: Duration = Duration::from_secs(1);

/// Memory that is left, for all connections.
#[derive(Debug)]
pub(crate) struct Budget {
    total: isize,
    left: AtomicIsize,
    /// What one connection may hold.
    connection: isize,
    /// What the connections from one address may hold.
    address: isize,
    addresses: SyncMutex<HashMap<IpAddr, Connections>>,
    /// Only small requests take the last of it.
    reserve: isize,
    /// How many wait for room; [`Self::freed`] is told where there are any.
    waiting: AtomicUsize,
    freed: Notify,
    /// One request is over the budget.
    is_overdrawn: AtomicBool,
}

impl Budget {
    pub(crate) fn new(bytes: usize, connection: usize) -> Arc<Self> {
        let total = signed(bytes);
        let [part, of] = OF_ADDRESS;
        Arc::new(Self {
            total,
            address: ((total - total / RESERVE) / of * part).max(signed(connection).min(total)),
            addresses: SyncMutex::default(),
            left: AtomicIsize::new(total),
            connection: signed(connection).min(total),
            reserve: total / RESERVE,
            waiting: AtomicUsize::new(0),
            freed: Notify::new(),
            is_overdrawn: AtomicBool::new(false),
        })
    }

    /// What a new connection from `peer` may hold.
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

    /// The address of one more connection.
    fn address_of(&self, key: IpAddr) -> Arc<Address> {
        let begin = || {
            let left = AtomicIsize::new(self.address);
            let address = Arc::new(Address { key, left, is_overdrawn: AtomicBool::new(false) });
            Connections { count: 0, address }
        };
        let mut addresses = self.addresses.lock();
        let connections = addresses.entry(key).or_insert_with(begin);
        connections.count += 1;
        Arc::clone(&connections.address)
    }

    /// Bytes that are counted now.
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

/// What the connections from one address may hold together.
#[derive(Debug)]
struct Address {
    key: IpAddr,
    left: AtomicIsize,
    /// One request is over what they may hold.
    is_overdrawn: AtomicBool,
}

/// The connections from one address; its last one takes it out of the table.
#[derive(Debug)]
struct Connections {
    count: usize,
    address: Arc<Address>,
}

/// Who has one address of IPv6 has those of its network, too.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// What one connection may hold of the budget.
#[derive(Debug)]
pub(crate) struct Allowance {
    budget: Arc<Budget>,
    address: Arc<Address>,
    left: AtomicIsize,
    streams: AtomicUsize,
    /// A request keeps it while it waits for room: those of a connection wait in a row.
    turn: Mutex<()>,
    /// One request is over what the connection may hold.
    is_overdrawn: AtomicBool,
}

impl Allowance {
    /// Nothing taken yet.
    pub(crate) fn share(self: &Arc<Self>) -> Share {
        Share { allowance: Arc::clone(self), taken: AtomicUsize::new(0), over: Overdrawn::default() }
    }

    /// One more stream that stays open.
    pub(crate) fn stream(self: &Arc<Self>) -> Result<OpenStream, Status> {
        let streams = &self.streams;
        let one_more = |open: usize| (open < MAX_STREAMS).then_some(open + 1);
        if streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Err(Status::resource_exhausted(format!(
                "the connection has {MAX_STREAMS} telemetry, reflection and health streams, which is the limit; end some"
            )));
        }
        // From here its drop counts it off.
        let stream = OpenStream(self.share());
        stream.0.take(STREAM)?;
        Ok(stream)
    }

    /// Says whether the connection and the server hold little enough to begin what makes an answer of unknown size.
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

/// A stream that counts as open while this is there.
#[derive(Debug)]
pub(crate) struct OpenStream(Share);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.allowance.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why something is not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// The connection holds what one may, which is so many bytes.
    Connection(isize),
    /// The connections from the same address hold what they may, which is so many bytes.
    Address(isize),
    /// The server holds what it may.
    Server,
}

impl From<Over> for Status {
    fn from(over: Over) -> Self {
        match over {
            Over::Connection(limit) => Self::resource_exhausted(format!(
                "the connection holds as many bytes of requests and unread answers as one may, {limit}; read answers \
                 or send less at a time"
            )),
            Over::Address(limit) => Self::resource_exhausted(format!(
                "the connections from this address hold as many bytes of requests and unread answers as they may, \
                 {limit}; read answers or send less at a time"
            )),
            Over::Server => Self::resource_exhausted("the server holds as many bytes as it may; try again"),
        }
    }
}

/// What one holder took; dropping it gives that back.
#[derive(Debug)]
pub(crate) struct Share {
    allowance: Arc<Allowance>,
    taken: AtomicUsize,
    over: Overdrawn,
}

/// Of what a share is the one that may go over it. Who may go over the larger part may go over the smaller ones, too:
/// else two that have a mark each could wait for each other.
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

    /// Hands its marks on.
    fn take(&self) -> Self {
        let take = |mark: &AtomicBool| AtomicBool::new(mark.swap(false, Ordering::SeqCst));
        Self { connection: take(&self.connection), address: take(&self.address), server: take(&self.server) }
    }
}

impl Share {
    /// Takes `bytes` more, or none of them.
    pub(crate) fn take(&self, bytes: usize) -> Result<(), Over> {
        self.try_take(bytes, false)
    }

    /// As [`Self::take`]; what a connection holds alone may be larger than it may otherwise hold.
    fn try_take(&self, bytes: usize, may_be_alone: bool) -> Result<(), Over> {
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
        let before = before.map_err(|_| Over::Connection(budget.connection))?;
        let holds = budget.connection - before + wanted;
        let may_use_reserve = own + bytes <= SMALL && holds <= budget.reserve / OF_RESERVE;
        let of_address = |left: isize| {
            let after = left.checked_sub(wanted)?;
            let is_alone = may_be_alone && left >= budget.address - signed(own);
            (may_use_reserve || after >= 0 || is_alone || is_over_address).then_some(after)
        };
        if address.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, of_address).is_err() {
            left.fetch_add(wanted, Ordering::Relaxed);
            return Err(Over::Address(budget.address));
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
            return Err(Over::Server);
        }
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Takes `bytes` more as soon as there is room.
    ///
    /// The requests of a connection wait one after the other. After a while one of a connection goes over what that
    /// may hold, one of an address over its part, and one of the server over its budget, so that requests which wait
    /// for each other's room come to an end.
    pub(crate) async fn wait(&self, bytes: usize) {
        let is_first =
            || bytes <= SMALL || self.over.is_over_connection() || self.allowance.turn.try_lock().is_ok();
        if is_first() && self.try_take(bytes, true).is_ok() {
            return;
        }
        // The request that has the turn may wait for what this one holds.
        let _turn =
            if self.over.is_over_connection() { None } else { Some(self.allowance.turn.lock().await) };
        let budget = &self.allowance.budget;
        let _waiting = Waiting::new(&budget.waiting);
        // Small requests give room back all the time: that another one ended begins no new wait.
        let mut until = Instant::now() + STUCK;
        loop {
            let mut freed = pin!(budget.freed.notified());
            freed.as_mut().enable();
            let Err(over) = self.try_take(bytes, true) else { return };
            if Instant::now() < until && timeout_at(until, freed).await.is_ok() {
                continue;
            }
            self.overdraw(over);
            until = Instant::now() + STUCK;
        }
    }

    /// Lets it go over what it waits for, unless another one does.
    fn overdraw(&self, over: Over) {
        let Allowance { budget, address, is_overdrawn, .. } = &*self.allowance;
        let (is_taken, own) = match over {
            Over::Connection(_) => (is_overdrawn, &self.over.connection),
            Over::Address(_) => (&address.is_overdrawn, &self.over.address),
            Over::Server => (&budget.is_overdrawn, &self.over.server),
        };
        if !is_taken.swap(true, Ordering::SeqCst) {
            own.store(true, Ordering::SeqCst);
        }
    }

    /// Takes up to `most` bytes: what there is, or `least` as soon as there is room. Returns how many.
    pub(crate) async fn take_some(&self, least: usize, most: usize) -> usize {
        let Allowance { budget, left, address, .. } = &*self.allowance;
        let of_server = budget.left.load(Ordering::Relaxed) - budget.reserve;
        let of_peer = left.load(Ordering::Relaxed).min(address.left.load(Ordering::Relaxed));
        let there = usize::try_from(of_server.min(of_peer)).unwrap_or(0);
        let some = most.min(there);
        if some >= least && self.try_take(some, false).is_ok() {
            return some;
        }
        let least = least.min(most);
        self.wait(least).await;
        least
    }

    /// Counts `bytes` that are held already and cannot be refused any more; what comes next waits or is refused.
    pub(crate) fn count(&self, bytes: usize) {
        self.allowance.left.fetch_sub(signed(bytes), Ordering::Relaxed);
        self.allowance.address.left.fetch_sub(signed(bytes), Ordering::Relaxed);
        self.allowance.budget.left.fetch_sub(signed(bytes), Ordering::SeqCst);
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts `bytes` and no more from now on: that is what is held, whatever was taken for it.
    pub(crate) fn settle(&self, bytes: usize) {
        let taken = self.taken.load(Ordering::Relaxed);
        if taken > bytes {
            self.give_back(taken - bytes);
        } else if taken < bytes {
            self.count(bytes - taken);
        }
    }

    /// What is counted.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Gives back up to `bytes` of what was taken.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.return_bytes(self.less(bytes));
    }

    /// Moves up to `bytes` of what was taken to a share of their own.
    pub(crate) fn split(&self, bytes: usize) -> Self {
        Self {
            allowance: Arc::clone(&self.allowance),
            taken: AtomicUsize::new(self.less(bytes)),
            over: self.over.take(),
        }
    }

    /// What its connection may hold.
    pub(crate) fn of_connection(&self) -> Arc<Allowance> {
        Arc::clone(&self.allowance)
    }

    /// Forgets up to `bytes`; returns how many.
    fn less(&self, bytes: usize) -> usize {
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

/// One more that waits, while it is there.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Bytes that keep a share for as long as they are held.
pub(crate) fn kept<S: Send + 'static>(bytes: Bytes, share: S) -> Bytes {
    struct Kept<S>(Bytes, S);
    impl<S> AsRef<[u8]> for Kept<S> {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Bytes::from_owner(Kept(bytes, share))
}

#[cfg(test)]
mod tests;
