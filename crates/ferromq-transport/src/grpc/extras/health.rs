//! gRPC's health service: the server is healthy until it stops.

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tonic::Status;

use crate::{
    grpc::counted_body::StreamAnswer,
    protobuf::{Fields, Malformed, put_varint_field},
};

/// `ServingStatus`.
const SERVING: u64 = 1;
const NOT_SERVING: u64 = 2;
const SERVICE_UNKNOWN: u64 = 3;

/// The serving state of a server, and its watchers.
pub(in crate::grpc) struct Health(watch::Sender<bool>);

impl Health {
    pub(in crate::grpc) fn new() -> Self {
        Self(watch::Sender::new(true))
    }

    /// Marks the server as about to stop. Watchers get that state, and their streams end.
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
    /// `NOT_FOUND` for a service that is not served, `INVALID_ARGUMENT` for a malformed request.
    pub(in crate::grpc) fn check(&self, request: &[u8]) -> Result<Bytes, Status> {
        let service = service(request)?;
        if is_served(service) {
            Ok(response(serving(*self.0.borrow())))
        } else {
            Err(Status::not_found(format!("the service {service} is not served here")))
        }
    }

    /// Answers an encoded `HealthCheckRequest` now and at each change, until the server stops.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a malformed request.
    pub(in crate::grpc) fn watch(&self, request: &[u8]) -> Result<mpsc::Receiver<StreamAnswer>, Status> {
        let is_served = is_served(service(request)?);
        let (answers, stream) = mpsc::channel(2);
        let mut state = self.0.subscribe();
        tokio::spawn(async move {
            loop {
                let serves = *state.borrow_and_update();
                let status = if is_served { serving(serves) } else { SERVICE_UNKNOWN };
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

/// Returns whether `service` is the server as a whole or its one service.
fn is_served(service: &str) -> bool {
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
