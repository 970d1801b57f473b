//! No input harms other connections, leaks or hangs.
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

/// Replays the seeds and findings of the fuzzer.
#[test]
fn every_input_in_the_corpus_is_decoded_or_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/remoting");
    let mut decoded = 0;
    for file in fs::read_dir(corpus).unwrap() {
        decoded += fuzz_targets::remoting(&fs::read(file.unwrap().path()).unwrap());
    }
    assert!(decoded >= 4, "the corpus has a frame of each header form, alone and in a stream");
}

/// Bytes from a faulty or hostile peer.
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
    fn no_input_harms_other_connections_or_leaks_one(streams in vec(hostile(), 1..8)) {
        Runtime::new().unwrap().block_on(async {
            let mut rig = Rig::new();
            let mut neighbour = rig.connect().await;
            neighbour.call(&request(ECHO, 1)).await;
            let count = streams.len();
            for bytes in streams {
                let mut peer = rig.connect().await;
                // The server may close the connection before it has read all bytes.
                let _ = peer.stream.write_all(&bytes).await;
                let _ = peer.stream.shutdown().await;
                assert_eq!(neighbour.call(&request(ECHO, 2)).await.opaque, 2);
            }
            // Each connection closes once its requests are answered.
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
async fn a_header_of_16_mib_is_refused_before_it_arrives() {
    let rig = Rig::new();
    let mut peer = rig.connect().await;
    peer.send_bytes(&((16_i32 << 20) - 4).to_be_bytes()).await;
    peer.send_bytes(&((16_i32 << 20) - 8).to_be_bytes()).await;
    assert_eq!(peer.receive().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_the_same_opaque_are_each_answered() {
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
async fn unsolicited_responses_take_no_permit() {
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
async fn the_bytes_of_requests_in_progress_are_limited_for_each_connection() {
    let mut rig = Rig::with(ServerOptions { connection_memory: 1 << 20, ..ServerOptions::default() });
    let (peer, mut neighbour) = (rig.connect().await, rig.connect().await);
    // The body exceeds the limit, so requests of this connection run one at a time.
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
        // The neighbour's response comes after a second large request could have been served.
        assert_eq!(neighbour.call(&request(ECHO, 1)).await.opaque, 1);
        assert_eq!(rig.next_call().await, ECHO);
        rig.fake.release();
        let answer = answers.receive().await.unwrap();
        assert_eq!((answer.opaque, answer.body.len()), (opaque, 2 << 20));
    }
    let mut sending = sending.await.unwrap();
    // Small requests are limited by their number alone.
    for opaque in 0..100 {
        sending.send(&request(HELD, opaque)).await;
    }
    for _ in 0..100 {
        assert_eq!(rig.next_call().await, HELD);
    }
}

/// Runs on one thread, so that all requests arrive before a response is sent.
#[tokio::test]
async fn cold_responses_count_as_soon_as_they_are_created() {
    const REQUESTS: i32 = 40;
    let rig = Rig::with(ServerOptions { connection_memory: 2 << 20, ..ServerOptions::default() });
    let mut peer = rig.connect().await;
    let requests = (0..REQUESTS).map(|opaque| codec::encode(&request(LARGE, opaque)).unwrap().to_bytes());
    peer.send_bytes(&requests.collect::<Vec<_>>().concat()).await;
    while rig.stat("memory_held") < 1 << 20 {
        tokio::task::yield_now().await;
    }
    // Two fit the limit of the connection. The operating system buffers some more.
    let made = rig.fake.seen.lock().len();
    assert!(made < 20, "{made} responses of 1 MiB were created while the limit of a connection is 2");
    for _ in 0..REQUESTS {
        assert_eq!(peer.receive().await.expect("an answer").body.len(), LARGE_BYTES);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_way_requests_are_read_only_as_fast_as_they_are_served() {
    let mut rig = Rig::with(ServerOptions { one_way: 16, ..ServerOptions::default() });
    let (mut flood, mut neighbour) = (rig.connect().await, rig.connect().await);
    let mut one_way = request(HELD, 1);
    one_way.set_one_way();
    for _ in 0..10 {
        flood.send(&one_way).await;
    }
    // Each connection gets a quarter of the limit.
    for _ in 0..4 {
        assert_eq!(rig.next_call().await, HELD);
    }
    assert_eq!(neighbour.call(&request(ECHO, 2)).await.opaque, 2);
    assert_eq!(rig.next_call().await, ECHO);
    // The neighbour's response came after a fifth one-way request could have been served.
    assert_eq!(rig.fake.seen.lock().iter().filter(|code| **code == HELD).count(), 4);
    let mut served = 4;
    while served < 10 {
        rig.fake.release();
        assert_eq!(rig.next_call().await, HELD);
        served += 1;
    }
}

/// Pushes for three times the idle limit. Returns false if the machine stalled for longer than the limit, which proves
/// nothing.
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
            assert!(last.elapsed() > idle / 2, "closed although a push was just written");
            return false;
        };
        assert_eq!((pushed.code, is_taken), (40, true));
        last = now;
    }
    assert_eq!(peer.receive().await, None);
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_used_only_by_pushes_is_not_idle() {
    for idle in [300, 600, 1200, 2400, 4800] {
        if stays_open_by_pushes(Duration::from_millis(idle)).await {
            return;
        }
    }
    panic!("the machine stalled each time");
}
