//! ForwardMessageToDeadLetterQueue: a consumer gives up a message in flight.

use std::net::SocketAddr;

use bytes::Bytes;
use http::HeaderMap;
use prost::Message as _;

use super::{ack::refused, proto::ForwardMessageToDeadLetterQueueRequest, receive::name};
use crate::{
    grpc::convert::{Refusal, check_group, check_topic, code, handle_topic, parse_handle, put_status},
    hot::{DeadLetterCause, Hot},
    protobuf::Malformed,
};

/// Metadata keys for the reason, sent by ferromq's client: RocketMQ's request has no field for it, and other brokers
/// ignore them.
///
/// The values are UTF-8, percent-encoded: `%`, and every byte that is not printable ASCII, is `%` and two hex digits.
const REASON: &str = "x-ferromq-dead-letter-reason";
const EXCEPTION: &str = "x-ferromq-dead-letter-exception";

/// Returns the reason for the dead letter from the metadata of a request.
pub(in crate::grpc) fn cause(headers: &HeaderMap) -> DeadLetterCause {
    let text = |name| headers.get(name).map_or_else(String::new, |value| percent_decoded(value.as_bytes()));
    DeadLetterCause { reason: text(REASON), exception: text(EXCEPTION), attempts: 0 }
}

fn percent_decoded(text: &[u8]) -> String {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match (byte, digit(at.saturating_add(1)), digit(at.saturating_add(2))) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                at = at.saturating_add(3);
            }
            _ => {
                out.push(*byte);
                at = at.saturating_add(1);
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Answers an encoded `ForwardMessageToDeadLetterQueueRequest` once the dead letter is stored as the flush policy
/// promises.
pub(in crate::grpc) async fn forward(
    hot: &Hot,
    request: Bytes,
    peer: SocketAddr,
    cause: DeadLetterCause,
) -> Result<Bytes, Malformed> {
    let request = ForwardMessageToDeadLetterQueueRequest::decode(request)
        .map_err(|_| Malformed("not a ForwardMessageToDeadLetterQueueRequest"))?;
    Ok(match try_forward(hot, &request, peer, cause).await {
        Ok(()) => {
            let mut out = Vec::new();
            put_status(&mut out, 1, code::OK, "OK");
            out.into()
        }
        Err(refusal) => refused(&refusal),
    })
}

async fn try_forward(
    hot: &Hot,
    request: &ForwardMessageToDeadLetterQueueRequest,
    peer: SocketAddr,
    cause: DeadLetterCause,
) -> Result<(), Refusal> {
    let (group, topic) = (name(request.group.as_ref()), name(request.topic.as_ref()));
    check_topic(topic)?;
    check_group(group)?;
    let (handle, _) = parse_handle(&request.receipt_handle, &hot.broker_name)?;
    let (topic, _) = handle_topic(&request.receipt_handle, group, topic);
    let attempts = u32::try_from(request.delivery_attempt).unwrap_or(0);
    Ok(hot.to_dead_letters(peer, group, &topic, &handle, DeadLetterCause { attempts, ..cause }).await?)
}
