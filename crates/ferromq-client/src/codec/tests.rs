use proptest::prelude::*;

use super::*;
use ferromq_protocol::protobuf::put_varint;

fn ids(count: u32) -> MessageIds {
    MessageIds { process: [1, 2, 3, 4, 5, 0xab, 0, 0xff], seconds: 0x0102_0304, first: u32::MAX, count }
}

fn text(id: [u8; MESSAGE_ID_LEN]) -> String {
    String::from_utf8(id.to_vec()).unwrap()
}

#[test]
fn a_message_id_is_version_process_seconds_and_number_in_upper_case() {
    assert_eq!(text(ids(2).get(0).unwrap()), "01010203040".to_owned() + "5AB00FF01020304FFFFFFFF");
    assert_eq!(text(ids(2).get(1).unwrap()), "01010203040".to_owned() + "5AB00FF0102030400000000");
    assert_eq!(ids(2).get(2), None);
}

#[test]
fn headers_return_the_values_they_were_made_of() {
    let headers = Headers::new(Some("new"), ["a", "b"], [("region", "eu"), ("empty", "")]).unwrap();
    assert_eq!(headers.tag(), Some("new"));
    assert_eq!(headers.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(headers.properties().collect::<Vec<_>>(), [("region", "eu"), ("empty", "")]);
    assert!(Headers::default().is_empty());
}

#[test]
fn headers_that_would_break_the_record_are_refused_by_name() {
    let none = || std::iter::empty::<&str>();
    let no_properties = || std::iter::empty::<(&str, &str)>();
    for tag in ["", " ", "a||b", "a\u{1}b"] {
        let error = Headers::new(Some(tag), none(), no_properties()).unwrap_err();
        assert!(error.to_string().contains(&format!("{tag:?}")), "{error}");
    }
    for key in ["", "\t", "two words", "a\u{2}b"] {
        assert!(matches!(Headers::new(None, [key], no_properties()), Err(IllegalHeader::Key(..))), "{key:?}");
    }
    for property in [("", "x"), ("a\u{1}", "x"), ("a", "x\u{2}")] {
        assert!(
            matches!(Headers::new(None, none(), [property]), Err(IllegalHeader::Property(..))),
            "{property:?}"
        );
    }
}

/// A response with a message of `body`, as `encode_send` encodes it.
fn response(body: &[u8]) -> Vec<u8> {
    let headers = Headers::new(Some("t"), ["k1", "k2"], [("p", "q")]).unwrap();
    let batch = Batch {
        topic: "orders",
        queue_id: 3,
        born_timestamp: -1,
        born_host: "here",
        ids: ids(1),
        transaction: None,
    };
    let request = encode_send(&batch, [(&headers, body)]);
    assert_eq!(request.capacity(), request.len());
    let encoding = SendEncoding::new(&batch);
    let mut placed = vec![0; encoding.len([(&headers, body)])];
    encoding.put(&mut placed, [(&headers, body)]);
    assert_eq!(placed, request);
    // `messages` of the request and `message` of the response differ only in their field number.
    let message = Fields::new(&request).next().unwrap().unwrap().1.bytes().unwrap().to_vec();
    let mut out = Vec::new();
    put_bytes_field(&mut out, 2, &message);
    out
}

#[test]
fn a_received_message_equals_the_sent_one_packed_or_not() {
    let (one, two) = (response(b"one"), response(b""));
    let mut packet = Vec::new();
    for response in [&one, &two] {
        put_varint(&mut packet, response.len() as u64);
        packet.extend_from_slice(response);
    }
    let Packet { status, messages, .. } = decode_received(&packet, true).unwrap();
    assert_eq!(status, None);
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[1].body(&packet), Ok(Body::Plain(b"")));
    let Packet { messages: alone, .. } = decode_received(&one, false).unwrap();
    for (message, answer) in [(messages[0], &packet), (alone[0], &one)] {
        assert_eq!(message.body(answer), Ok(Body::Plain(b"one")));
        assert_eq!(message.topic.text(answer), "orders");
        assert_eq!(message.tag.unwrap().text(answer), "t");
        assert_eq!(message.keys(answer).collect::<Vec<_>>(), ["k1", "k2"]);
        assert_eq!(message.properties(answer).collect::<Vec<_>>(), [("p", "q")]);
        assert_eq!(message.message_id.text(answer), text(ids(1).get(0).unwrap()));
        assert_eq!((message.queue_id, message.born_timestamp), (3, -1));
        assert_eq!(message.born_host.text(answer), "here");
    }
}

#[test]
fn a_body_that_grows_without_end_is_refused() {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..65 {
        encoder.write_all(&vec![0; 1 << 20]).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    let mut system = Vec::new();
    put_varint_field(&mut system, 5, 2);
    let mut message = Vec::new();
    put_bytes_field(&mut message, 3, &system);
    put_bytes_field(&mut message, 4, &bomb);
    let mut answer = Vec::new();
    put_bytes_field(&mut answer, 2, &message);
    let Packet { messages, .. } = decode_received(&answer, false).unwrap();
    assert!(messages[0].body(&answer).unwrap_err().contains("67108864"));
}

/// An answer to a send of two messages, of which the second is a duplicate.
fn answer_with_records(host: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    for offset in [7, u64::MAX] {
        put_len_prefix(&mut answer, 2, 1 + varint_len(offset));
        put_varint_field(&mut answer, 4, offset);
    }
    put_varint_field(&mut answer, DURABILITY, FLUSHED);
    put_bytes_field(&mut answer, STORE_HOST, host);
    put_bytes_field(
        &mut answer,
        PHYSICAL_OFFSETS,
        &[0x10_u64.to_le_bytes(), UNKNOWN_OFFSET.to_le_bytes()].concat(),
    );
    answer
}

#[test]
fn each_place_has_the_second_id_and_the_promise_of_its_answer() {
    for host in [&[127, 0, 0, 1, 0, 0, 0x2a, 0x9f][..], &[0xab; 20][..]] {
        let answer = answer_with_records(host);
        let (_, places) = decode_places(&answer).unwrap();
        let id = [host, &0x10_u64.to_be_bytes()].concat();
        assert_eq!(places[0].offset_id.unwrap().as_bytes(), id);
        assert_eq!(places[1].offset_id, None, "a duplicate");
        assert!(places.iter().all(|place| place.durability == Some(Durability::Flushed)));
        let sent = decode_sent(&answer).unwrap();
        assert_eq!((sent.durability, &*sent.records.0), (Some(Durability::Flushed), host));
        assert_eq!(sent.records.1.len(), 16);
    }
    let (_, places) = decode_places(&answer_with_records(&[0; 21])).unwrap();
    assert_eq!(places[0].offset_id, None, "no address has so many bytes");
}

proptest! {
    #[test]
    fn bytes_from_outside_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), packed: bool) {
        if let Ok(Packet { messages, .. }) = decode_received(&bytes, packed) {
            for message in messages {
                let _ = message.body(&bytes);
                let _ = message.properties(&bytes).count() + message.keys(&bytes).count();
            }
        }
        let _ = decode_sent(&bytes);
        let _ = decode_places(&bytes);
        let _ = decode_acked(&bytes);
    }

    #[test]
    fn a_damaged_answer_never_panics(at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let mut bytes = response(b"a body of some length");
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(cut.index(bytes.len()) + 1);
        if let Ok(Packet { messages, .. }) = decode_received(&bytes, false) {
            for message in messages {
                let _ = message.body(&bytes);
                let _ = (message.topic.text(&bytes), message.receipt_handle.text(&bytes));
            }
        }
    }
}

#[test]
fn a_message_group_has_the_queue_that_rocketmqs_clients_choose() {
    for (group, of_8, of_16) in [("account-1", 7, 7), ("account-2", 5, 13), ("a", 2, 10), ("order-42", 5, 13)]
    {
        assert_eq!((queue_of_group(group, 8), queue_of_group(group, 16)), (of_8, of_16), "{group}");
    }
    assert_eq!(queue_of_group("a", 0), 0);
}

#[test]
fn the_length_of_a_kind_is_that_of_its_encoding() {
    let kinds = [
        Kind::Normal,
        Kind::Fifo("account".into()),
        Kind::At(i64::MAX),
        Kind::At(0),
        Kind::After(u32::MAX),
        Kind::Priority(i32::MAX),
    ];
    for kind in kinds {
        for born in [-1, 0, 1_795_262_400_250, i64::MAX] {
            let mut out = Vec::new();
            kind.put(&mut out, born);
            assert_eq!(out.len(), kind.len(born), "{kind:?} {born}");
        }
    }
    for group in ["", " ", "a\u{2}"] {
        assert!(matches!(
            Headers::default().of_kind(Kind::Fifo(group.into())),
            Err(IllegalHeader::Group(..))
        ));
    }
}
