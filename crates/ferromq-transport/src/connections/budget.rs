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
mod tests {
    use proptest::prelude::*;
    use tokio::time::timeout;

    use super::*;

    impl Budget {
        /// What a connection from an address without another one may hold.
        pub(crate) fn of_other(self: &Arc<Self>) -> Arc<Allowance> {
            static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
            self.allowance(std::net::Ipv4Addr::from_bits(NEXT.fetch_add(1, Ordering::Relaxed)).into())
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn connections_from_one_address_leave_others_a_part_however_many_they_are() {
        // 56 MiB are for large requests, of which 42 for an address.
        let budget = Budget::new(64 << 20, 16 << 20);
        let stranger = || budget.allowance(address("10.0.0.1")).share();
        let held: Vec<_> = (0..3).map(|_| stranger()).collect();
        held.iter().for_each(|share| share.take(14 << 20).unwrap());
        assert_eq!(stranger().take(1 << 20), Err(Over::Address(42 << 20)));
        // Small requests go on.
        stranger().take(SMALL).unwrap();
        budget.allowance(address("::ffff:10.0.0.2")).share().take(14 << 20).unwrap();
        budget.allowance(address("10.0.0.2")).share().take(14 << 20).unwrap();
        drop(held);
        stranger().take(14 << 20).unwrap();
        assert_eq!((budget.held(), budget.addresses.lock().len()), (0, 0));
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_count_together() {
        let budget = Budget::new(64 << 20, 42 << 20);
        let first = budget.allowance(address("2001:db8::1")).share();
        first.take(42 << 20).unwrap();
        let (near, far) = (address("2001:db8::2"), address("2001:db8:0:1::1"));
        assert_eq!(budget.allowance(near).share().take(1 << 20), Err(Over::Address(42 << 20)));
        budget.allowance(far).share().take(1 << 20).unwrap();
    }

    #[tokio::test]
    async fn requests_from_one_address_that_wait_for_each_other_come_to_an_end() {
        let budget = Budget::new(64 << 20, 30 << 20);
        let shares = [(); 2].map(|()| budget.allowance(address("10.0.0.1")).share());
        for share in &shares {
            share.wait(20 << 20).await;
        }
        // Each holds what the other needs.
        let finish = |share: Share| async move { share.wait(4 << 20).await };
        let [first, second] = shares.map(|share| tokio::spawn(finish(share)));
        let both = timeout(PATIENCE, async { tokio::join!(first, second) }).await.expect("both");
        assert!(both.0.is_ok() && both.1.is_ok());
        assert_eq!((budget.held(), budget.addresses.lock().len()), (0, 0));
    }

    #[tokio::test]
    async fn an_address_over_its_part_keeps_no_others_stuck_that_wait_for_each_other() {
        let budget = Budget::new(64 << 20, 30 << 20);
        let of_address = [(); 2].map(|()| budget.allowance(address("10.0.0.1")).share());
        for share in &of_address {
            share.wait(20 << 20).await;
        }
        // It goes over the 42 MiB of an address, and holds that from then on.
        timeout(PATIENCE, of_address[0].wait(4 << 20)).await.expect("room");
        assert_eq!(budget.held(), 44 << 20);
        let shares = [(); 2].map(|()| budget.of_other().share());
        for share in &shares {
            share.wait(5 << 20).await;
        }
        // 54 of the 56 MiB for large requests are taken: each holds what the other needs.
        let finish = |share: Share| async move { share.wait(4 << 20).await };
        let [first, second] = shares.map(|share| tokio::spawn(finish(share)));
        let both = timeout(PATIENCE, async { tokio::join!(first, second) }).await.expect("both");
        assert!(both.0.is_ok() && both.1.is_ok());
        drop(of_address);
        assert_eq!((budget.held(), budget.is_overdrawn.load(Ordering::SeqCst)), (0, false));
    }

    #[test]
    fn connections_from_an_address_that_end_at_once_leave_nothing() {
        let budget = Budget::new(64 << 20, 30 << 20);
        let begun = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for number in 0..2_000_u16 {
                        let [high, low] = number.to_be_bytes();
                        let allowance = budget.allowance([10, 0, high, low].into());
                        begun.fetch_add(1, Ordering::SeqCst);
                        while begun.load(Ordering::SeqCst) < 2 * (usize::from(number) + 1) {
                            std::thread::yield_now();
                        }
                        drop(allowance);
                    }
                });
            }
        });
        assert_eq!(budget.addresses.lock().len(), 0);
    }

    #[test]
    fn a_connection_that_has_its_share_is_refused_and_another_is_not() {
        let budget = Budget::new(100, 40);
        let (first, second) = (budget.of_other(), budget.of_other());
        let (a, b) = (first.share(), first.share());
        a.take(30).unwrap();
        assert_eq!(b.take(11), Err(Over::Connection(40)));
        b.take(10).unwrap();
        let other = second.share();
        other.take(40).unwrap();
        drop(a);
        b.take(20).unwrap();
        // 70 of 100 are taken, and a third connection may have what is left.
        let third = budget.of_other().share();
        assert_eq!(third.take(31), Err(Over::Server));
        // The last twelve are for small requests: of a connection that holds hardly anything.
        third.take(18).unwrap();
    }

    #[test]
    fn streams_are_counted_for_each_connection_and_come_back() {
        let budget = Budget::new(1 << 30, 1 << 30);
        let allowance = budget.of_other();
        let mut open: Vec<_> = (0..MAX_STREAMS).map(|_| allowance.stream().unwrap()).collect();
        assert!(allowance.stream().is_err());
        budget.of_other().stream().unwrap();
        open.pop();
        allowance.stream().unwrap();
        let poor = Budget::new(8 * STREAM, STREAM).of_other();
        let one = poor.stream().unwrap();
        assert!(poor.stream().is_err());
        drop(one);
        poor.stream().unwrap();
        assert_eq!(poor.streams.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_last_part_is_for_small_requests_of_connections_that_hold_little() {
        let budget = Budget::new(64 << 20, 64 << 20);
        let (greedy, other) = (budget.of_other(), budget.of_other());
        let held = greedy.share();
        held.take(56 << 20).unwrap();
        assert_eq!(held.take(1), Err(Over::Server));
        assert_eq!(greedy.share().take(1), Err(Over::Server));
        let (large, small) = (other.share(), other.share());
        assert_eq!(large.take(SMALL + 1), Err(Over::Server));
        small.take(SMALL).unwrap();
        assert_eq!(small.take(1), Err(Over::Server));
    }

    /// Longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn requests_that_wait_get_room_in_the_order_of_their_connection() {
        let budget = Budget::new(1 << 20, 512 << 10);
        let allowance = budget.of_other();
        let held = allowance.share();
        held.wait(512 << 10).await;
        let (order, mut taken) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..3 {
            let (share, order) = (allowance.share(), order.clone());
            tokio::spawn(async move {
                share.wait(300 << 10).await;
                _ = order.send((number, share));
            });
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        assert!(taken.try_recv().is_err());
        drop(held);
        for expected in 0..3 {
            let (number, _share) = timeout(PATIENCE, taken.recv()).await.unwrap().unwrap();
            assert_eq!(number, expected);
        }
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test]
    async fn requests_that_wait_for_each_other_come_to_an_end_one_over_the_budget() {
        let budget = Budget::new(8 << 20, 8 << 20);
        let shares = [budget.of_other().share(), budget.of_other().share()];
        for share in &shares {
            share.wait(3 << 20).await;
        }
        // Each holds what the other needs.
        let finish = |share: Share| async move { share.wait(3 << 20).await };
        let [first, second] = shares;
        let (first, second) = (tokio::spawn(finish(first)), tokio::spawn(finish(second)));
        let both = timeout(PATIENCE, async { tokio::join!(first, second) }).await.expect("both");
        assert!(both.0.is_ok() && both.1.is_ok());
        assert_eq!((budget.held(), budget.is_overdrawn.load(Ordering::SeqCst)), (0, false));
    }

    /// Small requests of another connection come and go all the time.
    fn small_traffic(budget: &Arc<Budget>) -> tokio::task::JoinHandle<()> {
        let small = budget.of_other().share();
        tokio::spawn(async move {
            loop {
                small.wait(1 << 10).await;
                small.give_back(1 << 10);
                tokio::time::sleep(STUCK / 10).await;
            }
        })
    }

    #[tokio::test]
    async fn small_requests_that_come_and_go_do_not_keep_those_stuck_that_wait_for_each_other() {
        let budget = Budget::new(8 << 20, 8 << 20);
        let shares = [budget.of_other().share(), budget.of_other().share()];
        for share in &shares {
            share.wait(3 << 20).await;
        }
        let traffic = small_traffic(&budget);
        // The one that goes over the budget may do so step by step.
        let finish = |share: Share| async move {
            share.wait(2 << 20).await;
            share.wait(1 << 20).await;
        };
        let [first, second] = shares;
        let (first, second) = (tokio::spawn(finish(first)), tokio::spawn(finish(second)));
        let both = timeout(PATIENCE, async { tokio::join!(first, second) }).await.expect("both");
        traffic.abort();
        assert!(both.0.is_ok() && both.1.is_ok());
    }

    #[tokio::test]
    async fn requests_of_one_connection_that_wait_for_each_other_come_to_an_end() {
        let budget = Budget::new(64 << 20, 8 << 20);
        let allowance = budget.of_other();
        let shares = [allowance.share(), allowance.share()];
        for share in &shares {
            share.wait(3 << 20).await;
        }
        let finish = |share: Share| async move {
            share.wait(3 << 20).await;
            share.wait(1 << 20).await;
        };
        let [first, second] = shares;
        let (first, second) = (tokio::spawn(finish(first)), tokio::spawn(finish(second)));
        let both = timeout(PATIENCE, async { tokio::join!(first, second) }).await.expect("both");
        assert!(both.0.is_ok() && both.1.is_ok());
        assert_eq!((budget.held(), allowance.is_overdrawn.load(Ordering::SeqCst)), (0, false));
        assert_eq!(allowance.left.load(Ordering::Relaxed), 8 << 20);
    }

    proptest! {
        #[test]
        fn whatever_is_taken_comes_back(steps in prop::collection::vec((0u8..5, 0usize..60), 0..60)) {
            let budget = Budget::new(200, 120);
            let allowance = budget.of_other();
            let mut shares = vec![allowance.share()];
            for (step, bytes) in steps {
                let last = shares.last().unwrap();
                match step {
                    0 => _ = last.take(bytes),
                    1 => last.count(bytes),
                    2 => last.give_back(bytes),
                    3 => { let part = last.split(bytes); shares.push(part) }
                    _ => shares.push(allowance.share()),
                }
                let taken: usize = shares.iter().map(|share| share.taken.load(Ordering::Relaxed)).sum();
                prop_assert_eq!(allowance.left.load(Ordering::Relaxed), 120 - signed(taken));
            }
            drop(shares);
            prop_assert_eq!(allowance.left.load(Ordering::Relaxed), 120);
            prop_assert_eq!(budget.left.load(Ordering::Relaxed), 200);
        }
    }
}
