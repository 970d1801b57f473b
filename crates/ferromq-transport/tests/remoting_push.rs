//! Pushes and calls from the server to its remoting clients, on the connections that they opened.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::time::Duration;

use bytes::Bytes;
use ferromq_transport::{
    ServerOptions, TransportError,
    remoting::{RemotingCommand, codes::request},
};
use support::{ECHO, HELD, PATIENCE, Peer, Rig, request as ask};
use tokio::{io::AsyncWriteExt, time::timeout};

/// A connected client and the number of its connection.
async fn client(rig: &mut Rig) -> (Peer, u64) {
    let mut peer = rig.connect().await;
    peer.send(&ask(HELD, 1)).await;
    while rig.next_call().await != HELD {}
    let id = rig.fake.held_connection();
    rig.fake.release();
    peer.receive().await.expect("an answer");
    (peer, id)
}

fn notify(group: &str) -> RemotingCommand {
    let fields = vec![("consumerGroup".to_owned(), group.to_owned())];
    RemotingCommand::request(request::NOTIFY_CONSUMER_IDS_CHANGED, fields, Bytes::new())
}

fn large() -> RemotingCommand {
    RemotingCommand::request(request::RESET_CONSUMER_CLIENT_OFFSET, Vec::new(), vec![0; 1 << 20].into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_arrives_as_a_one_way_request_between_responses() {
    let mut rig = Rig::new();
    let (mut peer, id) = client(&mut rig).await;
    assert!(rig.server.push(id, notify("g")).unwrap());
    let pushed = peer.receive().await.unwrap();
    assert_eq!((pushed.code, pushed.field("consumerGroup")), (40, Some("g")));
    assert!(pushed.is_one_way() && !pushed.is_response());
    assert_eq!(peer.call(&ask(ECHO, 2)).await.opaque, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_to_a_closed_connection_returns_false() {
    let mut rig = Rig::new();
    let (peer, id) = client(&mut rig).await;
    drop(peer);
    assert_eq!(rig.next_close().await, id);
    assert!(!rig.server.push(id, notify("g")).unwrap());
    assert!(!rig.server.push(u64::MAX, notify("g")).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_loses_only_its_own_pushes() {
    let mut rig = Rig::new();
    let (_deaf, deaf) = client(&mut rig).await;
    let (mut neighbour, id) = client(&mut rig).await;
    let taken = (0..1000).take_while(|_| rig.server.push(deaf, large()).unwrap()).count();
    assert!((1..100).contains(&taken), "{taken} MiB were queued for a client that does not read");
    assert!(rig.server.push(id, notify("g")).unwrap());
    assert_eq!(neighbour.receive().await.unwrap().code, 40);
    assert_eq!(neighbour.call(&ask(ECHO, 2)).await.opaque, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_queued_pushes_is_limited_and_returned() {
    let mut rig = Rig::with(ServerOptions { memory: 4 << 20, ..ServerOptions::default() });
    let (mut deaf, id) = client(&mut rig).await;
    let mut taken = 0;
    while rig.server.push(id, large()).unwrap() {
        taken += 1;
    }
    assert!(taken >= 2);
    for _ in 0..taken {
        assert_eq!(deaf.receive().await.unwrap().body.len(), 1 << 20);
    }
    // The memory of the last push is returned when its write has completed.
    let again = async {
        while !rig.server.push(id, large()).unwrap() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, again).await.expect("room again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_gets_the_response_with_its_opaque_whatever_else_arrives() {
    let mut rig = Rig::new();
    let (mut peer, id) = client(&mut rig).await;
    let (mut stranger, _) = client(&mut rig).await;
    let server = rig.server.clone();
    let calls: Vec<_> = (0..2)
        .map(|_| {
            let server = server.clone();
            tokio::spawn(async move { server.call(id, notify("g"), PATIENCE).await })
        })
        .collect();
    let (first, second) = (peer.receive().await.unwrap(), peer.receive().await.unwrap());
    assert!(first.opaque != second.opaque && !first.is_one_way());
    // Unsolicited responses and those of other clients are ignored.
    peer.send(&ask(ECHO, 12_345).respond(9, None)).await;
    stranger.send(&first.respond(9, None)).await;
    stranger.call(&ask(ECHO, 3)).await;
    peer.send(&second.respond(0, Some("second".into()))).await;
    peer.send(&second.respond(9, None)).await;
    peer.send(&first.respond(0, Some("first".into()))).await;
    for call in calls {
        let response = call.await.unwrap().unwrap();
        let wanted = if response.opaque == first.opaque { "first" } else { "second" };
        assert_eq!((response.code, response.remark.as_deref()), (0, Some(wanted)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_response_is_a_timeout_and_a_late_response_is_ignored() {
    let mut rig = Rig::new();
    let (mut peer, id) = client(&mut rig).await;
    let failed = rig.server.call(id, notify("g"), Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(failed, TransportError::Timeout { timeout_ms: 50, .. }));
    let asked = peer.receive().await.unwrap();
    peer.send(&asked.respond(0, None)).await;
    assert_eq!(peer.call(&ask(ECHO, 2)).await.opaque, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_fails_its_unanswered_calls() {
    let mut rig = Rig::new();
    for half in [false, true] {
        let (mut peer, id) = client(&mut rig).await;
        let server = rig.server.clone();
        let call = tokio::spawn(async move { server.call(id, notify("g"), Duration::MAX).await });
        peer.receive().await.unwrap();
        if half {
            peer.stream.shutdown().await.unwrap();
        } else {
            drop(peer);
        }
        let failed = timeout(PATIENCE, call).await.expect("an end").unwrap();
        assert!(matches!(failed, Err(TransportError::Io { .. })), "{failed:?}");
        rig.next_close().await;
        assert!(matches!(rig.server.call(id, notify("g"), PATIENCE).await, Err(TransportError::Io { .. })));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_limit_wait() {
    let mut rig = Rig::with(ServerOptions { calls: 1, ..ServerOptions::default() });
    let (mut peer, id) = client(&mut rig).await;
    let server = rig.server.clone();
    let first = tokio::spawn({
        let server = server.clone();
        async move { server.call(id, notify("first"), PATIENCE).await }
    });
    let asked = peer.receive().await.unwrap();
    let refused = server.call(id, notify("late"), Duration::from_millis(50)).await;
    assert!(matches!(refused, Err(TransportError::Timeout { .. })));
    peer.send(&asked.respond(0, None)).await;
    first.await.unwrap().unwrap();
    let second = tokio::spawn(async move { server.call(id, notify("second"), PATIENCE).await });
    let asked = peer.receive().await.unwrap();
    // The call that timed out while it waited was never sent.
    assert_eq!(asked.field("consumerGroup"), Some("second"));
    peer.send(&asked.respond(0, None)).await;
    second.await.unwrap().unwrap();
}
