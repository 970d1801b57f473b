//! Tells the requests of a connection that wait for messages that no more requests will come from it.
//!
//! A peer that closed, or closed its half, or a server that drains: whoever waits for messages answers at
//! once with what there is. The signal travels with the task that answers, so that no verb passes it on.

use tokio::sync::watch;

tokio::task_local! {
    static LEAVING: Leaving;
}

/// Whether a connection's reading half has ended.
#[derive(Clone)]
pub(crate) struct Leaving(watch::Receiver<bool>);

/// The connection's end of the signal; dropping it says the same as telling.
pub(crate) struct TellLeaving(watch::Sender<bool>);

/// Makes both ends.
pub(crate) fn leaving() -> (TellLeaving, Leaving) {
    let (tell, told) = watch::channel(false);
    (TellLeaving(tell), Leaving(told))
}

impl TellLeaving {
    pub(crate) fn tell(&self) {
        self.0.send_replace(true);
    }
}

impl Leaving {
    /// Runs a request's answer so that [`told`] works in it.
    pub(crate) fn scope<F: Future>(self, answering: F) -> impl Future<Output = F::Output> {
        LEAVING.scope(self, answering)
    }
}

/// Resolves once the connection of the request that is being answered takes no more requests; never outside
/// of [`Leaving::scope`].
pub(crate) async fn told() {
    match LEAVING.try_with(|leaving| leaving.0.clone()) {
        // An error is a dropped sender: the connection is gone.
        Ok(mut leaving) => _ = leaving.wait_for(|leaving| *leaving).await,
        Err(_) => std::future::pending().await,
    }
}

/// Says whether [`told`] has resolved.
pub(crate) fn is_told() -> bool {
    LEAVING.try_with(|leaving| *leaving.0.borrow() || leaving.0.has_changed().is_err()).unwrap_or(false)
}
