//! The handle by which a producer recalls a delayed message, in RocketMQ's form (version 1).

use base64::{Engine, engine::general_purpose::URL_SAFE};

/// Returns the handle of a message: `v1 topic broker time key` in URL-safe base 64, with padding.
///
/// It names the message by topic and unique key; the time says where to look, and until when it can be recalled.
#[must_use]
pub fn handle(topic: &str, broker_name: &str, deliver_at_ms: i64, unique_key: &str) -> String {
    URL_SAFE.encode(format!("v1 {topic} {broker_name} {deliver_at_ms} {unique_key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_equals_rocketmqs() {
        // RecallMessageHandle.HandleV1.buildHandle("orders", "broker-a", "1700000005300", "7F00")
        assert_eq!(
            handle("orders", "broker-a", 1_700_000_005_300, "7F00"),
            "djEgb3JkZXJzIGJyb2tlci1hIDE3MDAwMDAwMDUzMDAgN0YwMA=="
        );
    }
}
