//! How far the log is durable, and which callers wait for more.

use crate::{
    error::Result,
    log::{flush_policy::FlushPolicy, flush_times::FlushTimes, put_times::PutTimes, unflushed::Unflushed},
    sync::signal::Signal,
};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// The configured policy and limits.
pub(super) struct FlushSettings {
    pub(super) policy: FlushPolicy,
    /// Most acknowledged messages that may be unflushed, by topic.
    pub(super) by_topic: BTreeMap<String, u32>,
}

/// How far the log is durable, and which callers wait for more.
pub(crate) struct Flushing {
    pub(super) settings: Mutex<FlushSettings>,
    pub(super) is_sync: AtomicBool,
    /// Whether the append lock holds an [`Unflushed`].
    pub(super) is_counting: AtomicBool,
    /// End of what is flushed.
    pub(super) flushed: AtomicU64,
    /// End of what readers saw before the policy became synchronous; it stays visible.
    pub(super) seen: AtomicU64,
    /// End of the log at the last change of policy; earlier appends are acknowledged only once flushed.
    pub(super) changed_at: AtomicU64,
    /// End of the newest append that an asynchronous policy holds until its flush.
    pub(super) newest_held: AtomicU64,
    /// The flushing thread flushes up to here.
    pub(super) wanted: AtomicU64,
    /// Held during a flush.
    pub(super) turn: Mutex<()>,
    /// The next flush fails: a fault that a test causes.
    pub(super) fails_next: AtomicBool,
    pub(super) flushes: AtomicU64,
    pub(super) flush_times: FlushTimes,
    pub(super) put_times: PutTimes,
    /// Counts flushes and failures, each of which decides the outcome of waiters.
    pub(super) decisions: AtomicU64,
    pub(super) callbacks: Mutex<Vec<(u64, Done)>>,
    pub(super) has_callbacks: AtomicBool,
    /// The last flush lacked a descriptor or memory; logged once until one succeeds.
    pub(super) is_short: AtomicBool,
    pub(super) failure: OnceLock<Arc<str>>,
    pub(super) has_ended: AtomicBool,
    /// Wakes the thread that flushes in the background and runs callbacks.
    pub(crate) due: Signal,
}

impl Flushing {
    pub(crate) fn new(policy: FlushPolicy, by_topic: BTreeMap<String, u32>) -> Self {
        Self {
            is_sync: AtomicBool::new(policy.is_synchronous()),
            settings: Mutex::new(FlushSettings { policy, by_topic }),
            is_counting: AtomicBool::new(false),
            flushed: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            changed_at: AtomicU64::new(0),
            newest_held: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            turn: Mutex::new(()),
            fails_next: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            flush_times: FlushTimes::default(),
            put_times: PutTimes::default(),
            decisions: AtomicU64::new(0),
            callbacks: Mutex::new(Vec::new()),
            has_callbacks: AtomicBool::new(false),
            is_short: AtomicBool::new(false),
            failure: OnceLock::new(),
            has_ended: AtomicBool::new(false),
            due: Signal::default(),
        }
    }

    /// Marks everything below `end` as flushed and begins to count, before the first append.
    pub(crate) fn begin_at(&self, end: u64) -> Option<Box<Unflushed>> {
        self.flushed.store(end, Ordering::Release);
        self.count(&self.settings.lock())
    }

    pub(super) fn count(&self, settings: &FlushSettings) -> Option<Box<Unflushed>> {
        let is_each = settings.policy == FlushPolicy::Each;
        let limit = match settings.policy {
            FlushPolicy::EveryN { count, .. } => Some(count),
            _ => None,
        };
        let nothing = BTreeMap::new();
        let by_topic = if settings.policy.is_synchronous() { &nothing } else { &settings.by_topic };
        let unflushed = Unflushed::new(is_each, limit, by_topic);
        self.is_counting.store(unflushed.is_some(), Ordering::SeqCst);
        unflushed
    }

    pub(crate) fn is_sync(&self) -> bool {
        self.is_sync.load(Ordering::Acquire)
    }

    pub(super) fn ask(&self, end: u64) {
        self.wanted.fetch_max(end, Ordering::AcqRel);
        self.due.ring();
    }
}
