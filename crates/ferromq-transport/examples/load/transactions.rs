//! Transactions: a half message each, and its commit after the response.

use std::time::Instant;

use crate::{
    Connection, FOUND, Failure, Options, Totals,
    frames::{Header, Response, Template, field, response, text},
    histogram::Histogram,
};

const SEND: i16 = 310;
const END_TRANSACTION: i16 = 37;
const PRODUCERS: &str = "load";
/// Position of the physical offset in an offset message id with an IPv4 address.
const OFFSET_AT: usize = 16;

/// A transaction in flight.
#[derive(Clone, Copy)]
struct InFlight {
    begun: Instant,
    is_ending: bool,
}

/// Keeps transactions in flight until the time is over. A latency is that of both responses.
pub(crate) async fn drive(options: &Options, number: usize) -> Result<Totals, Failure> {
    let halves = halves(options, number)?;
    let mut connection = Connection::open(options.text("address", "127.0.0.1:10911")).await?;
    let begin = Instant::now() + options.seconds("warm-up", 2)?;
    let end = begin + options.seconds("seconds", 10)?;
    let mut turns = halves.iter().cycle();
    let mut slots =
        vec![InFlight { begun: Instant::now(), is_ending: false }; options.number("in-flight", 1)?.max(1)];
    let mut totals = Totals { messages: 0, refused: 0, latencies: Histogram::new(), elapsed: end - begin };
    for (slot, half) in (0..slots.len()).zip(&mut turns) {
        half.write(slot as u32, &mut connection.out);
    }
    loop {
        connection.send().await?;
        connection.receive().await?;
        let now = Instant::now();
        let Connection { bytes, out, .. } = &mut connection;
        let mut used = 0;
        while let Some((answer, length)) = bytes.get(used..).and_then(response) {
            used += length;
            let Some(slot) = slots.get_mut(answer.number as usize) else { continue };
            let is_counted = now >= begin && now < end;
            totals.refused += u64::from(is_counted && answer.code != FOUND);
            if !slot.is_ending && answer.code == FOUND {
                slot.is_ending = true;
                commit(&answer)?.write(answer.number, out);
                continue;
            }
            if is_counted && answer.code == FOUND {
                totals.messages += 1;
                totals.latencies.add(now - slot.begun);
            }
            *slot = InFlight { begun: now, is_ending: false };
            if let Some(half) = turns.next() {
                half.write(answer.number, out);
            }
        }
        bytes.drain(..used);
        if now >= end {
            return Ok(totals);
        }
    }
}

/// Half messages of Java's producer, one for each queue.
fn halves(options: &Options, connection: usize) -> Result<Vec<Template>, Failure> {
    let header = options.header()?;
    let queues = options.number("queues", 8)?.max(1);
    let body = vec![b'x'; options.number("size", 1_024)?];
    let properties = format!(
        "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}{PRODUCERS}\u{2}\
         UNIQ_KEY\u{1}7F000001{connection:04X}18B4AAC2000000000000\u{2}WAIT\u{1}true\u{2}"
    );
    let of = |queue: usize| {
        let queue = queue.to_string();
        let fields = [
            ("a", PRODUCERS),
            ("b", options.text("topic", "load")),
            ("c", "TBW102"),
            ("d", "8"),
            ("e", queue.as_str()),
            ("f", "4"),
            ("g", "1700000000000"),
            ("h", "0"),
            ("i", properties.as_str()),
            ("j", "0"),
            ("k", "false"),
            ("m", "false"),
        ];
        Template::new(header, SEND, &fields, &body)
    };
    Ok((0..queues).map(|turn| of((turn + connection) % queues)).collect())
}

/// The commit of a half message, from its response.
fn commit(answer: &Response<'_>) -> Result<Template, Failure> {
    let place = text(answer.header, "msgId")
        .and_then(|id| i64::from_str_radix(id.get(OFFSET_AT..)?, 16).ok())
        .zip(field(answer.header, "queueOffset"));
    let (physical_offset, queue_offset) = place.ok_or("a response has no offsets of its half message")?;
    let fields = [
        ("producerGroup", PRODUCERS),
        ("tranStateTableOffset", &queue_offset.to_string()),
        ("commitLogOffset", &physical_offset.to_string()),
        ("commitOrRollback", "8"),
    ];
    Ok(Template::new(Header::Json, END_TRANSACTION, &fields, b""))
}
