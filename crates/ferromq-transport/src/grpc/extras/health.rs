//! gRPC's health service: the server is well until it stops.

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tonic::Status;

use crate::{
    grpc::counted_body::Answer,
    protobuf::{Fields, Malformed, put_varint_field},
};

/// `ServingStatus`.
const SERVING: u64 = 1;
const NOT_SERVING: u64 = 2;
const SERVICE_UNKNOWN: u64 = 3;

/// Whether a server serves, and who wants to hear of it.
pub(in crate::grpc) struct Health(watch::Sender<bool>);

impl Health {
    pub(in crate::grpc) fn new() -> Self {
        Self(watch::Sender::new(true))
    }

    /// Tells that the server is about to stop; who watches is told so, and left.
    pub(in crate::grpc) fn stop(&self) {
        self.0.send_replace(false);
    }

    /// Waits until the server is about to stop.
    pub(in crate::grpc) async fn stopped(&self) {
        // The sender lives in `self`, so the channel cannot be closed.
        let _ = self.0.subscribe().wait_for(|serves| !*serves).await;
    }

    /// Answers an encoded `HealthCheckRequest`.
    ///
    /// # Errors
    /// `NOT_FOUND` for a service that is not here, `INVALID_ARGUMENT` for bytes that are no request.
    pub(in crate::grpc) fn check(&self, request: &[u8]) -> Result<Bytes, Status> {
        let service = service(request)?;
        if is_here(service) {
            Ok(response(serving(*self.0.borrow())))
        } else {
            Err(Status::not_found(format!("the service {service} is not here")))
        }
    }

    /// Answers an encoded `HealthCheckRequest` now and when something changes, until the server stops.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for bytes that are no request.
    pub(in crate::grpc) fn watch(&self, request: &[u8]) -> Result<mpsc::Receiver<Answer>, Status> {
        let is_here = is_here(service(request)?);
        let (answers, stream) = mpsc::channel(2);
        let mut state = self.0.subscribe();
        tokio::spawn(async move {
            loop {
                let serves = *state.borrow_and_update();
                let status = if is_here { serving(serves) } else { SERVICE_UNKNOWN };
                if answers.send((Ok(response(status)), None)).await.is_err() || !serves {
                    return;
                }
                tokio::select! {
                    changed = state.changed() => if changed.is_err() { return },
                    () = answers.closed() => return,
                }
            }
        });
        Ok(stream)
    }
}

fn serving(serves: bool) -> u64 {
    if serves { SERVING } else { NOT_SERVING }
}

/// The server as a whole, or its one service.
fn is_here(service: &str) -> bool {
    matches!(service, "" | "apache.rocketmq.v2.MessagingService")
}

fn service(request: &[u8]) -> Result<&str, Status> {
    let parsed = || {
        let mut service = "";
        for field in Fields::new(request) {
            if let (1, value) = field? {
                service = value.text()?;
            }
        }
        Ok(service)
    };
    parsed().map_err(|Malformed(reason)| Status::invalid_argument(format!("malformed request: {reason}")))
}

fn response(status: u64) -> Bytes {
    let mut out = Vec::with_capacity(2);
    put_varint_field(&mut out, 1, status);
    out.into()
}
