//! ForwardMessageToDeadLetterQueue: a consumer gives up a message it holds.

use std::net::SocketAddr;

use bytes::Bytes;
use prost::Message as _;

use super::{
    ack::refused,
    convert::{Refusal, check_group, check_topic, code, handle_topic, parse_handle, put_status},
    proto::ForwardMessageToDeadLetterQueueRequest,
    receive::name,
    wire::Malformed,
};
use crate::hot::Hot;

/// Answers an encoded `ForwardMessageToDeadLetterQueueRequest`, once the message is kept as the flush policy promises.
pub(super) async fn forward(hot: &Hot, request: Bytes, peer: SocketAddr) -> Result<Bytes, Malformed> {
    let request = ForwardMessageToDeadLetterQueueRequest::decode(request)
        .map_err(|_| Malformed("not a ForwardMessageToDeadLetterQueueRequest"))?;
    Ok(match keep(hot, &request, peer).await {
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
) -> Result<(), Refusal> {
    let (group, topic) = (name(request.group.as_ref()), name(request.topic.as_ref()));
    check_topic(topic)?;
    check_group(group)?;
    let (handle, _) = parse_handle(&request.receipt_handle, &hot.broker_name)?;
    let (topic, _) = handle_topic(&request.receipt_handle, group, topic);
    Ok(hot.to_dead_letters(peer, group, &topic, &handle).await?)
}
