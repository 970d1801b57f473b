//! Local time: the hour for RocketMQ's `deleteWhen`, and the month for its unique keys.
//!
//! The time zone is Java's choice: `TZ`, else the system's.

use std::ops::Range;

use tz::{TimeZone, TzError};

const DAY: i64 = 86_400;

/// The time zone of the process.
#[derive(Debug, Clone)]
pub struct LocalTime(TimeZone);

impl LocalTime {
    /// Reads the zone once. A missing or invalid zone is UTC, as in Java.
    #[must_use]
    pub fn of_process() -> Self {
        let named = std::env::var("TZ").ok().filter(|name| !name.is_empty());
        let zone = match &named {
            Some(name) => TimeZone::from_posix_tz(name),
            None => TimeZone::local(),
        };
        zone.map_or_else(
            |error| {
                tracing::warn!(%error, zone = named, "unknown time zone: using UTC");
                Self(TimeZone::utc())
            },
            Self,
        )
    }

    /// Finds a zone by name or by rules in the form of `TZ`. Returns `None` for an unknown one.
    #[must_use]
    pub fn in_zone(name: &str) -> Option<Self> {
        TimeZone::from_posix_tz(name).ok().map(Self)
    }

    /// Number of the month of `now_ms`, counted from the year 0, and its range in milliseconds since 1970, between
    /// local midnights.
    #[must_use]
    pub fn month(&self, now_ms: i64) -> (i64, Range<i64>) {
        let seconds = now_ms.div_euclid(1000);
        let local = seconds.saturating_add(self.offset(seconds).unwrap_or(0));
        let month = month_of(local.div_euclid(DAY));
        let (start, end) = (self.begin_ms(month), self.begin_ms(month + 1));
        // A month without a first midnight begins later; with two midnights it begins at the second, as in Java.
        if now_ms < start {
            return (month - 1, self.begin_ms(month - 1)..start);
        }
        if now_ms >= end {
            return (month + 1, end..self.begin_ms(month + 2));
        }
        (month, start..end)
    }

    /// Returns the midnight at which a month begins. If a clock change repeats or skips it, Java takes standard time.
    fn begin_ms(&self, month: i64) -> i64 {
        let local = first_day(month) * DAY;
        let mut offsets = [local - DAY, local + DAY].map(|around| self.offset(around).unwrap_or(0));
        offsets.sort_unstable();
        let fits = |offset: &&i64| self.offset(local - **offset).is_ok_and(|found| found == **offset);
        let offset = offsets.iter().find(fits).or(offsets.first()).copied().unwrap_or(0);
        (local - offset) * 1000
    }

    /// The local hour, 0 to 23, at `now_ms`.
    pub(crate) fn hour(&self, now_ms: i64) -> u8 {
        let seconds = now_ms.div_euclid(1000);
        let offset = self.offset(seconds).unwrap_or(0);
        ((seconds + offset).div_euclid(3600).rem_euclid(24)) as u8
    }

    fn offset(&self, seconds: i64) -> Result<i64, TzError> {
        Ok(i64::from(self.0.find_local_time_type(seconds)?.ut_offset()))
    }
}

/// Days from 1970-01-01 to the first day of a month, which is counted from the year 0 (Gregorian calendar).
fn first_day(month: i64) -> i64 {
    // Years that begin in March have their leap day last.
    let from_march = month - 2;
    let (year, place) = (from_march.div_euclid(12), from_march.rem_euclid(12));
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leaps + (place * 153 + 2) / 5 - 719_468
}

/// The month of a day since 1970-01-01, counted from the year 0.
fn month_of(day: i64) -> i64 {
    // 400 years have 146,097 days and 4,800 months, so the estimate is off by at most one.
    let near = (day + 719_528) * 4_800 / 146_097;
    [near + 1, near].into_iter().find(|month| first_day(*month) <= day).unwrap_or(near - 1)
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
    fn the_hour_follows_the_zone_and_its_daylight_saving() {
        let berlin = LocalTime(TimeZone::from_posix_tz("CET-1CEST,M3.5.0,M10.5.0/3").unwrap());
        let lima = LocalTime(TimeZone::from_posix_tz("<-05>5").unwrap());
        let utc = LocalTime(TimeZone::utc());
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
