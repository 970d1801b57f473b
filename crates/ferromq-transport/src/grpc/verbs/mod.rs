//! The hot gRPC methods: each parses its request, calls the hot path and encodes the response.

pub(super) mod ack;
pub(super) mod dead_letter;
pub(super) mod limited;
pub mod message;
pub(super) mod outgoing;
pub(super) mod polling;
pub mod proto;
pub(super) mod receive;
pub(super) mod records;
pub(super) mod send;
mod send_check;
mod send_properties;
