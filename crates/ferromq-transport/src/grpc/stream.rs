//! The answer of ReceiveMessage and PullMessage: a stream of responses, one per gRPC message or packed.
//!
//! RocketMQ sends one gRPC message for each status, message and timestamp. ferromq's own client requests packed streams
//! (`x-ferromq-packed: 1`): each gRPC message is then a sequence of `varint length, response`. Pulls of the data
//! pipeline request records (`2`): such a sequence with status and next offset, then gRPC messages of whole records.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use ferromq_store::progress::ReceiptHandle;
use tokio_stream::Stream;
use tonic::Status;

use super::convert::{code, status_code};
use crate::{
    hot::Hot,
    protobuf::{put_varint, take_varint},
};

/// Size in bytes from which a packed gRPC message is full.
const PACKET: usize = 1 << 20;

/// Builds the items of a stream.
pub(super) struct Packer {
    packed: bool,
    open: Vec<u8>,
    /// Leases of the messages in `open`.
    leases: Vec<ReceiptHandle>,
    items: VecDeque<(Bytes, Vec<ReceiptHandle>)>,
}

impl Packer {
    pub(super) fn new(packed: bool, expected_bytes: usize) -> Self {
        let open = if packed { Vec::with_capacity(expected_bytes.min(PACKET)) } else { Vec::new() };
        Self { packed, open, leases: Vec::new(), items: VecDeque::new() }
    }

    /// Adds one response of `len` bytes, which `write` appends.
    pub(super) fn put(&mut self, len: usize, lease: Option<ReceiptHandle>, write: impl FnOnce(&mut Vec<u8>)) {
        if self.packed {
            put_varint(&mut self.open, len as u64);
        }
        self.open.reserve(len);
        write(&mut self.open);
        self.leases.extend(lease);
        if !self.packed || self.open.len() >= PACKET {
            self.close_item();
        }
    }

    /// Adds records, copied once, in gRPC messages that hold only whole records.
    pub(super) fn put_records<'a>(&mut self, records: impl Iterator<Item = &'a [u8]>) {
        self.close_item();
        for record in records {
            if self.open.is_empty() {
                self.open.reserve(PACKET.max(record.len()));
            } else if self.open.len() + record.len() > PACKET {
                self.close_item();
                self.open.reserve(PACKET.max(record.len()));
            }
            self.open.extend_from_slice(record);
        }
        self.close_item();
    }

    fn close_item(&mut self) {
        if !self.open.is_empty() {
            let bytes = Bytes::from(std::mem::take(&mut self.open));
            self.items.push_back((bytes, std::mem::take(&mut self.leases)));
        }
    }

    /// Ends the stream. `return_to` gets the leases of messages that the client did not take.
    pub(super) fn finish(mut self, return_to: Option<ReturnTo>) -> ResponseStream {
        self.close_item();
        ResponseStream { items: self.items, return_to }
    }
}

/// The group and topic of a stream's leases.
pub(super) struct ReturnTo {
    pub hot: Arc<Hot>,
    pub group: String,
    pub topic: String,
}

/// A complete stream. Dropping it releases the leases of the messages that the connection has not taken: the next
/// receive gets them before their leases expire.
pub(super) struct ResponseStream {
    items: VecDeque<(Bytes, Vec<ReceiptHandle>)>,
    return_to: Option<ReturnTo>,
}

impl ResponseStream {
    /// The code of the stream's status; OK if it begins with a message.
    pub(super) fn status_code(&self, is_packed: bool) -> i32 {
        let mut first = self.items.front().map_or(&[] as &[u8], |(bytes, _)| bytes);
        if is_packed && take_varint(&mut first).is_err() {
            return code::OK;
        }
        match status_code(first) {
            0 => code::OK,
            known => known,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.items.iter().map(|(bytes, _)| bytes.len()).sum()
    }
}

impl Stream for ResponseStream {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.items.pop_front().map(|(bytes, _leases)| Ok(bytes)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.items.len(), Some(self.items.len()))
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        if let Some(to) = &self.return_to {
            for (_, leases) in &self.items {
                to.hot.progress.give_back(&to.group, &to.topic, leases);
            }
        }
    }
}
