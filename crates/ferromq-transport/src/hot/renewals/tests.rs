use std::{net::SocketAddr, path::Path};

use bytes::Bytes;
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    filter::MessageFilter,
    progress::{Begin, ReceiveRequest},
    read::TransferLimits,
    record::NewMessage,
    time::Clock,
};
use proptest::prelude::*;
use tokio::sync::oneshot;

use super::*;
use crate::{
    ColdHandler, ColdRequest, Demoted, Missing, Reply, Sender, Verb, remoting::Fields, tables::Tables,
};

#[derive(Debug, Clone)]
enum Step {
    Receive { queue_id: u32, offset: u64, count: u64, pop_time: i64 },
    End { queue_id: u32, offset: u64, pop_time: i64 },
    Pass(i64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..2_u32, 0..12_u64, 1..6_u64, 1..4_i64).prop_map(|(queue_id, offset, count, pop_time)| {
            Step::Receive { queue_id, offset, count, pop_time }
        }),
        (0..2_u32, 0..18_u64, 1..4_i64).prop_map(|(queue_id, offset, pop_time)| Step::End {
            queue_id,
            offset,
            pop_time
        }),
        (0..60_000_i64).prop_map(Step::Pass),
    ]
}

/// All leases that would be renewed, by queue and offset.
fn renewed_leases(runs: &LeaseRuns) -> BTreeMap<QueuePosition, i64> {
    let of_run = |((queue_id, first), run): (&QueuePosition, &LeaseRun)| {
        let (queue_id, pop_time) = (*queue_id, run.pop_time);
        (*first..first + u64::from(run.len)).map(move |offset| ((queue_id, offset), pop_time))
    };
    let all: Vec<_> = runs.0.iter().flat_map(of_run).collect();
    let count = all.len();
    let leases: BTreeMap<_, _> = all.into_iter().collect();
    assert_eq!(leases.len(), count, "runs overlap");
    leases
}

proptest! {
    #[test]
    fn a_lease_is_renewed_until_it_ends_or_its_message_is_received_again(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let (receiver, mut runs, mut now) = (Arc::new(()), LeaseRuns::default(), 0);
        let mut expected = BTreeMap::<QueuePosition, i64>::new();
        for step in steps {
            match step {
                Step::Receive { queue_id, offset, count, pop_time } => {
                    for queue_offset in offset..offset + count {
                        let handle = ReceiptHandle { queue_id, queue_offset, pop_time, invisible_ms: RENEWED_MS };
                        runs.add(&handle, now + RENEWED_MS - RENEW_AHEAD_MS, &Arc::downgrade(&receiver));
                        expected.insert((queue_id, queue_offset), pop_time);
                    }
                }
                Step::End { queue_id, offset, pop_time } => {
                    runs.remove(queue_id, offset, pop_time);
                    if expected.get(&(queue_id, offset)) == Some(&pop_time) {
                        expected.remove(&(queue_id, offset));
                    }
                }
                Step::Pass(ms) => {
                    now += ms;
                    // The store has already ended every lease of offset 7.
                    let extend = |handle: &ReceiptHandle| match handle.queue_offset {
                        7 => Err(StoreError::StaleReceipt),
                        _ => Ok(()),
                    };
                    let is_due = runs.0.values().any(|run| run.due <= now + RENEW_TOGETHER_MS);
                    let turn = runs.turn((0, 0), now, extend);
                    prop_assert!(is_due || turn.renewed == 0);
                    prop_assert!(turn.next_due.is_none_or(|due| due > now + RENEW_TOGETHER_MS));
                    prop_assert_eq!(turn.next_due, runs.0.values().map(|run| run.due).min());
                    for queue_id in 0..2 {
                        if runs.containing(queue_id, 7).is_none() {
                            expected.remove(&(queue_id, 7));
                        }
                    }
                }
            }
            prop_assert_eq!(renewed_leases(&runs), expected.clone());
        }
        drop(receiver);
        runs.turn((0, 0), now, |_| Ok(()));
        prop_assert!(runs.0.is_empty());
    }
}

struct NoControlPlane;

impl ColdHandler for NoControlPlane {
    fn serves(&self, _verb: &Verb) -> bool {
        false
    }
    fn call(&self, _request: ColdRequest, _reply: Reply) {}
    fn demote(&self, _missing: Missing, _peer: SocketAddr, _done: oneshot::Sender<Demoted>) {}
    fn telemetry(&self, _: u64, _: Sender, _: &Fields, _: Option<Bytes>) -> bool {
        true
    }
    fn on_close(&self, _connection: u64) {}
}

/// A hot path with a message leased to `receiver`. The test's only thread decides when it is renewed.
async fn leased_message(directory: &Path, receiver: &Arc<()>) -> (Arc<Hot>, Clock, ReceiptHandle) {
    let clock = Clock::manual(1_000);
    let config = StoreConfig { commit_log_file_size: 1 << 20, disk_reserve: 0, ..StoreConfig::default() };
    let store = Arc::new(MessageStore::open(directory, config, clock.clone()).unwrap());
    let (tables, counters, cold) = (Arc::new(Tables::new()), Arc::default(), Arc::new(NoControlPlane));
    let hot = Hot::new(store, tables, clock.clone(), "broker-a".to_owned(), cold, counters);
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    let message = NewMessage {
        topic: "flights",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 0,
        born_host: peer,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"x",
        properties: b"",
    };
    hot.store.log().append(&[message]).unwrap();
    while hot.store.queues().max_offset("flights", 0) == 0 {
        yield_now().await;
    }
    let request = ReceiveRequest {
        group: "audit",
        topic: "flights",
        queue_count: 1,
        first_queue: 0,
        max_count: 1,
        max_bytes: 4 << 20,
        invisible_ms: RENEWED_MS,
        filter: &MessageFilter::All,
        begin: Begin::AtMin,
        order: None,
        max_attempts: 0,
        by_priority: false,
        limits: TransferLimits::NONE,
    };
    let received = hot.store.groups().receive_in_memory(&request, None, None);
    let handle = received.unwrap().messages[0].handle;
    hot.renew_while_there("audit", "flights", [handle].into_iter(), &Arc::downgrade(receiver));
    (hot, clock, handle)
}

#[tokio::test]
async fn a_renewed_lease_stays_valid_although_the_clock_jumped() {
    let (directory, receiver) = (tempfile::tempdir().unwrap(), Arc::new(()));
    let (hot, clock, handle) = leased_message(directory.path(), &receiver).await;
    clock.advance(10 * RENEWED_MS);
    hot.progress.check_in_time("audit", "flights", &handle).unwrap();
    hot.progress.ack_in_time("audit", "flights", &handle).unwrap();
    assert_eq!(hot.store.groups().committed_offset("audit", "flights", 0), Some(1));
}

#[tokio::test]
async fn a_lease_that_is_not_renewed_any_more_expires() {
    for is_connected in [false, true] {
        let (directory, mut receiver) = (tempfile::tempdir().unwrap(), Some(Arc::new(())));
        let (hot, clock, handle) = leased_message(directory.path(), receiver.as_ref().unwrap()).await;
        receiver.take_if(|_| !is_connected);
        clock.advance(if is_connected { MAX_HELD_MS } else { RENEWED_MS });
        let outcomes = [
            hot.progress.check_in_time("audit", "flights", &handle),
            hot.progress.ack_in_time("audit", "flights", &handle),
        ];
        assert!(outcomes.iter().all(|o| matches!(o, Err(StoreError::StaleReceipt))), "{outcomes:?}");
    }
}

#[test]
fn many_leases_are_renewed_once_each_in_several_turns() {
    let (receiver, mut runs) = (Arc::new(()), LeaseRuns::default());
    for queue_offset in (0..9_000).filter(|offset| offset % 9 != 8) {
        let handle = ReceiptHandle { queue_id: 0, queue_offset, pop_time: 1, invisible_ms: RENEWED_MS };
        runs.add(&handle, RENEWED_MS - RENEW_AHEAD_MS, &Arc::downgrade(&receiver));
    }
    assert_eq!(runs.0.len(), 1_000, "one run for consecutive messages");
    let extended = Mutex::new(Vec::new());
    let (mut from, mut turns) = (Some((0, 0)), 0);
    while let Some(start) = from {
        let extend = |handle: &ReceiptHandle| {
            extended.lock().push(handle.queue_offset);
            Ok(())
        };
        let turn = runs.turn(start, RENEWED_MS - RENEW_AHEAD_MS, extend);
        assert!(turn.renewed < TURN_LEASES + MAX_RUN_LEN);
        from = turn.rest;
        turns += 1;
    }
    assert!(turns > 30, "{turns}");
    assert_eq!(extended.into_inner(), (0..9_000).filter(|offset| offset % 9 != 8).collect::<Vec<_>>());
}
