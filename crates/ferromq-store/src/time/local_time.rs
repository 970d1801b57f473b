//! Local time: the hour for RocketMQ's `deleteWhen`, and the month for its unique keys.
//!
//! The time zone is Java's choice: `TZ`, else the system's.

use std::{env, error::Error, ffi::OsStr, fs, ops::Range};

use jiff::{
    Timestamp, ToSpan as _,
    civil::{Date, DateTime, Time},
    tz::TimeZone,
};

const SYSTEM_ZONE: &str = "/etc/localtime";

/// The time zone of the process.
#[derive(Debug, Clone)]
pub struct LocalTime(TimeZone);

impl LocalTime {
    /// Reads the zone once. A missing or invalid zone is UTC, as in Java.
    #[must_use]
    pub fn of_process() -> Self {
        let named = env::var_os("TZ");
        Self(zone_of(named.as_deref()).unwrap_or_else(|error| {
            tracing::warn!(%error, zone = ?named, "unknown time zone: using UTC");
            TimeZone::UTC
        }))
    }

    /// Returns the zone with rules in the form of `TZ`, or `None` if they are invalid.
    #[must_use]
    pub fn in_zone(rules: &str) -> Option<Self> {
        TimeZone::posix(rules).ok().map(Self)
    }

    /// Number of the month of `now_ms`, counted from the year 0, and its range in milliseconds since 1970, between
    /// local midnights.
    #[must_use]
    pub fn month(&self, now_ms: i64) -> (i64, Range<i64>) {
        let mut first = self.at(now_ms).date().first_of_month();
        // A month with two first midnights begins at the second.
        if now_ms < self.begin_ms(first) {
            first = first.saturating_sub(1.month());
        }
        let number = i64::from(first.year()) * 12 + i64::from(first.month()) - 1;
        (number, self.begin_ms(first)..self.begin_ms(first.saturating_add(1.month())))
    }

    /// Returns the midnight at which a day begins. If a clock change repeats or skips it, Java takes standard time.
    fn begin_ms(&self, day: Date) -> i64 {
        let begin = self.0.to_ambiguous_timestamp(day.to_datetime(Time::midnight())).later();
        begin.map_or(i64::MAX, Timestamp::as_millisecond)
    }

    /// The local hour, 0 to 23, at `now_ms`.
    pub(crate) fn hour(&self, now_ms: i64) -> u8 {
        self.at(now_ms).hour().unsigned_abs()
    }

    fn at(&self, now_ms: i64) -> DateTime {
        self.0.to_datetime(Timestamp::from_millisecond(now_ms).unwrap_or(Timestamp::MAX))
    }
}

/// The zone that the value of `TZ` names.
fn zone_of(named: Option<&OsStr>) -> Result<TimeZone, Box<dyn Error>> {
    let Some(text) = named.and_then(OsStr::to_str) else { return Ok(TimeZone::try_system()?) };
    if text.is_empty() {
        // The system's zone in Java, and UTC elsewhere.
        let bytes =
            fs::read(SYSTEM_ZONE).map_err(|error| format!("{SYSTEM_ZONE} cannot be read: {error}"))?;
        return Ok(TimeZone::tzif("local", &bytes)?);
    }
    // Folders of the zone database with the same zones; `right` counts leap seconds, which times here do not.
    let name = text.strip_prefix(':').unwrap_or(text);
    match name.strip_prefix("posix/").or_else(|| name.strip_prefix("right/")) {
        Some(name) => Ok(TimeZone::get(name)?),
        None => Ok(TimeZone::try_system()?),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn zone(rules: &str) -> LocalTime {
        LocalTime::in_zone(rules).unwrap()
    }

    #[test]
    fn a_month_begins_with_its_midnight_in_the_zone_and_its_daylight_saving() {
        let berlin = "CET-1CEST,M3.5.0,M10.5.0/3";
        // A zone whose clock skips the first midnight of October and repeats that of April.
        let at_midnight = "<-04>4<-03>,J274/0,J91/0";
        for (rules, now, month, start) in [
            // 2026-07-15 and 2026-03-31 23:30 local time; further east it is April.
            ("UTC0", 1_784_088_000_000, 7, 1_782_864_000_000),
            (berlin, 1_784_088_000_000, 7, 1_782_856_800_000),
            (berlin, 1_774_992_600_000, 3, 1_772_319_600_000),
            // The month of the clock change begins in winter time.
            (berlin, 1_774_994_400_000, 4, 1_774_994_400_000),
            (berlin, 1_774_994_399_999, 3, 1_772_319_600_000),
            // There is no midnight: October begins at 1 o'clock summer time, 4 hours behind UTC.
            (at_midnight, 1_790_827_200_000, 10, 1_790_827_200_000),
            (at_midnight, 1_790_827_199_999, 9, 1_788_235_200_000),
            // There are two midnights: April begins at the second.
            (at_midnight, 1_775_016_000_000, 4, 1_775_016_000_000),
            (at_midnight, 1_775_015_999_999, 3, 1_772_334_000_000),
        ] {
            let (found, range) = zone(rules).month(now);
            assert_eq!((found, range.start), (2026 * 12 + month - 1, start), "{rules} {now}");
        }
    }

    proptest! {
        #[test]
        fn every_moment_is_in_the_one_month_that_ends_where_the_next_begins(
            now in -60_000_000_000_000i64..250_000_000_000_000, which in 0usize..3
        ) {
            let zone = zone(["UTC0", "CET-1CEST,M3.5.0,M10.5.0/3", "<+14>-14"][which]);
            let (month, range) = zone.month(now);
            prop_assert!(range.contains(&now));
            let days = (range.end - range.start) / 86_400_000;
            prop_assert!((27..=31).contains(&days));
            let (next, after) = zone.month(range.end);
            prop_assert_eq!((next, after.start), (month + 1, range.end));
        }
    }

    #[test]
    fn a_zone_may_be_named_in_a_folder_of_the_database() {
        // A system without a database finds none.
        let berlin = TimeZone::get("Europe/Berlin").ok();
        for name in
            ["posix/Europe/Berlin", ":posix/Europe/Berlin", "right/Europe/Berlin", ":right/Europe/Berlin"]
        {
            assert_eq!(zone_of(Some(OsStr::new(name))).ok(), berlin, "{name}");
        }
        let error = zone_of(Some(OsStr::new("posix/Europe/Nowhere"))).unwrap_err();
        assert!(error.to_string().contains("Europe/Nowhere"), "{error}");
    }

    #[test]
    fn the_hour_follows_the_zone_and_its_daylight_saving() {
        let berlin = zone("CET-1CEST,M3.5.0,M10.5.0/3");
        let lima = zone("<-05>5");
        let utc = zone("UTC0");
        // 2026-01-15 and 2026-07-15, 03:59:59.999 and 04:00 UTC.
        for (now, hours) in [
            (1_768_449_599_999, [3, 4, 22]),
            (1_768_449_600_000, [4, 5, 23]),
            (1_784_087_999_999, [3, 5, 22]),
            (1_784_088_000_000, [4, 6, 23]),
            (-1, [23, 0, 18]),
        ] {
            assert_eq!([&utc, &berlin, &lima].map(|zone| zone.hour(now)), hours, "{now}");
        }
    }
}
