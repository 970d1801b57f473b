//! The verbs whose rate grows with the message rate, independent of the wire format.
//!
//! One file per verb; gRPC and remoting translate to and from them. The verbs read the pushed [`Tables`] and the store.
//! They never ask the control plane, except to demote a request with an unknown name.

pub mod ack;
pub(crate) mod batches;
mod counters;
pub(crate) mod dead_letters;
mod demote;
pub mod half_message;
pub mod latencies;
pub mod long_poll;
mod lookup;
pub mod message_group;
mod policy;
pub(crate) mod pop_retries;
pub mod pull;
pub mod reads;
pub mod recall_handle;
pub mod receive;
pub(crate) mod renewals;
pub mod send;
pub mod spans;
pub mod trace_context;
mod traffic;
mod unique_key;

use std::{
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use arc_swap::ArcSwap;
use ferromq_store::{
    MessageStore,
    progress::Ordered,
    read::TransferLimits,
    time::{Clock, LocalTime},
};

pub use counters::{Counter, Counters};
pub(crate) use policy::MAX_WAIT;
pub use policy::{ClientPolicy, SendPolicy, TypeChecks, Waits};
pub use traffic::{SIZE_BOUNDS, Tally, Traffic, TrafficSnapshot};

use crate::{ColdHandler, LogLimiter, TransportError, access::Access, limits::RateLimits, tables::Tables};
pub use ack::GroupProgress;
use batches::Batches;
pub use dead_letters::DeadLetterCause;
use dead_letters::MovesInProgress;
use demote::Demotions;
use latencies::Protocol;
use long_poll::LongPolls;
pub use lookup::Lookup;
use reads::Reads;
use renewals::Renewals;
pub use send::Sends;
use unique_key::UniqueKeys;

/// State of the hot verbs; shared by all listeners of a server.
pub struct Hot {
    /// The message store.
    pub store: Arc<MessageStore>,
    /// Topics and groups, as the control plane last pushed them.
    pub tables: Arc<Tables>,
    /// Access control, for what a request does not name.
    pub access: Arc<Access>,
    /// Limits of messages and bytes a second.
    pub limits: RateLimits,
    /// The source of time.
    pub clock: Clock,
    /// Counters of this server.
    pub counters: Arc<Counters>,
    /// The broker's name, part of every receipt handle.
    pub broker_name: String,
    /// Policy for sends, as the control plane last set it.
    pub policy: ArcSwap<SendPolicy>,
    /// Limits for gRPC clients, as the control plane last set them.
    pub client_policy: ArcSwap<ClientPolicy>,
    /// Bounds on the wait of gRPC receives; ferromq's own client is exempt.
    pub waits: ArcSwap<Waits>,
    transfer_limits: ArcSwap<TransferLimits>,
    /// Messages and bytes stored, read and sent back, by topic and group.
    pub traffic: Arc<Traffic>,
    /// Whether consumers are refused, commits included.
    refuses_reads: AtomicBool,
    pub(crate) unique_keys: UniqueKeys,
    pub(crate) polls: LongPolls,
    pub(crate) reads: Reads,
    pub(crate) batches: Batches,
    /// Finds topics and groups by name.
    pub lookup: Lookup,
    /// Stores messages.
    pub sends: Sends,
    /// Ends leases and commits offsets.
    pub progress: GroupProgress,
    dead_letter_moves: MovesInProgress,
    /// Upgraded by tasks that outlive their request.
    me: Weak<Self>,
    /// Counts receives from priority topics; the count decides which of them start with the highest priority.
    next_draw: AtomicU32,
    /// Makes each receive begin with another queue, so that a full queue does not starve the others.
    first_queue: AtomicU32,
}

impl Hot {
    /// Creates the hot path over `store` and listens to its arrivals and to the clock.
    ///
    /// A store reports arrivals to one listener only: create one `Hot` per store.
    #[must_use]
    pub fn new(
        store: Arc<MessageStore>,
        tables: Arc<Tables>,
        clock: Clock,
        broker_name: String,
        cold: Arc<dyn ColdHandler>,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        let polls = LongPolls::new(clock.clone(), Arc::clone(&counters));
        let arrivals = polls.clone();
        store.queues().on_arrival(move |arrival| arrivals.arrived(arrival));
        let traffic = Arc::<Traffic>::default();
        let delivered = Arc::clone(&traffic);
        store.delayed().on_delivery(move |topic, bytes| delivered.count_put(topic, 1, bytes.into()));
        let lookup =
            Lookup { tables: Arc::clone(&tables), demotions: Demotions::new(cold, Arc::clone(&counters)) };
        let sends = Sends {
            store: Arc::clone(&store),
            counters: Arc::clone(&counters),
            traffic: Arc::clone(&traffic),
            next_queue: AtomicU32::default(),
        };
        let progress = GroupProgress {
            store: Arc::clone(&store),
            clock: clock.clone(),
            counters: Arc::clone(&counters),
            polls: polls.clone(),
            renewals: Renewals::new(&clock),
        };
        let (next_draw, first_queue, refuses_reads) = Default::default();
        let unique_keys = UniqueKeys::new(store.admin().store_host().ip(), LocalTime::of_process());
        Arc::new_cyclic(|me| Self {
            store,
            access: Arc::new(Access::new(Arc::clone(&tables))),
            limits: RateLimits::new(
                Arc::clone(&tables),
                clock.clone(),
                Arc::clone(&counters),
                Arc::clone(&traffic),
            ),
            tables,
            clock,
            counters,
            broker_name,
            policy: ArcSwap::default(),
            client_policy: ArcSwap::default(),
            waits: ArcSwap::default(),
            transfer_limits: ArcSwap::default(),
            traffic,
            refuses_reads,
            unique_keys,
            polls,
            reads: Reads::default(),
            batches: Batches::default(),
            lookup,
            sends,
            progress,
            dead_letter_moves: MovesInProgress::default(),
            me: Weak::clone(me),
            next_draw,
            first_queue,
        })
    }

    /// Counts and logs a refused send. `code` is that of the response.
    pub(crate) fn refused_send(
        &self,
        peer: SocketAddr,
        topic: Option<&str>,
        (protocol, code): (Protocol, i32),
        why: &dyn std::fmt::Display,
    ) {
        static REFUSED: LogLimiter = LogLimiter::new();
        if let Some(topic) = topic.filter(|topic| self.tables.topic(topic).is_some()) {
            let protocol = if protocol == Protocol::Grpc { "grpc" } else { "remoting" };
            self.traffic.count_refused(topic, &format!("{protocol}:{code}"));
        }
        REFUSED.log(|suppressed| tracing::warn!(%peer, suppressed, "send refused: {why}"));
    }

    /// Returns the options of an ordered receive.
    #[must_use]
    pub fn ordered<'a>(&self, attempt_id: Option<&'a str>) -> Ordered<'a> {
        Ordered { attempt_id, from_first: self.client_policy.load().redelivers_from_first }
    }

    /// Sets whether consumers are refused. A slave refuses them until it has its master's messages.
    pub fn set_refuses_reads(&self, refuses: bool) {
        self.refuses_reads.store(refuses, Ordering::Release);
    }

    /// Limits the answers of pulls, and each queue's part of a receive, from now on.
    ///
    /// Initially [`TransferLimits::NONE`].
    pub fn set_transfer_limits(&self, limits: TransferLimits) {
        self.transfer_limits.store(Arc::new(limits));
    }

    /// Limits of answers to clients that did not ask for larger ones.
    #[must_use]
    pub fn transfer_limits(&self) -> TransferLimits {
        **self.transfer_limits.load()
    }

    /// Refuses consumers on a slave.
    ///
    /// # Errors
    /// `Slave`.
    pub fn check_reads(&self) -> Result<(), TransportError> {
        if self.refuses_reads.load(Ordering::Acquire) { Err(TransportError::Slave) } else { Ok(()) }
    }

    /// Resets the group to `offset` of a queue: its next pull is answered with that offset, and parked pulls wake up.
    pub fn put_reset(&self, group: &str, topic: &str, queue_id: u32, offset: u64) {
        self.tables.resets.put(group, topic, queue_id, offset);
        self.polls.wake_pulls(topic, queue_id);
    }

    /// Wakes receives of the group after its offsets in the topic changed.
    pub fn wake_receives(&self, group: &str, topic: &str) {
        self.polls.wake_receives(topic, group);
    }

    /// Removes the counters and idle polls of a deleted topic.
    pub fn forget_topic(&self, topic: &str) {
        self.traffic.forget_topic(topic);
        self.polls.forget_topic(topic);
    }

    /// As [`Self::forget_topic`], for a group.
    pub fn forget_group(&self, group: &str) {
        self.traffic.forget_group(group);
        self.polls.forget_group(group);
    }
}
