//! The verbs whose rate grows with the message rate, without a wire format.
//!
//! One verb a file; gRPC and remoting translate to and from them. They read the pushed [`Tables`] and the
//! store, and never ask the control plane, except to demote a request for an unknown name.

pub mod ack;
pub(crate) mod batches;
mod counters;
pub(crate) mod dead_letters;
mod demote;
pub mod half_message;
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
mod traffic;
mod unique_key;

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU32, Ordering},
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
pub use traffic::{Tally, Traffic, TrafficSnapshot};

use crate::{ColdHandler, TransportError, tables::Tables};
pub use ack::GroupProgress;
use batches::Batches;
pub use dead_letters::Cause;
use dead_letters::Givings;
use demote::Demotions;
use long_poll::LongPolls;
pub use lookup::Lookup;
use reads::Reads;
use renewals::Renewals;
pub use send::Sends;
use unique_key::UniqueKeys;

/// What the hot verbs work on; shared by all listeners of a server.
pub struct Hot {
    /// The messages.
    pub store: Arc<MessageStore>,
    /// Topics and groups, as the control plane last pushed them.
    pub tables: Arc<Tables>,
    /// The source of time.
    pub clock: Clock,
    /// What was done.
    pub counters: Arc<Counters>,
    /// The broker's name, part of every receipt handle.
    pub broker_name: String,
    /// How messages are taken, as the control plane last set it.
    pub policy: ArcSwap<SendPolicy>,
    /// What clients may ask for, as the control plane last set it.
    pub client_policy: ArcSwap<ClientPolicy>,
    /// How long receives of other clients than our own wait over gRPC.
    pub waits: ArcSwap<Waits>,
    transfer_limits: ArcSwap<TransferLimits>,
    /// Messages and bytes that went in and out, by topic and group.
    pub traffic: Arc<Traffic>,
    /// Nothing is read here, nor noted as read.
    refuses_reads: AtomicBool,
    pub(crate) unique_keys: UniqueKeys,
    pub(crate) polls: LongPolls,
    pub(crate) reads: Reads,
    pub(crate) batches: Batches,
    /// Topics and groups by name.
    pub lookup: Lookup,
    /// Where messages are stored.
    pub sends: Sends,
    /// What groups have consumed.
    pub progress: GroupProgress,
    givings: Givings,
    /// For tasks that outlive their request.
    me: Weak<Self>,
    /// Counts the receives that may or may not mind priorities.
    next_draw: AtomicU32,
    /// Lets each receive begin with another queue, so that a full one does not starve the others.
    first_queue: AtomicU32,
}

impl Hot {
    /// Makes the hot path over `store` and listens to its arrivals and to the clock.
    ///
    /// The store tells arrivals to one listener only: make one `Hot` for a store.
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
            givings: Givings::default(),
            me: Weak::clone(me),
            next_draw,
            first_queue,
        })
    }

    /// Returns the terms of an ordered receive.
    #[must_use]
    pub fn ordered<'a>(&self, attempt_id: Option<&'a str>) -> Ordered<'a> {
        Ordered { attempt_id, from_first: self.client_policy.load().redelivers_from_first }
    }

    /// Says whether consumers are refused: on a slave, until it has the messages of its master.
    pub fn set_refuses_reads(&self, refuses: bool) {
        self.refuses_reads.store(refuses, Ordering::Release);
    }

    /// Bounds what a pull, and each queue of a receive, answers from now on.
    ///
    /// It begins with [`TransferLimits::NONE`].
    pub fn set_transfer_limits(&self, limits: TransferLimits) {
        self.transfer_limits.store(Arc::new(limits));
    }

    /// What bounds the answers of clients that did not ask for larger ones.
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

    /// Has the group go on at `offset` of a queue: its next pull is told, and so is one that waits.
    pub fn put_reset(&self, group: &str, topic: &str, queue_id: u32, offset: u64) {
        self.tables.resets.put(group, topic, queue_id, offset);
        self.polls.wake_pulls(topic, queue_id);
    }

    /// Has receives of the group look again: its offsets in the topic are others now.
    pub fn wake_receives(&self, group: &str, topic: &str) {
        self.polls.wake_receives(topic, group);
    }

    /// Forgets the counters and idle polls of a topic that was removed.
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
