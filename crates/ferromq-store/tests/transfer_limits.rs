//! Limits of a read's response besides the requested ones: messages and bytes, fewer for messages far from the end.
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::net::SocketAddr;

use ferromq_store::{
    MessageStore, StoreConfig,
    filter::MessageFilter,
    progress::{Begin, Ordered, ReceiveRequest},
    read::{GetRequest, GetStatus, Source, TransferLimits},
    record::NewMessage,
    time::Clock,
};
use tempfile::TempDir;

/// Bytes of a record besides its body and properties: topic `t`.
const OVERHEAD: u64 = 92;
const LIMITS: TransferLimits = TransferLimits {
    near_count: 32,
    near_bytes: 256 << 10,
    far_count: 8,
    far_bytes: 64 << 10,
    near_span: u64::MAX,
    scan_entries: 800,
};

struct Rig {
    store: MessageStore,
    clock: Clock,
    _directory: TempDir,
}

impl Rig {
    /// Creates this many queues of topic `t` with this many messages each; appends to the queues in turn.
    fn new(queues: i32, messages: usize, body: usize) -> Self {
        let directory = TempDir::new().unwrap();
        let clock = Clock::manual(1_000);
        let config = StoreConfig { disk_reserve: 0, ..StoreConfig::default() };
        let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
        for number in 0..messages {
            for queue_id in 0..queues {
                let tag: &[u8] = if number % 900 == 0 { b"TAGS\x01a\x02" } else { b"TAGS\x01b\x02" };
                let message = NewMessage {
                    topic: "t",
                    queue_id,
                    flag: 0,
                    sys_flag: 0,
                    born_timestamp: 0,
                    born_host: SocketAddr::from(([127, 0, 0, 1], 1)),
                    reconsume_times: 0,
                    prepared_transaction_offset: 0,
                    body: &vec![1; body],
                    properties: tag,
                };
                store.log().append(&[message]).unwrap();
            }
        }
        while store.admin().stats().dispatched_offset < store.admin().stats().max_physical_offset {
            std::thread::yield_now();
        }
        Self { store, clock, _directory: directory }
    }

    /// The number of messages in a read for 1,000, and where the next one begins.
    fn read(&self, offset: u64, limits: TransferLimits) -> (usize, u64) {
        self.read_some(offset, 1_000, &MessageFilter::All, limits)
    }

    fn read_some(
        &self,
        offset: u64,
        max_count: usize,
        filter: &MessageFilter,
        limits: TransferLimits,
    ) -> (usize, u64) {
        let (topic, queue_id, max_bytes, source) = ("t", 0, usize::MAX, Source::Anywhere);
        let wanted = GetRequest { topic, queue_id, offset, max_count, max_bytes, filter, source, limits };
        let found = self.store.queues().get_from(&wanted);
        assert_eq!(found.status, GetStatus::Found);
        (found.messages.len(), found.next_offset)
    }

    /// Queues and offsets leased by a receive of up to 100 messages from two queues, and whether there are more.
    fn receive(&self, order: Option<Ordered<'_>>, limits: TransferLimits) -> (Vec<(u32, u64)>, bool) {
        let wanted = ReceiveRequest {
            group: if order.is_some() { "ordered" } else { "g" },
            topic: "t",
            queue_count: 2,
            first_queue: 0,
            max_count: 100,
            max_bytes: usize::MAX,
            invisible_ms: 1_000,
            filter: &MessageFilter::All,
            begin: Begin::AtMin,
            order,
            max_attempts: 0,
            by_priority: false,
            limits,
        };
        let received = common::receive(&self.store, &wanted).unwrap();
        let places =
            received.messages.iter().map(|leased| (leased.handle.queue_id, leased.handle.queue_offset));
        (places.collect(), received.more)
    }
}

/// The same offsets in both queues.
fn of_both(offsets: std::ops::Range<u64>) -> Vec<(u32, u64)> {
    [0, 1].into_iter().flat_map(|queue| offsets.clone().map(move |offset| (queue, offset))).collect()
}

#[test]
fn a_read_is_limited_in_messages_and_bytes_whatever_is_requested() {
    let rig = Rig::new(1, 100, 100);
    assert_eq!(rig.read(0, LIMITS), (32, 32));
    assert_eq!(rig.read(90, LIMITS), (10, 100));
    assert_eq!(rig.read(0, TransferLimits::NONE), (100, 100));
    let record = 100 + 7 + OVERHEAD;
    let bytes = |near_bytes| TransferLimits { near_bytes, ..LIMITS };
    assert_eq!(rig.read(0, bytes(record as usize * 5)), (5, 5));
    assert_eq!(rig.read(0, bytes(record as usize * 5 - 1)), (4, 4));
    // The first message always comes, whatever its size and the count.
    assert_eq!(rig.read(7, bytes(1)), (1, 8));
    assert_eq!(rig.read(7, TransferLimits { near_count: 0, ..LIMITS }), (1, 8));
}

#[test]
fn each_message_has_the_limits_of_its_distance_from_the_end_of_the_log() {
    let rig = Rig::new(1, 100, 100);
    let record = 100 + 7 + OVERHEAD;
    // The last 20 messages begin within this many bytes of the end.
    let limits = TransferLimits { near_span: 20 * record, ..LIMITS };
    assert_eq!(rig.read(0, limits), (8, 8));
    // Seven far ones, then near ones up to their count, which includes the far ones.
    assert_eq!(rig.read(73, limits), (27, 100));
    assert_eq!(rig.read(71, limits), (8, 79));
    assert_eq!(rig.read(80, limits), (20, 100));
    assert_eq!(rig.read(79, TransferLimits { near_span: 20 * record - 1, near_count: 3, ..LIMITS }), (3, 82));
    let none_near = TransferLimits { near_span: 0, far_count: 2, ..LIMITS };
    assert_eq!(rig.read(98, none_near), (2, 100));
    assert_eq!(rig.read(95, none_near), (2, 97));
}

#[test]
fn a_filtered_read_checks_a_bounded_number_of_entries_or_the_requested_number() {
    let rig = Rig::new(1, 2_000, 10);
    let filter = MessageFilter::tags("a");
    assert_eq!(rig.read_some(0, 32, &filter, LIMITS), (1, 800));
    assert_eq!(rig.read_some(0, 950, &filter, LIMITS), (2, 950));
    assert_eq!(rig.read_some(0, 32, &filter, TransferLimits { scan_entries: 901, ..LIMITS }), (2, 901));
    assert_eq!(rig.read_some(1_800, 32, &filter, LIMITS), (1, 2_000));
}

#[test]
fn each_queue_of_a_receive_has_the_limits() {
    let rig = Rig::new(2, 70, 100);
    let limits = TransferLimits { near_count: 20, ..LIMITS };
    assert_eq!(rig.receive(None, limits), (of_both(0..20), true));
    assert_eq!(rig.receive(None, limits), (of_both(20..40), true));
    // Redelivered messages have their own limits, as RocketMQ's retry topic does.
    rig.clock.advance(2_000);
    let (again, more) = rig.receive(None, limits);
    let expected =
        [0, 1].into_iter().flat_map(|queue| (0..20).chain(40..60).map(move |offset| (queue, offset)));
    assert_eq!((again, more), (expected.collect(), true));
    let (rest, _) = rig.receive(None, limits);
    assert!(rest.contains(&(0, 39)) && rest.contains(&(1, 69)), "{rest:?}");
    assert_eq!(rig.receive(None, limits), (vec![], false));
    // Far from the end.
    rig.store.groups().reset_offset("g", "t", 0, 0).unwrap();
    rig.store.groups().reset_offset("g", "t", 1, 65).unwrap();
    let far = TransferLimits { near_span: 0, ..LIMITS };
    let expected: Vec<_> =
        (0..8).map(|offset| (0, offset)).chain((65..70).map(|offset| (1, offset))).collect();
    assert_eq!(rig.receive(None, far), (expected, true));
}

#[test]
fn in_order_redelivered_and_new_messages_share_the_limits() {
    let rig = Rig::new(2, 70, 100);
    let limits = TransferLimits { near_count: 20, ..LIMITS };
    let order = Some(Ordered::default());
    assert_eq!(rig.receive(order, TransferLimits { near_count: 15, ..LIMITS }).0, of_both(0..15));
    rig.clock.advance(2_000);
    assert_eq!(rig.receive(order, limits), (of_both(0..20), true));
    rig.clock.advance(2_000);
    assert_eq!(rig.receive(order, limits), (of_both(0..20), true));
}
