//! Routes gRPC calls by path: hot methods to the hot path, the others to the control plane.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use tonic::{
    Code, Request, Response, Status, Streaming,
    body::Body,
    metadata::{KeyAndValueRef, MetadataMap, MetadataValue},
    server::{Grpc, ServerStreamingService, StreamingService, UnaryService},
};

use super::{
    Inner,
    call::{CLIENT_ID, MAX_REQUEST, SMALL_ANSWER, deadline_exceeded, malformed, missing_client_id},
    codec::{BytesCodec, UnbufferedCodec},
    connection::Link,
    convert::{Refusal, code, put_status, status_code},
    counted_body::{AnswerStream, CountedAnswer, CountedBody, UnsentAnswers},
    deadline::Deadline,
    extras,
    hot_method::{HotMethod, StreamingMethod},
    inline_calls::OwnTask,
    stream::{Packer, ResponseStream},
    unary,
    verbs::{
        limited,
        polling::Polling,
        receive::{self, AnswerForm, CallTerms, Client},
    },
};
use crate::{
    ColdRequest, Reply, TransportError, Verb,
    access::known_method,
    connections::{
        answer_memory,
        budget::{Share, kept},
    },
    handler::Answered,
    hot::{
        Hot,
        latencies::{Outcome, Protocol, Timing, method},
        trace_context::{TRACEPARENT, TraceContext},
    },
    limits::Meter,
    remoting::{Fields, Language},
};

const SERVICE: &str = "/apache.rocketmq.v2.MessagingService/";
/// The administration service, which is cold. Its methods are routed as `Admin/…`.
const ADMIN: &str = "/apache.rocketmq.v2.Admin/";
/// tonic's status for a message over the limit; RocketMQ uses RESOURCE_EXHAUSTED.
const OUT_OF_RANGE: &str = "11";
/// Metadata key that requests and announces a packed stream.
const PACKED: &str = "x-ferromq-packed";
/// Metadata key by which a telemetry stream announces that the port takes framed calls.
const FRAMED: &str = "x-ferromq-framed";
/// Values of [`FRAMED`]: calls that send and acknowledge; receives and pulls.
const FRAMED_CALLS: [&str; 2] = ["1", "2"];
/// Metadata key by which a telemetry stream announces compressed bodies that gRPC has no word for, and its values.
const COMPRESSIONS: &str = "x-ferromq-compression";
const COMPRESSION_NAMES: [&str; 2] = ["lz4", "zstd"];
/// Methods of ferromq whose answers are JSON.
const ANSWERED_IN_JSON: [&str; 2] = ["DescribeBroker", "KeepWriteLayout"];
/// Metadata key of a pulled queue's min offset: from there on, nothing had aged out at the time of the read.
const MIN_OFFSET: &str = "x-ferromq-min-offset";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Answers a call.
pub(super) async fn route(
    server: Arc<Inner>,
    link: Link,
    request: http::Request<Incoming>,
) -> http::Response<Body> {
    let method = request.uri().path().strip_prefix(SERVICE);
    if let (Some(HotMethod::Unary(method)), Some(hot)) = (method.and_then(HotMethod::named), &server.hot) {
        return unary::answer(&server, hot, method, &link, request).await;
    }
    if request.method() == Method::CONNECT {
        let mut refused = http::Response::new(Body::empty());
        *refused.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        return refused;
    }
    Box::pin(route_rest(server, link, request.map(Body::new))).await
}

/// As [`route`], for all calls but hot unary ones.
async fn route_rest(server: Arc<Inner>, link: Link, request: http::Request<Body>) -> http::Response<Body> {
    let path = request.uri().path();
    let admin = path.strip_prefix(ADMIN).map(|method| format!("Admin/{method}"));
    let Some(method) = path.strip_prefix(SERVICE).map(str::to_owned).or(admin) else {
        return extras::answer(server, link, request).await;
    };
    let deadline = Deadline::of(request.headers());
    if deadline.has_passed() {
        return deadline_exceeded().into_http();
    }
    let mut grpc = Grpc::new(BytesCodec).max_decoding_message_size(MAX_REQUEST);
    // Held to the end of this function: the request's bytes count until it is answered.
    let share = Arc::new(link.allowance().share());
    if method == "Telemetry" {
        // A silent client is legal here, so there is no stall limit.
        let request = request.map(|body| Body::new(CountedBody::new(body, Arc::clone(&share), None)));
        let mut grpc = Grpc::new(UnbufferedCodec::default()).max_decoding_message_size(MAX_REQUEST);
        return grpc.streaming(Telemetry { server, link, share }, request).await;
    }
    let stall = Some(server.stall);
    let request = request.map(|body| Body::new(CountedBody::new(body, Arc::clone(&share), stall)));
    let call = Call { link, deadline, share };
    let answered = deadline.limit(answer(server, call, method, &mut grpc, request)).await;
    let Some(response) = answered else { return deadline_exceeded().into_http() };
    let too_large = response.headers().get(Status::GRPC_STATUS).is_some_and(|code| code == OUT_OF_RANGE);
    if too_large {
        return Status::resource_exhausted(format!("the request is over the limit of {MAX_REQUEST} bytes"))
            .into_http();
    }
    response
}

/// The connection, deadline and memory share of a request.
struct Call {
    link: Link,
    deadline: Deadline,
    share: Arc<Share>,
}

async fn answer(
    server: Arc<Inner>,
    call: Call,
    method: String,
    grpc: &mut Grpc<BytesCodec>,
    request: http::Request<Body>,
) -> http::Response<Body> {
    let unsent = Arc::clone(call.link.unsent());
    let not_served = |method: &str| Status::unimplemented(format!("{method} is not served here")).into_http();
    match (HotMethod::named(&method), server.hot.clone()) {
        (Some(HotMethod::Streaming(method)), Some(hot)) => {
            // It may scan many messages; other calls of the connection must not wait for that.
            OwnTask::default().await;
            let stream = HotStream { server, hot, call, method };
            count_answer(grpc.server_streaming(stream, request).await, &unsent)
        }
        (Some(_), _) => not_served(&method),
        (None, _) => {
            let verb = Verb::Rpc(method.clone());
            if !server.cold.serves(&verb) {
                return not_served(&method);
            }
            count_answer(grpc.unary(ColdCall { server, call, verb }, request).await, &unsent)
        }
    }
}

/// The memory share of a response until it is written, passed to [`count_answer`] in the response's extensions.
#[derive(Clone)]
struct AnswerShare(Arc<Share>);

fn count_answer(mut response: http::Response<Body>, unsent: &Arc<UnsentAnswers>) -> http::Response<Body> {
    match response.extensions_mut().remove::<AnswerShare>() {
        Some(AnswerShare(share)) => response.map(|body| Body::new(CountedAnswer::new(body, share, unsent))),
        None => response,
    }
}

/// A response with one message, which holds its memory share if it is large.
fn unary_response(body: Bytes, memory: Share) -> Response<Bytes> {
    let large = body.len() > SMALL_ANSWER;
    let mut response = Response::new(body);
    if large {
        response.extensions_mut().insert(AnswerShare(Arc::new(memory)));
    }
    response
}

/// A hot method that answers with a stream.
struct HotStream {
    server: Arc<Inner>,
    hot: Arc<Hot>,
    call: Call,
    method: StreamingMethod,
}

impl ServerStreamingService<Bytes> for HotStream {
    type Response = Bytes;
    type ResponseStream = ResponseStream;
    type Future = BoxFuture<Result<Response<ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (hot, streaming) = (Arc::clone(&self.hot), self.method);
        let is_pull = streaming == StreamingMethod::Pull;
        let asked = request.metadata().get(PACKED).and_then(|value| value.to_str().ok());
        let form = AnswerForm::asked(asked, is_pull);
        let deadline = self.call.deadline;
        let refusal = missing_client_id(request.metadata().as_ref());
        let get = |name: &str| request.metadata().get(name).and_then(|value| value.to_str().ok());
        let admission = self.server.access.admit(self.method.name(), get, self.call.link.peer());
        let client = Client { link: self.call.link.clone(), id: client_id(request.metadata()).to_owned() };
        let polling = match is_pull || form.is_packed() {
            true => Polling::Asked,
            false => {
                let request_timeout = self.server.telemetry.request_timeout(&client.id);
                Polling::bounded(**self.hot.waits.load(), request_timeout, request.metadata().as_ref())
            }
        };
        let link = self.call.link.clone();
        let terms = CallTerms { peer: link.peer(), form, deadline: deadline.remaining(), polling };
        let context = traced(&self.server, request.metadata());
        let body = request.into_inner();
        let share = Arc::new(self.call.link.allowance().share());
        let mut timing =
            Timing::begin(Protocol::Grpc, method(if is_pull { "PullMessage" } else { "ReceiveMessage" }));
        let counters = Arc::clone(&self.server.counters);
        timing.context = context;
        let answering = answer_memory::scope(Arc::clone(&share), async move {
            if deadline.has_passed() {
                return Err(deadline_exceeded());
            }
            let admitted = limited::admit(admission, link.users(), streaming.name(), &body)
                .and_then(|user| refusal.map_or(Ok(user), Err))
                .and_then(|user| limit(&hot, user.as_deref(), streaming.name(), &body));
            let meter = match admitted {
                Ok(meter) => meter,
                Err(refusal) => return Ok(announced(form, refused_stream(form.is_packed(), &refusal))),
            };
            let reading = async {
                if is_pull {
                    let pulled = receive::pull_message(&hot, body, &terms).await?;
                    return Ok((pulled.stream, pulled.min_offset));
                }
                Ok((receive::receive_message(&hot, body, &terms, &client).await?, None))
            };
            let read = match meter {
                Some(meter) => meter.scope(reading).await,
                None => reading.await,
            };
            let (stream, min_offset) = read.map_err(malformed)?;
            share.settle(stream.bytes());
            let mut response = announced(form, stream);
            response.extensions_mut().insert(AnswerShare(share));
            if let Some(offset) = min_offset {
                response.metadata_mut().insert(MIN_OFFSET, MetadataValue::from(offset));
            }
            Ok(response)
        });
        Box::pin(async move {
            let answered = answering.await;
            timing.response = match &answered {
                Ok(response) => response.get_ref().status_code(form.is_packed()),
                Err(status) => status.code() as i32,
            };
            counters.record(&timing, Outcome::Success);
            answered
        })
    }
}

/// Returns what a call's read is charged to.
fn limit(hot: &Hot, user: Option<&str>, method: &str, message: &[u8]) -> Result<Option<Meter>, Refusal> {
    if !hot.limits.is_on() {
        return Ok(None);
    }
    hot.limits.admit(user, limited::usage(method, message)).map_err(Refusal::from)
}

/// The client's span in the metadata of a call, if spans are recorded.
fn traced(server: &Inner, metadata: &MetadataMap) -> Option<TraceContext> {
    let given = server.counters.spans.is_on().then(|| metadata.get(TRACEPARENT)).flatten();
    TraceContext::parse(given?.to_str().ok()?)
}

/// A cold method, which the control plane answers.
struct ColdCall {
    server: Arc<Inner>,
    call: Call,
    verb: Verb,
}

impl UnaryService<Bytes> for ColdCall {
    type Response = Bytes;
    type Future = BoxFuture<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (server, link, verb) = (Arc::clone(&self.server), self.call.link.clone(), self.verb.clone());
        let mut user = None;
        if let Verb::Rpc(method) = &verb {
            let get = |name: &str| request.metadata().get(name).and_then(|value| value.to_str().ok());
            let admission = server.access.admit(known_method(method), get, link.peer());
            match limited::admit(admission, link.users(), method, request.get_ref()) {
                Ok(admitted) => user = admitted,
                Err(refusal) => return Box::pin(std::future::ready(refused_call(method, refusal))),
            }
        }
        let name = if let Verb::Rpc(name) = &verb { name } else { "" };
        let mut timing = Timing::begin(Protocol::Grpc, method(name));
        timing.context = traced(&server, request.metadata());
        let counters = Arc::clone(&server.counters);
        if matches!(&verb, Verb::Rpc(method) if method == "NotifyClientTermination") {
            link.forget_client(client_id(request.metadata()));
        }
        let fields = fields(request.metadata());
        // The request may stay queued after its client has stopped waiting.
        let body = kept(request.into_inner(), Arc::clone(&self.call.share));
        server.counters.cold_calls.add(1);
        let call = ColdRequest {
            verb,
            sender: link.sender(user),
            language: Language::OTHER,
            version: 0,
            is_one_way: false,
            expires: self.call.deadline.at(),
            fields,
            body,
            memory: Some(Arc::clone(link.allowance())),
        };
        let (reply, answer) = Reply::new(link.allowance());
        server.cold.call(call, reply);
        // A task of its own holds the link until the handler is done, even if the client is gone by then.
        let handler_link = link.clone();
        let answer = tokio::spawn(async move {
            let answer = answer.await;
            drop(handler_link);
            answer
        });
        let answering = async move {
            let no_answer = || Status::internal("the handler gave no answer");
            let Answered { answer, memory } =
                answer.await.map_err(|_| no_answer())?.map_err(|_| no_answer())?;
            match answer {
                Ok(Some(response)) => Ok(unary_response(response.body, memory)),
                Ok(None) => Err(no_answer()),
                Err(error @ TransportError::Busy(_)) => Err(Status::resource_exhausted(error.to_string())),
                Err(error) => Err(Status::internal(error.to_string())),
            }
        };
        Box::pin(async move {
            let answered = answering.await;
            timing.response = match &answered {
                Ok(response) => status_code(response.get_ref()),
                Err(status) => status.code() as i32,
            };
            counters.record(&timing, Outcome::Success);
            answered
        })
    }
}

/// The telemetry stream.
struct Telemetry {
    server: Arc<Inner>,
    link: Link,
    share: Arc<Share>,
}

impl StreamingService<Bytes> for Telemetry {
    type Response = Bytes;
    type ResponseStream = AnswerStream;
    type Future = std::future::Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let fields = fields(request.metadata());
        let (link, share) = (self.link.clone(), Arc::clone(&self.share));
        let stream = self.server.telemetry.open(link, share, fields, request.into_inner());
        std::future::ready(stream.map(|stream| {
            let mut response = Response::new(stream);
            if self.server.hot.is_some() {
                let framed = FRAMED_CALLS.map(|calls| (FRAMED, calls));
                for (key, value) in
                    framed.into_iter().chain(COMPRESSION_NAMES.map(|name| (COMPRESSIONS, name)))
                {
                    response.metadata_mut().append(key, MetadataValue::from_static(value));
                }
            }
            response
        }))
    }
}

/// The answer to a cold call that is refused: a response with a status, in the form of the method.
fn refused_call(method: &str, refusal: Refusal) -> Result<Response<Bytes>, Status> {
    if ANSWERED_IN_JSON.contains(&method) {
        let answer = serde_json::json!({"code": refusal.code, "message": refusal.message});
        return Ok(Response::new(answer.to_string().into()));
    }
    if method.contains('/') {
        let is_access = refusal.code == code::UNAUTHORIZED;
        let code = if is_access { Code::PermissionDenied } else { Code::ResourceExhausted };
        return Err(Status::new(code, refusal.message));
    }
    let mut status = Vec::new();
    put_status(&mut status, 1, refusal.code, &refusal.message);
    Ok(Response::new(status.into()))
}

/// Returns the client id; empty if it is missing or not text.
fn client_id(metadata: &MetadataMap) -> &str {
    metadata.get(CLIENT_ID).and_then(|id| id.to_str().ok()).unwrap_or("").trim_ascii()
}

/// A response whose metadata says in which form its stream is.
fn announced(form: AnswerForm, stream: ResponseStream) -> Response<ResponseStream> {
    let mut response = Response::new(stream);
    if let Some(form) = form.announced() {
        response.metadata_mut().insert(PACKED, MetadataValue::from_static(form));
    }
    response
}

fn refused_stream(packed: bool, refusal: &Refusal) -> ResponseStream {
    let mut status = Vec::new();
    put_status(&mut status, 1, refusal.code, &refusal.message);
    let mut packer = Packer::new(packed, status.len());
    packer.put(status.len(), None, |out| out.extend_from_slice(&status));
    packer.finish(None)
}

/// The ASCII metadata. The control plane does not use binary values.
fn fields(metadata: &MetadataMap) -> Fields {
    let ascii = metadata.iter().filter_map(|field| match field {
        KeyAndValueRef::Ascii(name, value) => Some((name.as_str(), value.to_str().ok()?)),
        KeyAndValueRef::Binary(..) => None,
    });
    ascii.collect()
}
