//! AckMessage and ChangeInvisibleDuration, which end or change leases, and UpdateOffset.

use std::{borrow::Cow, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use ferromq_store::progress::ReceiptHandle;
use prost::Message as _;

use super::{
    proto::{ChangeInvisibleDurationRequest, UpdateOffsetRequest},
    receive::{check_invisible, name, queue_id, readable, topic_name},
};
use crate::{
    grpc::convert::{
        ANOTHER_BROKER, Refusal, check_group, check_topic, code, handle_topic, is_in_order, parse_handle,
        put_status, write_handle,
    },
    hot::{Hot, pop_retries::marked_topic},
    protobuf::{
        Fields, Malformed, bytes_field_len, put_bytes_field, put_len_prefix, put_varint_field, take_varint,
    },
};

/// Most entries of one request; more take several requests.
const MAX_ACKS: usize = 1 << 16;

/// Largest request that is answered on the task that read it: some hundred handles.
const FEW_BYTES: usize = 32 << 10;

/// Answers an encoded `AckMessageRequest`: a status for each entry and one for all.
pub(in crate::grpc) async fn ack_message(
    hot: &Arc<Hot>,
    request: &Bytes,
    peer: SocketAddr,
) -> Result<Bytes, Malformed> {
    if request.len() <= FEW_BYTES {
        return acknowledge(hot, request);
    }
    let (shared, request) = (Arc::clone(hot), request.clone());
    let done = match hot.batches.turn(peer).await {
        Ok(turn) => turn.run(move || acknowledge(&shared, &request)).await,
        Err(closed) => Err(closed),
    };
    done.unwrap_or_else(|closed| Ok(refused(&closed.into())))
}

/// Acknowledges each entry. Requests have hundreds of entries, so they are parsed in place.
fn acknowledge(hot: &Hot, request: &[u8]) -> Result<Bytes, Malformed> {
    let (mut group, mut topic, mut count) = ("", "", 0);
    for field in Fields::new(request) {
        match field? {
            (1, value) => group = resource_name(value.bytes()?)?,
            (2, value) => topic = resource_name(value.bytes()?)?,
            (3, value) => {
                ack_entry(value.bytes()?)?;
                count += 1;
                if count > MAX_ACKS {
                    break;
                }
            }
            _ => {}
        }
    }
    if let Err(refusal) = check_topic(topic).and_then(|()| check_group(group)) {
        return Ok(refused(&refusal));
    }
    if count == 0 || count > MAX_ACKS {
        let count = if count == 0 { "no" } else { "too many" };
        let why = format!("{count} receipt handles to acknowledge; send 1 to {MAX_ACKS}");
        return Ok(refused(&Refusal::new(code::BAD_REQUEST, why)));
    }
    let mut results = AckResults::new(request.len() + count * 12);
    for field in Fields::new(request) {
        if let (3, value) = field? {
            let (message_id, handle) = ack_entry(value.bytes()?)?;
            let lease = parse_handle(handle, &hot.broker_name);
            let (topic, _) = handle_topic(handle, group, topic);
            let done = lease.and_then(|(lease, _)| Ok(hot.progress.ack_in_time(group, &topic, &lease)?));
            results.put(message_id, handle, done);
        }
    }
    Ok(results.finish())
}

fn resource_name(resource: &[u8]) -> Result<&str, Malformed> {
    let mut name = "";
    for field in Fields::new(resource) {
        if let (2, value) = field? {
            name = value.text()?;
        }
    }
    Ok(name)
}

/// Returns message id and receipt handle of an entry.
fn ack_entry(bytes: &[u8]) -> Result<(&str, &str), Malformed> {
    let (mut message_id, mut handle) = ("", "");
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => message_id = value.text()?,
            (2, value) => handle = value.text()?,
            _ => {}
        }
    }
    Ok((message_id, handle))
}

/// Answers the acknowledgement of messages that were received as records: a status, and one for each failed entry.
///
/// The request has group (1), topic (2), broker name (3) and the number for the kind of topic that holds the messages
/// (4) as they were received. Field 5 has queue id, queue offset, time and length of the lease of each, packed. The
/// response has the status of a failed entry with its index (2: 1 index, 2 status).
pub(in crate::grpc) async fn ack_records(
    hot: &Arc<Hot>,
    request: &Bytes,
    peer: SocketAddr,
) -> Result<Bytes, Malformed> {
    if request.len() <= FEW_BYTES {
        return acknowledge_records(hot, request);
    }
    let (shared, request) = (Arc::clone(hot), request.clone());
    let done = match hot.batches.turn(peer).await {
        Ok(turn) => turn.run(move || acknowledge_records(&shared, &request)).await,
        Err(closed) => Err(closed),
    };
    done.unwrap_or_else(|closed| Ok(refused(&closed.into())))
}

fn acknowledge_records(hot: &Hot, request: &[u8]) -> Result<Bytes, Malformed> {
    let (mut group, mut topic, mut broker, mut mark, mut entries) = ("", "", "", 0, &[][..]);
    for field in Fields::new(request) {
        match field? {
            (1, value) => group = value.text()?,
            (2, value) => topic = value.text()?,
            (3, value) => broker = value.text()?,
            (4, value) => mark = value.varint()?,
            (5, value) => entries = value.bytes()?,
            _ => {}
        }
    }
    if let Err(refusal) = check_topic(topic).and_then(|()| check_group(group)) {
        return Ok(refused(&refusal));
    }
    if broker != hot.broker_name {
        return Ok(refused(&Refusal::new(code::INVALID_RECEIPT_HANDLE, ANOTHER_BROKER)));
    }
    let topic = marked_topic(topic, group, &mark.to_string()).unwrap_or(Cow::Borrowed(topic));
    let mut results = Vec::new();
    put_status(&mut results, 1, code::OK, "OK");
    let mut leases = Vec::with_capacity((entries.len() / LEAST_LEASE).min(MAX_ACKS));
    let mut outcome = Ok(());
    while outcome.is_ok() && !entries.is_empty() && leases.len() < MAX_ACKS {
        outcome = take_lease(&mut entries).map(|lease| leases.push(lease));
    }
    hot.progress.ack_all_in_time(group, &topic, &leases, |index, error| {
        let refusal = Refusal::from(error);
        let mut failed = Vec::new();
        put_varint_field(&mut failed, 1, index as u64);
        put_status(&mut failed, 2, refusal.code, &refusal.message);
        put_bytes_field(&mut results, 2, &failed);
    });
    // Those before it are acknowledged.
    outcome?;
    if !entries.is_empty() {
        let why = format!("too many messages to acknowledge; send up to {MAX_ACKS}, those were acknowledged");
        return Ok(refused(&Refusal::new(code::BAD_REQUEST, why)));
    }
    Ok(results.into())
}

/// Least bytes of a lease in a request.
const LEAST_LEASE: usize = 4;

fn take_lease(entries: &mut &[u8]) -> Result<ReceiptHandle, Malformed> {
    Ok(ReceiptHandle {
        queue_id: u32::try_from(take_varint(entries)?).map_err(|_| Malformed("a queue id is too large"))?,
        queue_offset: take_varint(entries)?,
        pop_time: take_varint(entries)?.cast_signed(),
        invisible_ms: take_varint(entries)?.cast_signed(),
    })
}

/// Builds an `AckMessageResponse`.
struct AckResults {
    entries: Vec<u8>,
    ok: Vec<u8>,
    failed: Vec<u8>,
    /// The code that all entries share, or `MULTIPLE_RESULTS`.
    code: Option<i32>,
}

impl AckResults {
    fn new(expected_bytes: usize) -> Self {
        let mut ok = Vec::new();
        put_status(&mut ok, 3, code::OK, "OK");
        Self { entries: Vec::with_capacity(expected_bytes), ok, failed: Vec::new(), code: None }
    }

    fn put(&mut self, message_id: &str, handle: &str, outcome: Result<(), Refusal>) {
        let (code, status) = match outcome {
            Ok(()) => (code::OK, &self.ok),
            Err(refusal) => {
                self.failed.clear();
                put_status(&mut self.failed, 3, refusal.code, &refusal.message);
                (refusal.code, &self.failed)
            }
        };
        self.code =
            Some(self.code.map_or(code, |all| if all == code { all } else { code::MULTIPLE_RESULTS }));
        let len = bytes_field_len(1, message_id.len()) + bytes_field_len(2, handle.len()) + status.len();
        put_len_prefix(&mut self.entries, 2, len);
        put_bytes_field(&mut self.entries, 1, message_id.as_bytes());
        put_bytes_field(&mut self.entries, 2, handle.as_bytes());
        self.entries.extend_from_slice(status);
    }

    fn finish(self) -> Bytes {
        let (code, message) = match self.code {
            Some(code::OK) | None => (code::OK, "OK"),
            Some(code) => (code, shared_text(code)),
        };
        let mut out = Vec::with_capacity(self.entries.len() + 64);
        put_status(&mut out, 1, code, message);
        out.extend_from_slice(&self.entries);
        out.into()
    }
}

/// Returns the status text of the whole response: RocketMQ's name of the code. Clients show it instead of the entries'
/// texts.
const fn shared_text(code: i32) -> &'static str {
    match code {
        code::MULTIPLE_RESULTS => "MULTIPLE_RESULTS",
        code::INVALID_RECEIPT_HANDLE => "INVALID_RECEIPT_HANDLE",
        code::TOPIC_NOT_FOUND => "TOPIC_NOT_FOUND",
        code::CONSUMER_GROUP_NOT_FOUND => "CONSUMER_GROUP_NOT_FOUND",
        code::INTERNAL_SERVER_ERROR => "INTERNAL_SERVER_ERROR",
        _ => "no entry was acknowledged; see each entry",
    }
}

/// Answers an encoded `ChangeInvisibleDurationRequest` with the new receipt handle.
pub(in crate::grpc) fn change_invisible_duration(hot: &Hot, request: Bytes) -> Result<Bytes, Malformed> {
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
    let asked = request.invisible_duration.unwrap_or_default();
    let duration = check_invisible(asked, Duration::ZERO, hot.client_policy.load().max_invisible)?;
    let (handle, physical_offset) = parse_handle(&request.receipt_handle, &hot.broker_name)?;
    let (topic, mark) = handle_topic(&request.receipt_handle, group, topic);
    hot.progress.check_in_time(group, &topic, &handle)?;
    let new = match request.suspend.unwrap_or_default() {
        true => hot.progress.suspend(group, &topic, &handle, duration)?,
        false => hot.progress.change_invisible(group, &topic, &handle, duration)?,
    };
    let mut text = String::new();
    let is_ordered = is_in_order(&request.receipt_handle);
    write_handle(&mut text, &new, &hot.broker_name, physical_offset, is_ordered, mark);
    Ok(text)
}

/// Answers an encoded `UpdateOffsetRequest`.
pub(in crate::grpc) async fn update_offset(
    hot: &Hot,
    request: Bytes,
    peer: SocketAddr,
) -> Result<Bytes, Malformed> {
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
    hot.lookup.group(group, peer).await?;
    let queue_id = queue_id(request.message_queue.as_ref(), topic, &entry)?;
    let offset = u64::try_from(request.offset).map_err(|_| {
        Refusal::new(code::ILLEGAL_OFFSET, format!("the offset is {}; it must be 0 or more", request.offset))
    })?;
    Ok(hot.progress.update_offset(group, topic, queue_id, offset)?)
}

/// Encodes a response with only a status, which is field 1 of every response.
pub(in crate::grpc) fn refused(refusal: &Refusal) -> Bytes {
    let mut out = Vec::new();
    put_status(&mut out, 1, refusal.code, &refusal.message);
    out.into()
}
