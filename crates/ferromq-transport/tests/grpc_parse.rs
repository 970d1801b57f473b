//! The in-place parser of SendMessageRequest: equivalent to prost's, and safe for any bytes.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::large_enum_variant
)]

mod grpc_support;

use std::collections::HashMap;

use bytes::Bytes;
use ferromq_transport::grpc::message::{Outgoing, SendRequest};
use grpc_support::proto::{Message, Resource, SendMessageRequest, SystemProperties, Time};
use proptest::prelude::*;
use prost::Message as _;

fn time() -> impl Strategy<Value = Time> {
    (-10_000_000_000..10_000_000_000i64, 0..1_000_000_000i32)
        .prop_map(|(seconds, nanos)| Time { seconds, nanos })
}

fn system_properties() -> impl Strategy<Value = SystemProperties> {
    let texts =
        (proptest::option::of(".{0,5}"), proptest::collection::vec(".{0,5}", 0..3), ".{0,5}", ".{0,5}");
    let times = (proptest::option::of(time()), proptest::option::of(time()), proptest::option::of(time()));
    let numbers =
        (any::<i32>(), any::<i32>(), proptest::option::of(any::<i32>()), proptest::option::of(any::<i32>()));
    let more =
        (proptest::option::of(".{0,5}"), proptest::option::of(".{0,5}"), proptest::option::of(".{0,5}"));
    (texts, times, numbers, more).prop_map(|((tag, keys, message_id, born_host), times, numbers, more)| {
        SystemProperties {
            tag,
            keys,
            message_id,
            born_host,
            born_timestamp: times.0,
            delivery_timestamp: times.1,
            body_encoding: numbers.0,
            message_type: numbers.1,
            queue_id: numbers.2,
            priority: numbers.3,
            message_group: more.0,
            trace_context: more.1,
            lite_topic: more.2,
            recovery_duration: times.2,
            store_host: "not read".to_owned(),
            ..SystemProperties::default()
        }
    })
}

fn message() -> impl Strategy<Value = Message> {
    let resource =
        (".{0,5}", ".{0,5}").prop_map(|(resource_namespace, name)| Resource { resource_namespace, name });
    let properties = proptest::collection::hash_map(".{0,5}", ".{0,5}", 0..4);
    let body = proptest::collection::vec(any::<u8>(), 0..50);
    (proptest::option::of(resource), properties, proptest::option::of(system_properties()), body).prop_map(
        |(topic, user_properties, system_properties, body)| Message {
            topic,
            user_properties,
            system_properties,
            body: body.into(),
        },
    )
}

fn request() -> impl Strategy<Value = SendMessageRequest> {
    proptest::collection::vec(message(), 0..4).prop_map(|messages| SendMessageRequest { messages })
}

/// Topic, properties and body as parsed, in prost's types.
fn as_prost(request: &SendRequest<'_>, message: &Outgoing<'_>) -> (String, HashMap<String, String>, Bytes) {
    let properties = &request.properties[message.properties.clone()];
    let properties =
        properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    (message.topic.to_owned(), properties, Bytes::copy_from_slice(message.body))
}

/// Compares our parser's result with prost's, field by field.
fn compare(bytes: &[u8], decoded: &SendMessageRequest) {
    let parsed = SendRequest::parse(bytes).unwrap();
    assert_eq!(parsed.messages.len(), decoded.messages.len());
    for (ours, theirs) in parsed.messages.iter().zip(&decoded.messages) {
        let topic = theirs.topic.as_ref().map(|topic| topic.name.clone()).unwrap_or_default();
        assert_eq!(as_prost(&parsed, ours), (topic, theirs.user_properties.clone(), theirs.body.clone()));
        let system = theirs.system_properties.clone().unwrap_or_default();
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        assert_eq!((ours.tag, ours.message_id), (text(&system.tag).as_str(), system.message_id.as_str()));
        assert_eq!(
            parsed.keys[ours.keys.clone()],
            system.keys.iter().map(String::as_str).collect::<Vec<_>>()
        );
        assert_eq!((ours.body_encoding, ours.message_type), (system.body_encoding, system.message_type));
        assert_eq!((ours.born_host, ours.queue_id), (system.born_host.as_str(), system.queue_id));
        assert_eq!(ours.born_timestamp, system.born_timestamp.map(Time::ms));
        assert_eq!(ours.delivery_timestamp, system.delivery_timestamp.map(Time::ms));
        assert_eq!(ours.message_group, text(&system.message_group));
        assert_eq!(ours.trace_context, text(&system.trace_context));
        assert_eq!((ours.priority, ours.lite_topic), (system.priority, text(&system.lite_topic).as_str()));
        assert_eq!(ours.recovery_seconds, system.recovery_duration.map(|time| time.seconds));
    }
}

proptest! {
    #[test]
    fn a_request_is_parsed_as_prost_decodes_it(request in request()) {
        compare(&request.encode_to_vec(), &request);
    }

    /// Protobuf may split an embedded message and repeat a field: parts are merged, and the last value wins.
    #[test]
    fn repeated_parts_are_merged_as_prost_merges_them(first in message(), second in message()) {
        let mut inner = first.encode_to_vec();
        inner.extend(second.encode_to_vec());
        let mut bytes = vec![0x0a];
        prost::encoding::encode_varint(inner.len() as u64, &mut bytes);
        bytes.extend(inner);
        let decoded = SendMessageRequest::decode(&bytes[..]).unwrap();
        // Prost merges even the parts of timestamps. No client splits them, so our parser takes the last one whole.
        let times = |message: &Message| {
            let system = message.system_properties.clone().unwrap_or_default();
            [system.born_timestamp, system.delivery_timestamp, system.recovery_duration]
        };
        prop_assume!(times(&first).iter().zip(times(&second)).all(|(a, b)| a.is_none() || b.is_none()));
        compare(&bytes, &decoded);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = SendRequest::parse(&bytes);
    }

    #[test]
    fn a_damaged_or_cut_request_never_panics(
        request in request(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index,
    ) {
        let mut bytes = request.encode_to_vec();
        if bytes.is_empty() {
            return Ok(());
        }
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = SendRequest::parse(&bytes[..cut.index(bytes.len())]);
        let _ = SendRequest::parse(&bytes);
    }
}
