//! The hot verbs among other tasks: a filter that matches little must not keep a thread for the whole backlog.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod grpc_support;

use std::{
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use ferromq_store::{Begin, MessageFilter, NewMessage};
use ferromq_transport::{
    hot::{Counters, Hot, pull::Pull, receive::Receive},
    tables::Tables,
};
use grpc_support::Broker;

/// More than one turn of either verb steps over.
const BACKLOG: usize = 120_000;

/// A backlog nobody wants in queue 1 of `flights`, and one wanted message behind it.
async fn backlog(broker: &Broker) {
    let message = |properties| NewMessage {
        topic: "flights",
        queue_id: 1,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 0,
        born_host: SocketAddr::from(([127, 0, 0, 1], 1)),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"x",
        properties,
    };
    let unwanted = vec![message(b"TAGS\x01other\x02"); 1_000];
    for _ in 0..BACKLOG / 1_000 {
        drop(broker.store.append(&unwanted).unwrap());
    }
    drop(broker.store.append(&[message(b"TAGS\x01wanted\x02")]).unwrap());
    broker.readable(BACKLOG as u64 + 1).await;
}

fn hot(broker: &Broker) -> Arc<Hot> {
    let (store, control) = (Arc::clone(&broker.store), Arc::clone(&broker.control));
    let (tables, counters) = (Arc::new(Tables::new()), Arc::new(Counters::default()));
    Hot::new(store, tables, broker.clock.clone(), "broker-a".to_owned(), control, counters)
}

/// The future's answer, and how often it gave way before.
async fn turns<T>(future: impl Future<Output = T>) -> (T, usize) {
    let (mut future, mut turns) = (pin!(future), 0);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(answer) => return (answer, turns),
            std::task::Poll::Pending => turns += 1,
        }
    }
}

#[tokio::test]
async fn a_pull_gives_way_while_it_steps_over_a_backlog_and_finds_what_is_behind() {
    let broker = Broker::start();
    backlog(&broker).await;
    let filter = MessageFilter::tags("wanted");
    let pull = Pull {
        topic: "flights",
        queue_id: 1,
        offset: 0,
        max_count: 32,
        max_bytes: 4 << 20,
        filter: &filter,
        wait: Duration::ZERO,
    };
    let (found, turns) = turns(hot(&broker).pull(&pull)).await;
    assert_eq!((found.messages.len(), found.next_offset), (1, BACKLOG as u64 + 1));
    assert!(turns > 1, "{turns}");
}

#[tokio::test]
async fn a_receive_gives_way_while_it_steps_over_a_backlog_and_finds_what_is_behind() {
    let broker = Broker::start();
    backlog(&broker).await;
    let filter = MessageFilter::tags("wanted");
    let receive = Receive {
        group: "audit",
        topic: "flights",
        queue_count: 4,
        queue: None,
        max_count: 32,
        max_bytes: 4 << 20,
        invisible_duration: Duration::from_secs(30),
        filter: &filter,
        begin: Begin::AtMin,
        order: None,
        max_attempts: 0,
        by_priority: false,
        peer: SocketAddr::from(([127, 0, 0, 1], 1)),
        wait: Duration::ZERO,
    };
    let (received, turns) = turns(hot(&broker).receive(&receive)).await;
    assert_eq!(received.unwrap().messages[0].handle.queue_offset, BACKLOG as u64);
    assert!(turns > 1, "{turns}");
}
