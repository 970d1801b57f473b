//! RocketMQ's delay levels: how long each lasts, how a message waits at one, and when it is due.
//!
//! A waiting message lies in the topic [`SCHEDULE_TOPIC`], whose consume queues hold the due time in place of the tag
//! hash. `schedule` delivers it.

use std::{fmt, str::FromStr, sync::Arc};

use crate::{
    error::{Result, StoreError},
    record::{names::SCHEDULE_TOPIC, properties},
};

/// The property that holds the delay level.
const LEVEL: &str = "DELAY";
const REAL_TOPIC: &str = "REAL_TOPIC";
const REAL_QUEUE: &str = "REAL_QID";
/// Delivery times of a producer. A delay level takes precedence over them.
const TIMERS: [&str; 3] = ["TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"];
/// RocketMQ's default `messageDelayLevel`.
const DEFAULT: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";
/// An upper bound beyond any use; each level is a queue.
const MAX_LEVELS: usize = 255;
const UNITS: [(char, i64); 4] = [('s', 1_000), ('m', 60_000), ('h', 3_600_000), ('d', 86_400_000)];

/// How long each delay level lasts. The text form is RocketMQ's `messageDelayLevel`: `1s 5s 10s 2m 1h 1d`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelayLevels(Arc<[i64]>);

impl DelayLevels {
    /// The number of levels, at least one.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Milliseconds of `level`. A level above the highest counts as the highest; 0 means no level.
    #[must_use]
    pub fn duration_ms(&self, level: u32) -> Option<i64> {
        let place = (level.min(self.count()) as usize).checked_sub(1)?;
        self.0.get(place).copied()
    }

    /// The level of a message with these properties; `None` for a message that does not wait. Errors: `Invalid` if it
    /// is not a number.
    pub(super) fn of(&self, properties: &[u8]) -> Result<Option<u32>> {
        let Some(text) = properties::get(properties, LEVEL) else { return Ok(None) };
        let reason = "the delay level must be a whole number, 0 for none";
        let level: i32 = text.parse().map_err(|_| StoreError::Invalid { what: "property DELAY", reason })?;
        Ok(u32::try_from(level).ok().filter(|level| *level > 0).map(|level| level.min(self.count())))
    }
}

impl Default for DelayLevels {
    fn default() -> Self {
        let times = DEFAULT.split_whitespace().filter_map(duration);
        Self(times.collect())
    }
}

impl FromStr for DelayLevels {
    type Err = StoreError;

    /// Reads the text form. Errors: `Invalid`, which names the text form.
    fn from_str(text: &str) -> Result<Self> {
        let reason = "it must be 1 to 255 times, level 1 first, each with s, m, h or d, as `1s 10s 5m 2h 1d`";
        let levels: Option<Vec<i64>> = text.split_whitespace().map(duration).collect();
        match levels {
            Some(levels) if (1..=MAX_LEVELS).contains(&levels.len()) => Ok(Self(levels.into())),
            _ => Err(StoreError::Invalid { what: "delay_levels", reason }),
        }
    }
}

impl fmt::Display for DelayLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, ms) in self.0.iter().enumerate() {
            let fits = |unit: &&(char, i64)| ms % unit.1 == 0 && *ms > 0;
            let (unit, length) = UNITS.iter().rev().find(fits).unwrap_or(&UNITS[0]);
            write!(f, "{}{}{unit}", if place == 0 { "" } else { " " }, ms / length)?;
        }
        Ok(())
    }
}

fn duration(text: &str) -> Option<i64> {
    let (unit, length) = UNITS.iter().find(|(unit, _)| text.ends_with(*unit))?;
    let number = text.strip_suffix(*unit)?;
    let count: u32 = number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok())??;
    i64::from(count).checked_mul(*length)
}

/// The fields of a message that differ while it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delayed {
    /// The topic it waits in: [`SCHEDULE_TOPIC`], or [`TIMER_TOPIC`] for a message with a delivery time.
    pub topic: &'static str,
    /// The queue it waits in, one less than its level.
    pub queue_id: i32,
    /// Its properties, which hold its destination.
    pub properties: Vec<u8>,
    /// Its delivery time, milliseconds since 1970, if it has one.
    pub deliver_at: Option<i64>,
}

/// The fields of the message while it waits at `level`.
pub(crate) fn at_level(level: u32, topic: &str, queue_id: i32, properties: &[u8]) -> Delayed {
    let (level_text, queue_text) = (level.to_string(), queue_id.to_string());
    let set = [(LEVEL, level_text.as_str()), (REAL_TOPIC, topic), (REAL_QUEUE, queue_text.as_str())];
    let properties = properties::replace(properties, &TIMERS, &set);
    Delayed { topic: SCHEDULE_TOPIC, queue_id: level.cast_signed() - 1, properties, deliver_at: None }
}

/// The destination of a waiting message: topic and queue. `None` if its properties lack one.
pub(crate) fn destination(properties: &[u8]) -> Option<(&str, i32)> {
    let queue_id = properties::get(properties, REAL_QUEUE)?.parse().ok()?;
    Some((properties::get(properties, REAL_TOPIC)?, queue_id))
}

/// When a waiting message is due, milliseconds since 1970; `None` for every other message.
///
/// `level` is the property `DELAY`; a level above the highest counts as the highest.
pub(crate) fn due_at(
    levels: &DelayLevels,
    topic: &str,
    level: Option<&str>,
    store_timestamp: i64,
) -> Option<i64> {
    if topic != SCHEDULE_TOPIC {
        return None;
    }
    let delay = levels.duration_ms(level?.parse().ok()?)?;
    Some(store_timestamp.saturating_add(delay))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{config::StoreConfig, delayed::waiting_message::rewrite};

    fn made(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        pairs.iter().for_each(|(name, value)| properties::push(&mut out, name, value));
        out
    }

    fn levels() -> DelayLevels {
        DelayLevels::default()
    }

    #[test]
    fn only_waiting_messages_with_a_level_are_due() {
        let due = |topic, level| due_at(&levels(), topic, level, 5);
        assert_eq!(due(SCHEDULE_TOPIC, Some("1")), Some(1_005));
        assert_eq!(due(SCHEDULE_TOPIC, Some("18")), Some(7_200_005));
        assert_eq!(due(SCHEDULE_TOPIC, Some("99")), Some(7_200_005));
        let others = [(SCHEDULE_TOPIC, None), (SCHEDULE_TOPIC, Some("0")), (SCHEDULE_TOPIC, Some("x"))];
        for (topic, level) in others.into_iter().chain([("orders", Some("1"))]) {
            assert_eq!(due(topic, level), None);
        }
    }

    #[test]
    fn the_default_levels_are_those_of_rocketmq() {
        assert_eq!(levels().to_string(), DEFAULT);
        assert_eq!(levels().count(), 18);
        assert_eq!(levels().duration_ms(4), Some(30_000));
        assert_eq!(levels().duration_ms(19), Some(7_200_000));
        assert_eq!(levels().duration_ms(0), None);
    }

    #[test]
    fn invalid_levels_are_refused_by_the_name_of_the_option() {
        let too_many = "1s ".repeat(256);
        for text in ["", "5", "s", "1s 5x", "-1s", "+1s", "1.5s", "99999999999s", "1 s", &too_many] {
            match text.parse::<DelayLevels>() {
                Err(StoreError::Invalid { what: "delay_levels", .. }) => {}
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_message_with_a_level_waits_in_the_queue_of_its_level_and_keeps_its_destination() {
        let given = made(&[("KEYS", "k"), ("TIMER_DELIVER_MS", "9"), ("DELAY", "3"), ("REAL_TOPIC", "old")]);
        let delayed = rewrite(&StoreConfig::default(), 0, "orders", 7, 0, &given).unwrap().unwrap();
        assert_eq!(delayed.queue_id, 2);
        let get = |name| properties::get(&delayed.properties, name);
        assert_eq!((get("KEYS"), get("DELAY"), get("TIMER_DELIVER_MS")), (Some("k"), Some("3"), None));
        assert_eq!(destination(&delayed.properties), Some(("orders", 7)));
        assert_eq!(
            properties::iter(&delayed.properties).filter(|(name, _)| *name == "REAL_TOPIC").count(),
            1
        );
    }

    #[test]
    fn a_level_above_the_highest_becomes_the_highest() {
        let delayed =
            rewrite(&StoreConfig::default(), 0, "t", 0, 0, &made(&[("DELAY", "40")])).unwrap().unwrap();
        assert_eq!(delayed.queue_id, 17);
        assert_eq!(properties::get(&delayed.properties, "DELAY"), Some("18"));
    }

    #[test]
    fn messages_without_a_level_and_half_messages_do_not_wait() {
        for properties in [made(&[]), made(&[("DELAY", "0")]), made(&[("DELAY", "-1")])] {
            assert_eq!(rewrite(&StoreConfig::default(), 0, "t", 0, 0, &properties).unwrap(), None);
        }
        let waits = made(&[("DELAY", "1")]);
        for (sys_flag, is_delayed) in [(0, true), (4, false), (8, true), (12, false)] {
            assert_eq!(
                rewrite(&StoreConfig::default(), 0, "t", 0, sys_flag, &waits).unwrap().is_some(),
                is_delayed
            );
        }
    }

    #[test]
    fn a_level_that_is_no_number_is_refused() {
        let error = rewrite(&StoreConfig::default(), 0, "t", 0, 0, &made(&[("DELAY", "soon")])).unwrap_err();
        assert!(error.to_string().contains("DELAY"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_as_properties_and_any_text_as_levels_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..60), text in "[0-9smhd ]{0,12}"
        ) {
            let _ = rewrite(&StoreConfig::default(), 0, "t", 0, 0, &bytes);
            if let Ok(read) = text.parse::<DelayLevels>() {
                prop_assert_eq!(read.to_string().parse::<DelayLevels>().unwrap(), read);
            }
        }
    }
}
