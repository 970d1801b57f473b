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

use std::{
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use arc_swap::ArcSwap;
use ferromq_store::{Clock, LocalTime, MessageStore, Ordered, TransferLimits};

pub use counters::{Counter, Counters};
pub(crate) use policy::MAX_WAIT;
pub use policy::{ClientPolicy, SendPolicy, TypeChecks, Waits};
pub use traffic::{Tally, Traffic, TrafficSnapshot};

use crate::{
    ColdHandler, Demoted, Missing, TransportError,
    tables::{GroupEntry, MessageType, Tables, TopicEntry},
};
use batches::Batches;
pub use dead_letters::Cause;
use dead_letters::Givings;
use demote::Demotions;
use long_poll::LongPolls;
use reads::Reads;
use renewals::Renewals;
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
    renewals: Renewals,
    demotions: Demotions,
    givings: Givings,
    /// For tasks that outlive their request.
    me: Weak<Self>,
    /// Spreads requests that do not choose a queue. One for all topics: what counts is that each topic's
    /// requests are spread, not in which order.
    next_queue: AtomicU32,
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
        store.on_arrival(move |arrival| arrivals.arrived(arrival));
        let traffic = Arc::<Traffic>::default();
        let delivered = Arc::clone(&traffic);
        store.on_delivery(move |topic, bytes| delivered.count_put(topic, 1, bytes.into()));
        let renewals = Renewals::new(&clock);
        let demotions = Demotions::new(cold, Arc::clone(&counters));
        let (next_queue, next_draw, first_queue, refuses_reads) = Default::default();
        let unique_keys = UniqueKeys::new(store.store_host().ip(), LocalTime::of_process());
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
            renewals,
            demotions,
            givings: Givings::default(),
            me: Weak::clone(me),
            next_queue,
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

    /// Forgets what was counted for a topic that was removed, and who waited for its messages, where nobody does now.
    pub fn forget_topic(&self, topic: &str) {
        self.traffic.forget_topic(topic);
        self.polls.forget_topic(topic);
    }

    /// As [`Self::forget_topic`], for a group.
    pub fn forget_group(&self, group: &str) {
        self.traffic.forget_group(group);
        self.polls.forget_group(group);
    }

    /// The topic's entry; an unknown topic is demoted once and looked up again.
    ///
    /// # Errors
    /// `NoSuchTopic`, or `Busy` where nobody had time to find out.
    pub async fn topic(&self, name: &str, peer: SocketAddr) -> Result<TopicEntry, TransportError> {
        if let Some(entry) = self.tables.topic(name) {
            return Ok(entry);
        }
        let demoted = self.demotions.demote(Missing::Topic(name.to_owned()), peer).await;
        self.tables
            .topic(name)
            .ok_or_else(|| unknown(demoted, || TransportError::NoSuchTopic(name.to_owned())))
    }

    /// As [`Self::topic`], for a topic the request may create by `missing`.
    ///
    /// # Errors
    /// As [`Self::topic`].
    pub async fn topic_or(&self, missing: Missing, peer: SocketAddr) -> Result<TopicEntry, TransportError> {
        let name = match &missing {
            Missing::Topic(name)
            | Missing::Group(name)
            | Missing::TypeOfTopic { name, .. }
            | Missing::TopicToSend { name, .. }
            | Missing::TopicOfGroup { name, .. } => name.clone(),
        };
        if let Some(entry) = self.tables.topic(&name) {
            return Ok(entry);
        }
        let demoted = self.demotions.demote(missing, peer).await;
        self.tables.topic(&name).ok_or_else(|| unknown(demoted, || TransportError::NoSuchTopic(name)))
    }

    /// The entry of a topic that has no type yet, after the control plane gave it the type of its first message, or of
    /// another message that came before.
    ///
    /// # Errors
    /// `NoSuchTopic`, where it was deleted meanwhile, or `Busy`.
    pub async fn typed_topic(
        &self,
        name: &str,
        kind: MessageType,
        peer: SocketAddr,
    ) -> Result<TopicEntry, TransportError> {
        let missing = Missing::TypeOfTopic { name: name.to_owned(), kind };
        match self.demotions.demote(missing, peer).await {
            Demoted::Busy => Err(unknown(Demoted::Busy, || TransportError::NoSuchTopic(name.to_owned()))),
            // A type that cannot be kept, on a full disk, say, refuses no message: the store knows better why.
            Demoted::Done | Demoted::Refused | Demoted::Failed => {
                self.tables.topic(name).ok_or_else(|| TransportError::NoSuchTopic(name.to_owned()))
            }
        }
    }

    /// The group's entry; an unknown group is demoted once and looked up again.
    ///
    /// # Errors
    /// `NoSuchGroup`, or `Busy` where nobody had time to find out.
    pub async fn group(&self, name: &str, peer: SocketAddr) -> Result<GroupEntry, TransportError> {
        if let Some(entry) = self.tables.group(name) {
            return Ok(entry);
        }
        let demoted = self.demotions.demote(Missing::Group(name.to_owned()), peer).await;
        self.tables
            .group(name)
            .ok_or_else(|| unknown(demoted, || TransportError::NoSuchGroup(name.to_owned())))
    }
}

/// "It does not exist" is said only where somebody looked.
fn unknown(demoted: Demoted, missing: impl FnOnce() -> TransportError) -> TransportError {
    match demoted {
        Demoted::Busy => TransportError::Busy("too many requests wait for a handler"),
        Demoted::Failed => TransportError::NotAvailable(
            "the broker cannot create the topic or group: its log says why, a full disk, say; try again later",
        ),
        Demoted::Done | Demoted::Refused => missing(),
    }
}
