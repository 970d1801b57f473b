//! The memory that the answer to a request takes, as verbs ask for it before they make the answer.
//!
//! The request's share travels with the task that answers, so that no verb passes it on. Outside of [`scope`] there
//! is room for everything.

use std::sync::Arc;

use crate::connections::budget::Share;

tokio::task_local! {
    static ROOM: Arc<Share>;
}

/// A read that leases messages begins with at least this much room: it is little enough for the part of the budget
/// that is kept for small requests.
const LEAST: usize = 32 << 10;
/// What a message takes in an answer beside its record.
pub(crate) const OF_MESSAGE: usize = 256;

/// Runs a request's answer so that what it asks for here is taken from `share`.
pub(crate) fn scope<F: Future>(share: Arc<Share>, answering: F) -> impl Future<Output = F::Output> {
    ROOM.scope(share, answering)
}

fn share() -> Option<Arc<Share>> {
    ROOM.try_with(Arc::clone).ok()
}

/// Takes room for `bytes` of an answer as soon as there is some.
pub(crate) async fn take(bytes: usize) {
    if let Some(share) = share() {
        share.wait(bytes).await;
    }
}

/// Takes room for `bytes` if there is some now, and returns whether it did.
pub(crate) fn try_take(bytes: usize) -> bool {
    share().is_none_or(|share| share.take(bytes).is_ok())
}

/// Takes room for up to `most` bytes of an answer, and for at least one small message. Returns how much.
pub(crate) async fn take_some(most: usize) -> usize {
    match share() {
        Some(share) => share.take_some(LEAST, most).await,
        None => most,
    }
}

/// Has room for `used` bytes where `taken` were taken before: gives the rest back, or waits for more.
pub(crate) async fn settle(taken: usize, used: usize) {
    if let Some(share) = share() {
        if used > taken {
            share.wait(used - taken).await;
        } else {
            share.give_back(taken - used);
        }
    }
}
