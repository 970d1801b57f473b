//! Sets up, serves and ends HTTP/2 connections.

use std::{convert::Infallible, future::Future, pin::pin, sync::Arc, time::Duration};

use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tracing::debug;

use super::{
    Inner,
    connection::{GrpcStream, Incoming},
    counted_body::WatchedBody,
    framed,
    inline_calls::{InlineCalls, UnstartedCalls},
    service,
};

/// Receive windows of a stream and of a connection, so large that a batch never waits for a window update.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Large, so that a batch takes few frames.
const MAX_FRAME: u32 = 1 << 20;
/// Concurrent calls on one connection; more wait in the client.
const MAX_CALLS: u32 = 1_024;
/// Pings detect a client that disappeared without closing its connection.
const PING_INTERVAL: Duration = Duration::from_secs(60);

/// Serves connections until `shutdown` ends, then lets the calls under way finish.
pub(super) async fn serve_until(
    server: &Arc<Inner>,
    mut incoming: Incoming,
    shutdown: impl Future<Output = ()>,
) {
    let (stop, stopped) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            stream = incoming.next() => {
                tokio::spawn(connection(Arc::clone(server), stream, stopped.clone()));
            }
        }
    }
    // A new connection would wait in the listener for ever.
    drop((incoming, stopped));
    let _ = stop.send(());
    stop.closed().await;
}

async fn connection(server: Arc<Inner>, mut stream: GrpcStream, mut stop: watch::Receiver<()>) {
    let begins_with_frame = tokio::select! {
        first = stream.peek() => first.map(framed::begins_frame),
        _ = stop.changed() => return,
    };
    match begins_with_frame {
        Ok(true) => return framed::serve(&server, stream, stop).await,
        Ok(false) => {}
        Err(error) => return debug!(%error, "gRPC connection ended before its first byte"),
    }
    let (link, calls) = (stream.link(), UnstartedCalls::default());
    let (unsent, write) = (Arc::clone(link.unsent()), server.limits.write);
    let answer = service_fn(move |request| {
        let unsent = Arc::clone(link.unsent());
        let answer = service::route(Arc::clone(&server), link.clone(), request);
        async { Ok::<_, Infallible>(answer.await.map(|body| WatchedBody::new(body, unsent))) }
    });
    let connection = builder(&calls).serve_connection(TokioIo::new(stream), answer);
    let mut serving = InlineCalls::new(connection, calls);
    let ended = tokio::select! {
        biased;
        ended = &mut serving => ended,
        () = unsent.stalled(write) => {
            debug!("connection closed: the gRPC client does not read its answers");
            return;
        }
        _ = stop.changed() => {
            serving.connection().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "gRPC connection failed");
    }
}

fn builder(calls: &UnstartedCalls) -> http2::Builder<UnstartedCalls> {
    let mut builder = http2::Builder::new(calls.clone());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_concurrent_streams(MAX_CALLS)
        .keep_alive_interval(PING_INTERVAL)
        // gRPC clients ignore the date header.
        .auto_date_header(false);
    builder
}
