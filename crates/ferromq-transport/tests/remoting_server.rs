//! The remoting server at the level of bytes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use ferromq_transport::{
    ConnectionLimits, ServerOptions,
    remoting::{HeaderForm, RemotingCommand, codec, codes::response},
};
use support::{BROKEN, BUSY, DROPPED, ECHO, HELD, LARGE, LARGE_BYTES, PATIENCE, Rig, SILENT, request};
use tokio::{io::AsyncWriteExt, time::timeout};

fn options(change: impl FnOnce(&mut ConnectionLimits)) -> ServerOptions {
    let mut options = ServerOptions::default();
    change(&mut options.connection);
    options
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_answered_in_its_own_header_form() {
    let rig = Rig::new();
    let mut peer = rig.connect().await;
    for (opaque, form) in [(1, HeaderForm::Json), (2, HeaderForm::Binary)] {
        let fields = vec![("topic".to_owned(), "orders".to_owned())];
        let body = Bytes::from_static(b"body");
        let asked =
            RemotingCommand { opaque, header_form: form, ..RemotingCommand::request(ECHO, fields, body) };
        let answer = peer.call(&asked).await;
        assert_eq!((answer.code, answer.opaque, answer.header_form), (0, opaque, form));
        assert!(answer.is_response());
        assert_eq!((answer.field("topic"), &answer.body[..]), (Some("orders"), &b"body"[..]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_code_is_answered_and_the_connection_stays() {
    let rig = Rig::new();
    let mut peer = rig.connect().await;
    for code in [54, 10, 310, 200_050, -1] {
        let answer = peer.call(&request(code, 9)).await;
        assert_eq!((answer.code, answer.opaque), (response::REQUEST_CODE_NOT_SUPPORTED, 9));
        assert_eq!(answer.remark, Some(format!(" request type {code} not supported")));
    }
    assert_eq!(peer.call(&request(ECHO, 10)).await.code, response::SUCCESS);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_the_control_plane_become_response_codes() {
    let rig = Rig::new();
    let mut peer = rig.connect().await;
    let broken = peer.call(&request(BROKEN, 1)).await;
    assert_eq!((broken.code, broken.remark.as_deref()), (response::SYSTEM_ERROR, Some("it broke")));
    assert_eq!(peer.call(&request(BUSY, 2)).await.code, response::SYSTEM_BUSY);
    assert_eq!(peer.call(&request(DROPPED, 3)).await.code, response::SERVICE_NOT_AVAILABLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_requests_are_answered_as_they_complete() {
    let mut rig = Rig::new();
    let mut peer = rig.connect().await;
    peer.send(&request(HELD, 1)).await;
    rig.next_call().await;
    for opaque in 2..50 {
        peer.send(&request(ECHO, opaque)).await;
    }
    let mut opaques = Vec::new();
    for _ in 2..50 {
        opaques.push(peer.receive().await.unwrap().opaque);
    }
    opaques.sort_unstable();
    assert_eq!(opaques, (2..50).collect::<Vec<_>>());
    rig.fake.release();
    assert_eq!(peer.receive().await.unwrap().opaque, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_way_and_silent_requests_are_executed_without_a_response() {
    let rig = Rig::new();
    let mut peer = rig.connect().await;
    for (opaque, code) in [(1, ECHO), (2, BROKEN), (3, 54)] {
        let mut one_way = request(code, opaque);
        one_way.set_one_way();
        peer.send(&one_way).await;
    }
    peer.send(&request(SILENT, 4)).await;
    // An unsolicited response is ignored.
    peer.send(&request(ECHO, 5).respond(0, None)).await;
    assert_eq!(peer.call(&request(ECHO, 6)).await.opaque, 6);
    assert_eq!(*rig.fake.seen.lock(), [ECHO, BROKEN, SILENT, ECHO]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_way_requests_of_one_connection_leave_room_for_those_of_others() {
    let mut rig = Rig::with(ServerOptions { one_way: 8, ..ServerOptions::default() });
    let (mut greedy, mut neighbour) = (rig.connect().await, rig.connect().await);
    let one_way = |code| {
        let mut request = request(code, 1);
        request.set_one_way();
        request
    };
    for _ in 0..8 {
        greedy.send(&one_way(HELD)).await;
    }
    for _ in 0..2 {
        assert_eq!(rig.next_call().await, HELD);
    }
    neighbour.send(&one_way(ECHO)).await;
    assert_eq!(neighbour.call(&request(ECHO, 2)).await.opaque, 2);
    assert_eq!((rig.next_call().await, rig.next_call().await), (ECHO, ECHO));
    // Each completed request admits the next one.
    for _ in 0..3 {
        rig.fake.release();
        assert_eq!((rig.next_call().await, rig.next_call().await), (HELD, HELD));
    }
    rig.fake.release();
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_bytes_close_only_their_own_connection() {
    let mut rig = Rig::new();
    let mut neighbour = rig.connect().await;
    assert_eq!(neighbour.call(&request(ECHO, 1)).await.opaque, 1);
    let lengths = [0_i32, 3, -1, i32::MIN, i32::MAX, 16 << 20].map(|length| length.to_be_bytes().to_vec());
    let frames = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        // The header is longer than its frame.
        vec![0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 0],
        // An unknown form, invalid JSON, a truncated binary header.
        vec![0, 0, 0, 8, 9, 0, 0, 4, 0, 0, 0, 0],
        vec![0, 0, 0, 8, 0, 0, 0, 4, b'n', b'u', b'l', b'l'],
        vec![0, 0, 0, 8, 1, 0, 0, 4, 0, 0, 0, 0],
    ];
    let count = (lengths.len() + frames.len()) as u64;
    for bytes in lengths.into_iter().chain(frames) {
        let mut peer = rig.connect().await;
        peer.send_bytes(&bytes).await;
        assert_eq!(peer.receive().await, None, "{bytes:?}");
        rig.next_close().await;
        assert_eq!(neighbour.call(&request(ECHO, 2)).await.opaque, 2);
    }
    assert_eq!(rig.stat("malformed"), count);
    assert_eq!(rig.stat("connections"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_before_a_bad_frame_are_still_answered() {
    let mut rig = Rig::new();
    let mut peer = rig.connect().await;
    peer.send(&request(HELD, 1)).await;
    peer.send_bytes(&[0xff; 8]).await;
    rig.next_call().await;
    rig.fake.release();
    assert_eq!(peer.receive().await.unwrap().opaque, 1);
    assert_eq!(peer.receive().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_frame_is_dropped() {
    let mut rig = Rig::new();
    let frame = codec::encode(&request(ECHO, 1)).unwrap().to_bytes();
    for cut in [1, 4, 8, frame.len() - 1] {
        let mut peer = rig.connect().await;
        peer.send_bytes(&frame[..cut]).await;
        peer.stream.shutdown().await.unwrap();
        assert_eq!(peer.receive().await, None);
        rig.next_close().await;
    }
    assert!(rig.fake.seen.lock().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_that_arrives_byte_by_byte_is_answered_and_does_not_delay_others() {
    let rig = Rig::new();
    let (mut slow, mut quick) = (rig.connect().await, rig.connect().await);
    slow.stream.set_nodelay(true).unwrap();
    let frame = codec::encode(&request(ECHO, 1)).unwrap().to_bytes();
    for (index, byte) in frame.iter().enumerate() {
        slow.send_bytes(&[*byte]).await;
        assert_eq!(quick.call(&request(ECHO, index as i32)).await.opaque, index as i32);
    }
    assert_eq!(slow.receive().await.unwrap().opaque, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_progress_are_limited_for_each_connection() {
    let mut rig = Rig::with(options(|limits| limits.in_flight = 4));
    let (mut peer, mut neighbour) = (rig.connect().await, rig.connect().await);
    for opaque in 0..10 {
        peer.send(&request(HELD, opaque)).await;
    }
    for _ in 0..4 {
        rig.next_call().await;
    }
    // The neighbour's call is served after a fifth request could have been.
    neighbour.call(&request(ECHO, 1)).await;
    rig.next_call().await;
    assert_eq!(rig.fake.seen.lock().iter().filter(|code| **code == HELD).count(), 4);
    for _ in 0..10 {
        rig.fake.release();
        assert_eq!(peer.receive().await.unwrap().code, 0);
        // Each response admits one more request, until none is left.
        let _ = timeout(Duration::from_millis(50), rig.calls.recv()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_read_its_responses_is_throttled_and_then_disconnected() {
    let mut rig = Rig::with(ServerOptions {
        connection_memory: 4 * LARGE_BYTES,
        ..options(|limits| limits.write = Duration::from_secs(1))
    });
    let (mut deaf, mut neighbour) = (rig.connect().await, rig.connect().await);
    for opaque in 0..200 {
        deaf.send(&request(LARGE, opaque)).await;
        // A response counts once it is created, which happens before many more are requested.
        neighbour.call(&request(ECHO, 1)).await;
    }
    let cut_off = rig.next_close().await;
    assert!(cut_off > 0);
    let served = rig.fake.seen.lock().iter().filter(|code| **code == LARGE).count();
    assert!(served < 50, "{served} responses of 1 MiB were created for a peer that does not read");
    assert_eq!(neighbour.call(&request(ECHO, 1)).await.opaque, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_gets_large_responses_completely() {
    let rig = Rig::new();
    let mut peer = rig.connect().await;
    for opaque in 0..8 {
        peer.send(&request(LARGE, opaque)).await;
    }
    tokio::task::yield_now().await;
    for _ in 0..8 {
        assert_eq!(peer.receive().await.unwrap().body.len(), LARGE_BYTES);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_closed_but_not_one_that_waits_for_a_response() {
    // Long enough to send a request on a machine that stalls for a while.
    let mut rig = Rig::with(options(|limits| limits.idle = Duration::from_millis(1_500)));
    let mut waiting = rig.connect().await;
    waiting.send(&request(HELD, 1)).await;
    rig.next_call().await;
    // Its idle time ends after that of the first connection would.
    let mut idle = rig.connect().await;
    assert_eq!(idle.receive().await, None);
    assert!(timeout(Duration::from_millis(50), waiting.receive()).await.is_err());
    assert_eq!(waiting.call(&request(ECHO, 2)).await.opaque, 2);
    rig.fake.release();
    assert_eq!(waiting.receive().await.unwrap().opaque, 1);
    assert_eq!(waiting.receive().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_over_the_limit_are_closed_until_one_is_free() {
    let mut rig = Rig::with(ServerOptions { max_connections: Some(1), ..ServerOptions::default() });
    let mut first = rig.connect().await;
    first.call(&request(ECHO, 1)).await;
    assert_eq!(rig.connect().await.receive().await, None);
    assert_eq!(rig.stat("refused_connections"), 1);
    drop(first);
    rig.next_close().await;
    // The permit is returned right after the notification of the close.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut next = rig.connect().await;
        let frame = codec::encode(&request(ECHO, 2)).unwrap().to_bytes();
        if next.stream.write_all(&frame).await.is_ok() && next.receive().await.is_some() {
            break;
        }
        assert!(Instant::now() < deadline);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_is_reported_once_after_the_last_call_of_its_connection() {
    let mut rig = Rig::new();
    let mut peer = rig.connect().await;
    peer.send(&request(HELD, 1)).await;
    rig.next_call().await;
    drop(peer);
    assert!(timeout(Duration::from_millis(100), rig.closed.recv()).await.is_err());
    rig.fake.release();
    rig.next_close().await;
    assert!(timeout(Duration::from_millis(50), rig.closed.recv()).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_control_plane_can_close_a_connection() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (rig.connect().await, rig.connect().await);
    first.call(&request(ECHO, 1)).await;
    second.call(&request(ECHO, 1)).await;
    first.send(&request(HELD, 2)).await;
    while rig.next_call().await != HELD {}
    rig.server.close_connection(u64::MAX);
    let id = rig.fake.held_connection();
    rig.server.close_connection(id);
    assert_eq!(first.receive().await, None);
    // Its last call is still in progress.
    assert!(timeout(Duration::from_millis(100), rig.closed.recv()).await.is_err());
    rig.fake.release();
    assert_eq!(rig.next_close().await, id);
    assert_eq!(second.call(&request(ECHO, 3)).await.opaque, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_server_answers_requests_in_progress_and_accepts_no_more() {
    let mut rig = Rig::new();
    let (mut peer, mut idle) = (rig.connect().await, rig.connect().await);
    idle.call(&request(ECHO, 1)).await;
    peer.send(&request(HELD, 2)).await;
    while rig.next_call().await != HELD {}
    let server = rig.server.clone();
    let stopping = tokio::spawn(async move { server.stop(PATIENCE).await });
    assert_eq!(idle.receive().await, None);
    assert!(!stopping.is_finished());
    let _ = peer.stream.write_all(&codec::encode(&request(ECHO, 3)).unwrap().to_bytes()).await;
    rig.fake.release();
    assert_eq!(peer.receive().await.unwrap().opaque, 2);
    assert_eq!(peer.receive().await, None);
    timeout(PATIENCE, stopping).await.unwrap().unwrap();
    rig.next_close().await;
    rig.next_close().await;
    assert!(tokio::net::TcpStream::connect(rig.address).await.is_err());
    assert_eq!(rig.stat("connections"), 0);
    rig.server.stop(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_does_not_end_is_aborted_after_the_grace_period() {
    let mut rig = Rig::new();
    let mut peer = rig.connect().await;
    peer.send(&request(HELD, 1)).await;
    rig.next_call().await;
    timeout(PATIENCE, rig.server.stop(Duration::from_millis(100))).await.expect("the end of the server");
    assert_eq!(peer.receive().await, None);
    rig.next_close().await;
}
