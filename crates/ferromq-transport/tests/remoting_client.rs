//! The outgoing remoting client against correct and faulty servers.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use ferromq_protocol::ProtocolError;
use ferromq_transport::{TransportError, client::RemotingClient, remoting::RemotingCommand};
use support::{ECHO, HELD, PATIENCE, Peer, Rig, request};
use tokio::{io::AsyncWriteExt, net::TcpListener, runtime::Handle, time::timeout};

fn client() -> RemotingClient {
    RemotingClient::new(Handle::current(), None)
}

fn echo(text: &'static str) -> RemotingCommand {
    RemotingCommand::request(ECHO, Vec::new(), Bytes::from_static(text.as_bytes()))
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

async fn accept(listener: &TcpListener) -> Peer {
    let accepted = timeout(PATIENCE, listener.accept()).await.expect("a connection");
    Peer::of(accepted.unwrap().0)
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_share_one_connection() {
    let rig = Rig::new();
    let (client, address) = (client(), rig.address.to_string());
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let (client, address) = (client.clone(), address.clone());
            tokio::spawn(async move { client.call(&address, echo("hello"), PATIENCE).await.unwrap() })
        })
        .collect();
    for call in calls {
        assert_eq!(&call.await.unwrap().body[..], b"hello");
    }
    assert_eq!(rig.stat("connections"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_response_does_not_delay_a_fast_one() {
    let mut rig = Rig::new();
    let (client, address) = (client(), rig.address.to_string());
    let slow = tokio::spawn({
        let (client, address) = (client.clone(), address.clone());
        async move { client.call(&address, request(HELD, 0), PATIENCE).await }
    });
    rig.next_call().await;
    client.call(&address, echo("quick"), PATIENCE).await.unwrap();
    assert!(!slow.is_finished());
    rig.fake.release();
    slow.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_response_is_a_timeout_that_names_the_peer() {
    let mut rig = Rig::new();
    let (client, address) = (client(), rig.address.to_string());
    client.call(&address, echo("first"), PATIENCE).await.unwrap();
    rig.next_call().await;
    let (started, limit) = (Instant::now(), Duration::from_millis(100));
    let failure = client.call(&address, request(HELD, 0), limit).await.unwrap_err();
    assert!(
        matches!(&failure, TransportError::Timeout { peer, timeout_ms } if *peer == address && *timeout_ms == 100)
    );
    assert!(started.elapsed() >= limit);
    // The late response belongs to no call, and must not be taken for the next one's.
    rig.fake.release();
    assert_eq!(&client.call(&address, echo("next"), PATIENCE).await.unwrap().body[..], b"next");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_stay_open_beside_a_new_one() {
    // A slow peer would take a closed connection for the end of this client.
    let (listener, address) = listen().await;
    let client = client();
    let mut peers = Vec::new();
    // If the machine stalls past the timeout, the peer was not silent for long: retry.
    while peers.len() < 19 {
        let (asking, at) = (client.clone(), address.clone());
        let asked =
            tokio::spawn(async move { asking.call(&at, echo("?"), Duration::from_millis(100)).await });
        if let Ok(mut peer) = timeout(Duration::from_millis(90), accept(&listener)).await {
            peer.receive().await.expect("the request");
            peers.push(peer);
        }
        assert!(matches!(asked.await.unwrap(), Err(TransportError::Timeout { .. })));
    }
    // At least two of the connections exceeded the limit and were closed, whether or not the last one can be reused.
    for peer in &mut peers[1..3] {
        while peer.receive().await.is_some() {}
    }
    for number in [0, 4, 17, 18] {
        let receive = async { while peers[number].receive().await.is_some() {} };
        assert!(timeout(Duration::from_millis(50), receive).await.is_err(), "{number} is open");
    }
    client.close();
    for number in [0, 4, 17, 18] {
        while peers[number].receive().await.is_some() {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_other_responses_survives_a_timeout() {
    // If the machine stalls past the timeout, no response came meanwhile: retry with a longer one.
    for millis in [200, 800, 3_200, 12_800] {
        let (listener, address) = listen().await;
        let client = client();
        let call = |request, limit| {
            let (client, address) = (client.clone(), address.clone());
            tokio::spawn(async move { client.call(&address, request, limit).await })
        };
        let first = call(echo("first"), PATIENCE);
        let mut peer = accept(&listener).await;
        let asked = peer.receive().await.unwrap();
        peer.send(&asked.respond(0, None)).await;
        first.await.unwrap().unwrap();
        let mut slow = call(request(HELD, 0), Duration::from_millis(millis));
        let held = tokio::select! {
            held = peer.receive() => held,
            _ = &mut slow => None,
        };
        let Some(held) = held else { continue };
        let other = call(echo("other"), PATIENCE);
        let Some(asked) = peer.receive().await else { continue };
        peer.send(&asked.respond(0, None)).await;
        if other.await.unwrap().is_err() || slow.is_finished() {
            continue;
        }
        assert!(matches!(slow.await.unwrap(), Err(TransportError::Timeout { .. })));
        let next = call(echo("next"), PATIENCE);
        let asked = peer.receive().await.expect("the same connection");
        peer.send(&held.respond(1, None)).await;
        peer.send(&asked.respond(0, None)).await;
        assert_eq!(next.await.unwrap().unwrap().code, 0);
        return;
    }
    panic!("the machine stalled each time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_closes_its_write_half_gets_the_connection_closed() {
    let (listener, address) = listen().await;
    let client = client();
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.call(&address, echo(""), PATIENCE).await }
    });
    let mut peer = accept(&listener).await;
    peer.receive().await.unwrap();
    peer.stream.shutdown().await.unwrap();
    assert_eq!(peer.receive().await, None);
    assert!(matches!(call.await.unwrap(), Err(TransportError::Io { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_peer_is_an_io_error_that_names_it() {
    let (listener, address) = listen().await;
    drop(listener);
    let failure = client().call(&address, echo(""), PATIENCE).await.unwrap_err();
    assert!(matches!(&failure, TransportError::Io { peer, .. } if *peer == address));
    assert!(failure.to_string().contains(&address));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_fails_its_calls_at_once_and_the_next_call_reconnects() {
    let (listener, address) = listen().await;
    let client = client();
    let lost = tokio::spawn({
        let (client, address) = (client.clone(), address.clone());
        async move { client.call(&address, echo("lost"), Duration::from_secs(3_600)).await }
    });
    let mut first = accept(&listener).await;
    first.receive().await.unwrap();
    drop(first);
    let lost = tokio::time::timeout(PATIENCE, lost).await.expect("an end before the call's timeout");
    assert!(matches!(lost.unwrap(), Err(TransportError::Io { .. })));

    let again = tokio::spawn(async move { client.call(&address, echo("again"), PATIENCE).await });
    let mut second = accept(&listener).await;
    let asked = second.receive().await.unwrap();
    second.send(&asked.respond(0, None)).await;
    assert_eq!(again.await.unwrap().unwrap().code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_response_is_a_lost_connection() {
    let (listener, address) = listen().await;
    let client = client();
    let call = tokio::spawn(async move { client.call(&address, echo(""), PATIENCE).await });
    let mut peer = accept(&listener).await;
    peer.receive().await.unwrap();
    peer.send_bytes(&[0xff; 64]).await;
    assert!(matches!(call.await.unwrap(), Err(TransportError::Io { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_from_the_server_are_answered_as_unsupported() {
    let (listener, address) = listen().await;
    let client = client();
    let call = tokio::spawn(async move { client.call(&address, echo(""), PATIENCE).await });
    let mut peer = accept(&listener).await;
    let asked = peer.receive().await.unwrap();
    let refused = peer.call(&request(40, 77)).await;
    assert_eq!((refused.code, refused.opaque), (3, 77));
    peer.send(&asked.respond(0, None)).await;
    call.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_client_fails_calls_in_progress_and_later_ones() {
    let mut rig = Rig::new();
    let (client, address) = (client(), rig.address.to_string());
    let held = tokio::spawn({
        let (client, address) = (client.clone(), address.clone());
        async move { client.call(&address, request(HELD, 0), PATIENCE).await }
    });
    rig.next_call().await;
    client.close();
    let failed = timeout(PATIENCE, held).await.unwrap().unwrap();
    assert!(matches!(failed, Err(TransportError::Io { .. })));
    assert!(matches!(client.call(&address, echo(""), PATIENCE).await, Err(TransportError::Io { .. })));
    rig.fake.release();
    rig.next_close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_too_large_for_a_frame_is_refused_before_it_is_sent() {
    let rig = Rig::new();
    let fields = vec![("a".to_owned(), "x".repeat(17 << 20))];
    let request = RemotingCommand::request(ECHO, fields, Bytes::new());
    let failure = client().call(&rig.address.to_string(), request, PATIENCE).await.unwrap_err();
    assert!(matches!(failure, TransportError::Protocol(ProtocolError::FrameTooLarge { .. })));
}
