//! `grpc::columns` against prost, the plain decoder: the same rows, and no bytes that make it panic.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::large_enum_variant, missing_docs)]

use std::{collections::BTreeMap, io::Write};

use ferromq_transport::grpc::columns::{Buffers, ColumnsError, Pulled, decode};
use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use proptest::{collection::vec, option, prelude::*};
use prost::Message as _;

#[derive(Clone, PartialEq, prost::Message)]
struct Timestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Resource {
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SystemProperties {
    #[prost(string, optional, tag = "1")]
    tag: Option<String>,
    #[prost(string, repeated, tag = "2")]
    keys: Vec<String>,
    #[prost(string, optional, tag = "3")]
    message_id: Option<String>,
    #[prost(int32, tag = "5")]
    body_encoding: i32,
    #[prost(message, optional, tag = "7")]
    born_timestamp: Option<Timestamp>,
    #[prost(string, optional, tag = "8")]
    born_host: Option<String>,
    #[prost(message, optional, tag = "9")]
    store_timestamp: Option<Timestamp>,
    #[prost(string, optional, tag = "10")]
    store_host: Option<String>,
    #[prost(int32, tag = "13")]
    queue_id: i32,
    #[prost(int64, optional, tag = "14")]
    queue_offset: Option<i64>,
    #[prost(int32, optional, tag = "16")]
    delivery_attempt: Option<i32>,
    #[prost(string, optional, tag = "17")]
    message_group: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Message {
    #[prost(message, optional, tag = "1")]
    topic: Option<Resource>,
    #[prost(btree_map = "string, string", tag = "2")]
    user_properties: BTreeMap<String, String>,
    #[prost(message, optional, tag = "3")]
    system_properties: Option<SystemProperties>,
    #[prost(bytes = "vec", tag = "4")]
    body: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PullMessageResponse {
    #[prost(oneof = "Content", tags = "1, 2, 3")]
    content: Option<Content>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Content {
    #[prost(message, tag = "1")]
    Status(Status),
    #[prost(message, tag = "2")]
    Message(Message),
    #[prost(int64, tag = "3")]
    NextOffset(i64),
}

fn pack(responses: &[PullMessageResponse]) -> Vec<u8> {
    responses.iter().flat_map(PullMessageResponse::encode_length_delimited_to_vec).collect()
}

fn answer(messages: &[Message]) -> Vec<PullMessageResponse> {
    let mut responses = vec![Content::Status(Status { code: 20000, message: "OK".into() })];
    responses.extend(messages.iter().cloned().map(Content::Message));
    responses.push(Content::NextOffset(77));
    responses.into_iter().map(|content| PullMessageResponse { content: Some(content) }).collect()
}

fn message(queue_offset: i64, body: Vec<u8>, body_encoding: i32) -> Message {
    let message_id = Some(format!("id-{queue_offset}"));
    let queue_offset = Some(queue_offset);
    let system = SystemProperties { queue_offset, message_id, body_encoding, ..SystemProperties::default() };
    Message { system_properties: Some(system), body, ..Message::default() }
}

fn pull(messages: &[Message], until: i64) -> Result<Pulled, ColumnsError> {
    decode([pack(&answer(messages)).as_slice()], true, until)
}

// --- columns read back the slow way

fn column<'a>(pulled: &'a Pulled, name: &str) -> &'a Buffers {
    &pulled.columns.iter().find(|(column, _)| *column == name).unwrap().1
}

fn is_valid(buffers: &Buffers, row: usize) -> bool {
    buffers.validity.as_ref().is_none_or(|bits| bits[row / 8] >> (row % 8) & 1 == 1)
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

fn rows<T: Clone>(buffers: &Buffers, values: Vec<T>) -> Vec<Option<T>> {
    let rows: Vec<_> =
        values.into_iter().enumerate().map(|(row, value)| is_valid(buffers, row).then_some(value)).collect();
    assert_eq!(rows.iter().filter(|row| row.is_none()).count(), buffers.null_count);
    rows
}

fn texts(pulled: &Pulled, name: &str) -> Vec<Option<String>> {
    let buffers = column(pulled, name);
    rows(buffers, strings(&buffers.data[0], &buffers.data[1]))
}

fn longs(pulled: &Pulled, name: &str) -> Vec<Option<i64>> {
    let buffers = column(pulled, name);
    rows(buffers, chunks(&buffers.data[0]).into_iter().map(i64::from_le_bytes).collect())
}

fn ints(pulled: &Pulled, name: &str) -> Vec<Option<i32>> {
    let buffers = column(pulled, name);
    rows(buffers, chunks(&buffers.data[0]).into_iter().map(i32::from_le_bytes).collect())
}

fn check(pulled: &Pulled, messages: &[Message]) {
    assert_eq!(pulled.rows, messages.len());
    let empty = SystemProperties::default();
    let system: Vec<_> = messages.iter().map(|m| m.system_properties.as_ref().unwrap_or(&empty)).collect();
    macro_rules! expect {
        ($read:ident, $name:literal, $value:expr) => {
            assert_eq!($read(pulled, $name), system.iter().map($value).collect::<Vec<_>>(), $name);
        };
    }
    let micros = |t: &Timestamp| t.seconds * 1_000_000 + i64::from(t.nanos / 1000);
    expect!(texts, "tag", |s| s.tag.clone());
    expect!(texts, "message_id", |s| s.message_id.clone());
    expect!(texts, "born_host", |s| s.born_host.clone());
    expect!(texts, "store_host", |s| s.store_host.clone());
    expect!(longs, "queue_offset", |s| s.queue_offset);
    expect!(longs, "born_timestamp", |s| s.born_timestamp.as_ref().map(micros));
    expect!(longs, "store_timestamp", |s| s.store_timestamp.as_ref().map(micros));
    expect!(ints, "queue_id", |s| Some(s.queue_id));
    expect!(ints, "reconsume_times", |s| s.delivery_attempt.map(|attempt| (attempt - 1).max(0)));
    let topic: Vec<_> =
        messages.iter().map(|m| m.topic.as_ref().and_then(|topic| topic.name.clone())).collect();
    assert_eq!(texts(pulled, "topic"), topic);

    let body = column(pulled, "body");
    let bodies: Vec<_> = messages.iter().map(|m| m.body.clone()).collect();
    assert_eq!(groups(&body.data[0], &body.data[1]), bodies);

    let keys = column(pulled, "keys");
    let items = strings(&keys.data[1], &keys.data[2]);
    assert_eq!(groups(&keys.data[0], &items), system.iter().map(|s| s.keys.clone()).collect::<Vec<_>>());

    let map = column(pulled, "properties");
    let (names, values) = (strings(&map.data[1], &map.data[2]), strings(&map.data[3], &map.data[4]));
    let entries: Vec<(String, String)> = names.into_iter().zip(values).collect();
    let properties: Vec<Vec<_>> =
        messages.iter().map(|m| m.user_properties.clone().into_iter().collect()).collect();
    assert_eq!(groups(&map.data[0], &entries), properties);
}

// --- what is generated

fn timestamps() -> impl Strategy<Value = Option<Timestamp>> {
    let times = (-1_000_000_000_000i64..1_000_000_000_000, 0..1_000_000_000i32);
    option::of(times.prop_map(|(seconds, nanos)| Timestamp { seconds, nanos }))
}

fn text() -> impl Strategy<Value = Option<String>> {
    option::of(".{0,8}")
}

fn system_properties() -> impl Strategy<Value = SystemProperties> {
    let texts = (text(), vec(".{0,8}", 0..4), text(), text(), text(), text());
    let numbers = (any::<i32>(), option::of(any::<i64>()), option::of(-2..100i32));
    (texts, numbers, timestamps(), timestamps()).prop_map(
        |(texts, numbers, born_timestamp, store_timestamp)| {
            let (tag, keys, message_id, born_host, store_host, message_group) = texts;
            let (queue_id, queue_offset, delivery_attempt) = numbers;
            SystemProperties {
                tag,
                keys,
                message_id,
                body_encoding: 1,
                born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                queue_id,
                queue_offset,
                delivery_attempt,
                message_group,
            }
        },
    )
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let properties = proptest::collection::btree_map(".{0,6}", ".{0,6}", 0..5);
    let topic = option::of(text().prop_map(|name| Resource { name }));
    let parts = (topic, properties, option::of(system_properties()), vec(any::<u8>(), 0..50));
    let one = parts.prop_map(|(topic, user_properties, system_properties, body)| Message {
        topic,
        user_properties,
        system_properties,
        body,
    });
    vec(one, 0..20)
}

proptest! {
    #[test]
    fn columns_hold_what_prost_reads(messages in messages()) {
        let pulled = pull(&messages, i64::MAX).unwrap();
        check(&pulled, &messages);
        prop_assert_eq!(pulled.status, Some((20000, "OK".to_owned())));
        prop_assert_eq!(pulled.next_offset, Some(77));
    }

    #[test]
    fn any_split_of_the_stream_gives_the_same_rows(messages in messages(), cut in 0..22usize) {
        let responses = answer(&messages);
        let (head, tail) = responses.split_at(cut.min(responses.len()));
        let (head, tail) = (pack(head), pack(tail));
        let split = decode([head.as_slice(), tail.as_slice()], true, i64::MAX).unwrap();
        let single: Vec<Vec<u8>> = responses.iter().map(PullMessageResponse::encode_to_vec).collect();
        let unpacked = decode(single.iter().map(Vec::as_slice), false, i64::MAX).unwrap();
        let whole = pull(&messages, i64::MAX).unwrap();
        prop_assert_eq!(&split.columns, &whole.columns);
        prop_assert_eq!(&unpacked.columns, &whole.columns);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..300), packed: bool) {
        let _ = decode([bytes.as_slice()], packed, i64::MAX);
    }

    #[test]
    fn no_damage_to_an_answer_makes_it_panic(
        messages in messages(),
        at: prop::sample::Index,
        to: u8,
        cut: prop::sample::Index,
    ) {
        let mut bytes = pack(&answer(&messages));
        let place = at.index(bytes.len());
        bytes[place] = to;
        bytes.truncate(cut.index(bytes.len()) + 1);
        if let Ok(pulled) = decode([bytes.as_slice()], true, i64::MAX) {
            prop_assert_eq!(column(&pulled, "body").data[0].len(), 4 * (pulled.rows + 1));
        }
    }
}

#[test]
fn rows_at_and_after_the_end_of_the_range_are_left_out() {
    let messages: Vec<_> = (5..10).map(|offset| message(offset, b"body".to_vec(), 1)).collect();
    let pulled = pull(&messages, 8).unwrap();
    assert_eq!(longs(&pulled, "queue_offset"), [Some(5), Some(6), Some(7)]);
}

#[test]
fn compressed_bodies_come_out_readable() {
    let text = b"a body, a body, a body ".repeat(100);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&text).unwrap();
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
    zlib.write_all(&text).unwrap();
    let messages = [message(0, gzip.finish().unwrap(), 2), message(1, zlib.finish().unwrap(), 2)];
    let pulled = pull(&messages, i64::MAX).unwrap();
    let body = column(&pulled, "body");
    assert_eq!(groups(&body.data[0], &body.data[1]), [text.clone(), text]);
}

#[test]
fn a_body_that_only_says_it_is_compressed_names_its_message() {
    let error = pull(&[message(7, b"plain".to_vec(), 2)], i64::MAX).unwrap_err();
    assert!(error.to_string().contains("\"id-7\""), "{error}");
}

#[test]
fn a_body_that_grows_without_end_is_refused() {
    let mut bomb = GzEncoder::new(Vec::new(), Compression::fast());
    for _ in 0..70 {
        bomb.write_all(&vec![0; 1 << 20]).unwrap();
    }
    let error = pull(&[message(7, bomb.finish().unwrap(), 2)], i64::MAX).unwrap_err();
    assert!(error.to_string().contains("67108864"), "{error}");
}

#[test]
fn the_last_of_equal_property_keys_counts() {
    let property = |key: &[u8], value: &[u8]| [b"\x12\x06\x0a\x01", key, b"\x12\x01", value].concat();
    let fields = [property(b"k", b"1"), property(b"k", b"2"), property(b"a", b"z")].concat();
    let response = [vec![0x12, fields.len() as u8], fields].concat();
    let pulled = decode([response.as_slice()], false, i64::MAX).unwrap();
    let map = column(&pulled, "properties");
    assert_eq!((map.data[2].as_slice(), map.data[4].as_slice()), (&b"ak"[..], &b"z2"[..]));
}
