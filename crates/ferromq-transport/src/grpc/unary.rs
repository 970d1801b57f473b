//! Hot unary methods, read and answered without tonic's layers.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, header::CONTENT_TYPE};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use tonic::{Status, body::Body};

use super::{
    Inner,
    call::{MAX_ACK, MAX_REQUEST, SMALL_ANSWER, deadline_exceeded, malformed, missing_client_id},
    connection::Link,
    convert::{Refusal, status_code},
    counted_body::{CountedBody, PREFIX},
    deadline::Deadline,
    hot_method::UnaryMethod,
    inline_calls::OwnTask,
    verbs::{
        ack, dead_letter, limited,
        send::{self, ReceiptForm},
    },
};
use crate::{
    connections::budget::kept,
    hot::{
        DeadLetterCause, Hot,
        latencies::{Outcome, Protocol, Timing, method},
        trace_context::{TRACEPARENT, TraceContext},
    },
};

/// Requests above this size get a task of their own, so that other calls of the connection do not wait for them.
const LARGE: usize = 64 << 10;
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");
const ENCODING: &str = "grpc-encoding";
const ACCEPT_ENCODING: &str = "grpc-accept-encoding";
/// Metadata key of clients that take ferromq's fields in the answer to a send.
const RECEIPTS: &str = "x-ferromq-receipts";
const STATUS_OK: HeaderValue = HeaderValue::from_static("0");

/// Returns the largest request of a method, in bytes.
fn limit(hot: &Hot, method: UnaryMethod) -> usize {
    match method {
        UnaryMethod::Send => hot.client_policy.load().max_send,
        UnaryMethod::Ack => MAX_ACK,
        UnaryMethod::ChangeInvisible | UnaryMethod::Forward | UnaryMethod::UpdateOffset => MAX_REQUEST,
    }
}

/// The number of a method for metrics.
fn number_of(unary: UnaryMethod) -> i32 {
    method(match unary {
        UnaryMethod::Send => "SendMessage",
        UnaryMethod::Ack => "AckMessage",
        UnaryMethod::ChangeInvisible => "ChangeInvisibleDuration",
        UnaryMethod::Forward => "ForwardMessageToDeadLetterQueue",
        UnaryMethod::UpdateOffset => "UpdateOffset",
    })
}

/// Answers a call.
pub(super) async fn answer(
    server: &Inner,
    hot: &Arc<Hot>,
    method: UnaryMethod,
    link: &Link,
    request: http::Request<Incoming>,
) -> http::Response<Body> {
    if request.method() != Method::POST {
        return Status::unimplemented(format!("gRPC calls use POST, not {}", request.method())).into_http();
    }
    let deadline = Deadline::of(request.headers());
    if deadline.has_passed() {
        return deadline_exceeded().into_http();
    }
    if let Some(encoding) = request.headers().get(ENCODING).filter(|encoding| *encoding != IDENTITY) {
        let refused = format!("the request is compressed with {encoding:?}; send it uncompressed");
        let mut response = Status::unimplemented(refused).into_http();
        response.headers_mut().insert(ACCEPT_ENCODING, IDENTITY);
        return response;
    }
    let mut timing = Timing::begin(Protocol::Grpc, number_of(method));
    timing.context = server.counters.spans.is_on().then(|| traced(request.headers())).flatten();
    let answered =
        deadline.limit(try_answer(server, hot, method, link, request, deadline, &mut timing)).await;
    let (response, code) = match answered.unwrap_or_else(|| Err(deadline_exceeded())) {
        Ok(message) => (response(link, &message), status_code(&message)),
        Err(status) => {
            let code = status.code() as i32;
            (status.into_http(), code)
        }
    };
    timing.response = code;
    hot.counters.record(&timing, Outcome::Success);
    response
}

async fn try_answer(
    server: &Inner,
    hot: &Arc<Hot>,
    method: UnaryMethod,
    link: &Link,
    request: http::Request<Incoming>,
    deadline: Deadline,
    timing: &mut Timing,
) -> Result<Bytes, Status> {
    let refusal = missing_client_id(request.headers());
    let admission = server.access.admit(method.name(), |name| text(request.headers(), name), link.peer());
    let form = if request.headers().contains_key(RECEIPTS) { ReceiptForm::Whole } else { ReceiptForm::Plain };
    let cause = if method == UnaryMethod::Forward {
        dead_letter::cause(request.headers())
    } else {
        DeadLetterCause::default()
    };
    // Held to the end of this function: the request's bytes count until it is answered.
    let share = Arc::new(link.allowance().share());
    let body = CountedBody::new(request.into_body(), Arc::clone(&share), Some(server.stall));
    let message = message(body, limit(hot, method)).await?;
    if message.len() > LARGE {
        OwnTask::default().await;
    }
    // Reading the body may have taken long.
    if deadline.has_passed() {
        return Err(deadline_exceeded());
    }
    let user = match limited::admit(admission, link.users(), method.name(), &message) {
        Ok(user) => user,
        Err(refusal) => return Ok(ack::refused(&refusal)),
    };
    if let Some(refusal) = refusal {
        return Ok(ack::refused(&refusal));
    }
    if method == UnaryMethod::Send
        && hot.limits.is_on()
        && let Err(reached) = hot.limits.admit(user.as_deref(), limited::usage(method.name(), &message))
    {
        return Ok(ack::refused(&Refusal::from(reached)));
    }
    let peer = link.peer();
    let answer = match method {
        UnaryMethod::Send => {
            if hot.counters.spans.is_on() {
                timing.context = TraceContext::of_send(&message).or(timing.context);
            }
            return send::send_message(hot, &message, peer, &share, form).await;
        }
        UnaryMethod::Ack => ack::ack_message(hot, &message, peer).await,
        UnaryMethod::ChangeInvisible => ack::change_invisible_duration(hot, message),
        UnaryMethod::Forward => dead_letter::forward(hot, message, peer, cause).await,
        UnaryMethod::UpdateOffset => ack::update_offset(hot, message, peer).await,
    };
    answer.map_err(malformed)
}

/// The client's span in the headers of a call.
fn traced(headers: &HeaderMap) -> Option<TraceContext> {
    text(headers, TRACEPARENT).and_then(TraceContext::parse)
}

/// The text of a header; `None` if it is missing or has other bytes.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Reads the one message of a request, of at most `limit` bytes. A message that arrives in one piece is not copied.
async fn message(mut body: CountedBody<Incoming>, limit: usize) -> Result<Bytes, Status> {
    let mut pieces = MessagePieces::default();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        if let Ok(piece) = frame?.into_data() {
            pieces.add(piece, limit)?;
        }
        if body.is_end_stream() {
            break;
        }
    }
    pieces.message()
}

/// The part of a message that has arrived, with its gRPC prefix.
#[derive(Default)]
struct MessagePieces {
    /// The first piece, until a second arrives.
    first: Bytes,
    rest: BytesMut,
    /// Length of the message with its prefix, once known.
    len: Option<usize>,
}

impl MessagePieces {
    fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    fn add(&mut self, piece: Bytes, limit: usize) -> Result<(), Status> {
        if self.len() == 0 {
            self.first = piece;
        } else {
            self.rest.reserve(self.first.len() + piece.len());
            self.rest.put(std::mem::take(&mut self.first));
            self.rest.put(piece);
        }
        if self.len.is_none() {
            self.read_prefix(limit)?;
        }
        if self.len.is_some_and(|len| self.len() > len) {
            return Err(Status::internal("the request has more than one message; this method takes one"));
        }
        Ok(())
    }

    /// Reads the prefix of the message once it is complete.
    fn read_prefix(&mut self, limit: usize) -> Result<(), Status> {
        let received = if self.rest.is_empty() { &*self.first } else { &*self.rest };
        let Some(([flag, size @ ..], _)) = received.split_first_chunk::<PREFIX>() else { return Ok(()) };
        match flag {
            0 => {}
            1 => {
                return Err(Status::internal(
                    "the message is marked as compressed, but grpc-encoding names no compression; send it uncompressed",
                ));
            }
            other => {
                return Err(Status::internal(format!(
                    "the compressed flag of the message is {other}; it must be 0"
                )));
            }
        }
        let size = u32::from_be_bytes(*size) as usize;
        if size > limit {
            return Err(Status::resource_exhausted(format!(
                "the request is over the limit of {limit} bytes"
            )));
        }
        self.len = Some(PREFIX + size);
        Ok(())
    }

    fn message(self) -> Result<Bytes, Status> {
        match self.len {
            Some(len) if len == self.len() => {
                let mut all = if self.rest.is_empty() { self.first } else { self.rest.freeze() };
                all.advance(PREFIX);
                Ok(all)
            }
            _ if self.len() == 0 => {
                Err(Status::internal("the request has no message; this method takes one"))
            }
            _ => Err(Status::internal("the request ended in the middle of its message")),
        }
    }
}

/// A response with one message. Its request has taken effect, so a large one is counted even beyond the memory limit.
fn response(link: &Link, message: &[u8]) -> http::Response<Body> {
    let mut out = BytesMut::with_capacity(PREFIX + message.len());
    out.put_u8(0);
    out.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    out.put_slice(message);
    let mut data = out.freeze();
    if data.len() > SMALL_ANSWER {
        let share = link.allowance().share();
        share.count(data.len());
        data = kept(data, share);
    }
    let mut response = http::Response::new(Body::new(SingleMessage { data: Some(data), is_finished: false }));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// A body of one message and the trailer with status OK.
struct SingleMessage {
    data: Option<Bytes>,
    is_finished: bool,
}

impl http_body::Body for SingleMessage {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(data) = self.data.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if std::mem::replace(&mut self.is_finished, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(Status::GRPC_STATUS, STATUS_OK);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_finished
    }
}
