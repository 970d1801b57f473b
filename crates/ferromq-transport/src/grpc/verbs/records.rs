//! The answers of framed ReceiveMessage and PullMessage: records as stored in the log, which the client decodes.
//!
//! An answer is `varint length of the head, head, records`. The head has the fields of `ReceiveMessageResponse` and
//! `PullMessageResponse` that are no message: the status (1) and the next offset of a pull (3). A receive adds what its
//! receipt handles share, and what differs, in the order of the records:
//!
//! | field | what |
//! | --- | --- |
//! | 16 | broker name |
//! | 17 | requested topic, if another one holds the messages |
//! | 18 | RocketMQ's number for the kind of topic that holds the messages, if it is not the requested one |
//! | 19 | 1 if the receive was ordered |
//! | 20 | for each record: time of the lease and its length, in milliseconds, and number of the delivery; packed |

use std::sync::Arc;

use bytes::Bytes;
use ferromq_store::{
    progress::{Leased, ReceiptHandle},
    record::{MessageView, Record},
};
use prost::Message as _;

use super::{
    proto::{PullMessageRequest, ReceiveMessageRequest},
    receive::{CallTerms, has_messages, name, pull, receive, topic_name},
};
use crate::{
    connections::{
        answer_memory::{self, MESSAGE_OVERHEAD},
        unwritten::undo_unless_written,
    },
    grpc::convert::{Refusal, code, put_status},
    hot::{
        Hot,
        pop_retries::{mark, stored_topic},
    },
    protobuf::{Malformed, put_bytes_field, put_varint, put_varint_field, varint_len},
};

/// Most bytes of a record's lease in a head.
const MAX_LEASE: usize = 25;

/// Answers an encoded `ReceiveMessageRequest`. The leases are given back if the answer is not written.
pub(in crate::grpc) async fn receive_records(
    hot: &Arc<Hot>,
    request: Bytes,
    terms: &CallTerms,
) -> Result<Bytes, Malformed> {
    let request =
        ReceiveMessageRequest::decode(request).map_err(|_| Malformed("not a ReceiveMessageRequest"))?;
    if request.auto_renew {
        // Renewals end with the client's telemetry stream, which another connection has.
        let why = "auto_renew is not available in framed calls; renew the leases, or receive over HTTP/2";
        return Ok(refused(&Refusal::new(code::BAD_REQUEST, why)));
    }
    let (leased, is_ordered) = match receive(hot, &request, terms).await {
        Ok((leased, _)) if leased.is_empty() => return Ok(no_message(None)),
        Ok(received) => received,
        Err(refusal) => return Ok(refused(&refusal)),
    };
    let topic = topic_name(request.message_queue.as_ref());
    let stored_topic = stored_topic(&leased, topic).to_owned();
    return_unwritten(hot, name(request.group.as_ref()), &stored_topic, &leased);
    let mut head = Vec::with_capacity(64 + MAX_LEASE * leased.len());
    put_status(&mut head, 1, code::OK, "OK");
    put_bytes_field(&mut head, 16, hot.broker_name.as_bytes());
    if stored_topic != topic {
        put_bytes_field(&mut head, 17, topic.as_bytes());
        put_varint_field(&mut head, 18, u64::from(mark(&stored_topic)));
    }
    put_varint_field(&mut head, 19, u64::from(is_ordered));
    let bytes = leased.iter().map(|leased| leased.record.bytes().len()).sum();
    let mut answer = Answer::new(head.len() + MAX_LEASE * leased.len() + 16, bytes);
    let mut leases = Vec::with_capacity(MAX_LEASE * leased.len());
    for Leased { record, handle: ReceiptHandle { pop_time, invisible_ms, .. }, attempt } in &leased {
        if answer.put(record) {
            put_varint(&mut leases, pop_time.cast_unsigned());
            put_varint(&mut leases, invisible_ms.cast_unsigned());
            put_varint(&mut leases, u64::from(*attempt));
        }
    }
    put_bytes_field(&mut head, 20, &leases);
    Ok(answer.finish(&head))
}

/// Answers an encoded `ReceiveMessageRequest` with a status once there is a message for it, without the message.
pub(in crate::grpc) async fn await_messages(
    hot: &Hot,
    request: Bytes,
    terms: &CallTerms,
) -> Result<Bytes, Malformed> {
    let request =
        ReceiveMessageRequest::decode(request).map_err(|_| Malformed("not a ReceiveMessageRequest"))?;
    Ok(match has_messages(hot, &request, terms).await {
        Ok(true) => {
            let mut head = Vec::new();
            put_status(&mut head, 1, code::OK, "OK");
            without_records(&head)
        }
        Ok(false) => no_message(None),
        Err(refusal) => refused(&refusal),
    })
}

/// Answers an encoded `PullMessageRequest`.
pub(in crate::grpc) async fn pull_records(
    hot: &Hot,
    request: Bytes,
    terms: &CallTerms,
) -> Result<Bytes, Malformed> {
    let request = PullMessageRequest::decode(request).map_err(|_| Malformed("not a PullMessageRequest"))?;
    let found = match pull(hot, &request, terms).await {
        Ok(found) if found.messages.is_empty() => return Ok(no_message(Some(found.next_offset))),
        Ok(found) => found,
        Err(refusal) => return Ok(refused(&refusal)),
    };
    let bytes: usize = found.messages.iter().map(|(_, record)| record.bytes().len()).sum();
    answer_memory::take(bytes + MESSAGE_OVERHEAD * found.messages.len()).await;
    let mut head = Vec::new();
    put_status(&mut head, 1, code::OK, "OK");
    put_varint_field(&mut head, 3, found.next_offset);
    let mut answer = Answer::new(head.len(), bytes);
    for (_, record) in &found.messages {
        answer.put(record);
    }
    Ok(answer.finish(&head))
}

/// Gives the leases back if the answer is not written: the next receive gets the messages before the leases expire.
fn return_unwritten(hot: &Arc<Hot>, group: &str, topic: &str, leased: &[Leased]) {
    let (hot, group, topic) = (Arc::clone(hot), group.to_owned(), topic.to_owned());
    let handles: Vec<_> = leased.iter().map(|leased| leased.handle).collect();
    undo_unless_written(move || hot.progress.give_back(&group, &topic, &handles));
}

/// The answer to a request that was refused.
pub(in crate::grpc) fn refused(refusal: &Refusal) -> Bytes {
    let mut head = Vec::new();
    put_status(&mut head, 1, refusal.code, &refusal.message);
    without_records(&head)
}

fn no_message(next_offset: Option<u64>) -> Bytes {
    let mut head = Vec::new();
    put_status(&mut head, 1, code::MESSAGE_NOT_FOUND, "no new message");
    if let Some(offset) = next_offset {
        put_varint_field(&mut head, 3, offset);
    }
    without_records(&head)
}

fn without_records(head: &[u8]) -> Bytes {
    Answer::new(head.len(), 0).finish(head)
}

/// An answer in the making. The records come first, behind room for the head, and are copied once.
struct Answer {
    bytes: Vec<u8>,
    /// Where the records begin.
    records: usize,
}

impl Answer {
    /// Makes room for a head of up to `head` bytes and for `records` bytes of records.
    fn new(head: usize, records: usize) -> Self {
        let room = head + varint_len(head as u64);
        let mut bytes = Vec::with_capacity(room + records);
        bytes.resize(room, 0);
        Self { bytes, records: room }
    }

    /// Adds a record that can be decoded, and returns whether it can. It could when it was dispatched, so otherwise the
    /// disk has changed since. Such a record is left out, and its lease expires.
    fn put(&mut self, record: &Record) -> bool {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(record.bytes());
        // The copy is in the processor's caches, the log mostly is not.
        match MessageView::decode(self.bytes.get(at..).unwrap_or_default(), false) {
            Ok(_) => true,
            Err(reason) => {
                tracing::error!(reason, "record in the log cannot be decoded; not delivered");
                self.bytes.truncate(at);
                false
            }
        }
    }

    /// Puts the head before the records.
    fn finish(mut self, head: &[u8]) -> Bytes {
        let mut front = Vec::with_capacity(varint_len(head.len() as u64) + head.len());
        put_varint(&mut front, head.len() as u64);
        front.extend_from_slice(head);
        match self.records.checked_sub(front.len()) {
            Some(begin) => {
                self.bytes.splice(begin..self.records, front);
                Bytes::from(self.bytes).slice(begin..)
            }
            None => {
                self.bytes.splice(..self.records, front);
                self.bytes.into()
            }
        }
    }
}
