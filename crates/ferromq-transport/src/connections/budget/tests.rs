use proptest::prelude::*;
use tokio::time::timeout;

use super::*;

impl Budget {
    /// The allowance of a connection from an address of its own.
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
    // 56 MiB are for large requests; one address may hold 42 of them.
    let budget = Budget::new(64 << 20, 16 << 20);
    let stranger = || budget.allowance(address("10.0.0.1")).share();
    let held: Vec<_> = (0..3).map(|_| stranger()).collect();
    held.iter().for_each(|share| share.take(14 << 20).unwrap());
    assert_eq!(stranger().take(1 << 20), Err(OverBudget::Address(42 << 20)));
    // Small requests proceed.
    stranger().take(SMALL_REQUEST).unwrap();
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
    assert_eq!(budget.allowance(near).share().take(1 << 20), Err(OverBudget::Address(42 << 20)));
    budget.allowance(far).share().take(1 << 20).unwrap();
}

#[tokio::test]
async fn requests_from_one_address_that_wait_for_each_other_finish() {
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
async fn an_address_over_its_limit_does_not_block_others_that_wait_for_each_other() {
    let budget = Budget::new(64 << 20, 30 << 20);
    let of_address = [(); 2].map(|()| budget.allowance(address("10.0.0.1")).share());
    for share in &of_address {
        share.wait(20 << 20).await;
    }
    // From then on it exceeds the 42 MiB of an address.
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
fn connections_from_an_address_that_end_together_leave_no_entry() {
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
fn a_connection_at_its_limit_is_refused_and_another_is_not() {
    let budget = Budget::new(100, 40);
    let (first, second) = (budget.of_other(), budget.of_other());
    let (a, b) = (first.share(), first.share());
    a.take(30).unwrap();
    assert_eq!(b.take(11), Err(OverBudget::Connection(40)));
    b.take(10).unwrap();
    let other = second.share();
    other.take(40).unwrap();
    drop(a);
    b.take(20).unwrap();
    // 70 of 100 are taken; a third connection may have what is left.
    let third = budget.of_other().share();
    assert_eq!(third.take(31), Err(OverBudget::Server));
    // The last twelve are for small requests of a connection that holds hardly anything.
    third.take(18).unwrap();
}

#[test]
fn streams_are_counted_per_connection_until_they_end() {
    let budget = Budget::new(1 << 30, 1 << 30);
    let allowance = budget.of_other();
    let mut open: Vec<_> = (0..MAX_STREAMS).map(|_| allowance.stream().unwrap()).collect();
    assert!(allowance.stream().is_err());
    budget.of_other().stream().unwrap();
    open.pop();
    allowance.stream().unwrap();
    let poor = Budget::new(8 * STREAM_BYTES, STREAM_BYTES).of_other();
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
    assert_eq!(held.take(1), Err(OverBudget::Server));
    assert_eq!(greedy.share().take(1), Err(OverBudget::Server));
    let (large, small) = (other.share(), other.share());
    assert_eq!(large.take(SMALL_REQUEST + 1), Err(OverBudget::Server));
    small.take(SMALL_REQUEST).unwrap();
    assert_eq!(small.take(1), Err(OverBudget::Server));
}

/// Timeout of each wait; nothing here takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn waiting_requests_of_a_connection_get_memory_in_order() {
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
async fn requests_that_wait_for_each_other_finish_as_one_exceeds_the_budget() {
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

/// Runs small requests of another connection all the time.
fn small_traffic(budget: &Arc<Budget>) -> tokio::task::JoinHandle<()> {
    let small = budget.of_other().share();
    tokio::spawn(async move {
        loop {
            small.wait(1 << 10).await;
            small.give_back(1 << 10);
            tokio::time::sleep(STUCK_AFTER / 10).await;
        }
    })
}

#[tokio::test]
async fn small_requests_do_not_block_requests_that_wait_for_each_other() {
    let budget = Budget::new(8 << 20, 8 << 20);
    let shares = [budget.of_other().share(), budget.of_other().share()];
    for share in &shares {
        share.wait(3 << 20).await;
    }
    let traffic = small_traffic(&budget);
    // The request that exceeds the budget may do so in steps.
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
async fn requests_of_one_connection_that_wait_for_each_other_finish() {
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
    fn all_memory_taken_is_returned(steps in prop::collection::vec((0u8..5, 0usize..60), 0..60)) {
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
