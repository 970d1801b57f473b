//! ForwardMessageToDeadLetterQueue: a consumer gives up a message it holds.

use std::net::SocketAddr;

use bytes::Bytes;
use http::HeaderMap;
use prost::Message as _;

use super::{ack::refused, proto::ForwardMessageToDeadLetterQueueRequest, receive::name};
use crate::{
    grpc::convert::{Refusal, check_group, check_topic, code, handle_topic, parse_handle, put_status},
    hot::{Cause, Hot},
    protobuf::Malformed,
};

/// Metadata by which our client says why: RocketMQ's request has no field for it, and other brokers pass over it.
///
/// UTF-8, of which every byte that is no printable ASCII, and `%`, stands as `%` and two hex digits.
const REASON: &str = "x-ferromq-dead-letter-reason";
const EXCEPTION: &str = "x-ferromq-dead-letter-exception";

/// What the metadata of a request say of why its message is given up.
pub(in crate::grpc) fn cause(headers: &HeaderMap) -> Cause {
    let text = |name| headers.get(name).map_or_else(String::new, |value| unescaped(value.as_bytes()));
    Cause { reason: text(REASON), exception: text(EXCEPTION), attempts: 0 }
}

fn unescaped(text: &[u8]) -> String {
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

/// Answers an encoded `ForwardMessageToDeadLetterQueueRequest`, once the message is kept as the flush policy promises.
pub(in crate::grpc) async fn forward(
    hot: &Hot,
    request: Bytes,
    peer: SocketAddr,
    cause: Cause,
) -> Result<Bytes, Malformed> {
    let request = ForwardMessageToDeadLetterQueueRequest::decode(request)
        .map_err(|_| Malformed("not a ForwardMessageToDeadLetterQueueRequest"))?;
    Ok(match keep(hot, &request, peer, cause).await {
        Ok(()) => {
            let mut out = Vec::new();
            put_status(&mut out, 1, code::OK, "OK");
            out.into()
        }
        Err(refusal) => refused(&refusal),
    })
}

async fn keep(
    hot: &Hot,
    request: &ForwardMessageToDeadLetterQueueRequest,
    peer: SocketAddr,
    cause: Cause,
) -> Result<(), Refusal> {
    let (group, topic) = (name(request.group.as_ref()), name(request.topic.as_ref()));
    check_topic(topic)?;
    check_group(group)?;
    let (handle, _) = parse_handle(&request.receipt_handle, &hot.broker_name)?;
    let (topic, _) = handle_topic(&request.receipt_handle, group, topic);
    let attempts = u32::try_from(request.delivery_attempt).unwrap_or(0);
    Ok(hot.to_dead_letters(peer, group, &topic, &handle, Cause { attempts, ..cause }).await?)
}
