//! Decodes columns the slow way and compares them with the records.

use std::{io::Write, net::SocketAddr};

use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use proptest::{collection::vec, option, prelude::*};

use super::*;
use ferromq_store::{
    formats::{encode, message},
    record::{NewMessage, properties},
};

const NOW: i64 = 1_700_000_000_123;

#[derive(Debug, Clone)]
struct Sent {
    topic: String,
    queue_id: i32,
    queue_offset: u64,
    tag: Option<String>,
    keys: Vec<String>,
    id: Option<String>,
    user: Vec<(String, String)>,
    body: Vec<u8>,
    sys_flag: i32,
    born: i64,
    host: SocketAddr,
}

fn sent(queue_offset: u64, body: &[u8]) -> Sent {
    Sent {
        topic: "flights".into(),
        queue_id: 3,
        queue_offset,
        tag: None,
        keys: vec![],
        id: None,
        user: vec![],
        body: body.to_vec(),
        sys_flag: 0,
        born: NOW - 5,
        host: "10.1.2.3:4567".parse().unwrap(),
    }
}

/// The record, as the log holds it at physical offset 1000 + queue offset.
fn record(sent: &Sent) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in &sent.user {
        properties::push(&mut text, name, value);
    }
    properties::push(&mut text, "KEYS", &sent.keys.join(" "));
    properties::push(&mut text, "WAIT", "true");
    properties::push(&mut text, ferromq_store::dedup::SEQUENCE, "w/1/2/3");
    for (name, value) in [("TAGS", &sent.tag), ("UNIQ_KEY", &sent.id)] {
        value.iter().for_each(|value| properties::push(&mut text, name, value));
    }
    let message = NewMessage {
        topic: &sent.topic,
        queue_id: sent.queue_id,
        flag: 0,
        sys_flag: sent.sys_flag,
        born_timestamp: sent.born,
        born_host: sent.host,
        reconsume_times: 2,
        prepared_transaction_offset: 0,
        body: &sent.body,
        properties: &text,
    };
    let mut out = Vec::new();
    let encoded = encode::encode(&message, "127.0.0.1:10911".parse().unwrap(), false, &mut out);
    encode::patch(&mut out, message::QUEUE_OFFSET_AT, sent.queue_offset.to_be_bytes());
    encode::patch(&mut out, message::PHYSICAL_OFFSET_AT, (1000 + sent.queue_offset).to_be_bytes());
    encode::patch(&mut out, message::store_timestamp_at(encoded.sys_flag), NOW.to_be_bytes());
    [&out[..encoded.tail_at], &sent.body, &out[encoded.tail_at..]].concat()
}

fn all(parts: &[Vec<u8>]) -> Result<RowBatch, ColumnsError> {
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    record_columns(&parts, ColumnSet::ALL, &RowFilter::default(), None)
}

fn filtered(messages: &[Sent], filter: &RowFilter) -> Vec<i64> {
    let records: Vec<_> = messages.iter().map(record).collect();
    let wanted = ColumnSet::parse(["queue_offset"]).unwrap();
    let batch = record_columns(&[&records.concat()], wanted, filter, None).unwrap();
    assert_eq!(batch.read, messages.len());
    assert_eq!(batch.columns.len(), 1);
    longs(&batch, "queue_offset")
}

fn column<'a>(batch: &'a RowBatch, name: &str) -> &'a Buffers {
    &batch.columns.iter().find(|(column, _)| *column == name).unwrap().1
}

fn chunks<const N: usize>(bytes: &[u8]) -> Vec<[u8; N]> {
    assert_eq!(bytes.len() % N, 0);
    bytes.chunks_exact(N).map(|chunk| chunk.try_into().unwrap()).collect()
}

fn groups<T: Clone>(offsets: &[u8], items: &[T]) -> Vec<Vec<T>> {
    let ends: Vec<usize> =
        chunks::<4>(offsets).into_iter().map(|end| i32::from_le_bytes(end) as usize).collect();
    assert_eq!((ends[0], *ends.last().unwrap()), (0, items.len()));
    ends.windows(2).map(|pair| items[pair[0]..pair[1]].to_vec()).collect()
}

fn strings(offsets: &[u8], data: &[u8]) -> Vec<String> {
    groups(offsets, data).into_iter().map(|item| String::from_utf8(item).unwrap()).collect()
}

fn texts(batch: &RowBatch, name: &str) -> Vec<Option<String>> {
    let Buffers { null_count, validity, data } = column(batch, name);
    let is_valid = |row: usize| validity.as_ref().is_none_or(|bits| bits[row / 8] >> (row % 8) & 1 == 1);
    let rows = strings(&data[0], &data[1]).into_iter().enumerate();
    let rows: Vec<_> = rows.map(|(row, text)| is_valid(row).then_some(text)).collect();
    assert_eq!(rows.iter().filter(|row| row.is_none()).count(), *null_count);
    rows
}

fn longs(batch: &RowBatch, name: &str) -> Vec<i64> {
    chunks(&column(batch, name).data[0]).into_iter().map(i64::from_le_bytes).collect()
}

fn ints(batch: &RowBatch, name: &str) -> Vec<i32> {
    chunks(&column(batch, name).data[0]).into_iter().map(i32::from_le_bytes).collect()
}

fn bodies(batch: &RowBatch) -> Vec<Vec<u8>> {
    let body = column(batch, "body");
    groups(&body.data[0], &body.data[1])
}

fn check(batch: &RowBatch, messages: &[Sent]) {
    macro_rules! expect {
        ($read:ident, $name:literal, $value:expr) => {
            assert_eq!($read(batch, $name), messages.iter().map($value).collect::<Vec<_>>(), $name);
        };
    }
    assert_eq!((batch.rows, batch.read), (messages.len(), messages.len()));
    assert_eq!(batch.columns.iter().map(|(name, _)| *name).collect::<Vec<_>>(), COLUMN_NAMES);
    expect!(texts, "topic", |sent| Some(sent.topic.clone()));
    expect!(ints, "queue_id", |sent| sent.queue_id);
    expect!(longs, "queue_offset", |sent| sent.queue_offset as i64);
    expect!(longs, "physical_offset", |sent| 1000 + sent.queue_offset as i64);
    expect!(texts, "message_id", |sent| Some(
        sent.id.clone().unwrap_or_else(|| format!("7F00000100002A9F{:016X}", 1000 + sent.queue_offset))
    ));
    expect!(texts, "tag", |sent| sent.tag.clone());
    assert_eq!(bodies(batch), messages.iter().map(|sent| sent.body.clone()).collect::<Vec<_>>());
    expect!(longs, "born_timestamp", |_| (NOW - 5) * 1000);
    expect!(longs, "store_timestamp", |_| NOW * 1000);
    expect!(texts, "born_host", |sent| Some(sent.host.ip().to_string()));
    expect!(texts, "store_host", |_| Some("127.0.0.1:10911".to_owned()));
    expect!(ints, "reconsume_times", |_| 2);
    let v6 = |sent: &Sent| if sent.host.is_ipv6() { 16 } else { 0 };
    expect!(ints, "sys_flag", |sent| sent.sys_flag | v6(sent));

    let keys = column(batch, "keys");
    let items = strings(&keys.data[1], &keys.data[2]);
    let expected: Vec<_> = messages.iter().map(|sent| sent.keys.clone()).collect();
    assert_eq!(groups(&keys.data[0], &items), expected);

    let map = column(batch, "properties");
    let (names, values) = (strings(&map.data[1], &map.data[2]), strings(&map.data[3], &map.data[4]));
    let entries: Vec<(String, String)> = names.into_iter().zip(values).collect();
    let expected: Vec<Vec<(String, String)>> = messages
        .iter()
        .map(|sent| sent.user.iter().cloned().collect::<std::collections::BTreeMap<_, _>>())
        .map(|user| user.into_iter().collect())
        .collect();
    assert_eq!(groups(&map.data[0], &entries), expected);
}

fn messages() -> impl Strategy<Value = Vec<Sent>> {
    let texts = (option::of("[a-zé]{1,6}"), vec("[a-z]{1,5}", 0..4), option::of("[A-F0-9]{1,32}"));
    let places = ("[a-z%é]{1,130}", any::<i32>(), 0..1u64 << 40, any::<bool>());
    let user = vec(("[a-zé]{1,3}", "[^\u{1}\u{2}]{1,5}"), 0..5);
    let one = (texts, places, user, vec(any::<u8>(), 0..50)).prop_map(|(texts, places, user, body)| {
        let (tag, keys, id) = texts;
        let (topic, queue_id, queue_offset, v6) = places;
        let host = if v6 { "[2001:db8::7]:9" } else { "10.1.2.3:4567" }.parse().unwrap();
        Sent { topic, queue_id, queue_offset, tag, keys, id, user, body, sys_flag: 8, born: NOW - 5, host }
    });
    vec(one, 0..20)
}

proptest! {
    #[test]
    fn columns_hold_what_the_records_say_however_they_are_split(
        messages in messages(),
        cut in 0..22usize,
    ) {
        let records: Vec<_> = messages.iter().map(record).collect();
        let (head, tail) = records.split_at(cut.min(records.len()));
        check(&all(&[head.concat(), tail.concat()]).unwrap(), &messages);
        check(&all(&records).unwrap(), &messages);
    }

    #[test]
    fn a_column_is_the_same_alone_as_among_all(messages in messages(), at in 0..COLUMN_NAMES.len()) {
        let bytes = messages.iter().map(record).collect::<Vec<_>>().concat();
        let whole = all(std::slice::from_ref(&bytes)).unwrap();
        let wanted = ColumnSet::parse([COLUMN_NAMES[at]]).unwrap();
        let alone = record_columns(&[&bytes], wanted, &RowFilter::default(), None).unwrap();
        prop_assert_eq!(alone.columns.len(), 1);
        prop_assert_eq!(&alone.columns[0], &whole.columns[at]);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = all(&[bytes]);
    }

    #[test]
    fn no_damage_makes_it_panic_or_read_elsewhere(
        messages in messages(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = messages.iter().map(record).collect::<Vec<_>>().concat();
        if bytes.is_empty() {
            return Ok(());
        }
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        if let Ok(batch) = all(&[bytes]) {
            prop_assert_eq!(column(&batch, "body").data[0].len(), 4 * (batch.rows + 1));
            texts(&batch, "message_id");
            texts(&batch, "tag");
        }
    }
}

#[test]
fn each_filter_alone_and_all_together_leave_what_holds() {
    let message = |offset, tag: &str, keys: &[&str], topic: &str, queue_id| Sent {
        tag: Some(tag.into()).filter(|tag: &String| !tag.is_empty()),
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        topic: topic.into(),
        queue_id,
        ..sent(offset, b"x")
    };
    let messages = [
        message(0, "a", &["k", "l"], "flights", 0),
        message(1, "b", &["l"], "flights", 1),
        message(2, "", &[], "trains", 0),
        message(3, "a", &["m"], "trains", 1),
    ];
    let texts = |list: &[&str]| Some(list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    let default = RowFilter::default;
    assert_eq!(filtered(&messages, &default()), [0, 1, 2, 3]);
    assert_eq!(filtered(&messages, &RowFilter { tags: texts(&["a", "z"]), ..default() }), [0, 3]);
    assert_eq!(filtered(&messages, &RowFilter { keys: texts(&["l", "m"]), ..default() }), [0, 1, 3]);
    assert_eq!(filtered(&messages, &RowFilter { topics: texts(&["trains"]), ..default() }), [2, 3]);
    assert_eq!(filtered(&messages, &RowFilter { topics: texts(&[]), ..default() }), [0; 0]);
    assert_eq!(filtered(&messages, &RowFilter { queue_ids: Some(vec![1]), ..default() }), [1, 3]);
    assert_eq!(filtered(&messages, &RowFilter { offsets: 1..3, ..default() }), [1, 2]);
    assert_eq!(filtered(&messages, &RowFilter { stored: i64::MIN..NOW, ..default() }), [0; 0]);
    assert_eq!(filtered(&messages, &RowFilter { stored: NOW..NOW + 1, ..default() }), [0, 1, 2, 3]);
    assert_eq!(filtered(&messages, &RowFilter { born: NOW - 4..i64::MAX, ..default() }), [0; 0]);
    let both = RowFilter { tags: texts(&["a"]), queue_ids: Some(vec![1]), ..default() };
    assert_eq!(filtered(&messages, &both), [3]);
}

#[test]
fn records_behind_the_end_are_as_if_they_had_not_come() {
    let bytes = (5..10).map(|offset| record(&sent(offset, b"x"))).collect::<Vec<_>>().concat();
    let wanted = ColumnSet::parse(["queue_offset"]).unwrap();
    let none = RowFilter { topics: Some(vec![]), ..RowFilter::default() };
    for (filter, rows) in [(RowFilter::default(), 3), (none, 0)] {
        let batch = record_columns(&[&bytes], wanted, &filter, Some(8)).unwrap();
        assert_eq!((batch.rows, batch.read, batch.next_offset), (rows, 3, Some(8)));
    }
    let nothing = record_columns(&[&bytes], wanted, &RowFilter::default(), Some(5)).unwrap();
    assert_eq!((nothing.rows, nothing.read, nothing.next_offset), (0, 0, None));
}

fn lz4_frame(body: &[u8]) -> Vec<u8> {
    let mut frame = lz4_flex::frame::FrameEncoder::new(Vec::new());
    frame.write_all(body).unwrap();
    frame.finish().unwrap()
}

fn compressed(text: &[u8]) -> Vec<(i32, Vec<u8>)> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text).unwrap();
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
    zlib.write_all(text).unwrap();
    let (gzip, zlib) = (gzip.finish().unwrap(), zlib.finish().unwrap());
    let zstd = ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest);
    vec![
        (1, zlib.clone()),
        (1 | 3 << 8, zlib),
        (1, gzip.clone()),
        (1 | 3 << 8, gzip),
        (1 | 1 << 8, lz4_frame(text)),
        (1 | 2 << 8, zstd),
    ]
}

#[test]
fn compressed_bodies_come_out_as_the_producer_gave_them() {
    let text = b"a body, a body, a body ".repeat(100);
    let messages = compressed(&text).into_iter().map(|(sys_flag, body)| Sent { sys_flag, ..sent(0, &body) });
    let records: Vec<_> = messages.map(|message| record(&message)).collect();
    let batch = all(&records).unwrap();
    assert_eq!(bodies(&batch), vec![text; records.len()]);
    // The flag is the same without the body column.
    let parts: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    let wanted = ColumnSet::parse(["sys_flag"]).unwrap();
    let without = record_columns(&parts, wanted, &RowFilter::default(), None).unwrap();
    assert_eq!((flags(&batch), flags(&without)), (vec![0; parts.len()], vec![0; parts.len()]));
}

fn flags(batch: &RowBatch) -> Vec<i32> {
    chunks(&column(batch, "sys_flag").data[0]).into_iter().map(i32::from_le_bytes).collect()
}

#[test]
fn a_body_that_only_says_it_is_compressed_comes_as_it_is_stored_and_its_flag_says_so() {
    for kind in 0..=4 {
        let flag = 1 | kind << 8;
        let bytes = record(&Sent { sys_flag: flag, ..sent(7, b"plain") });
        let batch = all(&[bytes.clone(), record(&sent(8, b"next"))]).unwrap();
        assert_eq!(bodies(&batch), [b"plain".to_vec(), b"next".to_vec()]);
        assert_eq!(flags(&batch), [flag, 0]);
        let wanted = ColumnSet::parse(["sys_flag"]).unwrap();
        let without = record_columns(&[&bytes], wanted, &RowFilter::default(), None).unwrap();
        assert_eq!(flags(&without), [flag]);
    }
}

#[test]
fn a_time_no_column_can_hold_is_the_nearest_that_one_can_and_passes_a_filter_without_end() {
    let times = [i64::MAX, i64::MIN, 0];
    let records: Vec<_> = times.iter().map(|born| record(&Sent { born: *born, ..sent(0, b"x") })).collect();
    assert_eq!(longs(&all(&records).unwrap(), "born_timestamp"), [i64::MAX, i64::MIN, 0]);
    let filter = RowFilter { born: 1..i64::MAX, ..RowFilter::default() };
    let parts: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    assert_eq!(record_columns(&parts, ColumnSet::ALL, &filter, None).unwrap().rows, 1);
}

#[test]
fn a_body_that_grows_without_end_is_refused() {
    let mut bomb = GzEncoder::new(Vec::new(), Compression::fast());
    bomb.write_all(&vec![0; 1 << 20]).unwrap();
    // Concatenated streams count together.
    let error = decompressed(1, &bomb.finish().unwrap().repeat(65)).unwrap_err();
    assert!(error.contains(&message::MAX_DECOMPRESSED.to_string()), "{error}");
}

#[test]
fn a_damaged_body_is_an_error_that_says_where() {
    let good = record(&sent(0, b"0123456789"));
    let mut bytes = [good.clone(), good.clone()].concat();
    bytes[good.len() + 90] ^= 1;
    let error = all(&[good.clone(), bytes]).unwrap_err();
    let reason = "the body does not match its checksum";
    assert_eq!(error, ColumnsError::Malformed { part: 1, at: good.len(), reason });
}

#[test]
fn a_damaged_body_of_an_answer_is_null_and_its_neighbours_are_rows() {
    let body = b"one".repeat(1000);
    let good = record(&sent(0, b"0123456789"));
    let mut damaged = good.clone();
    damaged[90] ^= 1;
    let only_marked = record(&Sent { sys_flag: 1, ..sent(0, b"plain") });
    let compressed = compressed(&body).into_iter();
    let compressed = compressed.map(|(sys_flag, body)| record(&Sent { sys_flag, ..sent(1, &body) }));
    let records: Vec<_> = [good, damaged, only_marked].into_iter().chain(compressed).collect();
    let mut columns = MessageColumns::new(ColumnSet::ALL, 0);
    columns.add(&records.concat()).unwrap();
    let batch = columns.finish();
    let found = texts(&batch, "body");
    assert_eq!(found[..3], [Some("0123456789".to_owned()), None, None]);
    assert!(found[3..].iter().all(|found| found.as_ref().is_some_and(|found| found.as_bytes() == body)));
    assert!(found.len() > 3);
    assert_eq!(longs(&batch, "queue_offset")[..4], [0, 0, 0, 1]);
    let other = record_columns(&[&records.concat()], ColumnSet::ALL, &RowFilter::default(), None);
    assert!(matches!(other, Err(ColumnsError::Malformed { .. })), "other readers refuse the record");
}

#[test]
fn a_column_that_is_not_known_is_named_with_those_that_are() {
    let error = ColumnSet::parse(["tag", "size"]).unwrap_err().to_string();
    assert!(error.contains("\"size\"") && error.contains("reconsume_times"), "{error}");
}
