//! The memory of a request's answer; verbs take it before they make the answer.
//!
//! The request's share travels with the task that answers, so that no verb passes it on. Outside of [`scope`], memory
//! is not limited.

use std::sync::Arc;

use crate::connections::budget::Share;

tokio::task_local! {
    static SHARE: Arc<Share>;
}

/// A read that leases messages begins with at least this much memory: little enough for the part of the budget that is
/// reserved for small requests.
const MIN_LEASED_BYTES: usize = 32 << 10;
/// Memory of a message in an answer, beside its record.
pub(crate) const MESSAGE_OVERHEAD: usize = 256;

/// Runs a request's answer, which takes its memory from `share`.
pub(crate) fn scope<F: Future>(share: Arc<Share>, answering: F) -> impl Future<Output = F::Output> {
    SHARE.scope(share, answering)
}

/// The share of the answer that is being made.
pub(crate) fn share() -> Option<Arc<Share>> {
    SHARE.try_with(Arc::clone).ok()
}

/// Takes `bytes` for an answer, as soon as they are available.
pub(crate) async fn take(bytes: usize) {
    if let Some(share) = share() {
        share.wait(bytes).await;
    }
}

/// Takes `bytes` if they are available now, and returns whether it did.
pub(crate) fn try_take(bytes: usize) -> bool {
    share().is_none_or(|share| share.take(bytes).is_ok())
}

/// Takes up to `most` bytes for an answer, and at least enough for one small message. Returns how many.
pub(crate) async fn take_some(most: usize) -> usize {
    match share() {
        Some(share) => share.take_some(MIN_LEASED_BYTES, most).await,
        None => most,
    }
}

/// Changes what an answer takes from `taken` to `used` bytes: returns the rest, or waits for more.
pub(crate) async fn settle(taken: usize, used: usize) {
    if let Some(share) = share() {
        if used > taken {
            share.wait(used - taken).await;
        } else {
            share.give_back(taken - used);
        }
    }
}
