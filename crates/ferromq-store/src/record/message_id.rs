//! RocketMQ's message ID of a stored record: the broker's address and a physical offset in hexadecimal.
//!
//! The store does not interpret the other kind of ID, the producer's unique key.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
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

impl FromStr for OffsetMessageId {
    type Err = &'static str;

    /// Parses 32 digits (IPv4) or 56 (IPv6), in either case.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const REFUSED: &str = "a message id of a place has 32 or 56 hexadecimal digits";
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (ip, rest) = match text.len() {
            32 if is_hex => text.split_at(8),
            56 if is_hex => text.split_at(32),
            _ => return Err(REFUSED),
        };
        let (port, offset) = rest.split_at(PORT_DIGITS);
        let ip: IpAddr = match u32::from_str_radix(ip, 16) {
            Ok(v4) if ip.len() == 8 => IpAddr::V4(v4.into()),
            _ => IpAddr::V6(u128::from_str_radix(ip, 16).map_err(|_| REFUSED)?.into()),
        };
        let port = u32::from_str_radix(port, 16).ok().and_then(|port| u16::try_from(port).ok());
        Ok(Self {
            store_host: SocketAddr::new(ip, port.ok_or("the port in the message ID is invalid")?),
            physical_offset: u64::from_str_radix(offset, 16).map_err(|_| REFUSED)?,
        })
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_is_written_as_rocketmq_writes_it() {
        let id = OffsetMessageId { store_host: ([127, 0, 0, 1], 10911).into(), physical_offset: 1000 };
        assert_eq!(id.to_string(), "7F00000100002A9F00000000000003E8");
        let v6 = OffsetMessageId { store_host: "[::1]:80".parse().unwrap(), physical_offset: 255 };
        assert_eq!(v6.to_string(), "000000000000000000000000000000010000005000000000000000FF");
    }

    #[test]
    fn a_text_of_another_form_is_refused() {
        for text in
            ["", "7F00000100002A9F00000000000003E", "7F0000010001000000000000000003E8", "ü", &"+".repeat(32)]
        {
            assert!(text.parse::<OffsetMessageId>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_id_comes_back_as_written(v6 in any::<u128>(), is_v6 in any::<bool>(), port in any::<u16>(), physical_offset in any::<u64>()) {
            let ip = if is_v6 { IpAddr::V6(v6.into()) } else { IpAddr::V4((v6 as u32).into()) };
            let id = OffsetMessageId { store_host: SocketAddr::new(ip, port), physical_offset };
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(id.to_string().to_lowercase().parse(), Ok(id));
        }

        #[test]
        fn parsing_any_text_never_panics(text in ".{0,60}") {
            let _ = text.parse::<OffsetMessageId>();
        }
    }
}
