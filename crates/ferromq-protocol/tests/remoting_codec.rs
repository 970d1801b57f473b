//! The remoting codec against RocketMQ's own frames and against arbitrary bytes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use bytes::{BufMut, Bytes, BytesMut};
use ferromq_protocol::{
    ProtocolError,
    remoting::{Decoder, HeaderForm, Language, Limits, RemotingCommand, codec, codes},
};
use proptest::{collection::vec, prelude::*};

/// Written by RocketMQ's encoder, see the README beside it.
const FRAMES: &str = include_str!("../../../tests/fixtures/remoting/frames.txt");

fn golden(name: &str) -> Bytes {
    let hex = FRAMES.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).expect("a frame");
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn decode_all(bytes: &[u8]) -> Result<RemotingCommand, ProtocolError> {
    let mut buffer = BytesMut::from(bytes);
    let command = Decoder::default().next(&mut buffer)?.expect("a whole frame");
    assert!(buffer.is_empty(), "bytes are left");
    Ok(command)
}

fn decode_header(form: u32, header: &[u8]) -> Result<RemotingCommand, ProtocolError> {
    let mut frame = BytesMut::new();
    frame.put_u32(form << 24 | header.len() as u32);
    frame.put_slice(header);
    codec::decode(frame.freeze(), &Limits::default())
}

fn json(header: &str) -> Result<RemotingCommand, ProtocolError> {
    decode_header(0, header.as_bytes())
}

#[test]
fn frames_of_rocketmq_are_decoded_in_both_forms() {
    for (suffix, form) in [("json", HeaderForm::Json), ("binary", HeaderForm::Binary)] {
        let route = decode_all(&golden(&format!("route_request_{suffix}"))).unwrap();
        let fields = vec![("topic".to_owned(), "orders".to_owned())];
        let expected = RemotingCommand {
            language: Language::JAVA,
            opaque: 7,
            header_form: form,
            ..RemotingCommand::request(105, fields, Bytes::new())
        };
        assert_eq!(route, expected);

        let response = decode_all(&golden(&format!("no_route_response_{suffix}"))).unwrap();
        assert_eq!((response.code, response.opaque), (17, -2));
        assert_eq!(response.remark.as_deref(), Some("No topic route info: 日本 \"x\"\n"));
        assert!(response.is_response() && !response.is_one_way());

        let heartbeat = decode_all(&golden(&format!("one_way_heartbeat_{suffix}"))).unwrap();
        assert_eq!((heartbeat.language.name(), heartbeat.opaque), ("GO", i32::MAX));
        assert!(heartbeat.is_one_way() && !heartbeat.is_response());
        assert_eq!(&heartbeat.body[..], br#"{"clientID":"c"}"#);
    }
    let pop = decode_all(&golden("pop_request_json")).unwrap();
    assert_eq!(pop.code, codes::request::POP_MESSAGE);
    assert_eq!(pop.field("queueId"), Some("-1"));
}

#[test]
fn frames_of_rocketmq_are_encoded_byte_for_byte() {
    for line in FRAMES.lines() {
        let name = line.split(' ').next().unwrap();
        let frame = golden(name);
        let command = decode_all(&frame).unwrap();
        assert_eq!(codec::encode(&command).unwrap().to_bytes(), frame, "{name}");
    }
}

#[test]
fn a_command_with_a_code_over_16_bits_is_encoded_as_json() {
    let mut command = RemotingCommand::request(codes::request::POP_MESSAGE, Vec::new(), Bytes::new());
    command.header_form = HeaderForm::Binary;
    let again = decode_all(&codec::encode(&command).unwrap().to_bytes()).unwrap();
    assert_eq!((again.code, again.header_form), (200_050, HeaderForm::Json));
}

/// The inputs and results were observed with fastjson 2.0.59 in RocketMQ 5.5.0.
#[test]
fn loose_json_is_read_as_java_reads_it() {
    let loose = r#"{"code":"105","opaque":"7","flag":null,"version":1.0,"language":"CPP","extFields":
        {"a":1,"b":true,"c":null,"d":1.5,"e":{"x":1},"f":[1,"y"]},"unknown":[{}]}"#;
    let command = json(loose).unwrap();
    assert_eq!((command.code, command.opaque, command.flag, command.version), (105, 7, 0, 1));
    assert_eq!(command.language.name(), "CPP");
    let fields: Vec<_> = command.fields.iter().collect();
    assert_eq!(fields, [("a", "1"), ("b", "true"), ("d", "1.5"), ("e", r#"{"x":1}"#), ("f", r#"[1,"y"]"#)]);

    assert_eq!(json("{}").unwrap().code, 0);
    assert_eq!(json(r#"{"code":true}"#).unwrap().code, 1);
    assert_eq!(json(r#"{"code":""}"#).unwrap().code, 0);
    assert_eq!(json(r#"{"code":1.9}"#).unwrap().code, 1);
    assert_eq!(json(r#"{"code":1,"code":2}"#).unwrap().code, 2);
    assert_eq!(json(r#"{"language":3}"#).unwrap().language.name(), "PYTHON");
    assert_eq!(json(r#"{"language":"KLINGON"}"#).unwrap().language, Language::OTHER);
    assert_eq!(json(r#"{"remark":5}"#).unwrap().remark.as_deref(), Some("5"));
    assert_eq!(json(r#"{"extFields":"","code":4}"#).unwrap().code, 4);
    assert_eq!(json(r#"{"extFields":null,"code":4}"#).unwrap().code, 4);
    for refused in [
        "",
        "null",
        "[]",
        "{",
        r#"{"code":99999999999}"#,
        r#"{"code":"x"}"#,
        r#"{"code":1} x"#,
        r#"{"extFields":[]}"#,
    ] {
        assert!(matches!(json(refused), Err(ProtocolError::Malformed(_))), "{refused}");
    }
}

#[test]
fn the_last_of_several_fields_with_the_same_name_wins() {
    assert_eq!(json(r#"{"extFields":{"a":"1","a":"2"}}"#).unwrap().field("a"), Some("2"));
}

#[test]
fn bad_lengths_are_refused_before_their_bytes_arrive() {
    let next = |bytes: &[u8]| Decoder::default().next(&mut BytesMut::from(bytes));
    for length in [0_i32, 1, 3, -1, i32::MIN] {
        assert!(matches!(next(&length.to_be_bytes()), Err(ProtocolError::Malformed(_))), "{length}");
    }
    for length in [i32::MAX, 16 << 20, (16 << 20) - 3] {
        assert!(matches!(next(&length.to_be_bytes()), Err(ProtocolError::FrameTooLarge { .. })), "{length}");
    }
    assert!(matches!(next(&((16_i32 << 20) - 4).to_be_bytes()), Ok(None)));
    // A header longer than its frame, a header over its limit, an unknown form.
    assert!(matches!(next(&[0, 0, 0, 8, 0, 0, 0, 5]), Err(ProtocolError::Malformed(_))));
    assert!(matches!(next(&[0, 0x80, 0, 0, 0, 0x10, 0, 1]), Err(ProtocolError::FrameTooLarge { .. })));
    assert!(matches!(next(&[0, 0, 0, 8, 2, 0, 0, 0]), Err(ProtocolError::Malformed(_))));
    for cut in 0..4 {
        assert!(matches!(next(&[0, 0, 0, 8][..cut]), Ok(None)));
    }
}

#[test]
fn an_announced_length_allocates_nothing() {
    let mut buffer = BytesMut::with_capacity(64);
    buffer.put_i32(15 << 20);
    buffer.put_u32(0);
    assert!(Decoder::default().next(&mut buffer).unwrap().is_none());
    assert!(buffer.capacity() <= 64, "{}", buffer.capacity());
}

#[test]
fn a_truncated_binary_header_is_refused_at_every_length() {
    let frame = golden("route_request_binary");
    let header = &frame[8..];
    for cut in 0..header.len() {
        assert!(matches!(decode_header(1, &header[..cut]), Err(ProtocolError::Malformed(_))), "{cut}");
    }
    for (at, length) in [(13, -1_i32), (13, 1 << 30), (17, -1), (17, 1 << 30)] {
        let mut bad = header.to_vec();
        bad[at..at + 4].copy_from_slice(&length.to_be_bytes());
        assert!(matches!(decode_header(1, &bad), Err(ProtocolError::Malformed(_))), "{at} {length}");
    }
}

#[test]
fn a_frame_that_exceeds_its_length_fields_is_not_encoded() {
    let fields = vec![("a".to_owned(), "x".repeat(17 << 20))];
    for form in [HeaderForm::Json, HeaderForm::Binary] {
        let command = RemotingCommand {
            fields: fields.clone().into(),
            header_form: form,
            ..RemotingCommand::default()
        };
        assert!(matches!(codec::encode(&command), Err(ProtocolError::FrameTooLarge { .. })));
    }
}

#[test]
fn codes_have_rocketmqs_names() {
    assert_eq!(codes::request::name(310), Some("SEND_MESSAGE_V2"));
    assert_eq!(codes::request::name(200_151), Some("BATCH_ACK_MESSAGE"));
    assert_eq!(codes::response::name(3), Some("REQUEST_CODE_NOT_SUPPORTED"));
    assert_eq!(codes::request::name(54), None);
}

fn commands() -> impl Strategy<Value = RemotingCommand> {
    let numbers = (any::<i32>(), 0_u8..14, any::<i32>(), any::<i32>(), any::<i32>());
    let texts = (proptest::option::of("[^\u{0}]{1,20}"), vec(("[^\u{0}]{1,8}", any::<String>()), 0..5));
    (numbers, texts, vec(any::<u8>(), 0..64), any::<bool>()).prop_map(
        |(numbers, (remark, fields), body, binary)| RemotingCommand {
            code: numbers.0,
            language: Language(numbers.1),
            version: numbers.2,
            opaque: numbers.3,
            flag: numbers.4,
            remark,
            fields: fields.into(),
            body: body.into(),
            header_form: if binary { HeaderForm::Binary } else { HeaderForm::Json },
        },
    )
}

proptest! {
    #[test]
    fn an_encoded_command_decodes_to_itself(mut command in commands()) {
        let frame = codec::encode(&command).unwrap();
        let decoded = decode_all(&frame.to_bytes()).unwrap();
        let fits = i16::try_from(command.code).is_ok() && i16::try_from(command.version).is_ok();
        if !fits {
            command.header_form = HeaderForm::Json;
        }
        prop_assert_eq!(decoded, command);
    }

    #[test]
    fn frames_are_decoded_however_the_stream_is_cut(list in vec(commands(), 1..4), step in 1_usize..40) {
        let bytes: Vec<u8> = list.iter().flat_map(|one| codec::encode(one).unwrap().to_bytes()).collect();
        let (mut buffer, mut opaques) = (BytesMut::new(), Vec::new());
        for piece in bytes.chunks(step) {
            buffer.put_slice(piece);
            while let Some(command) = Decoder::default().next(&mut buffer).unwrap() {
                opaques.push(command.opaque);
            }
        }
        prop_assert_eq!(opaques, list.iter().map(|one| one.opaque).collect::<Vec<_>>());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300), form in 0_u32..3) {
        let mut buffer = BytesMut::from(&bytes[..]);
        while let Ok(Some(_)) = Decoder::default().next(&mut buffer) {}
        let _ = decode_header(form, &bytes);
    }

    #[test]
    fn a_damaged_frame_never_panics(command in commands(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut bytes = codec::encode(&command).unwrap().to_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = Decoder::default().next(&mut BytesMut::from(&bytes[..]));
        let _ = Decoder::default().next(&mut BytesMut::from(&bytes[..at]));
    }
}
