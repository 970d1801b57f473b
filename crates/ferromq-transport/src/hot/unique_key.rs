//! Unique keys for messages whose producer set none, in the form of RocketMQ's clients.
//!
//! ```text
//! address: 4 bytes | process: 2 | month: 2 | instance: 2 | time: 4 | number: 2         (as hexadecimal digits)
//! ```
//! The time counts milliseconds from local midnight at the start of the month. RocketMQ's tools derive from it when a
//! message was sent, and search for the message only from then on. They read month and instance as one number of 4
//! bytes.

use std::{
    net::IpAddr,
    ops::Range,
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use ferromq_store::time::LocalTime;
use parking_lot::Mutex;

/// Numbers per millisecond.
const NUMBERS: u32 = 1 << 16;

/// Generates keys.
#[derive(Debug)]
pub(crate) struct UniqueKeys {
    address: u32,
    process: u16,
    instance: u16,
    zone: LocalTime,
    last: Mutex<LastKey>,
}

/// The last generated key.
#[derive(Debug)]
struct LastKey {
    time_ms: i64,
    number: u16,
    /// How many earlier keys had its time.
    before: u32,
    month: u16,
    span: Range<i64>,
}

impl UniqueKeys {
    pub(crate) fn new(address: IpAddr, zone: LocalTime) -> Self {
        let address = match address {
            IpAddr::V4(ip) => u32::from(ip),
            IpAddr::V6(ip) => crc32fast::hash(&ip.octets()),
        };
        // Distinguishes the stores of one process.
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        let instance = INSTANCES.fetch_add(1, Ordering::Relaxed) as u16;
        let last = LastKey { time_ms: i64::MIN, number: u16::MAX, before: 0, month: 0, span: 0..0 };
        Self { address, process: process::id() as u16, instance, zone, last: Mutex::new(last) }
    }

    /// Returns a key that was not generated before.
    pub(crate) fn next(&self, now_ms: i64) -> String {
        let (month, time, number) = self.draw(now_ms);
        let Self { address, process, instance, .. } = self;
        format!("{address:08X}{process:04X}{month:04X}{instance:04X}{time:08X}{number:04X}")
    }

    /// Returns the parts that differ from key to key.
    fn draw(&self, now_ms: i64) -> (u16, u32, u16) {
        let mut last = self.last.lock();
        last.before = if now_ms > last.time_ms { 0 } else { last.before + 1 };
        last.time_ms = last.time_ms.max(now_ms);
        if last.before == NUMBERS {
            // With more keys in a millisecond than numbers, the next ones take a later time.
            (last.time_ms, last.before) = (last.time_ms.saturating_add(1), 0);
        }
        last.number = last.number.wrapping_add(1);
        if !last.span.contains(&last.time_ms) {
            let (month, span) = self.zone.month(last.time_ms);
            (last.month, last.span) = (month as u16, span);
        }
        (last.month, last.time_ms.saturating_sub(last.span.start) as u32, last.number)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";
    const HOUR: i64 = 3_600_000;

    fn keys(zone: &str) -> UniqueKeys {
        UniqueKeys::new([127, 0, 0, 1].into(), LocalTime::in_zone(zone).unwrap())
    }

    fn time(key: &str) -> i64 {
        i64::from_str_radix(&key[20..28], 16).unwrap()
    }

    #[test]
    fn keys_have_32_digits_and_never_repeat() {
        let (one, other) = (keys("UTC0"), keys("UTC0"));
        let all: HashSet<String> = (0..200_000)
            .map(|_| one.next(1_800_000_000_000))
            .chain([other.next(1_800_000_000_000)])
            .chain((0..70_000).map(|number| one.next(1_800_000_000_000 + number / 10)))
            .collect();
        assert_eq!(all.len(), 270_001);
        assert!(all.iter().all(|key| key.len() == 32 && key.starts_with("7F000001")));
    }

    #[test]
    fn a_key_counts_from_the_start_of_the_month_in_the_brokers_zone() {
        // 2026-11-22 19:42:00.123 UTC.
        let now = 1_795_376_520_123;
        let since = (21 * 24 + 19) * HOUR + 42 * 60_000 + 123;
        for (zone, ahead) in [("UTC0", 0), (BERLIN, 1), ("<-05>5", -5), ("<+0530>-5:30", 5)] {
            let minutes = if zone.contains(":30") { HOUR / 2 } else { 0 };
            assert_eq!(time(&keys(zone).next(now)), since + ahead * HOUR + minutes, "{zone}");
        }
        // 2026-10-31 12:00 UTC: October in Berlin is one hour longer than its days.
        assert_eq!(time(&keys(BERLIN).next(1_793_448_000_000)), (30 * 24 + 14) * HOUR);
    }

    #[test]
    fn a_new_month_counts_from_0_and_repeats_no_key_of_the_last_one() {
        let keys = keys(BERLIN);
        // Berlin's December begins at 23:00 UTC.
        let december = 1_796_079_600_000;
        let [before, first, later] = [december - 1, december, december + 5].map(|now| keys.next(now));
        assert_eq!([time(&first), time(&later)], [0, 5]);
        assert_eq!(time(&before), 30 * 24 * HOUR - 1);
        assert_ne!(before[12..16], first[12..16]);
        // A later time ends with the keys that took it, and is never ahead of the reader's clock.
        for _ in 0..NUMBERS {
            keys.next(december + 5);
        }
        assert_eq!(time(&keys.next(december + 9)), 9);
    }
}
