//! The hour of the day where the broker stands, for RocketMQ's `deleteWhen`.
//!
//! The zone is the one Java takes: `TZ`, else the system's. Nothing else of the store knows local time.

use tz::{TimeZone, TzError};

/// The zone the process lives in, with its daylight saving.
#[derive(Debug, Clone)]
pub(crate) struct LocalTime(TimeZone);

impl LocalTime {
    /// Reads the zone once. Where there is none, or none that can be read, it is UTC, as for Java.
    pub(crate) fn of_process() -> Self {
        let named = std::env::var("TZ").ok().filter(|name| !name.is_empty());
        let zone = match &named {
            Some(name) => TimeZone::from_posix_tz(name),
            None => TimeZone::local(),
        };
        zone.map_or_else(
            |error| {
                tracing::warn!(%error, zone = named, "time zone unknown: hours of the day are taken in UTC");
                Self(TimeZone::utc())
            },
            Self,
        )
    }

    /// The hour, 0 to 23, at `now_ms`.
    pub(crate) fn hour(&self, now_ms: i64) -> u8 {
        let seconds = now_ms.div_euclid(1000);
        let offset = self.offset(seconds).unwrap_or(0);
        ((seconds + offset).div_euclid(3600).rem_euclid(24)) as u8
    }

    fn offset(&self, seconds: i64) -> Result<i64, TzError> {
        Ok(i64::from(self.0.find_local_time_type(seconds)?.ut_offset()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
