//! Messages with a delivery time: how such a message waits, and when it is due.
//!
//! As in RocketMQ, it waits in queue 0 of [`TIMER_TOPIC`]. `wheel` orders the messages, `due_messages` delivers
//! them.

use std::time::Duration;

use crate::{
    delayed::delay_levels::Delayed,
    error::{Result, StoreError},
    record::{message::MAX_PROPERTIES_LEN, names::TIMER_TOPIC, properties},
};

/// What a producer may set: milliseconds since 1970, or a delay. As in RocketMQ, a delay in seconds takes precedence.
pub(crate) const DELIVER_MS: &str = "TIMER_DELIVER_MS";
pub(crate) const DELAY_SECONDS: &str = "TIMER_DELAY_SEC";
pub(crate) const DELAY_MS: &str = "TIMER_DELAY_MS";
/// The broker's own mark: the begin of the wheel's span in which the message is due.
pub(crate) const OUT_MS: &str = "TIMER_OUT_MS";
/// Makes the message a recall of another one, named by its unique key with or without its topic and a `+`.
pub(crate) const DELETES: &str = "TIMER_DEL_UNIQKEY";
pub(crate) const ENQUEUED_MS: &str = "TIMER_ENQUEUE_MS";
pub(crate) const DEQUEUED_MS: &str = "TIMER_DEQUEUE_MS";
pub(crate) const ROLLS: &str = "TIMER_ROLL_TIMES";
pub(crate) const REAL_TOPIC: &str = "REAL_TOPIC";
pub(crate) const REAL_QUEUE: &str = "REAL_QID";

/// Room in a record's properties for what delivery adds: when the message entered and left the wheel (31 bytes each),
/// how often it was stored again (28), a checksum (20).
const RESERVE: usize = 110;

/// Slots of one turn of RocketMQ's wheel: 7 days of one second each. The file has twice as many.
const WHEEL_SLOTS: u32 = 7 * 86_400;
/// The gap that RocketMQ leaves between the furthest slot it fills and half the wheel.
const BLANK_SLOTS: u32 = 60;
/// RocketMQ counts delays in 32 bits.
pub(crate) const MAX_SPAN_MS: u64 = i32::MAX as u64;

/// Options of timed messages. Precision, slots and log file size must match those of a RocketMQ broker that opens the
/// same files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerConfig {
    /// Whether delivery times are accepted (RocketMQ's `timerWheelEnable`).
    pub enabled: bool,
    /// How far ahead a delivery time may be (`timerMaxDelaySec`).
    pub max_delay: Duration,
    /// The span of one slot of the wheel (`timerPrecisionMs`). Delivery is exact to the millisecond at any precision.
    pub precision: Duration,
    /// Messages further ahead than this many slots are stored again on their way (`timerRollWindowSlot`).
    pub roll_window: u32,
    /// Half the slots of a new wheel.
    pub wheel_slots: u32,
    /// Bytes of a new file of the timer log (`mappedFileSizeTimerLog`).
    pub log_file_size: u64,
    /// Messages of one slot held in memory during delivery, 16 bytes each; the timer log holds the others. At least 1.
    pub in_memory: usize,
}

impl Default for TimerConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            max_delay: Duration::from_hours(72),
            precision: Duration::from_secs(1),
            roll_window: 2 * 86_400,
            wheel_slots: WHEEL_SLOTS,
            log_file_size: 100 << 20,
            in_memory: 1 << 18,
        }
    }
}

impl TimerConfig {
    /// Checks the ranges. Errors: `Invalid`, which names the option.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |what, reason| Err(StoreError::Invalid { what, reason });
        let precision = self.precision.as_millis();
        if !(1..=60_000).contains(&precision) {
            return invalid("timer_precision", "it must be 1 millisecond to 1 minute");
        }
        if self.max_delay.is_zero() || self.max_delay > Duration::from_hours(24 * 365) {
            return invalid("timer_max_delay", "it must be more than 0 and at most 365 days");
        }
        if !(BLANK_SLOTS + 3..=i32::MAX as u32 / 64).contains(&self.wheel_slots) {
            return invalid("timer_wheel_slots", "it must be 63 to 33,554,431");
        }
        if u64::from(self.wheel_slots) * 2 * (precision as u64) > MAX_SPAN_MS {
            return invalid("timer_wheel_slots", "twice as many times timer_precision must be under 24 days");
        }
        if !(4096..=i32::MAX as u64).contains(&self.log_file_size) {
            return invalid("timer_log_file_size", "it must be 4 KiB to 2 GiB - 1");
        }
        Ok(())
    }

    pub(crate) fn precision_ms(&self) -> i64 {
        self.precision.as_millis() as i64
    }

    /// The furthest slot from now that may be filled, as in RocketMQ.
    pub(crate) fn roll_slots(&self, wheel_slots: u32) -> i64 {
        let most = wheel_slots.saturating_sub(BLANK_SLOTS).max(2);
        i64::from(if (2..=most).contains(&self.roll_window) { self.roll_window } else { most })
    }
}

/// Makes a message without a delay level wait for its delivery time. Errors: `Invalid`, `TooFarAhead`, `TooLarge` for
/// properties that leave no room for what delivery adds.
pub(crate) fn rewrite(
    config: &TimerConfig,
    now_ms: i64,
    (topic, queue_id): (&str, i32),
    properties: &[u8],
) -> Result<Option<Delayed>> {
    if topic == TIMER_TOPIC || properties::get(properties, OUT_MS).is_some() {
        return Ok(None);
    }
    let Some(deliver_at) = asked_time(now_ms, properties)? else { return Ok(None) };
    if !config.enabled {
        let reason = "delivery times are disabled (timer_enabled, timerWheelEnable); use a delay level";
        return Err(StoreError::Invalid { what: "a time of delivery", reason });
    }
    if deliver_at <= now_ms {
        if properties::get(properties, DELETES).is_some() {
            let reason = "the delivery time is over: the message cannot be recalled";
            return Err(StoreError::Invalid { what: "property TIMER_DEL_UNIQKEY", reason });
        }
        return Ok(None);
    }
    let (ahead_ms, limit_ms) = (deliver_at - now_ms, config.max_delay.as_millis() as i64);
    if ahead_ms > limit_ms {
        return Err(StoreError::TooFarAhead { ahead_ms, limit_ms });
    }
    let (out, queue_text) = (slot_time(config.precision_ms(), deliver_at).to_string(), queue_id.to_string());
    let set = [(OUT_MS, out.as_str()), (REAL_TOPIC, topic), (REAL_QUEUE, queue_text.as_str())];
    let properties = properties::replace(properties, &[], &set);
    let (len, limit) = (properties.len() as u64, (MAX_PROPERTIES_LEN - RESERVE) as u64);
    if len > limit {
        return Err(StoreError::TooLarge { what: "properties with a delivery time", len, limit });
    }
    Ok(Some(Delayed { topic: TIMER_TOPIC, queue_id: 0, properties, deliver_at: Some(deliver_at) }))
}

/// The delivery time that the producer set, milliseconds since 1970.
fn asked_time(now_ms: i64, properties: &[u8]) -> Result<Option<i64>> {
    let reason = "it must be a whole number";
    let number = |what: &'static str, name| match properties::get(properties, name) {
        None => Ok(None),
        Some(text) => match text.parse::<i64>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(StoreError::Invalid { what, reason }),
        },
    };
    if let Some(seconds) = number("property TIMER_DELAY_SEC", DELAY_SECONDS)? {
        return Ok(Some(now_ms.saturating_add(seconds.saturating_mul(1000))));
    }
    if let Some(ms) = number("property TIMER_DELAY_MS", DELAY_MS)? {
        return Ok(Some(now_ms.saturating_add(ms)));
    }
    number("property TIMER_DELIVER_MS", DELIVER_MS)
}

/// The begin of the span that holds or ends at `deliver_at`. RocketMQ delivers once that span is over.
pub(crate) fn slot_time(precision_ms: i64, deliver_at: i64) -> i64 {
    (deliver_at - 1).div_euclid(precision_ms) * precision_ms
}

/// When a waiting message is due, in milliseconds: within the span that its properties name.
///
/// `None` if they name none. Delays count from `stored_at`, unless the message was stored again on its way.
pub(crate) fn due_at(precision_ms: i64, properties: &[u8], stored_at: i64) -> Option<i64> {
    let out: i64 = properties::get(properties, OUT_MS)?.parse().ok()?;
    let latest = out.saturating_add(precision_ms);
    let told = asked_time(stored_at, properties).ok().flatten().unwrap_or(latest);
    Some(if (out + 1..=latest).contains(&told) { told } else { latest })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: i64 = 1_700_000_000_000;

    fn made(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        pairs.iter().for_each(|(name, value)| properties::push(&mut out, name, value));
        out
    }

    fn waits(pairs: &[(&str, &str)]) -> Result<Option<Delayed>> {
        rewrite(&TimerConfig::default(), NOW, ("orders", 3), &made(pairs))
    }

    #[test]
    fn a_timed_message_is_rewritten_as_rocketmq_does() {
        for (pairs, out, due) in [
            ([("TIMER_DELIVER_MS", "1700000005300"), ("a", "b")], "1700000005000", NOW + 5_300),
            ([("TIMER_DELIVER_MS", "1700000005000"), ("a", "b")], "1700000004000", NOW + 5_000),
            ([("TIMER_DELAY_SEC", "7"), ("TIMER_DELIVER_MS", "1700000005000")], "1700000006000", NOW + 7_000),
            ([("TIMER_DELAY_MS", "1"), ("a", "b")], "1700000000000", NOW + 1),
        ] {
            let waiting = waits(&pairs).unwrap().unwrap();
            assert_eq!((waiting.topic, waiting.queue_id, waiting.deliver_at), (TIMER_TOPIC, 0, Some(due)));
            let get = |name| properties::get(&waiting.properties, name);
            assert_eq!(
                (get(OUT_MS), get("REAL_TOPIC"), get("REAL_QID")),
                (Some(out), Some("orders"), Some("3"))
            );
            assert_eq!(due_at(1000, &waiting.properties, NOW), Some(due));
        }
    }

    #[test]
    fn a_past_delivery_time_neither_waits_nor_recalls() {
        assert_eq!(waits(&[("TIMER_DELIVER_MS", "1700000000000")]).unwrap(), None);
        assert_eq!(waits(&[("TIMER_DELAY_SEC", "-5")]).unwrap(), None);
        assert_eq!(waits(&[("KEYS", "k")]).unwrap(), None);
        let error = waits(&[("TIMER_DELIVER_MS", "1"), (DELETES, "orders+7F")]).unwrap_err();
        assert!(error.to_string().contains("TIMER_DEL_UNIQKEY"), "{error}");
    }

    #[test]
    fn a_time_too_far_ahead_is_refused_with_the_limit() {
        let limit = (NOW + 3 * 86_400_000).to_string();
        assert!(waits(&[("TIMER_DELIVER_MS", &limit)]).unwrap().is_some());
        let over = (NOW + 3 * 86_400_000 + 1).to_string();
        let error = waits(&[("TIMER_DELIVER_MS", &over)]).unwrap_err().to_string();
        assert!(error.contains("timer_max_delay") && error.contains("259200000"), "{error}");
        assert!(waits(&[("TIMER_DELAY_SEC", "soon")]).unwrap_err().to_string().contains("TIMER_DELAY_SEC"));
    }

    #[test]
    fn a_delivery_time_is_refused_when_timers_are_disabled() {
        let off = TimerConfig { enabled: false, ..TimerConfig::default() };
        let error = rewrite(&off, NOW, ("orders", 3), &made(&[("TIMER_DELAY_SEC", "1")])).unwrap_err();
        assert!(error.to_string().contains("timer_enabled"), "{error}");
    }

    proptest! {
        #[test]
        fn a_message_is_due_within_its_span_and_never_early_for_any_properties(
            ahead in 1i64..259_200_000, precision in prop::sample::select(vec![1i64, 100, 500, 1000])
        ) {
            let config =
                TimerConfig { precision: Duration::from_millis(precision as u64), ..TimerConfig::default() };
            let text = (NOW + ahead).to_string();
            let waiting =
                rewrite(&config, NOW, ("orders", 3), &made(&[(DELIVER_MS, &text)])).unwrap().unwrap();
            let out: i64 = properties::get(&waiting.properties, OUT_MS).unwrap().parse().unwrap();
            prop_assert!(out % precision == 0 && out < NOW + ahead && NOW + ahead <= out + precision);
            prop_assert_eq!(due_at(precision, &waiting.properties, NOW), Some(NOW + ahead));
        }

        #[test]
        fn any_bytes_as_properties_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), at in any::<i64>()) {
            let _ = rewrite(&TimerConfig::default(), at, ("t", 0), &bytes);
            let _ = due_at(1000, &bytes, at);
        }
    }
}
