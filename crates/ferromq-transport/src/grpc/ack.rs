//! AckMessage, ChangeInvisibleDuration and UpdateOffset: what ends or moves a lease.

use std::net::SocketAddr;

use bytes::Bytes;
use prost::Message as _;

use super::{
    convert::{Refusal, check_group, check_topic, code, parse_handle, put_status, write_handle},
    proto::{AckMessageRequest, ChangeInvisibleDurationRequest, UpdateOffsetRequest},
    receive::{name, queue_id, readable, topic_name},
    wire::{Malformed, bytes_field_len, put_bytes_field, put_len_prefix},
};
use crate::hot::Hot;

const MAX_INVISIBLE_SECONDS: u64 = 12 * 3_600;

/// Answers an encoded `AckMessageRequest`: a status for each entry and one for all.
pub(super) fn ack_message(hot: &Hot, request: Bytes) -> Result<Bytes, Malformed> {
    let request = AckMessageRequest::decode(request).map_err(|_| Malformed("not an AckMessageRequest"))?;
    let (group, topic) = (name(request.group.as_ref()), name(request.topic.as_ref()));
    if let Err(refusal) = check_topic(topic).and_then(|()| check_group(group)) {
        return Ok(refused(&refusal));
    }
    let mut entries = Vec::with_capacity(request.entries.len() * 128);
    let mut codes = None;
    let (mut ok, mut failed) = (Vec::new(), Vec::new());
    put_status(&mut ok, 3, code::OK, "OK");
    for entry in &request.entries {
        let handle = parse_handle(&entry.receipt_handle, &hot.broker_name);
        let done = handle.and_then(|(handle, _)| Ok(hot.ack(group, topic, &handle)?));
        let (code, status) = match done {
            Ok(()) => (code::OK, &ok),
            Err(refusal) => {
                failed.clear();
                put_status(&mut failed, 3, refusal.code, &refusal.message);
                (refusal.code, &failed)
            }
        };
        codes = Some(codes.map_or(code, |all| if all == code { all } else { code::MULTIPLE_RESULTS }));
        let (id, text) = (entry.message_id.as_bytes(), entry.receipt_handle.as_bytes());
        let len = bytes_field_len(1, id.len()) + bytes_field_len(2, text.len()) + status.len();
        put_len_prefix(&mut entries, 2, len);
        put_bytes_field(&mut entries, 1, id);
        put_bytes_field(&mut entries, 2, text);
        entries.extend_from_slice(status);
    }
    let mut out = Vec::with_capacity(entries.len() + 64);
    match codes {
        Some(code::OK) => put_status(&mut out, 1, code::OK, "OK"),
        Some(code::MULTIPLE_RESULTS) => {
            put_status(&mut out, 1, code::MULTIPLE_RESULTS, "entries have different outcomes")
        }
        Some(code) => put_status(&mut out, 1, code, "no entry was acknowledged; see each entry"),
        None => put_status(&mut out, 1, code::BAD_REQUEST, "no receipt handle to acknowledge"),
    }
    out.extend_from_slice(&entries);
    Ok(out.into())
}

/// Answers an encoded `ChangeInvisibleDurationRequest` with the new receipt handle.
pub(super) fn change_invisible_duration(hot: &Hot, request: Bytes) -> Result<Bytes, Malformed> {
    let request = ChangeInvisibleDurationRequest::decode(request)
        .map_err(|_| Malformed("not a ChangeInvisibleDurationRequest"))?;
    Ok(match change(hot, &request) {
        Ok(handle) => {
            let mut out = Vec::new();
            put_status(&mut out, 1, code::OK, "OK");
            put_bytes_field(&mut out, 2, handle.as_bytes());
            out.into()
        }
        Err(refusal) => refused(&refusal),
    })
}

fn change(hot: &Hot, request: &ChangeInvisibleDurationRequest) -> Result<String, Refusal> {
    let (group, topic) = (name(request.group.as_ref()), name(request.topic.as_ref()));
    check_topic(topic)?;
    check_group(group)?;
    let duration = request.invisible_duration.unwrap_or_default().get();
    let Some(duration) = duration.filter(|duration| duration.as_secs() <= MAX_INVISIBLE_SECONDS) else {
        return Err(Refusal::new(code::ILLEGAL_INVISIBLE_TIME, "the invisible duration must be 0 to 12 h"));
    };
    let (handle, physical_offset) = parse_handle(&request.receipt_handle, &hot.broker_name)?;
    let new = hot.change_invisible(group, topic, &handle, duration)?;
    let mut text = String::new();
    write_handle(&mut text, &new, &hot.broker_name, physical_offset);
    Ok(text)
}

/// Answers an encoded `UpdateOffsetRequest`.
pub(super) async fn update_offset(hot: &Hot, request: Bytes, peer: SocketAddr) -> Result<Bytes, Malformed> {
    let request =
        UpdateOffsetRequest::decode(request).map_err(|_| Malformed("not an UpdateOffsetRequest"))?;
    Ok(match update(hot, &request, peer).await {
        Ok(()) => {
            let mut out = Vec::new();
            put_status(&mut out, 1, code::OK, "OK");
            out.into()
        }
        Err(refusal) => refused(&refusal),
    })
}

async fn update(hot: &Hot, request: &UpdateOffsetRequest, peer: SocketAddr) -> Result<(), Refusal> {
    let (group, topic) = (name(request.group.as_ref()), topic_name(request.message_queue.as_ref()));
    check_topic(topic)?;
    check_group(group)?;
    let entry = readable(hot, topic, peer).await?;
    hot.group(group, peer).await.ok_or_else(|| Refusal::no_group(group))?;
    let queue_id = queue_id(request.message_queue.as_ref(), topic, &entry)?;
    let offset = u64::try_from(request.offset).map_err(|_| {
        Refusal::new(code::ILLEGAL_OFFSET, format!("the offset is {}; it must be 0 or more", request.offset))
    })?;
    Ok(hot.update_offset(group, topic, queue_id, offset)?)
}

/// A response that holds nothing but a status, as field 1 of any of them.
pub(super) fn refused(refusal: &Refusal) -> Bytes {
    let mut out = Vec::new();
    put_status(&mut out, 1, refusal.code, &refusal.message);
    out.into()
}
