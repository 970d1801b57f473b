//! Tells hot verbs from cold ones.
//!
//! A registry of cold handlers calls [`ensure_cold`] before it adds one, so that the control plane cannot answer a hot
//! verb by mistake.

use crate::{TransportError, Verb, grpc::hot_method::HotMethod, remoting::verbs};

/// Returns whether a verb belongs to the hot path.
#[must_use]
pub fn is_hot(verb: &Verb) -> bool {
    match verb {
        Verb::Code(code) => verbs::find(*code).is_some(),
        Verb::Rpc(name) => HotMethod::named(name).is_some(),
    }
}

/// Rejects a verb that the control plane must not answer.
///
/// # Errors
/// `HotVerb` for a hot verb.
pub fn ensure_cold(verb: &Verb) -> Result<(), TransportError> {
    if is_hot(verb) { Err(TransportError::HotVerb(verb.clone())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_verbs_are_rejected_and_cold_ones_are_accepted() {
        for code in
            [10, 310, 320, 36, 11, 361, 200_050, 200_051, 200_151, 200_053, 200_052, 200_054, 200_055, 15]
        {
            assert!(matches!(ensure_cold(&Verb::Code(code)), Err(TransportError::HotVerb(_))), "{code}");
        }
        for name in [
            "SendMessage",
            "ReceiveMessage",
            "PullMessage",
            "AckMessage",
            "ChangeInvisibleDuration",
            "UpdateOffset",
            "ForwardMessageToDeadLetterQueue",
        ] {
            assert!(ensure_cold(&Verb::Rpc(name.into())).is_err(), "{name}");
        }
        for code in [12, 17, 34, 103, 105, 200_056] {
            assert!(ensure_cold(&Verb::Code(code)).is_ok(), "{code}");
        }
        for name in ["QueryRoute", "Heartbeat", "EndTransaction", "Telemetry"] {
            assert!(ensure_cold(&Verb::Rpc(name.into())).is_ok(), "{name}");
        }
    }
}
