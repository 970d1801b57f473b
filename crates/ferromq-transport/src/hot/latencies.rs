//! Histograms of the time that requests take, by protocol, request, response and outcome.
//!
//! A fixed table without locks: recording a request adds to two counters. A combination takes a slot when it is first
//! seen. Clients choose request codes, so their number is bounded by the table: what finds no slot shares one.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::trace_context::TraceContext;

/// Upper bounds of the buckets but the last, in milliseconds; RocketMQ's.
pub const BOUNDS_MS: [u64; 9] = [1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000];
const BUCKETS: usize = BOUNDS_MS.len() + 1;
const SLOTS: usize = 512;
/// Slots that a combination may take; with all of them taken it goes to the shared slot.
const PROBES: usize = 32;
/// The request of the shared slot, and of requests whose code the server does not know.
pub const OTHER: i32 = (1 << 24) - 1;

/// The protocol of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// The remoting protocol; requests are codes of RocketMQ.
    Remoting,
    /// gRPC, framed calls included; requests are positions in [`METHODS`].
    Grpc,
}

/// What became of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was written.
    Success,
    /// The client wants none.
    OneWay,
    /// The connection failed before it was written.
    WriteFailed,
}

/// Methods of gRPC and of framed calls, by name.
pub const METHODS: [&str; 19] = [
    "SendMessage",
    "ReceiveMessage",
    "AckMessage",
    "PullMessage",
    "ChangeInvisibleDuration",
    "ForwardMessageToDeadLetterQueue",
    "UpdateOffset",
    "Probe",
    "AckRecords",
    "AwaitMessages",
    "QueryRoute",
    "Heartbeat",
    "QueryAssignment",
    "EndTransaction",
    "NotifyClientTermination",
    "GetOffset",
    "QueryOffset",
    "RecallMessage",
    "Admin/ChangeLogLevel",
];

/// The request number of a gRPC method.
#[must_use]
pub fn method(name: &str) -> i32 {
    let position = METHODS.iter().position(|known| *known == name);
    position.and_then(|position| i32::try_from(position).ok()).unwrap_or(OTHER)
}

/// What was asked and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// The protocol of the request.
    pub protocol: Protocol,
    /// Its remoting code or the position of its method; [`OTHER`].
    pub request: i32,
    /// The code of the response.
    pub response: i32,
}

/// A request that is being answered.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    begun: Instant,
    protocol: Protocol,
    /// The remoting code, or the position of a method.
    request: i32,
    /// The span of the client, if spans are recorded and the client samples it.
    pub context: Option<TraceContext>,
    /// The code of the response: remoting's, or that of `apache.rocketmq.v2.Status`, or gRPC's if it is below 100.
    pub response: i32,
    /// Whether the request waited for messages.
    pub waited: bool,
}

impl Timing {
    /// Begins now.
    #[must_use]
    pub fn begin(protocol: Protocol, request: i32) -> Self {
        Self { begun: Instant::now(), protocol, request, context: None, response: 0, waited: false }
    }

    /// How long it has taken at `end`.
    pub(super) fn elapsed(&self, end: Instant) -> Duration {
        end.saturating_duration_since(self.begun)
    }

    /// What was asked and answered.
    pub(super) fn exchange(&self) -> Exchange {
        let Self { protocol, request, response, .. } = *self;
        Exchange { protocol, request, response }
    }

    /// Counts the request as one that the server does not know.
    pub fn is_unknown(&mut self) {
        self.request = OTHER;
    }

    /// A number other than 0 for each combination.
    fn key(&self, outcome: Outcome) -> u64 {
        let low = |code: i32| u64::from(code.cast_unsigned() & 0xFF_FFFF);
        let protocol = u64::from(self.protocol == Protocol::Grpc);
        1 << 63
            | protocol << 51
            | (outcome as u64) << 49
            | u64::from(self.waited) << 48
            | low(self.response) << 24
            | low(self.request)
    }
}

/// The requests of one combination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencyRow {
    /// Protocol of the requests.
    pub protocol: Protocol,
    /// Their remoting code or the position of their method; [`OTHER`].
    pub request: i32,
    /// The code of their responses.
    pub response: i32,
    /// Whether they waited for messages.
    pub waited: bool,
    /// What became of the responses.
    pub outcome: Outcome,
    /// Requests by bucket, the last one without a bound.
    pub buckets: [u64; BUCKETS],
    /// The sum of their times.
    pub sum: Duration,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    /// 0: free.
    key: AtomicU64,
    buckets: [AtomicU64; BOUNDS_MS.len()],
    /// The last bucket, which has no bound.
    beyond: AtomicU64,
    micros: AtomicU64,
}

impl Slot {
    fn add(&self, elapsed: Duration) {
        let mut bounded = BOUNDS_MS.iter().zip(&self.buckets);
        let bucket = bounded.find(|(bound, _)| elapsed <= Duration::from_millis(**bound));
        bucket.map_or(&self.beyond, |(_, bucket)| bucket).fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn row(&self, key: u64) -> LatencyRow {
        let code = |shift: u32| i32::try_from(key >> shift & 0xFF_FFFF).unwrap_or(OTHER);
        LatencyRow {
            protocol: if key >> 51 & 1 == 1 { Protocol::Grpc } else { Protocol::Remoting },
            request: code(0),
            response: code(24),
            waited: key >> 48 & 1 == 1,
            outcome: match key >> 49 & 3 {
                0 => Outcome::Success,
                1 => Outcome::OneWay,
                _ => Outcome::WriteFailed,
            },
            buckets: std::array::from_fn(|bucket| {
                self.buckets.get(bucket).unwrap_or(&self.beyond).load(Ordering::Relaxed)
            }),
            sum: Duration::from_micros(self.micros.load(Ordering::Relaxed)),
        }
    }
}

/// The histograms of a server.
#[derive(Debug)]
pub struct Latencies {
    slots: Box<[Slot]>,
    other_remoting: Slot,
    other_grpc: Slot,
}

impl Default for Latencies {
    fn default() -> Self {
        let slots = (0..SLOTS).map(|_| Slot::default()).collect();
        Self { slots, other_remoting: Slot::default(), other_grpc: Slot::default() }
    }
}

impl Latencies {
    /// Counts a request that ended at `end`.
    pub fn record_at(&self, timing: &Timing, outcome: Outcome, end: Instant) {
        self.slot(timing, outcome).add(timing.elapsed(end));
    }

    fn slot(&self, timing: &Timing, outcome: Outcome) -> &Slot {
        let key = timing.key(outcome);
        // The upper bits of a product with an odd number depend on all bits of the key.
        let first = usize::try_from(key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 55).unwrap_or(0);
        for slot in (0..PROBES).filter_map(|probe| self.slots.get((first + probe) % SLOTS)) {
            let known = slot.key.load(Ordering::Relaxed);
            let is_ours = known == key
                || known == 0
                    && slot
                        .key
                        .compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed)
                        .map_or_else(|taken| taken == key, |_| true);
            if is_ours {
                return slot;
            }
        }
        match timing.protocol {
            Protocol::Remoting => &self.other_remoting,
            Protocol::Grpc => &self.other_grpc,
        }
    }

    /// Returns the histograms that have counted anything. Counts made meanwhile may or may not be included.
    #[must_use]
    pub fn snapshot(&self) -> Vec<LatencyRow> {
        let known = self.slots.iter().map(|slot| (slot, slot.key.load(Ordering::Relaxed)));
        let other = [(&self.other_remoting, Protocol::Remoting), (&self.other_grpc, Protocol::Grpc)];
        let shared =
            other.map(|(slot, protocol)| (slot, Timing::begin(protocol, OTHER).key(Outcome::Success)));
        let rows = known.filter(|(_, key)| *key != 0).chain(shared).map(|(slot, key)| slot.row(key));
        rows.filter(|row| row.buckets.iter().any(|count| *count > 0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn timing(protocol: Protocol, request: i32, response: i32, waited: bool) -> Timing {
        Timing { response, waited, ..Timing::begin(protocol, request) }
    }

    #[test]
    fn a_request_is_counted_in_the_first_bucket_that_holds_its_time() {
        let latencies = Latencies::default();
        let sent = timing(Protocol::Remoting, 310, 0, false);
        for (millis, bucket) in [(0, 0), (1, 0), (2, 1), (100, 5), (101, 6), (3_000, 8), (60_000, 9)] {
            let before = latencies.snapshot().first().map_or(0, |row| row.buckets[bucket]);
            latencies.record_at(&sent, Outcome::Success, sent.begun + Duration::from_millis(millis));
            assert_eq!(latencies.snapshot()[0].buckets[bucket], before + 1, "{millis} ms");
        }
        let [row] = latencies.snapshot().try_into().unwrap();
        assert_eq!((row.request, row.response, row.outcome), (310, 0, Outcome::Success));
        assert_eq!(row.sum, Duration::from_millis(1 + 2 + 100 + 101 + 3_000 + 60_000));
    }

    #[test]
    fn more_combinations_than_slots_are_counted_together() {
        let latencies = Latencies::default();
        for code in 0..4_000 {
            latencies.record_at(
                &timing(Protocol::Remoting, code, 3, false),
                Outcome::Success,
                Instant::now(),
            );
        }
        let rows = latencies.snapshot();
        assert!(rows.len() <= SLOTS + 2, "{}", rows.len());
        let counted: u64 = rows.iter().flat_map(|row| row.buckets).sum();
        assert_eq!(counted, 4_000);
        assert!(rows.iter().any(|row| row.request == OTHER));
    }

    #[test]
    fn counts_of_many_threads_add_up() {
        let latencies = Latencies::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for code in 0..1_000 {
                        latencies.record_at(
                            &timing(Protocol::Grpc, code % 7, 20_000, false),
                            Outcome::Success,
                            Instant::now(),
                        );
                    }
                });
            }
        });
        let rows = latencies.snapshot();
        assert_eq!(rows.len(), 7);
        assert_eq!(rows.iter().flat_map(|row| row.buckets).sum::<u64>(), 4_000);
    }

    proptest! {
        #[test]
        fn a_row_has_the_combination_that_was_recorded(
            is_grpc: bool,
            request in 0..OTHER,
            response in 0..OTHER,
            waited: bool,
            outcome in prop_oneof![Just(Outcome::Success), Just(Outcome::OneWay), Just(Outcome::WriteFailed)],
        ) {
            let protocol = if is_grpc { Protocol::Grpc } else { Protocol::Remoting };
            let latencies = Latencies::default();
            latencies.record_at(&timing(protocol, request, response, waited), outcome, Instant::now());
            let [row] = latencies.snapshot().try_into().unwrap();
            prop_assert_eq!(
                (row.protocol, row.request, row.response, row.waited, row.outcome),
                (protocol, request, response, waited, outcome)
            );
        }
    }
}
