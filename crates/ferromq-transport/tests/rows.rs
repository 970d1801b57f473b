//! The requests that Spark's rows become, read by the server's parser.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use proptest::prelude::*;

use ferromq_client::codec::{Batch, MessageIds, rows::*};
use ferromq_protocol::SEQUENCE;
use ferromq_transport::grpc::message::SendRequest;

/// A column of texts in Arrow's layout.
struct ArrowTexts {
    validity: Vec<u8>,
    offsets: Vec<u8>,
    data: Vec<u8>,
}

impl ArrowTexts {
    fn of<T: AsRef<[u8]>>(values: &[Option<T>]) -> Self {
        let (mut validity, mut offsets, mut data) =
            (vec![0; values.len().div_ceil(8)], Vec::new(), Vec::new());
        offsets.extend(0i64.to_ne_bytes());
        for (at, value) in values.iter().enumerate() {
            if let Some(value) = value {
                validity[at / 8] |= 1 << (at % 8);
                data.extend_from_slice(value.as_ref());
            }
            offsets.extend((data.len() as i64).to_ne_bytes());
        }
        Self { validity, offsets, data }
    }

    fn column(&self) -> Column<'_> {
        Column { first: 0, validity: Some(&self.validity), values: &self.offsets }
    }

    fn texts(&self) -> Texts<'_> {
        Texts { spans: self.column(), data: &self.data }
    }
}

fn numbers(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

const LIMITS: Limits = Limits { rows: 3, bytes: 1 << 20 };

fn plain(bodies: &ArrowTexts, rows: usize) -> Columns<'_> {
    Columns { rows, body: bodies.column(), body_len: bodies.data.len(), ..Columns::default() }
}

fn to(topic: &str) -> Common<'_> {
    Common { topic: Some(topic), ..Common::default() }
}

fn why(columns: &Columns<'_>) -> String {
    Rows::read(columns, Common { first: 5, ..to("orders") }).unwrap_err().to_string()
}

fn encoded(rows: &Rows, part: &Part, bodies: &[u8]) -> Vec<u8> {
    let count = part.rows.len() as u32;
    let ids = MessageIds { process: [0; 8], seconds: 1, first: 0, count };
    let (topic, _) = &rows.topics()[part.topic as usize];
    let batch = Batch { topic, queue_id: 3, born_timestamp: 1000, born_host: "h", ids, transaction: None };
    rows.encode(&batch, part, bodies)
}

#[test]
fn a_row_becomes_the_message_its_columns_say() {
    let bodies = ArrowTexts::of(&[Some("one"), Some("two")]);
    let (tags, topics) = (ArrowTexts::of(&[Some("t"), None]), ArrowTexts::of(&[None, Some("other")]));
    let keys = ArrowTexts::of(&[Some("k1"), Some("k2")]);
    let key_spans = numbers(&[0, 2, 2]);
    let names = ArrowTexts::of(&[Some("a"), Some(SEQUENCE), Some("a")]);
    let values = ArrowTexts::of(&[Some("1"), Some("w/0/0/0"), Some("2")]);
    let entry_spans = numbers(&[0, 3, 3]);
    let columns = Columns {
        topic: Some(topics.texts()),
        tag: Some(tags.texts()),
        keys: Some(Keys::Several(Column { values: &key_spans, ..Column::default() }, keys.texts())),
        properties: Some(Entries {
            spans: Column { values: &entry_spans, ..Column::default() },
            names: names.texts(),
            values: values.texts(),
        }),
        ..plain(&bodies, 2)
    };
    let rows = Rows::read(&columns, Common { first: 7, numbered: Some("w/1/2"), ..to("orders") }).unwrap();
    assert_eq!(rows.topics(), [("orders".to_owned(), 7), ("other".to_owned(), 8)]);
    let parts = rows.lanes(LIMITS);
    assert_eq!(parts.iter().map(|part| part.rows.clone()).collect::<Vec<_>>(), [[0], [1]]);
    let bytes = encoded(&rows, &parts[0], &bodies.data);
    assert_eq!(bytes.len(), bytes.capacity());
    let request = SendRequest::parse(&bytes).unwrap();
    let message = &request.messages[0];
    assert_eq!((message.topic, message.body, message.tag), ("orders", b"one".as_slice(), "t"));
    assert_eq!(request.keys, ["k1", "k2"]);
    assert_eq!(request.properties, [("a", "2"), (SEQUENCE, "w/1/2/7")]);
    let bytes = encoded(&rows, &parts[1], &bodies.data);
    let request = SendRequest::parse(&bytes).unwrap();
    assert_eq!((request.messages[0].topic, request.messages[0].tag), ("other", ""));
    assert_eq!(request.properties, [(SEQUENCE, "w/1/2/8")]);
}

#[test]
fn an_illegal_value_is_refused_by_row_and_column() {
    let bodies = ArrowTexts::of(&[Some("a"), None]);
    assert!(why(&plain(&bodies, 2)).starts_with("row 6: column 'body' is null"));
    let bodies = ArrowTexts::of(&[Some("a"), Some("")]);
    assert!(why(&plain(&bodies, 2)).starts_with("row 6: column 'body' is empty"));
    let bodies = ArrowTexts::of(&[Some("a"), Some("b")]);
    for bad in ["", "a|b", "a\u{1}"] {
        let tags = ArrowTexts::of(&[Some("t"), Some(bad)]);
        let text = why(&Columns { tag: Some(tags.texts()), ..plain(&bodies, 2) });
        assert!(text.starts_with("row 6: column 'tag': the tag"), "{text}");
    }
    let tags = ArrowTexts::of(&[Some(b"t".as_slice()), Some(b"\xff")]);
    let text = why(&Columns { tag: Some(tags.texts()), ..plain(&bodies, 2) });
    assert!(text.starts_with("row 6: column 'tag' is not UTF-8"), "{text}");
    let keys = ArrowTexts::of(&[Some("k"), Some("a b")]);
    let text = why(&Columns { keys: Some(Keys::One(keys.texts())), ..plain(&bodies, 2) });
    assert!(text.starts_with("row 6: column 'keys': the key \"a b\""), "{text}");
    for (value, reason) in [(-1, "this one is -1"), (1 << 31, "this one is 2147483648")] {
        let values = numbers(&[0, value]);
        let column = Column { values: &values, ..Column::default() };
        let text = why(&Columns { priority: Some(column), ..plain(&bodies, 2) });
        assert!(text.starts_with("row 6: column 'priority'") && text.contains(reason), "{text}");
    }
    for (value, reason) in [(-5, "is -5 ms; it must not be negative"), (1 << 40, "at most 49 days")] {
        let values = numbers(&[0, value]);
        let column = Column { values: &values, ..Column::default() };
        let text = why(&Columns { delay: Some((column, 1)), ..plain(&bodies, 2) });
        assert!(text.starts_with("row 6: column 'delay'") && text.contains(reason), "{text}");
    }
    let (groups, values) = (ArrowTexts::of(&[Some("g"), None]), numbers(&[1, 2]));
    let text = why(&Columns {
        message_group: Some(groups.texts()),
        priority: Some(Column { values: &values, ..Column::default() }),
        ..plain(&bodies, 2)
    });
    assert!(text.starts_with("row 5: columns 'message_group' and 'priority'"), "{text}");
    let text = Rows::read(&plain(&bodies, 2), Common::default()).unwrap_err().to_string();
    assert!(text.starts_with("row 0: column 'topic' is null"), "{text}");
}

#[test]
fn a_span_beyond_its_column_is_refused_at_once() {
    let (bodies, texts, span) =
        (ArrowTexts::of(&[Some("a")]), ArrowTexts::of(&[Some("k")]), numbers(&[0, i64::MAX]));
    let texts = Texts { spans: Column { validity: None, ..texts.column() }, ..texts.texts() };
    let spans = Column { values: &span, ..Column::default() };
    let entries = Entries { spans, names: texts, values: texts };
    for columns in [
        Columns { properties: Some(entries), ..plain(&bodies, 1) },
        Columns { keys: Some(Keys::Several(spans, texts)), ..plain(&bodies, 1) },
    ] {
        assert_eq!(why(&columns), "row 5: its Arrow buffers are inconsistent or too short for its rows");
    }
}

#[test]
fn rows_share_requests_with_their_topic_and_batch_key_in_order_and_delayed_ones_are_alone() {
    let bodies = ArrowTexts::of(&[Some("x"); 8]);
    let groups = ArrowTexts::of(&[None, Some("g"), None, Some("h"), Some("g"), None, None, None]);
    let delays = numbers(&[0, 0, 9, 0, 0, 0, 0, 0]);
    let columns = Columns {
        message_group: Some(groups.texts()),
        delay: Some((Column { values: &delays, ..Column::default() }, 1000)),
        ..plain(&bodies, 8)
    };
    let rows = Rows::read(&columns, to("orders")).unwrap();
    let found: Vec<_> = rows.lanes(LIMITS).into_iter().map(|part| part.rows).collect();
    assert_eq!(found, [vec![0, 5, 6], vec![1, 4], vec![2], vec![3], vec![7]]);
    // Two queues, each on its own broker. Groups go to the broker that RocketMQ's clients choose, which picks the
    // queue.
    let places = Places { block: 4, queues: &[1, 0], in_order: &[0, 1], brokers: &[0, 1] };
    let placed = rows.placed(0, &places, LIMITS).unwrap();
    assert_eq!(rows.placed(1, &places, LIMITS).unwrap(), []);
    let mut all: Vec<_> = placed.iter().flat_map(|part| part.rows.clone()).collect();
    all.sort_unstable();
    assert_eq!(all, (0..8).collect::<Vec<_>>());
    for part in &placed {
        let are_groups = part.rows.iter().all(|index| rows.group(*index).is_some());
        let is_none = part.rows.iter().all(|index| rows.group(*index).is_none());
        assert!(are_groups || is_none, "{part:?}");
        if is_none {
            assert!(
                part.rows.iter().all(|index| part.queue == places.queues[*index as usize / 4]),
                "{part:?}"
            );
        }
    }
    assert_eq!(rows.placed(0, &Places { queues: &[1], ..places }, LIMITS), None);
    assert_eq!(rows.placed(0, &Places { brokers: &[], ..places }, LIMITS), None);
    let few = rows.lanes(Limits { rows: 9, bytes: 1 });
    assert_eq!(few.len(), 8);
}

#[test]
fn a_body_over_the_limit_is_found() {
    let bodies = ArrowTexts::of(&[Some("a"), Some("long")]);
    let rows = Rows::read(&plain(&bodies, 2), Common { first: 3, ..to("orders") }).unwrap();
    let parts = rows.lanes(LIMITS);
    assert_eq!(rows.too_large(&parts[0], 3), Some((4, 4)));
    assert_eq!(rows.too_large(&parts[0], 4), None);
}

proptest! {
    #[test]
    fn any_buffers_are_rows_or_refused(
        rows in 0usize..12, first in prop_oneof![0usize..4, Just(usize::MAX)],
        validity in prop::option::of(prop::collection::vec(any::<u8>(), 0..3)),
        values in prop::collection::vec(prop_oneof![0i64..20, any::<i64>()], 0..14),
        data in prop::collection::vec(any::<u8>(), 0..20), unit: i64,
    ) {
        let values = numbers(&values);
        let column = Column { first, validity: validity.as_deref(), values: &values };
        let sound = ArrowTexts::of(&[Some("x"); 12]);
        let texts = Texts { spans: column, data: &data };
        let common = Common { first: u64::MAX - 3, topic: Some("t"), numbered: Some("w/1/2") };
        let body = Columns { body: column, body_len: data.len(), rows, ..Columns::default() };
        let head = Columns { topic: Some(texts), tag: Some(texts), ..plain(&sound, rows) };
        let keys = Columns { keys: Some(Keys::Several(column, texts)), ..plain(&sound, rows) };
        let entries = Entries { spans: column, names: texts, values: texts };
        let entries = Columns { properties: Some(entries), ..plain(&sound, rows) };
        let times = Columns { delivery_timestamp: Some(column), ..plain(&sound, rows) };
        let waits = Columns { delay: Some((column, unit)), ..plain(&sound, rows) };
        let ranks = Columns { priority: Some(column), message_group: Some(texts), ..plain(&sound, rows) };
        for columns in [body, head, keys, entries, times, waits, ranks] {
            if let Ok(read) = Rows::read(&columns, common) {
                for part in read.lanes(LIMITS) {
                    let bytes = encoded(&read, &part, &sound.data);
                    prop_assert!(SendRequest::parse(&bytes).is_ok());
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn all_rows_of_a_request_come_after_those_of_the_request_before(
        kinds in prop::collection::vec(0u8..6, 1..60), blocks in prop::collection::vec(0u32..4, 60),
        first in 0u64..9, brokers in prop::collection::vec(0u32..3, 4), with_chosen: bool, most in 1usize..8,
    ) {
        let kinds: Vec<_> = kinds.into_iter().map(|kind| if with_chosen { kind } else { kind.min(2) }).collect();
        let bodies = ArrowTexts::of(&vec![Some("x"); kinds.len()]);
        let groups: Vec<_> = kinds.iter().map(|kind| match kind { 4 => Some("g"), 5 => Some("h"), _ => None }).collect();
        let groups = ArrowTexts::of(&groups);
        let delays = numbers(&kinds.iter().map(|kind| i64::from(*kind == 2)).collect::<Vec<_>>());
        let ranks = ArrowTexts::of(&kinds.iter().map(|kind| (*kind == 3).then_some("x")).collect::<Vec<_>>());
        let ones = numbers(&vec![1; kinds.len()]);
        let columns = Columns {
            message_group: Some(groups.texts()),
            delay: Some((Column { values: &delays, ..Column::default() }, 1)),
            priority: Some(Column { first: 0, validity: Some(&ranks.validity), values: &ones }),
            ..plain(&bodies, kinds.len())
        };
        let rows = Rows::read(&columns, Common { first, ..to("t") }).unwrap();
        let places = Places { block: 3, queues: &blocks, in_order: &[2, 0, 3, 1], brokers: &brokers };
        let parts = rows.placed(0, &places, Limits { rows: most, bytes: 1 << 20 }).unwrap();
        for (before, later) in parts.iter().zip(&parts[1..]) {
            prop_assert!(before.rows.last() < later.rows.first(), "{before:?} {later:?}");
        }
        prop_assert!(parts.iter().all(|part| part.rows.is_sorted() && part.rows.len() <= most));
        let mut all: Vec<_> = parts.iter().flat_map(|part| part.rows.clone()).collect();
        all.sort_unstable();
        prop_assert!(all.into_iter().eq(0..kinds.len() as u32));
    }
}
