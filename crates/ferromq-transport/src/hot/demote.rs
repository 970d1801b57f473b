//! The one bridge from the hot path to the control plane: an unknown name is looked at once.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use super::Counters;
use crate::{ColdHandler, Missing};

/// One flight a name: whoever asks for the same name meanwhile waits for the same answer.
pub(crate) struct Demotions {
    cold: Arc<dyn ColdHandler>,
    counters: Arc<Counters>,
    in_flight: Arc<Mutex<HashMap<Missing, watch::Receiver<Option<bool>>>>>,
}

impl Demotions {
    pub(crate) fn new(cold: Arc<dyn ColdHandler>, counters: Arc<Counters>) -> Self {
        Self { cold, counters, in_flight: Arc::default() }
    }

    /// Lets the control plane create `missing` where allowed; says whether to look again.
    pub(crate) async fn demote(&self, missing: Missing, peer: SocketAddr) -> bool {
        let mut answer = self.join(missing, peer);
        let outcome = answer.wait_for(Option::is_some).await;
        outcome.is_ok_and(|created| *created == Some(true))
    }

    fn join(&self, missing: Missing, peer: SocketAddr) -> watch::Receiver<Option<bool>> {
        let mut in_flight = self.in_flight.lock();
        if let Some(answer) = in_flight.get(&missing) {
            return answer.clone();
        }
        let (tell, answer) = watch::channel(None);
        in_flight.insert(missing.clone(), answer.clone());
        drop(in_flight);
        self.counters.demoted.add(1);
        let (done, created) = oneshot::channel();
        self.cold.demote(missing.clone(), peer, done);
        let flights = Arc::clone(&self.in_flight);
        // Its own task: the flight lands even when the request that began it was cancelled.
        tokio::spawn(async move {
            let created = created.await.unwrap_or(false);
            flights.lock().remove(&missing);
            tell.send_replace(Some(created));
        });
        answer
    }
}
