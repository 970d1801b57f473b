//! The handle by which a producer takes back a message that waits for its time, in RocketMQ's form (version 1).

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The handle of a message: `v1 topic broker time key` in base 64 for URLs, with padding.
///
/// It names the message by topic and unique key; the time says where to look, and until when it can be taken back.
#[must_use]
pub fn handle(topic: &str, broker_name: &str, deliver_at_ms: i64, unique_key: &str) -> String {
    encode(format!("v1 {topic} {broker_name} {deliver_at_ms} {unique_key}").as_bytes())
}

fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |place: usize| u32::from(chunk.get(place).copied().unwrap_or(0));
        let group = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let digit = DIGITS.get((group >> (18 - 6 * place) & 63) as usize).copied().unwrap_or(b'A');
            out.push(if place > chunk.len() { '=' } else { char::from(digit) });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_what_rocketmq_makes_of_it() {
        // RecallMessageHandle.HandleV1.buildHandle("orders", "broker-a", "1700000005300", "7F00")
        assert_eq!(
            handle("orders", "broker-a", 1_700_000_005_300, "7F00"),
            "djEgb3JkZXJzIGJyb2tlci1hIDE3MDAwMDAwMDUzMDAgN0YwMA=="
        );
        assert_eq!(encode(b"\xfb\xff?"), "-_8_");
        assert_eq!((encode(b"ab").as_str(), encode(b"").as_str()), ("YWI=", ""));
    }
}
