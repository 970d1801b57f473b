//! The only bridge from the hot path to the control plane: demotes unknown names.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::Counters;
use crate::{ColdHandler, Demoted, Missing};

/// Demotes unknown names, with one call in flight per name: concurrent requests for the name share its answer.
pub(crate) struct Demotions {
    cold: Arc<dyn ColdHandler>,
    counters: Arc<Counters>,
    in_flight: Arc<Mutex<HashMap<Missing, watch::Receiver<Option<Demoted>>>>>,
}

impl Demotions {
    pub(crate) fn new(cold: Arc<dyn ColdHandler>, counters: Arc<Counters>) -> Self {
        Self { cold, counters, in_flight: Arc::default() }
    }

    /// Lets the control plane create `missing` if that is allowed.
    pub(crate) async fn demote(&self, missing: Missing, peer: SocketAddr) -> Demoted {
        let mut answer = self.join(missing, peer);
        let outcome = answer.wait_for(Option::is_some).await;
        outcome.ok().and_then(|demoted| *demoted).unwrap_or(Demoted::Refused)
    }

    fn join(&self, missing: Missing, peer: SocketAddr) -> watch::Receiver<Option<Demoted>> {
        let mut in_flight = self.in_flight.lock();
        if let Some(answer) = in_flight.get(&missing) {
            return answer.clone();
        }
        let (publish, answer) = watch::channel(None);
        in_flight.insert(missing.clone(), answer.clone());
        drop(in_flight);
        self.counters.demoted.add(1);
        let (done, demoted) = oneshot::channel();
        self.cold.demote(missing.clone(), peer, done);
        let in_flight = Arc::clone(&self.in_flight);
        // In its own task: the call completes even if the request that began it is cancelled.
        tokio::spawn(async move {
            let demoted = demoted.await.unwrap_or(Demoted::Refused);
            in_flight.lock().remove(&missing);
            publish.send_replace(Some(demoted));
        });
        answer
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::task::JoinSet;

    use super::*;
    use crate::{ColdRequest, Reply, Sender, Verb, remoting::Fields};

    /// Keeps demotions pending until the test answers them.
    #[derive(Default)]
    struct PendingDemotions(Mutex<Vec<(Missing, oneshot::Sender<Demoted>)>>);

    impl ColdHandler for PendingDemotions {
        fn serves(&self, _verb: &Verb) -> bool {
            false
        }
        fn call(&self, _request: ColdRequest, _reply: Reply) {}
        fn demote(&self, missing: Missing, _peer: SocketAddr, done: oneshot::Sender<Demoted>) {
            self.0.lock().push((missing, done));
        }
        fn telemetry(&self, _: u64, _: Sender, _: &Fields, _: Option<Bytes>) -> bool {
            true
        }
        fn on_close(&self, _connection: u64) {}
    }

    fn topic(name: &str) -> Missing {
        Missing::Topic(name.to_owned())
    }

    #[tokio::test]
    async fn concurrent_requests_for_a_name_share_one_call_and_its_answer() {
        let (pending, peer) = (Arc::new(PendingDemotions::default()), SocketAddr::from(([127, 0, 0, 1], 1)));
        let demotions = Arc::new(Demotions::new(pending.clone(), Arc::default()));
        let mut callers = JoinSet::new();
        for _ in 0..50 {
            let demotions = Arc::clone(&demotions);
            callers.spawn(async move { demotions.demote(topic("a"), peer).await });
        }
        let other = tokio::spawn({
            let demotions = Arc::clone(&demotions);
            async move { demotions.demote(topic("b"), peer).await }
        });
        while demotions.counters.demoted.get() < 2 {
            tokio::task::yield_now().await;
        }
        let answers: Vec<_> = pending.0.lock().drain(..).collect();
        assert_eq!(answers.len(), 2);
        for (missing, done) in answers {
            done.send(if missing == topic("a") { Demoted::Done } else { Demoted::Busy }).unwrap();
        }
        assert!(callers.join_all().await.into_iter().all(|demoted| demoted == Demoted::Done));
        assert_eq!(other.await.unwrap(), Demoted::Busy);
        assert!(demotions.in_flight.lock().is_empty());
    }

    #[tokio::test]
    async fn a_handler_that_drops_a_demotion_refuses_it() {
        let (pending, peer) = (Arc::new(PendingDemotions::default()), SocketAddr::from(([127, 0, 0, 1], 1)));
        let demotions = Demotions::new(pending.clone(), Arc::default());
        let outcome = tokio::join!(demotions.demote(topic("a"), peer), async { pending.0.lock().clear() });
        assert_eq!(outcome.0, Demoted::Refused);
    }
}
