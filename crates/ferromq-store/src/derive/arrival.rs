//! Notifies listeners of messages that readers can see.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::{
    delayed::timer::timer_wake::TimerWake,
    record::names::{SCHEDULE_TOPIC, TIMER_TOPIC},
    sync::wake::Wake,
};

/// New messages in a queue, reported once readers can see them.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// Topic.
    pub topic: &'a str,
    /// Queue.
    pub queue_id: u32,
    /// The queue's new max offset.
    pub max_offset: u64,
}

pub(crate) type ArrivalListener = Arc<dyn Fn(&Arrival<'_>) + Send + Sync>;

/// The receivers of arrivals: the listener, and the threads that deliver delayed messages.
#[derive(Default)]
pub(crate) struct Arrivals {
    listener: RwLock<Option<ArrivalListener>>,
    pub(crate) levels: Arc<Wake>,
    pub(crate) timer: Arc<TimerWake>,
}

impl Arrivals {
    pub(crate) fn listener(&self) -> Option<ArrivalListener> {
        self.listener.read().clone()
    }

    pub(crate) fn set_listener(&self, listener: Option<ArrivalListener>) {
        *self.listener.write() = listener;
    }

    /// Reports new messages of a queue that did not come through a dispatch round.
    pub(crate) fn notify(&self, arrival: &Arrival<'_>) {
        self.wake(arrival.topic);
        if let Some(listener) = self.listener() {
            listener(arrival);
        }
    }

    /// Wakes the thread that delivers messages waiting in this topic, if it is a system topic for them.
    pub(crate) fn wake(&self, topic: &str) {
        match topic {
            SCHEDULE_TOPIC => self.levels.ask(),
            TIMER_TOPIC => self.timer.ask(),
            _ => {}
        }
    }
}
