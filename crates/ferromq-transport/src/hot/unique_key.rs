//! Unique keys for messages whose producer gave none, in the form of RocketMQ's clients.
//!
//! ```text
//! address: 4 bytes | process: 2 | instance: 4 | time: 4 | number: 2         (as hexadecimal digits)
//! ```
//! Java reads the time back from it; a key is unique by all of them together.

use std::{
    fmt::Write,
    net::IpAddr,
    process,
    sync::atomic::{AtomicU64, Ordering},
};

/// RocketMQ counts the time of a key from the begin of a month; 2026-01-01 does as well for who compares keys.
const EPOCH_MS: i64 = 1_767_225_600_000;

/// Gives out keys.
#[derive(Debug)]
pub(crate) struct UniqueKeys {
    prefix: String,
    next: AtomicU64,
}

impl UniqueKeys {
    pub(crate) fn new(address: IpAddr) -> Self {
        let mut prefix = String::with_capacity(20);
        let address = match address {
            IpAddr::V4(ip) => u32::from(ip),
            IpAddr::V6(ip) => crc32fast::hash(&ip.octets()),
        };
        // Two stores of one process differ by it.
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        let instance = INSTANCES.fetch_add(1, Ordering::Relaxed) as u32;
        let process = process::id() as u16;
        // Writing to a text cannot fail.
        let _ = write!(prefix, "{address:08X}{process:04X}{instance:08X}");
        Self { prefix, next: AtomicU64::new(0) }
    }

    /// A key nobody got before.
    pub(crate) fn next(&self, now_ms: i64) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // More keys than numbers in one millisecond borrow from the time.
        let time = (now_ms.saturating_sub(EPOCH_MS) as u64).wrapping_add(number >> 16) as u32;
        format!("{}{time:08X}{:04X}", self.prefix, number as u16)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_have_32_digits_and_never_come_twice() {
        let keys = UniqueKeys::new([127, 0, 0, 1].into());
        let other = UniqueKeys::new([127, 0, 0, 1].into());
        let all: HashSet<String> = (0..100_000)
            .map(|_| keys.next(1_800_000_000_000))
            .chain([other.next(1_800_000_000_000)])
            .collect();
        assert_eq!(all.len(), 100_001);
        assert!(all.iter().all(|key| key.len() == 32 && key.starts_with("7F000001")));
    }
}
