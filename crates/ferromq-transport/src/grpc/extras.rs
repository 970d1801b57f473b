//! What is served beside RocketMQ's service: health and reflection. Nothing of it touches messages.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    server::{Grpc, ServerStreamingService, StreamingService, UnaryService},
};

use super::{Inner, codec::BytesCodec, connection::Link, reflection};

/// Requests name services and files; what is larger names none.
const MAX_REQUEST: usize = 64 << 10;
/// Answers a client may leave unread before its next request is read.
const MAX_UNREAD: usize = 4;

type Stream = ReceiverStream<Result<Bytes, Status>>;

/// Answers a request to another service than RocketMQ's.
pub(super) async fn answer(
    server: Arc<Inner>,
    link: Link,
    request: http::Request<Body>,
) -> http::Response<Body> {
    let mut grpc = Grpc::new(BytesCodec).max_decoding_message_size(MAX_REQUEST);
    match request.uri().path() {
        "/grpc.health.v1.Health/Check" => grpc.unary(Check(server), request).await,
        "/grpc.health.v1.Health/Watch" => grpc.server_streaming(Watch(server), request).await,
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
            grpc.streaming(Reflection(server, link), request).await
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

struct Watch(Arc<Inner>);

impl ServerStreamingService<Bytes> for Watch {
    type Response = Bytes;
    type ResponseStream = Stream;
    type Future = std::future::Ready<Result<Response<Stream>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        std::future::ready(self.0.health.watch(&request.into_inner()).map(Response::new))
    }
}

struct Reflection(Arc<Inner>, Link);

impl StreamingService<Bytes> for Reflection {
    type Response = Bytes;
    type ResponseStream = Stream;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Stream>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let (server, link, mut requests) = (Arc::clone(&self.0), self.1.clone(), request.into_inner());
        let (answers, stream) = mpsc::channel(MAX_UNREAD);
        tokio::spawn(async move {
            let _link = link;
            loop {
                let request = tokio::select! {
                    request = requests.message() => request,
                    () = answers.closed() => return,
                    () = server.health.stopped() => return,
                };
                let Ok(Some(request)) = request else { return };
                let answer = reflection::answer(&request);
                let is_over = answer.is_err();
                if answers.send(answer).await.is_err() || is_over {
                    return;
                }
            }
        });
        Box::pin(std::future::ready(Ok(Response::new(ReceiverStream::new(stream)))))
    }
}
