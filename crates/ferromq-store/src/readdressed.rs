//! Records as clients are to see them where they do not lie where they seem to.

use crate::{
    MessageView,
    message::{MAGIC_V1, MAGIC_V2},
    properties,
};

/// Longest topic of a record whose topic length takes one byte.
const MAX_SHORT: usize = 127;

/// The record as one of another topic, with one more property. It lies in no log, so it has no checksum of properties.
///
/// `record` are the bytes `view` was decoded from.
#[must_use]
pub fn readdressed(record: &[u8], view: &MessageView<'_>, topic: &str, property: (&str, &str)) -> Vec<u8> {
    let properties = properties::replace(view.properties, &["__CRC32#"], &[property]);
    let was_wide = record.get(4..8) == Some(&MAGIC_V2.to_be_bytes());
    let tail = usize::from(was_wide) + 1 + view.topic.len() + 2 + view.properties.len();
    let head = record.get(8..(view.total_size as usize).saturating_sub(tail)).unwrap_or_default();
    let is_wide = topic.len() > MAX_SHORT;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, MessageFilter, MessageStore, NewMessage, StoreConfig};

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
            let appended = store.append(&[message]).unwrap();
            let record = store.message_at(appended.locations[0].physical_offset).unwrap();
            let view = MessageView::decode(record.bytes(), true).unwrap();
            let made = readdressed(record.bytes(), &view, to, ("POP_CK", "1 2"));
            let seen = MessageView::decode(&made, true).unwrap();
            assert_eq!((seen.topic, seen.properties), (to, &b"KEYS\x01k\x02POP_CK\x011 2\x02"[..]));
            assert_eq!((seen.body, seen.flag, seen.reconsume_times), (view.body, 7, 2));
            assert_eq!((seen.physical_offset, seen.born_host), (view.physical_offset, view.born_host));
        }
        assert!(store.get("t", 0, 0, 1, 1, &MessageFilter::All).max_offset <= 2);
    }
}
