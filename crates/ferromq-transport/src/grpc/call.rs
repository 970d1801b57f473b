//! Limits of requests and answers, and the rejections that all calls share.

use std::borrow::Cow;

use http::HeaderMap;
use tonic::Status;

use super::convert::{Refusal, code};
use crate::protobuf::Malformed;

/// Largest requests of methods but sends, whose limit is an option: they carry no bodies, so a large one is malicious.
pub(super) const MAX_ACK: usize = 8 << 20;
pub(super) const MAX_REQUEST: usize = 1 << 20;
/// Answers up to this size are not counted: the number of calls on a connection bounds their memory.
pub(super) const SMALL_ANSWER: usize = 4 << 10;
/// Metadata key of the client id.
pub(super) const CLIENT_ID: &str = "x-mq-client-id";

pub(super) fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("the deadline of the call has passed")
}

/// Returns the refusal of a request without a client id, which RocketMQ's proxy refuses too.
pub(super) fn missing_client_id(headers: &HeaderMap) -> Option<Refusal> {
    let is_named = headers.get(CLIENT_ID).is_some_and(|id| !id.as_bytes().trim_ascii().is_empty());
    (!is_named)
        .then(|| missing_client(format!("the metadata {CLIENT_ID} is missing; send the id of the client")))
}

/// The refusal of a request without a client id.
pub(super) fn missing_client(why: impl Into<Cow<'static, str>>) -> Refusal {
    Refusal::new(code::CLIENT_ID_REQUIRED, why)
}

pub(super) fn malformed(Malformed(reason): Malformed) -> Status {
    Status::invalid_argument(format!("malformed request: {reason}"))
}
