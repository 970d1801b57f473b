//! The body of request 200151: for each queue of a pop, a bit set of offsets relative to the first one.
//!
//! Java writes `{"brokerName":…,"acks":[{"c":group,"t":topic,"r":mark,"so":start,"q":queue,"rq":revive
//! queue,"pt":pop time,"it":invisible ms,"b":bits}]}`; the bits are base64 of a little-endian bit set.

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use ferromq_store::progress::ReceiptHandle;
use serde_json::Value;

use super::extra_info::marked_topic;

/// Padding is optional: some clients omit it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);
/// Largest body in bytes, many times what a client acknowledges at once.
const MAX_BODY: usize = 1 << 20;
/// Most messages of one request, which bounds its duration.
pub(super) const MAX_ACKS: usize = 1 << 16;

/// Messages of one queue that were popped together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BatchAck {
    pub group: String,
    pub topic: String,
    pub handles: Vec<ReceiptHandle>,
}

/// Parses a body. The error is the remark of the response.
pub(super) fn parse(body: &[u8]) -> Result<Vec<BatchAck>, &'static str> {
    if body.len() > MAX_BODY {
        return Err("the body is larger than 1 MiB; acknowledge in several requests");
    }
    let body: Value = serde_json::from_slice(body).map_err(|_| "the body is not JSON")?;
    let entries = match body.get("acks") {
        Some(Value::Array(entries)) => entries.as_slice(),
        None | Some(Value::Null) => &[],
        Some(_) => return Err("acks is not an array"),
    };
    let (mut left, mut acks) = (MAX_ACKS, Vec::with_capacity(entries.len()));
    for entry in entries {
        acks.push(ack(entry, &mut left)?);
    }
    Ok(acks)
}

fn ack(entry: &Value, left: &mut usize) -> Result<BatchAck, &'static str> {
    let get = |short: &str, long: &str| entry.get(short).or_else(|| entry.get(long));
    let text = |short, long| get(short, long).and_then(Value::as_str);
    let number = |short, long| get(short, long).and_then(Value::as_i64);
    let group = text("c", "consumerGroup").ok_or("an ack names no consumer group (c)")?;
    let topic = text("t", "topic").ok_or("an ack names no topic (t)")?;
    let mark = text("r", "retry").unwrap_or("0");
    let topic =
        marked_topic(topic, group, mark).ok_or("an ack's kind of topic (r) is not 0, 1 or 2")?.into_owned();
    let start = number("so", "startOffset").and_then(|start| u64::try_from(start).ok());
    let start = start.ok_or("an ack has no start offset (so)")?;
    let queue_id = number("q", "queueId").and_then(|queue| u32::try_from(queue).ok());
    let queue_id = queue_id.ok_or("an ack names no queue (q)")?;
    let pop_time = number("pt", "popTime").ok_or("an ack has no pop time (pt)")?;
    let invisible_ms = number("it", "invisibleTime").unwrap_or(0);
    let bits = bits(get("b", "bitSet").ok_or("an ack has no bit set (b)")?)?;
    let mut handles = Vec::new();
    for (index, byte) in bits.iter().enumerate() {
        for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
            *left = left.checked_sub(1).ok_or("more than 65536 messages; acknowledge in several requests")?;
            let queue_offset = start.saturating_add(index as u64 * 8 + bit);
            handles.push(ReceiptHandle { queue_id, queue_offset, pop_time, invisible_ms });
        }
    }
    Ok(BatchAck { group: group.to_owned(), topic, handles })
}

/// Reads a bit set in base64, or as an array of signed bytes, as other serializers write it.
fn bits(value: &Value) -> Result<Vec<u8>, &'static str> {
    match value {
        Value::String(text) => BASE64.decode(text).map_err(|_| "a bit set (b) is not base64"),
        Value::Array(bytes) => {
            let byte = |value: &Value| value.as_i64().filter(|byte| (-128..256).contains(byte));
            let bytes = bytes.iter().map(|value| byte(value).map(|byte| (byte & 0xFF) as u8));
            bytes.collect::<Option<_>>().ok_or("a bit set (b) has an element that is not a byte")
        }
        _ => Err("a bit set (b) is neither base64 nor an array"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(bits: &str) -> String {
        format!(
            r#"{{"brokerName":"broker-a","acks":[{{"b":{bits},"c":"g","it":60000,"pt":1700,"q":3,"r":"0","rq":2,"so":5,"t":"t"}}]}}"#
        )
    }

    fn offsets(body: &str) -> Vec<u64> {
        let acks = parse(body.as_bytes()).unwrap();
        acks.iter().flat_map(|ack| ack.handles.iter().map(|handle| handle.queue_offset)).collect()
    }

    #[test]
    fn a_body_java_wrote_is_read() {
        // Bits 0, 2 and 9.
        let acks = parse(body("\"BQI=\"").as_bytes()).unwrap();
        assert_eq!((&acks[0].group[..], &acks[0].topic[..]), ("g", "t"));
        let first = ReceiptHandle { queue_id: 3, queue_offset: 5, pop_time: 1_700, invisible_ms: 60_000 };
        assert_eq!(acks[0].handles[0], first);
        assert_eq!(offsets(&body("\"BQI=\"")), [5, 7, 14]);
        assert_eq!(offsets(&body("[5,2]")), [5, 7, 14]);
        assert_eq!(offsets(&body("[-128]")), [12]);
        let long = r#"{"acks":[{"bitSet":"AQ==","consumerGroup":"g","topic":"t","retry":"1","startOffset":1,"queueId":0,"popTime":1}]}"#;
        assert_eq!(parse(long.as_bytes()).unwrap()[0].topic, "%RETRY%g_t");
        assert_eq!(parse(br#"{"acks":null}"#).unwrap(), []);
    }

    #[test]
    fn an_invalid_body_is_refused() {
        for (bad, why) in [
            ("[", "JSON"),
            (r#"{"acks":1}"#, "array"),
            (r#"{"acks":[{"c":"g"}]}"#, "topic"),
            (&body("\"!\""), "base64"),
            (&body("[256]"), "byte"),
            (&body("1"), "neither"),
            (&body("\"AQ==\"").replace("\"so\":5", "\"so\":-5"), "start"),
            (&body(&format!("\"{}\"", "/".repeat(100_000))), "65536"),
            (&" ".repeat(MAX_BODY + 1), "1 MiB"),
        ] {
            assert!(parse(bad.as_bytes()).unwrap_err().contains(why), "{why}");
        }
    }

    proptest! {
        #[test]
        fn the_bits_of_a_set_are_its_offsets(set in prop::collection::btree_set(0..4_000u64, 0..100)) {
            let mut bytes = vec![0u8; 500];
            set.iter().for_each(|bit| bytes[*bit as usize / 8] |= 1 << (bit % 8));
            let array = format!("{bytes:?}");
            let expected: Vec<u64> = set.into_iter().map(|bit| bit + 5).collect();
            prop_assert_eq!(offsets(&body(&array)), expected);
        }

        #[test]
        fn any_bytes_are_acks_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[\\[\\]{}a-z0-9:\",=]{0,80}") {
            let _ = parse(&bytes);
            let _ = parse(text.as_bytes());
            let _ = parse(body(&format!("{text:?}")).as_bytes());
        }
    }
}
