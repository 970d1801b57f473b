//! Ends polls from another thread.

use std::sync::{Arc, Mutex, Weak};

use crate::{connection::Connection, sync};

/// Ends the polls that were made with it, those under way and later ones.
#[derive(Default)]
pub struct Cancellation(Mutex<State>);

#[derive(Default)]
struct State {
    is_set: bool,
    /// The connection of the last poll.
    connection: Weak<Connection>,
}

impl Cancellation {
    /// Has the server answer the polls under way at once; later polls are not sent.
    pub fn set(&self) {
        let connection = {
            let mut state = sync::lock(&self.0);
            state.is_set = true;
            state.connection.upgrade()
        };
        if let Some(connection) = connection {
            connection.release();
        }
    }

    /// Notes the connection of a poll that begins. Returns false if polls are not sent any more.
    pub(crate) fn begin(&self, connection: &Arc<Connection>) -> bool {
        let mut state = sync::lock(&self.0);
        state.connection = Arc::downgrade(connection);
        !state.is_set
    }
}

impl std::fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cancellation").field("is_set", &sync::lock(&self.0).is_set).finish_non_exhaustive()
    }
}
