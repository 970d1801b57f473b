//! No input harms a connection's neighbours, leaks or hangs.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod fuzz_targets;
mod support;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use ferromq_transport::{
    ConnectionLimits, ServerOptions,
    remoting::{HeaderForm, RemotingCommand, codec},
};
use proptest::{collection::vec, prelude::*};
use support::{DROPPED, ECHO, HELD, LARGE, LARGE_BYTES, PATIENCE, Rig, request};
use tokio::{io::AsyncWriteExt, runtime::Runtime, time::timeout};

/// What the fuzzer found, and what it began with.
#[test]
fn every_input_of_the_fuzzer_is_decoded_or_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/remoting");
    let mut decoded = 0;
    for file in fs::read_dir(corpus).unwrap() {
        decoded += fuzz_targets::remoting(&fs::read(file.unwrap().path()).unwrap());
    }
    assert!(decoded >= 4, "the corpus has a frame of each header form, alone and in a stream");
}

/// Bytes a broken or hostile peer sends.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let lengths = prop_oneof![Just(0), Just(-1), Just(i32::MAX), Just(i32::MIN), Just(3), Just(1 << 24)];
    let words = (lengths.clone(), lengths, vec(any::<u8>(), 0..64));
    let code = prop_oneof![any::<i32>(), Just(ECHO), Just(HELD), Just(DROPPED)];
    let frame = (code, any::<i32>(), any::<i32>(), any::<bool>(), 0..4_usize);
    let mutated = (frame, any::<prop::sample::Index>(), any::<u8>(), any::<bool>());
    prop_oneof![
        vec(any::<u8>(), 0..200),
        words.prop_map(|(length, header, rest)| {
            [&length.to_be_bytes()[..], &header.to_be_bytes(), &rest].concat()
        }),
        mutated.prop_map(|((code, opaque, flag, is_binary, repeat), at, byte, cut)| {
            let header_form = if is_binary { HeaderForm::Binary } else { HeaderForm::Json };
            let command = RemotingCommand { code, opaque, flag, header_form, ..request(ECHO, 0) };
            let mut bytes = codec::encode(&command).unwrap().to_bytes().repeat(repeat + 1);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut {
                bytes.truncate(at);
            }
            bytes
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_harm_a_neighbour_or_leave_a_connection_behind(streams in vec(hostile(), 1..8)) {
        Runtime::new().unwrap().block_on(async {
            let mut rig = Rig::new();
            let mut neighbour = rig.connect().await;
            neighbour.call(&request(ECHO, 1)).await;
            let count = streams.len();
            for bytes in streams {
                let mut peer = rig.connect().await;
                // The server may hang up before it has read all of it.
                let _ = peer.stream.write_all(&bytes).await;
                let _ = peer.stream.shutdown().await;
                assert_eq!(neighbour.call(&request(ECHO, 2)).await.opaque, 2);
            }
            // Each of them goes, once what it asked for is answered.
            let mut closed = 0;
            while closed < count {
                let event = async {
                    tokio::select! {
                        one = rig.closed.recv() => usize::from(one.is_some()),
                        _ = rig.calls.recv() => 0,
                    }
                };
                closed += timeout(PATIENCE, event).await.expect("all connections close");
                rig.fake.release();
            }
            assert_eq!(neighbour.call(&request(ECHO, 3)).await.opaque, 3);
            assert_eq!(rig.stat("connections"), 1);
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_of_16_mib_is_refused_before_it_is_sent() {
    let rig = Rig::new();
    let mut peer = rig.connect().await;
    peer.send_bytes(&((16_i32 << 20) - 4).to_be_bytes()).await;
    peer.send_bytes(&((16_i32 << 20) - 8).to_be_bytes()).await;
    assert_eq!(peer.receive().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_share_a_number_are_each_answered() {
    let rig = Rig::new();
    let mut peer = rig.connect().await;
    for _ in 0..50 {
        peer.send(&request(ECHO, 7)).await;
    }
    for _ in 0..50 {
        assert_eq!(peer.receive().await.unwrap().opaque, 7);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_nobody_asked_for_cost_no_permit() {
    let options = ServerOptions {
        connection: ConnectionLimits { in_flight: 2, ..Default::default() },
        ..Default::default()
    };
    let rig = Rig::with(options);
    let mut peer = rig.connect().await;
    for opaque in 0..100 {
        peer.send(&request(ECHO, opaque).respond(0, None)).await;
    }
    assert_eq!(peer.call(&request(ECHO, 1)).await.opaque, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_requests_under_way_are_limited_on_each_connection() {
    let mut rig = Rig::with(ServerOptions { connection_memory: 1 << 20, ..ServerOptions::default() });
    let (peer, mut neighbour) = (rig.connect().await, rig.connect().await);
    // The body is larger than all that may be under way: each request has the connection for itself.
    let count = 4;
    let (mut answers, mut sending) = peer.cloned();
    let sending = tokio::spawn(async move {
        for opaque in 0..count {
            let body = vec![7; 2 << 20].into();
            sending.send(&RemotingCommand { body, ..request(HELD, opaque) }).await;
        }
        sending
    });
    for opaque in 0..count {
        assert_eq!(rig.next_call().await, HELD);
        // The neighbour's answer comes after a second large request could have.
        assert_eq!(neighbour.call(&request(ECHO, 1)).await.opaque, 1);
        assert_eq!(rig.next_call().await, ECHO);
        rig.fake.release();
        let answer = answers.receive().await.unwrap();
        assert_eq!((answer.opaque, answer.body.len()), (opaque, 2 << 20));
    }
    let mut sending = sending.await.unwrap();
    // Small ones are bounded by their number alone.
    for opaque in 0..100 {
        sending.send(&request(HELD, opaque)).await;
    }
    for _ in 0..100 {
        assert_eq!(rig.next_call().await, HELD);
    }
}

/// On one thread: all requests are there before an answer goes on its way.
#[tokio::test]
async fn cold_answers_count_as_soon_as_they_are_made() {
    const REQUESTS: i32 = 40;
    let rig = Rig::with(ServerOptions { connection_memory: 2 << 20, ..ServerOptions::default() });
    let mut peer = rig.connect().await;
    let requests = (0..REQUESTS).map(|opaque| codec::encode(&request(LARGE, opaque)).unwrap().to_bytes());
    peer.send_bytes(&requests.collect::<Vec<_>>().concat()).await;
    while rig.stat("memory_held") < 1 << 20 {
        tokio::task::yield_now().await;
    }
    // Beside the two that a connection may hold, what the system takes of them.
    let made = rig.fake.seen.lock().len();
    assert!(made < 20, "{made} answers of 1 MiB were made where a connection may hold 2");
    for _ in 0..REQUESTS {
        assert_eq!(peer.receive().await.expect("an answer").body.len(), LARGE_BYTES);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_one_way_requests_is_read_as_fast_as_it_is_served() {
    let mut rig = Rig::with(ServerOptions { one_way: 16, ..ServerOptions::default() });
    let (mut flood, mut neighbour) = (rig.connect().await, rig.connect().await);
    let mut one_way = request(HELD, 1);
    one_way.set_one_way();
    for _ in 0..10 {
        flood.send(&one_way).await;
    }
    // A quarter of them for each connection.
    for _ in 0..4 {
        assert_eq!(rig.next_call().await, HELD);
    }
    assert_eq!(neighbour.call(&request(ECHO, 2)).await.opaque, 2);
    assert_eq!(rig.next_call().await, ECHO);
    // The neighbour's answer came after a fifth one-way request could have.
    assert_eq!(rig.fake.seen.lock().iter().filter(|code| **code == HELD).count(), 4);
    let mut served = 4;
    while served < 10 {
        rig.fake.release();
        assert_eq!(rig.next_call().await, HELD);
        served += 1;
    }
}

/// Pushes for three times the limit; false where the machine stood still for longer than the limit, which
/// proves nothing.
async fn stays_open_by_pushes(idle: Duration) -> bool {
    let connection = ConnectionLimits { idle, ..Default::default() };
    let mut rig = Rig::with(ServerOptions { connection, ..ServerOptions::default() });
    let mut peer = rig.connect().await;
    peer.send(&request(HELD, 1)).await;
    rig.next_call().await;
    let id = rig.fake.held_connection();
    rig.fake.release();
    peer.receive().await.unwrap();
    let mut last = Instant::now();
    for _ in 0..18 {
        tokio::time::sleep(idle / 6).await;
        let now = Instant::now();
        let is_taken = rig.server.push(id, request(40, 0)).unwrap();
        let Some(pushed) = peer.receive().await else {
            // Half the limit: the server's clock may be a little ahead.
            assert!(last.elapsed() > idle / 2, "closed though a push was written just before");
            return false;
        };
        assert_eq!((pushed.code, is_taken), (40, true));
        last = now;
    }
    assert_eq!(peer.receive().await, None);
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_used_by_pushes_alone_is_not_idle() {
    for idle in [300, 600, 1200, 2400, 4800] {
        if stays_open_by_pushes(Duration::from_millis(idle)).await {
            return;
        }
    }
    panic!("the machine stood still each time");
}
