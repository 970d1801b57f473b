//! What all calls share: limits of requests and answers, and how a call that cannot be served is refused.

use http::HeaderMap;
use tonic::Status;

use super::convert::{Refusal, code};
use crate::protobuf::Malformed;

/// RocketMQ's proxy accepts as much of a send. No other request carries a body: a large one is malicious.
pub(super) const MAX_SEND: usize = 130 << 20;
pub(super) const MAX_ACK: usize = 8 << 20;
pub(super) const MAX_REQUEST: usize = 1 << 20;
/// The number of calls on a connection bounds the memory of answers up to this size.
pub(super) const SMALL: usize = 4 << 10;
/// The metadata that names the client.
pub(super) const CLIENT_ID: &str = "x-mq-client-id";
pub(super) fn over() -> Status {
    Status::deadline_exceeded("the deadline of the call is over")
}

/// Refuses a request without a client id, as RocketMQ's proxy does.
pub(super) fn without_client(headers: &HeaderMap) -> Option<Refusal> {
    let is_named = headers.get(CLIENT_ID).is_some_and(|id| !id.as_bytes().trim_ascii().is_empty());
    (!is_named)
        .then(|| Refusal::new(code::CLIENT_ID_REQUIRED, format!("the metadata {CLIENT_ID} is missing")))
}

pub(super) fn malformed(Malformed(reason): Malformed) -> Status {
    Status::invalid_argument(format!("malformed request: {reason}"))
}
