//! Ends polls from another thread.

use std::sync::{Mutex, Weak};

use crate::{Release, sync};

/// Ends the polls that were made with it, those under way and later ones.
#[derive(Default)]
pub struct Cancellation(Mutex<State>);

#[derive(Default)]
struct State {
    is_set: bool,
    /// Where the last poll waits.
    place: Option<Weak<dyn Release + Send + Sync>>,
}

impl Cancellation {
    /// Has the server answer the polls under way at once; later polls are not sent.
    pub fn set(&self) {
        let place = {
            let mut state = sync::lock(&self.0);
            state.is_set = true;
            state.place.as_ref().and_then(Weak::upgrade)
        };
        if let Some(place) = place {
            place.release();
        }
    }

    /// Whether it was set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        sync::lock(&self.0).is_set
    }

    /// Notes where a poll that begins waits. Returns false if polls are not sent any more.
    pub(crate) fn begin(&self, place: Weak<dyn Release + Send + Sync>) -> bool {
        let mut state = sync::lock(&self.0);
        state.place = Some(place);
        !state.is_set
    }
}

impl std::fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cancellation").field("is_set", &sync::lock(&self.0).is_set).finish_non_exhaustive()
    }
}
