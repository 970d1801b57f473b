//! Framed calls without a socket: the callers are threads of the server's process.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::large_enum_variant
)]

mod grpc_support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use ferromq_client::codec::decode_records;
use ferromq_transport::{
    grpc::{LocalCalls, LocalError},
    remoting::{Fields, RemotingCommand, codes::framed},
};
use grpc_support::{
    Broker,
    frames::SOON,
    proto::{ReceiveMessageRequest, SendMessageRequest, SendMessageResponse, message, receive},
};
use prost::Message as _;

const LONG: Duration = Duration::from_secs(60);
const OK: i32 = 20_000;
const NOTHING: i32 = 40_401;

type Answer = Result<RemotingCommand, LocalError>;

fn command(code: i32, body: Vec<u8>) -> RemotingCommand {
    RemotingCommand::request(code, Fields::from([("client", "client-1")]), body.into())
}

fn send(body: &str) -> RemotingCommand {
    let messages = vec![message("flights", body)];
    command(framed::SEND_MESSAGE, SendMessageRequest { messages }.encode_to_vec())
}

fn poll(wait: Duration) -> RemotingCommand {
    let request: ReceiveMessageRequest = receive(wait);
    command(framed::RECEIVE_MESSAGE, request.encode_to_vec())
}

/// Status and number of messages.
fn received(answer: &Answer) -> (i32, usize) {
    let answer = decode_records(&answer.as_ref().unwrap().body).unwrap();
    (answer.status.code, answer.messages.len())
}

/// Calls on another thread.
fn call(calls: &Arc<LocalCalls>, command: RemotingCommand, limit: Duration) -> mpsc::Receiver<Answer> {
    let (calls, (done, answer)) = (Arc::clone(calls), mpsc::channel());
    thread::spawn(move || {
        let outcome = calls.call(command, Instant::now() + limit, &|| false);
        let _ = done.send(outcome);
    });
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_is_answered_in_the_thread_of_its_caller() {
    let broker = Broker::start();
    let calls = Arc::new(broker.server.local_calls());
    let answer = call(&calls, send("a"), LONG).recv_timeout(SOON).unwrap().unwrap();
    let response = SendMessageResponse::decode(answer.body).unwrap();
    assert_eq!((answer.code, response.status.unwrap().code, response.entries[0].offset), (0, OK, 0));
    assert_eq!((broker.stat("sent"), broker.stat("remoting_requests")), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_waits_in_its_thread_until_there_is_a_message() {
    let broker = Broker::start();
    let calls = Arc::new(broker.server.local_calls());
    let polling = call(&calls, poll(LONG), LONG);
    grpc_support::eventually(|| broker.stat("remoting_requests") == 1).await;
    assert!(polling.try_recv().is_err());
    broker.client().await.send_one("late").await;
    assert_eq!(received(&polling.recv_timeout(SOON).unwrap()), (OK, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_ends_the_polls_under_way_and_no_later_ones() {
    let broker = Broker::start();
    let (calls, others) = (Arc::new(broker.server.local_calls()), Arc::new(broker.server.local_calls()));
    let polls = [call(&calls, poll(LONG), LONG), call(&calls, poll(LONG), LONG)];
    let other = call(&others, poll(LONG), LONG);
    grpc_support::eventually(|| broker.stat("remoting_requests") == 3).await;
    calls.release();
    for poll in polls {
        assert_eq!(received(&poll.recv_timeout(SOON).unwrap()), (NOTHING, 0));
    }
    let later = call(&calls, poll(LONG), LONG);
    grpc_support::eventually(|| broker.stat("remoting_requests") == 4).await;
    assert!(other.try_recv().is_err() && later.try_recv().is_err());
    broker.client().await.send(vec![message("flights", "1"), message("flights", "2")]).await;
    let _ = (other.recv_timeout(SOON).unwrap(), later);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_that_is_late_or_interrupted_leases_nothing() {
    let broker = Broker::start();
    let calls = Arc::new(broker.server.local_calls());
    let late = call(&calls, poll(LONG), Duration::from_millis(50)).recv_timeout(SOON).unwrap();
    assert_eq!(late.unwrap_err(), LocalError::Late);
    let (asked, shared) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&calls));
    let counted = Arc::clone(&asked);
    let interrupted = thread::spawn(move || {
        let is_interrupted = || counted.fetch_add(1, Ordering::SeqCst) == 1;
        shared.call(poll(LONG), Instant::now() + LONG, &is_interrupted)
    });
    let interrupted = tokio::task::spawn_blocking(|| interrupted.join().unwrap()).await.unwrap();
    assert_eq!((interrupted.unwrap_err(), asked.load(Ordering::SeqCst)), (LocalError::Interrupted, 2));
    broker.client().await.send_one("after").await;
    broker.readable(1).await;
    let answer = call(&calls, poll(Duration::ZERO), LONG).recv_timeout(SOON).unwrap();
    assert_eq!(received(&answer), (OK, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_waiting_thread_ends_once() {
    let broker = Broker::start();
    let calls = broker.server.local_calls();
    let start = |command, limit: Duration| {
        let (done, answer) = mpsc::channel();
        calls.start(command, Instant::now() + limit, move |outcome| done.send(outcome).unwrap());
        answer
    };
    assert_eq!(start(send("a"), LONG).try_recv().unwrap().unwrap().code, 0, "answered at once");
    broker.readable(1).await;
    assert_eq!(received(&start(poll(LONG), LONG).recv_timeout(SOON).unwrap()), (OK, 1));
    let late = start(poll(LONG), Duration::from_millis(20)).recv_timeout(SOON).unwrap();
    assert_eq!(late.unwrap_err(), LocalError::Late);
    let polling = start(poll(LONG), LONG);
    broker.client().await.send_one("b").await;
    assert_eq!(received(&polling.recv_timeout(SOON).unwrap()), (OK, 1));
    assert!(polling.recv().is_err(), "its callback is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_ends_polls_and_refuses_calls() {
    let broker = Broker::start();
    let calls = Arc::new(broker.server.local_calls());
    let polling = call(&calls, poll(LONG), LONG);
    grpc_support::eventually(|| broker.stat("remoting_requests") == 1).await;
    broker.server.stop(Duration::from_secs(5)).await;
    assert_eq!(received(&polling.recv_timeout(SOON).unwrap()), (NOTHING, 0));
    let refused = call(&calls, send("a"), LONG).recv_timeout(SOON).unwrap();
    assert_eq!(refused.unwrap_err(), LocalError::Stopped);
    assert_eq!(broker.stat("sent"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_method_that_goes_over_http2_alone_is_refused() {
    let broker = Broker::start();
    let calls = Arc::new(broker.server.local_calls());
    let refused = call(&calls, command(9_999, Vec::new()), LONG).recv_timeout(SOON).unwrap();
    assert_eq!(refused.unwrap_err(), LocalError::Stopped);
}
