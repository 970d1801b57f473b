//! The services beside RocketMQ's: health and reflection. They do not touch messages.

pub(super) mod health;
mod reflection;

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    server::{Grpc, ServerStreamingService, StreamingService, UnaryService},
};

use super::{
    Inner,
    codec::UnbufferedCodec,
    connection::Link,
    counted_body::{AnswerStream, CountedBody, PREFIX, StreamAnswer},
};
use crate::connections::budget::Share;

/// Largest request in bytes. Requests only name services and files.
const MAX_REQUEST: usize = 64 << 10;
/// Most answers that a client may leave unread; then its stream ends.
const MAX_UNREAD: usize = 64;

/// Answers a request to one of these services.
pub(in crate::grpc) async fn answer(
    server: Arc<Inner>,
    link: Link,
    request: http::Request<Body>,
) -> http::Response<Body> {
    let mut grpc = Grpc::new(UnbufferedCodec::default()).max_decoding_message_size(MAX_REQUEST);
    let share = Arc::new(link.allowance().share());
    let counted = |body, stall| Body::new(CountedBody::new(body, Arc::clone(&share), stall));
    let stall = Some(server.stall);
    match request.uri().path() {
        "/grpc.health.v1.Health/Check" => {
            grpc.unary(Check(server), request.map(|body| counted(body, stall))).await
        }
        "/grpc.health.v1.Health/Watch" => {
            grpc.server_streaming(Watch(server, link), request.map(|body| counted(body, stall))).await
        }
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
            let request = request.map(|body| counted(body, None));
            grpc.streaming(Reflection { server, link, share }, request).await
        }
        path => Status::unimplemented(format!("{path} is not served here")).into_http(),
    }
}

struct Check(Arc<Inner>);

impl UnaryService<Bytes> for Check {
    type Response = Bytes;
    type Future = std::future::Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        std::future::ready(self.0.health.check(&request.into_inner()).map(Response::new))
    }
}

struct Watch(Arc<Inner>, Link);

impl ServerStreamingService<Bytes> for Watch {
    type Response = Bytes;
    type ResponseStream = AnswerStream;
    type Future = std::future::Ready<Result<Response<AnswerStream>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let watch =
            |open| Ok(Response::new(AnswerStream::new(self.0.health.watch(&request.into_inner())?, open)));
        std::future::ready(self.1.allowance().stream().and_then(watch))
    }
}

/// The reflection stream.
struct Reflection {
    server: Arc<Inner>,
    link: Link,
    /// Memory of the requests that are not answered yet.
    share: Arc<Share>,
}

impl StreamingService<Bytes> for Reflection {
    type Response = Bytes;
    type ResponseStream = AnswerStream;
    type Future = std::future::Ready<Result<Response<AnswerStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let open = match self.link.allowance().stream() {
            Ok(open) => open,
            Err(refused) => return std::future::ready(Err(refused)),
        };
        let (answers, unread) = mpsc::channel(MAX_UNREAD);
        let (server, link, share) = (Arc::clone(&self.server), self.link.clone(), Arc::clone(&self.share));
        tokio::spawn(async move {
            let _link = link;
            tokio::select! {
                () = reflect(request.into_inner(), &share, &answers) => {}
                () = answers.closed() => {}
                () = server.health.stopped() => {}
            }
        });
        std::future::ready(Ok(Response::new(AnswerStream::new(unread, open))))
    }
}

/// Answers one request after the other, until one is malformed or the client holds too much memory.
async fn reflect(mut requests: Streaming<Bytes>, share: &Share, answers: &mpsc::Sender<StreamAnswer>) {
    loop {
        let request = match requests.message().await {
            Ok(Some(request)) => request,
            Ok(None) => return,
            Err(error) => {
                let _ = answers.try_send((Err(error), None));
                return;
            }
        };
        let unread = share.split(0);
        let answer = reflection::answer(&request).and_then(|answer| {
            unread.take(answer.len())?;
            Ok(answer)
        });
        // From here on the answer counts instead of the request.
        share.give_back(request.len() + PREFIX);
        let is_over = answer.is_err();
        // End the stream if its answers are not read: requests sent meanwhile would be held uncounted.
        if answers.try_send((answer, Some(unread))).is_err() || is_over {
            return;
        }
    }
}
