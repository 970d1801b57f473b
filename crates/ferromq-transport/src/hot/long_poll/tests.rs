use std::sync::atomic::AtomicUsize;

use super::*;

fn polls(clock: &Clock) -> LongPolls {
    LongPolls::new(clock.clone(), Arc::default())
}

fn arrival(topic: &str) -> Arrival<'_> {
    Arrival { topic, queue_id: 0, max_offset: 1 }
}

/// Timeout of each wait; nothing here takes this long.
const PATIENCE: Duration = Duration::from_secs(10);

async fn until(condition: impl Fn() -> bool) {
    let reached = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.unwrap();
}

/// Parks `count` receives; returns the counter of those that were woken.
fn parked(polls: &LongPolls, group: &'static str, count: usize) -> Arc<AtomicUsize> {
    let woken = Arc::new(AtomicUsize::new(0));
    for _ in 0..count {
        let (parked, woken) = (polls.park("topic", group, None), Arc::clone(&woken));
        tokio::spawn(async move {
            parked.woken().await;
            woken.fetch_add(1, Ordering::SeqCst);
        });
    }
    woken
}

#[tokio::test]
async fn an_arrival_wakes_one_receive_of_each_group() {
    let polls = polls(&Clock::manual(0));
    let (a, b) = (parked(&polls, "a", 100), parked(&polls, "b", 100));
    tokio::task::yield_now().await;
    polls.arrived(&arrival("other"));
    polls.arrived(&arrival("topic"));
    until(|| a.load(Ordering::SeqCst) == 1 && b.load(Ordering::SeqCst) == 1).await;
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    assert_eq!((a.load(Ordering::SeqCst), b.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(polls.0.counters.parked.get(), 198);
}

#[tokio::test]
async fn a_receive_of_one_queue_is_woken_by_that_queue_alone() {
    let polls = polls(&Clock::manual(0));
    let (any, zero, one) = (
        polls.park("topic", "a", None),
        polls.park("topic", "a", Some(0)),
        polls.park("topic", "a", Some(1)),
    );
    assert_eq!((polls.parked("topic", "a", None), polls.parked("topic", "a", Some(1))), (1, 1));
    polls.arrived(&arrival("topic"));
    tokio::time::timeout(PATIENCE, async { tokio::join!(any.woken(), zero.woken()) }).await.unwrap();
    let mut asleep = Box::pin(one.woken());
    assert!(!asleep.as_mut().enable());
    polls.arrived(&Arrival { queue_id: 1, ..arrival("topic") });
    tokio::time::timeout(PATIENCE, asleep).await.unwrap();
    drop((any, zero, one));
    assert_eq!(polls.parked("topic", "a", Some(1)), 0);
}

#[tokio::test]
async fn an_arrival_before_the_wait_is_not_lost() {
    let polls = polls(&Clock::manual(0));
    let parked = polls.park("topic", "a", None);
    polls.arrived(&arrival("topic"));
    tokio::time::timeout(PATIENCE, parked.woken()).await.unwrap();
}

#[tokio::test]
async fn an_unused_wake_up_goes_to_the_next_waiter() {
    let polls = polls(&Clock::manual(0));
    let (first, second) = (polls.park("topic", "a", None), polls.park("topic", "a", None));
    let mut gone = Box::pin(first.woken());
    gone.as_mut().enable();
    let mut next = Box::pin(second.woken());
    next.as_mut().enable();
    polls.arrived(&arrival("topic"));
    drop(gone);
    tokio::time::timeout(PATIENCE, next).await.unwrap();
}

#[tokio::test]
async fn an_expired_lease_wakes_one_receive() {
    let clock = Clock::manual(1_000);
    let polls = polls(&clock);
    let woken = parked(&polls, "a", 10);
    polls.lease_ends("topic", "a", 5_000);
    polls.lease_ends("topic", "a", 3_000);
    clock.advance(1_999);
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(woken.load(Ordering::SeqCst), 0);
    clock.advance(1);
    until(|| woken.load(Ordering::SeqCst) == 1).await;
    clock.advance(86_400_000);
    until(|| woken.load(Ordering::SeqCst) == 2).await;
    polls.lease_ends("topic", "a", 100_000_000);
    clock.advance(100_000_000);
    until(|| woken.load(Ordering::SeqCst) == 3).await;
}

#[tokio::test]
async fn a_deleted_topic_and_group_leave_only_waiting_polls() {
    let polls = polls(&Clock::manual(1_000));
    let waiting = polls.park("topic", "stays", None);
    drop((polls.park("topic", "goes", Some(1)), polls.park("other", "goes", None)));
    drop((polls.park_pull("topic", 0), polls.park_pull("other", 0)));
    polls.lease_ends("topic", "goes", 5_000);
    polls.forget_group("goes");
    polls.forget_group("stays");
    let groups = |topic: &str| polls.0.topics.read()[topic].groups.read().len();
    assert_eq!((groups("topic"), groups("other")), (1, 0));
    assert!(polls.0.expiries.groups.lock().is_empty() && polls.0.expiries.due.lock().is_empty());
    polls.forget_topic("topic");
    polls.forget_topic("other");
    assert_eq!(polls.0.topics.read().len(), 1);
    polls.arrived(&arrival("topic"));
    tokio::time::timeout(PATIENCE, waiting.woken()).await.unwrap();
    drop(waiting);
    polls.forget_topic("topic");
    assert!(polls.0.topics.read().is_empty());
}

#[tokio::test]
async fn a_lease_expires_in_real_time_too() {
    let clock = Clock::system();
    let polls = polls(&clock);
    let woken = parked(&polls, "a", 1);
    polls.lease_ends("topic", "a", clock.now_ms() + 20);
    until(|| woken.load(Ordering::SeqCst) == 1).await;
}
