//! RocketMQ's message ID of a stored record: the broker's address and a physical offset in hexadecimal.
//!
//! The store does not interpret the other kind of ID, the producer's unique key.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use crate::record::message::MessageView;

/// Identifies a record by its broker and its physical offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OffsetMessageId {
    /// Address of the broker, as stored in the record.
    pub store_host: SocketAddr,
    /// Physical offset of the record, in bytes.
    pub physical_offset: u64,
}

/// Hexadecimal digits of the port, which takes four bytes.
const PORT_DIGITS: usize = 8;
const OFFSET_DIGITS: usize = 16;

impl OffsetMessageId {
    /// The ID of a record.
    #[must_use]
    pub fn of(view: &MessageView<'_>) -> Self {
        Self { store_host: view.store_host, physical_offset: view.physical_offset }
    }
}

impl fmt::Display for OffsetMessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.store_host.ip() {
            IpAddr::V4(ip) => write!(f, "{:08X}", u32::from(ip))?,
            IpAddr::V6(ip) => write!(f, "{:032X}", u128::from(ip))?,
        }
        let (port, offset) = (self.store_host.port(), self.physical_offset);
        write!(f, "{port:0PORT_DIGITS$X}{offset:0OFFSET_DIGITS$X}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_written_as_rocketmq_writes_it() {
        let id = OffsetMessageId { store_host: ([127, 0, 0, 1], 10911).into(), physical_offset: 1000 };
        assert_eq!(id.to_string(), "7F00000100002A9F00000000000003E8");
        let v6 = OffsetMessageId { store_host: "[::1]:80".parse().unwrap(), physical_offset: 255 };
        assert_eq!(v6.to_string(), "000000000000000000000000000000010000005000000000000000FF");
    }
}
