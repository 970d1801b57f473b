//! A histogram of latencies with a relative error of at most 1/32.

use std::time::Duration;

const STEPS: u64 = 32;
const BUCKETS: usize = 64 * STEPS as usize;

/// Counts of latencies in microseconds.
pub struct Histogram(Vec<u64>);

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Self {
        Self(vec![0; BUCKETS])
    }

    /// Adds a value.
    pub fn add(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        if let Some(count) = self.0.get_mut(bucket(micros)) {
            *count += 1;
        }
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    /// The percentile of a share from 0 to 1, in microseconds; 0 without values.
    pub fn percentile(&self, share: f64) -> u64 {
        let total: u64 = self.0.iter().sum();
        let wanted = (total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (number, count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return lowest(number as u64);
            }
        }
        0
    }
}

/// Values below 64 have a bucket each; above, each doubling has `STEPS` buckets.
fn bucket(value: u64) -> usize {
    let doublings = (64 - value.leading_zeros()).saturating_sub(6);
    (u64::from(doublings) * STEPS + (value >> doublings)) as usize
}

fn lowest(bucket: u64) -> u64 {
    let doublings = (bucket / STEPS).saturating_sub(1);
    (bucket - doublings * STEPS) << doublings
}
