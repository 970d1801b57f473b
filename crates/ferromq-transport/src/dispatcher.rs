//! Which verbs are hot, and where a request goes: hot, cold, or unsupported.
//!
//! The list is the wall between the data path and the control plane: a registry asks [`ensure_cold`] before
//! it takes a handler, so no hot verb can be answered by the control plane by mistake.

use crate::{ColdHandler, Route, TransportError, remoting::codes::request};

/// Request codes whose rate grows with the message rate.
pub const HOT_CODES: [i32; 14] = [
    request::SEND_MESSAGE,
    request::SEND_MESSAGE_V2,
    request::SEND_BATCH_MESSAGE,
    request::CONSUMER_SEND_MSG_BACK,
    request::PULL_MESSAGE,
    request::LITE_PULL_MESSAGE,
    request::POP_MESSAGE,
    request::ACK_MESSAGE,
    request::BATCH_ACK_MESSAGE,
    request::CHANGE_MESSAGE_INVISIBLETIME,
    request::PEEK_MESSAGE,
    request::NOTIFICATION,
    request::POLLING_INFO,
    request::UPDATE_CONSUMER_OFFSET,
];

/// gRPC methods whose rate grows with the message rate.
pub const HOT_RPCS: [&str; 7] = [
    "SendMessage",
    "ReceiveMessage",
    "PullMessage",
    "AckMessage",
    "ChangeInvisibleDuration",
    "UpdateOffset",
    "ForwardMessageToDeadLetterQueue",
];

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Answered in this crate.
    Hot,
    /// Handed to the control plane.
    Cold,
    /// Nobody answers it.
    Unsupported,
}

/// Says whether a verb belongs to the hot path.
#[must_use]
pub fn is_hot(route: &Route) -> bool {
    match route {
        Route::Code(code) => HOT_CODES.contains(code),
        Route::Rpc(name) => HOT_RPCS.contains(&name.as_str()),
    }
}

/// Refuses a route the control plane may not answer.
///
/// # Errors
/// `HotRoute` for a hot verb.
pub fn ensure_cold(route: &Route) -> Result<(), TransportError> {
    if is_hot(route) { Err(TransportError::HotRoute(route.clone())) } else { Ok(()) }
}

/// Finds the path of a request.
pub fn find(route: &Route, cold: &dyn ColdHandler) -> Path {
    if is_hot(route) {
        Path::Hot
    } else if cold.serves(route) {
        Path::Cold
    } else {
        Path::Unsupported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_verbs_are_refused_and_cold_ones_are_taken() {
        for code in
            [10, 310, 320, 36, 11, 361, 200_050, 200_051, 200_151, 200_053, 200_052, 200_054, 200_055, 15]
        {
            assert!(matches!(ensure_cold(&Route::Code(code)), Err(TransportError::HotRoute(_))), "{code}");
        }
        for name in HOT_RPCS {
            assert!(ensure_cold(&Route::Rpc(name.into())).is_err(), "{name}");
        }
        for code in [12, 17, 34, 103, 105, 200_056] {
            assert!(ensure_cold(&Route::Code(code)).is_ok(), "{code}");
        }
        for name in ["QueryRoute", "Heartbeat", "EndTransaction", "Telemetry"] {
            assert!(ensure_cold(&Route::Rpc(name.into())).is_ok(), "{name}");
        }
    }
}
