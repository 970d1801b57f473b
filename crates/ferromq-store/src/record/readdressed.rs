//! Rewrites a retry-topic record under the topic that the client asked for.

use crate::record::{
    message::{MAGIC_V1, MAGIC_V2, MAX_PROPERTIES_LEN, MAX_V1_TOPIC_LEN, MessageView},
    properties,
};

/// The record under another topic, with one more property and without a property CRC.
///
/// If there is no room, the longest other properties are dropped: without the added one, consumers could not
/// acknowledge the message. `view` is the decoded `record`.
#[must_use]
pub fn readdressed(record: &[u8], view: &MessageView<'_>, topic: &str, property: (&str, &str)) -> Vec<u8> {
    let mut properties = properties::replace(view.properties, &["__CRC32#"], &[property]);
    while properties.len() > MAX_PROPERTIES_LEN && drop_longest(&mut properties, property.0) {}
    let was_wide = record.get(4..8) == Some(&MAGIC_V2.to_be_bytes());
    let tail = usize::from(was_wide) + 1 + view.topic.len() + 2 + view.properties.len();
    let head = record.get(8..(view.total_size as usize).saturating_sub(tail)).unwrap_or_default();
    let is_wide = topic.len() > MAX_V1_TOPIC_LEN;
    let size = 8 + head.len() + usize::from(is_wide) + 1 + topic.len() + 2 + properties.len();
    let mut out = Vec::with_capacity(size);
    out.extend_from_slice(&(size as u32).to_be_bytes());
    out.extend_from_slice(&if is_wide { MAGIC_V2 } else { MAGIC_V1 }.to_be_bytes());
    out.extend_from_slice(head);
    if is_wide {
        out.push((topic.len() >> 8) as u8);
    }
    out.push(topic.len() as u8);
    out.extend_from_slice(topic.as_bytes());
    out.extend_from_slice(&(properties.len() as u16).to_be_bytes());
    out.extend_from_slice(&properties);
    out
}

/// Drops the longest property that is not `kept`; returns whether there was one.
fn drop_longest(properties: &mut Vec<u8>, kept: &str) -> bool {
    let others = properties::iter_bytes(properties).filter(|(name, _)| *name != kept.as_bytes());
    let Some((longest, _)) = others.max_by_key(|(name, value)| name.len() + value.len()) else {
        return false;
    };
    let longest = longest.to_vec();
    tracing::warn!(property = %String::from_utf8_lossy(&longest), "no room for the receipt handle: dropping a property");
    *properties = properties::iter_bytes(properties)
        .filter(|(name, _)| *name != longest)
        .flat_map(|(name, value)| [name, b"\x01", value, b"\x02"].concat())
        .collect();
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::StoreConfig, filter::message_filter::MessageFilter, record::encode::NewMessage,
        store::message_store::MessageStore, time::clock::Clock,
    };

    #[test]
    fn a_readdressed_record_differs_in_its_topic_and_the_property_alone() {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig { disk_reserve: 0, ..StoreConfig::default() };
        let store = MessageStore::open(directory.path(), config, Clock::manual(1_000)).unwrap();
        for (from, to) in
            [("%RETRY%g_t", "t"), ("t", "w"), (&"x".repeat(200)[..], "t"), ("t", &"y".repeat(200))]
        {
            let message = NewMessage {
                topic: from,
                queue_id: 0,
                flag: 7,
                sys_flag: 0,
                born_timestamp: 3,
                born_host: "[::1]:9".parse().unwrap(),
                reconsume_times: 2,
                prepared_transaction_offset: 0,
                body: b"body",
                properties: b"KEYS\x01k\x02",
            };
            let appended = store.log().append(&[message]).unwrap();
            let record = store.queues().message_at(appended.locations[0].physical_offset).unwrap();
            let view = MessageView::decode(record.bytes(), true).unwrap();
            let made = readdressed(record.bytes(), &view, to, ("POP_CK", "1 2"));
            let seen = MessageView::decode(&made, true).unwrap();
            assert_eq!((seen.topic, seen.properties), (to, &b"KEYS\x01k\x02POP_CK\x011 2\x02"[..]));
            assert_eq!((seen.body, seen.flag, seen.reconsume_times), (view.body, 7, 2));
            assert_eq!((seen.physical_offset, seen.born_host), (view.physical_offset, view.born_host));
        }
        assert!(store.queues().get("t", 0, 0, 1, 1, &MessageFilter::All).max_offset <= 2);
    }

    #[test]
    fn a_record_without_room_for_the_property_loses_its_longest_one_and_is_read_as_before() {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig { disk_reserve: 0, ..StoreConfig::default() };
        let store = MessageStore::open(directory.path(), config, Clock::manual(1_000)).unwrap();
        let long = format!("a\u{1}1\u{2}long\u{1}{}\u{2}b\u{1}2\u{2}", "x".repeat(32_700));
        let message = NewMessage {
            topic: "%RETRY%g_t",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 3,
            born_host: "127.0.0.1:9".parse().unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"body",
            properties: long.as_bytes(),
        };
        let appended = store.log().append(&[message]).unwrap();
        let record = store.queues().message_at(appended.locations[0].physical_offset).unwrap();
        let view = MessageView::decode(record.bytes(), true).unwrap();
        let handle = "1 ".repeat(60);
        let made = readdressed(record.bytes(), &view, "t", ("POP_CK", &handle));
        let seen = MessageView::decode(&made, true).unwrap();
        let expected = format!("a\u{1}1\u{2}b\u{1}2\u{2}POP_CK\u{1}{handle}\u{2}");
        assert_eq!((seen.topic, seen.body, seen.properties), ("t", &b"body"[..], expected.as_bytes()));
    }
}
