//! Framed calls: hot methods in frames of the remoting protocol, for ferromq's own clients.
//!
//! A connection to the gRPC port whose first byte begins a frame carries such calls in place of HTTP/2. A request's code
//! names the method, its body is the method's protobuf request, and the field `client` names the client. A response with
//! code 0 has the method's protobuf response as its body. Any other code is [`STATUS`] plus a gRPC status, with the text
//! as its remark. The reason is in `docs/decisions/064-framed-calls.md`.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};
use tonic::{Code, Status};

use super::{
    Inner,
    call::{MAX_ACK, MAX_REQUEST, malformed, missing_client},
    connection::GrpcStream,
    convert::{Refusal, status_code},
    verbs::{
        ack, limited,
        polling::Polling,
        receive::{AnswerForm, CallTerms},
        records,
        send::{self, ReceiptForm},
    },
};
use crate::{
    access::{Access, UserName, framed_method},
    connections::answer_memory,
    hot::{
        Hot,
        latencies::{Outcome, Protocol, Timing, method},
        trace_context::{TRACEPARENT, TraceContext},
    },
    limits::{ConnectionUsers, Meter, RateLimits},
    protobuf::take_varint,
    remoting::{
        RemotingCommand,
        calls::Calls,
        codes::framed::{
            ACK_MESSAGE, ACK_RECORDS, AWAIT_MESSAGES, CHANGE_INVISIBLE_DURATION, PROBE, PULL_MESSAGE,
            RECEIVE_MESSAGE, SEND_MESSAGE, STATUS, UPDATE_OFFSET,
        },
        server::{connection::Connection, outbox::outbox},
        verbs::{HotVerb, ResponseFuture},
    },
};

/// Returns whether a byte begins a frame: its length is below 16 MiB, and HTTP/2 begins with `P`.
pub(super) fn begins_frame(first: u8) -> bool {
    first == 0
}

static METHODS: [HotVerb; 9] = [
    HotVerb::asynchronous(PROBE, |hot, _, command| respond(hot, command, async { Ok(Bytes::new()) })),
    HotVerb::asynchronous(SEND_MESSAGE, |hot, peer, command| {
        respond(hot, command, send_message(hot, peer, command))
    }),
    HotVerb::asynchronous(ACK_MESSAGE, |hot, peer, command| {
        respond(hot, command, ack_message(hot, peer, command))
    }),
    HotVerb::asynchronous(ACK_RECORDS, |hot, peer, command| {
        respond(hot, command, ack_records(hot, peer, command))
    }),
    HotVerb::asynchronous(CHANGE_INVISIBLE_DURATION, |hot, _, command| {
        respond(hot, command, change_invisible_duration(hot, command))
    }),
    HotVerb::asynchronous(UPDATE_OFFSET, |hot, peer, command| {
        respond(hot, command, update_offset(hot, peer, command))
    }),
    HotVerb::framed_query(RECEIVE_MESSAGE, |hot, peer, command| {
        respond(hot, command, receive_message(hot, peer, command))
    }),
    HotVerb::framed_query(AWAIT_MESSAGES, |hot, peer, command| {
        respond(hot, command, await_messages(hot, peer, command))
    }),
    HotVerb::framed_query(PULL_MESSAGE, |hot, peer, command| {
        respond(hot, command, pull_message(hot, peer, command))
    }),
];

/// The hot method of a request code.
pub(super) fn find(code: i32) -> Option<&'static HotVerb> {
    METHODS.iter().find(|method| method.code == code)
}

/// Serves a connection until its client leaves or the server stops; calls in flight are answered first.
pub(super) async fn serve(server: &Arc<Inner>, mut stream: GrpcStream, mut stop: watch::Receiver<()>) {
    stream.skip_preface();
    let link = stream.link();
    let connection = Connection {
        id: link.id(),
        peer: link.peer(),
        certificate: link.certificate(),
        users: Arc::clone(link.users()),
        limits: server.limits,
        allowance: Arc::clone(link.allowance()),
        // Cold methods come over HTTP/2.
        cold: None,
        hot: server.hot.clone(),
        find_verb: find,
        access: Arc::clone(&server.access),
        check,
        limit,
        routes: Arc::default(),
        is_draining: Arc::clone(&server.is_draining),
        one_way: Arc::new(Semaphore::new(1)),
        one_way_weight: 1,
        counters: Arc::clone(&server.counters),
        bad_frames: Arc::clone(&server.bad_frames),
        grpc_port: 0,
        calls: Calls::new(),
    };
    let drain = async { _ = stop.changed().await };
    let ends = outbox(server.limits.in_flight, None);
    connection.serve(tokio::io::split(stream), ends, drain, std::future::pending()).await;
}

/// Checks a call, as a [`CheckUser`](crate::remoting::server::connection::CheckUser).
fn check(
    access: &Access,
    users: &ConnectionUsers,
    command: &RemotingCommand,
    peer: SocketAddr,
) -> Result<UserName, Box<RemotingCommand>> {
    let method = framed_method(command.code);
    let admission = access.admit(method, |name| command.field(name), peer);
    limited::admit(admission, users, method, &command.body).map_err(|refusal| refuse(command, &refusal))
}

/// Charges a call to the limits, or returns its refusal.
pub(super) fn limit(
    limits: &RateLimits,
    user: Option<&str>,
    command: &RemotingCommand,
) -> Result<Option<Meter>, Box<RemotingCommand>> {
    if !limits.is_on() {
        return Ok(None);
    }
    let usage = limited::usage(framed_method(command.code), &command.body);
    limits.admit(user, usage).map_err(|reached| refuse(command, &Refusal::from(reached)))
}

/// The response to a refused call, in the form of its method.
fn refuse(command: &RemotingCommand, refusal: &Refusal) -> Box<RemotingCommand> {
    let mut response = command.respond(0, None);
    response.body = match command.code {
        RECEIVE_MESSAGE | AWAIT_MESSAGES | PULL_MESSAGE => records::refused(refusal),
        _ => ack::refused(refusal),
    };
    Box::new(response)
}

/// Makes the response of a method's answer, and counts the time it took.
fn respond<'a>(
    hot: &'a Hot,
    command: &'a RemotingCommand,
    answer: impl Future<Output = Result<Bytes, Status>> + Send + 'a,
) -> ResponseFuture<'a> {
    Box::pin(async move {
        let mut timing = Timing::begin(Protocol::Grpc, method(name_of(command.code)));
        if hot.counters.spans.is_on() {
            let given = || command.field(TRACEPARENT).and_then(TraceContext::parse);
            let of_message =
                if command.code == SEND_MESSAGE { TraceContext::of_send(&command.body) } else { None };
            timing.context = of_message.or_else(given);
        }
        let response = match answer.await {
            Ok(body) => {
                timing.response = code_of(command.code, &body);
                RemotingCommand { body, ..command.respond(0, None) }
            }
            Err(status) => {
                timing.response = status.code() as i32;
                command.respond(STATUS + status.code() as i32, Some(status.message().to_owned()))
            }
        };
        hot.counters.record(&timing, Outcome::Success);
        Ok(response)
    })
}

/// The name of a method for metrics.
fn name_of(code: i32) -> &'static str {
    match code {
        SEND_MESSAGE => "SendMessage",
        ACK_MESSAGE => "AckMessage",
        ACK_RECORDS => "AckRecords",
        CHANGE_INVISIBLE_DURATION => "ChangeInvisibleDuration",
        UPDATE_OFFSET => "UpdateOffset",
        RECEIVE_MESSAGE => "ReceiveMessage",
        AWAIT_MESSAGES => "AwaitMessages",
        PULL_MESSAGE => "PullMessage",
        _ => "Probe",
    }
}

/// The code of the status in an answer; those with records begin with the length of their head.
fn code_of(method: i32, mut answer: &[u8]) -> i32 {
    if matches!(method, RECEIVE_MESSAGE | AWAIT_MESSAGES | PULL_MESSAGE) && take_varint(&mut answer).is_err()
    {
        return 0;
    }
    status_code(answer)
}

async fn send_message(hot: &Arc<Hot>, peer: SocketAddr, command: &RemotingCommand) -> Result<Bytes, Status> {
    check_size(command, hot.client_policy.load().max_send)?;
    if let Some(refused) = refused(command) {
        return Ok(refused);
    }
    let Some(share) = answer_memory::share() else {
        return Err(Status::internal("the request has no share of the memory"));
    };
    send::send_message(hot, &command.body, peer, &share, ReceiptForm::Whole).await
}

async fn ack_message(hot: &Arc<Hot>, peer: SocketAddr, command: &RemotingCommand) -> Result<Bytes, Status> {
    check_size(command, MAX_ACK)?;
    match refused(command) {
        Some(refused) => Ok(refused),
        None => ack::ack_message(hot, &command.body, peer).await.map_err(malformed),
    }
}

async fn ack_records(hot: &Arc<Hot>, peer: SocketAddr, command: &RemotingCommand) -> Result<Bytes, Status> {
    check_size(command, MAX_ACK)?;
    match refused(command) {
        Some(refused) => Ok(refused),
        None => ack::ack_records(hot, &command.body, peer).await.map_err(malformed),
    }
}

async fn change_invisible_duration(hot: &Hot, command: &RemotingCommand) -> Result<Bytes, Status> {
    check_size(command, MAX_REQUEST)?;
    match refused(command) {
        Some(refused) => Ok(refused),
        None => ack::change_invisible_duration(hot, command.body.clone()).map_err(malformed),
    }
}

async fn update_offset(hot: &Arc<Hot>, peer: SocketAddr, command: &RemotingCommand) -> Result<Bytes, Status> {
    check_size(command, MAX_REQUEST)?;
    match refused(command) {
        Some(refused) => Ok(refused),
        None => ack::update_offset(hot, command.body.clone(), peer).await.map_err(malformed),
    }
}

async fn receive_message(
    hot: &Arc<Hot>,
    peer: SocketAddr,
    command: &RemotingCommand,
) -> Result<Bytes, Status> {
    check_size(command, MAX_REQUEST)?;
    match unnamed(command) {
        Some(refusal) => Ok(records::refused(&refusal)),
        None => records::receive_records(hot, command.body.clone(), &terms(peer)).await.map_err(malformed),
    }
}

async fn await_messages(hot: &Hot, peer: SocketAddr, command: &RemotingCommand) -> Result<Bytes, Status> {
    check_size(command, MAX_REQUEST)?;
    match unnamed(command) {
        Some(refusal) => Ok(records::refused(&refusal)),
        None => records::await_messages(hot, command.body.clone(), &terms(peer)).await.map_err(malformed),
    }
}

async fn pull_message(hot: &Hot, peer: SocketAddr, command: &RemotingCommand) -> Result<Bytes, Status> {
    check_size(command, MAX_REQUEST)?;
    match unnamed(command) {
        Some(refusal) => Ok(records::refused(&refusal)),
        None => records::pull_records(hot, command.body.clone(), &terms(peer)).await.map_err(malformed),
    }
}

/// The client waits as long as it asks for, and longer for the answer.
fn terms(peer: SocketAddr) -> CallTerms {
    CallTerms { peer, form: AnswerForm::Records, deadline: None, polling: Polling::Asked }
}

/// The answer to a request without a client id, as over HTTP/2.
fn refused(command: &RemotingCommand) -> Option<Bytes> {
    unnamed(command).map(|refusal| ack::refused(&refusal))
}

fn unnamed(command: &RemotingCommand) -> Option<Refusal> {
    let is_named = command.field("client").is_some_and(|id| !id.trim_ascii().is_empty());
    (!is_named).then(|| missing_client("the field client is missing"))
}

fn check_size(command: &RemotingCommand, limit: usize) -> Result<(), Status> {
    if command.body.len() > limit {
        return Err(Status::new(
            Code::ResourceExhausted,
            format!("the request is over the limit of {limit} bytes"),
        ));
    }
    Ok(())
}
