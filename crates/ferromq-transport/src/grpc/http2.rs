//! HTTP/2 connections: how they are set up, served and ended.

use std::{convert::Infallible, future::Future, pin::pin, sync::Arc, time::Duration};

use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tracing::debug;

use super::{
    Inner,
    connection::{GrpcStream, Incoming},
    counted_body::Watched,
    inline_calls::{Calls, InlineCalls},
    service,
};

/// Bytes a client may send ahead on one stream, and on all streams of a connection: a batch never waits for
/// a window update.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Large frames, so that a batch is few of them.
const MAX_FRAME: u32 = 1 << 20;
/// Calls at a time on one connection; more wait in the client.
const MAX_CALLS: u32 = 1_024;
/// A client that is gone without a word is noticed by pings.
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
    // A new connection would wait for ever.
    drop((incoming, stopped));
    let _ = stop.send(());
    stop.closed().await;
}

async fn connection(server: Arc<Inner>, stream: GrpcStream, mut stop: watch::Receiver<()>) {
    let (link, calls) = (stream.link(), Calls::default());
    let (untaken, write) = (Arc::clone(link.untaken()), server.write);
    let answer = service_fn(move |request| {
        let untaken = Arc::clone(link.untaken());
        let answer = service::route(Arc::clone(&server), link.clone(), request);
        async { Ok::<_, Infallible>(answer.await.map(|body| Watched::new(body, untaken))) }
    });
    let connection = builder(&calls).serve_connection(TokioIo::new(stream), answer);
    let mut together = InlineCalls::new(connection, calls);
    let ended = tokio::select! {
        biased;
        ended = &mut together => ended,
        () = untaken.stands_still(write) => {
            debug!("a gRPC client takes no answers, its connection is closed");
            return;
        }
        _ = stop.changed() => {
            together.connection().graceful_shutdown();
            together.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a gRPC connection ended badly");
    }
}

fn builder(calls: &Calls) -> http2::Builder<Calls> {
    let mut builder = http2::Builder::new(calls.clone());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_concurrent_streams(MAX_CALLS)
        .keep_alive_interval(PING_INTERVAL)
        // Clients of gRPC have no use for the time of day.
        .auto_date_header(false);
    builder
}
