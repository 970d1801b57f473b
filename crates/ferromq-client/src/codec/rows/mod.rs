//! Encodes rows of Arrow columns as messages to send, without an object per row.
//!
//! Reading checks and encodes everything but the bodies; a body is copied once, into its request. `cut` groups rows
//! into requests. The caller chooses their queues, and sends and resends them. No I/O.

mod columns;
mod cut;

use std::{collections::HashMap, fmt::Write, ops::Range};

use thiserror::Error;

pub use columns::{Column, Columns, Entries, Keys, Texts};
pub use cut::{Limits, Part, Places};

use super::{
    Batch, EncodedHeaders, IllegalHeader, Kind, encode,
    headers::{check_group, put_key, put_property, put_tag},
};
use crate::codec::rows::columns::InvalidColumn;
use ferromq_protocol::SEQUENCE;

/// A row that cannot become a message: its number in the partition, the column, the reason and the way out.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("row {row}: {why}")]
pub struct IllegalRow {
    /// Number of the row in its partition, from 0.
    pub row: u64,
    why: String,
}

/// The reason for an [`IllegalRow`] whose number is not known yet.
struct Reason(String);

impl From<InvalidColumn> for Reason {
    fn from(_: InvalidColumn) -> Self {
        Self("its Arrow buffers are inconsistent or too short for its rows".to_owned())
    }
}

fn of_column(name: &'static str) -> impl Fn(IllegalHeader) -> Reason {
    move |error| Reason(format!("column '{name}': {error}"))
}

#[derive(Debug)]
struct Row {
    topic: u32,
    kind: Kind,
    /// User properties are `begin..middle` of [`Rows::texts`], system properties `middle..end`.
    begin: usize,
    middle: usize,
    end: usize,
    body: Range<usize>,
}

/// The rows of a batch, ready to be sent.
#[derive(Debug)]
pub struct Rows {
    first: u64,
    texts: Vec<u8>,
    rows: Vec<Row>,
    topics: Vec<(String, u64)>,
}

/// Values that do not come from the columns.
#[derive(Debug, Clone, Copy, Default)]
pub struct Common<'a> {
    /// Number of the first row in its partition.
    pub first: u64,
    /// Topic of rows without one.
    pub topic: Option<&'a str>,
    /// Prefix of each row's sequence, before the row's number, for rows to be stored once.
    pub numbered: Option<&'a str>,
}

impl Rows {
    /// Checks and encodes rows. Topic names are not checked.
    ///
    /// A sequence among the properties is left out: it belongs to the write that the row was read from.
    pub fn read(columns: &Columns<'_>, common: Common<'_>) -> Result<Self, IllegalRow> {
        let rows = Vec::with_capacity(columns.rows);
        let mut read = Self { first: common.first, texts: Vec::new(), rows, topics: Vec::new() };
        let mut topics = HashMap::new();
        let mut number = String::new();
        for index in 0..columns.rows {
            let row = common.first.saturating_add(index as u64);
            if let Some(before) = common.numbered {
                number.clear();
                let _ = write!(number, "{before}/{row}"); // writing to a string cannot fail
            }
            let sequence = common.numbered.map(|_| number.as_str());
            let added = read.add(columns, index, common.topic, sequence, &mut topics);
            added.map_err(|Reason(why)| IllegalRow { row, why })?;
        }
        Ok(read)
    }

    /// Each topic, and the number of its first row.
    #[must_use]
    pub fn topics(&self) -> &[(String, u64)] {
        &self.topics
    }

    /// The number of a row in its partition.
    #[must_use]
    pub fn number(&self, index: u32) -> u64 {
        self.first.saturating_add(index.into())
    }

    /// The message group of a row.
    #[must_use]
    pub fn group(&self, index: u32) -> Option<&str> {
        match &self.rows.get(index as usize)?.kind {
            Kind::Fifo(group) => Some(group),
            _ => None,
        }
    }

    /// Number and body length of the first row of a part whose body is longer than `limit`.
    #[must_use]
    pub fn too_large(&self, part: &Part, limit: usize) -> Option<(u64, usize)> {
        let mut lens =
            part.rows.iter().filter_map(|index| Some((*index, self.rows.get(*index as usize)?.body.len())));
        lens.find(|(_, len)| *len > limit).map(|(index, len)| (self.number(index), len))
    }

    /// Encodes the `SendMessageRequest` of a part. `bodies` is the buffer that contains the bodies.
    #[must_use]
    pub fn encode(&self, batch: &Batch<'_>, part: &Part, bodies: &[u8]) -> Vec<u8> {
        let messages = part.rows.iter().filter_map(|index| {
            let row = self.rows.get(*index as usize)?;
            let headers = EncodedHeaders {
                compression: None,
                user_properties: self.texts.get(row.begin..row.middle)?,
                system_properties: self.texts.get(row.middle..row.end)?,
                kind: &row.kind,
            };
            Some((headers, bodies.get(row.body.clone())?))
        });
        encode(batch, messages)
    }

    fn add<'a>(
        &mut self,
        columns: &Columns<'a>,
        index: usize,
        topic: Option<&'a str>,
        sequence: Option<&str>,
        topics: &mut HashMap<&'a str, u32>,
    ) -> Result<(), Reason> {
        let own = text(columns.topic, "topic", index)?.filter(|topic| !topic.is_empty());
        let Some(name) = own.or(topic) else {
            return Err(Reason("column 'topic' is null; give it a topic, or set option 'topic'".to_owned()));
        };
        let topic = *topics.entry(name).or_insert_with(|| {
            self.topics.push((name.to_owned(), self.first.saturating_add(index as u64)));
            self.topics.len() as u32 - 1
        });
        let body = body(columns, index)?;
        let begin = self.texts.len();
        self.put_properties(columns, index)?;
        if let Some(sequence) = sequence {
            put_property(&mut self.texts, SEQUENCE, sequence).map_err(of_column("properties"))?;
        }
        let middle = self.texts.len();
        if let Some(tag) = text(columns.tag, "tag", index)? {
            put_tag(&mut self.texts, tag).map_err(of_column("tag"))?;
        }
        self.put_keys(columns, index)?;
        let kind = kind(columns, index)?;
        self.rows.push(Row { topic, kind, begin, middle, end: self.texts.len(), body });
        Ok(())
    }

    fn put_keys(&mut self, columns: &Columns<'_>, index: usize) -> Result<(), Reason> {
        let (texts, span) = match columns.keys {
            None => return Ok(()),
            Some(Keys::One(texts)) => (texts, texts.bytes(index)?.map(|_| index..index + 1)),
            Some(Keys::Several(spans, texts)) => (texts, spans.span(index)?),
        };
        for at in span.into_iter().flatten() {
            let Some(key) = text(Some(texts), "keys", at)? else {
                return Err(Reason("column 'keys' contains null; leave it out of the array".to_owned()));
            };
            put_key(&mut self.texts, key).map_err(of_column("keys"))?;
        }
        Ok(())
    }

    fn put_properties(&mut self, columns: &Columns<'_>, index: usize) -> Result<(), Reason> {
        let Some(Entries { spans, names, values }) = columns.properties else { return Ok(()) };
        let Some(span) = spans.span(index)? else { return Ok(()) };
        for at in span.clone() {
            let Some(name) = text(Some(names), "properties", at)? else {
                return Err(Reason(
                    "column 'properties' has a null name; leave it out of the map".to_owned(),
                ));
            };
            if name == SEQUENCE {
                continue;
            }
            if names.holds(at + 1..span.end, name)? {
                continue; // the last of equal names counts
            }
            let Some(value) = text(Some(values), "properties", at)? else {
                return Err(Reason(format!(
                    "column 'properties' has no value for '{name}'; leave it out of the map"
                )));
            };
            put_property(&mut self.texts, name, value).map_err(of_column("properties"))?;
        }
        Ok(())
    }
}

/// The text of a row in a column.
fn text<'a>(texts: Option<Texts<'a>>, name: &'static str, index: usize) -> Result<Option<&'a str>, Reason> {
    let Some(bytes) = texts.map(|texts| texts.bytes(index)).transpose()?.flatten() else { return Ok(None) };
    let text = std::str::from_utf8(bytes);
    text.map(Some)
        .map_err(|_| Reason(format!("column '{name}' is not UTF-8; write bytes in the column 'body'")))
}

/// The range of a row's body.
fn body(columns: &Columns<'_>, index: usize) -> Result<Range<usize>, Reason> {
    let fail = |what| Err(Reason(format!("column 'body' is {what}; RocketMQ takes at least one byte")));
    match columns.body.span(index)? {
        None => fail("null"),
        Some(span) if span.is_empty() => fail("empty"),
        Some(span) if span.end <= columns.body_len => Ok(span),
        Some(_) => Err(InvalidColumn.into()),
    }
}

/// How a row is delivered.
fn kind(columns: &Columns<'_>, index: usize) -> Result<Kind, Reason> {
    let number = |column: Option<Column<'_>>| column.map(|column| column.number(index)).transpose();
    let group = text(columns.message_group, "message_group", index)?;
    let (at, priority) = (number(columns.delivery_timestamp)?.flatten(), number(columns.priority)?.flatten());
    let delay = delay(columns, index)?;
    let given = [
        ("message_group", group.is_some()),
        ("delivery_timestamp", at.is_some()),
        ("delay", delay.is_some()),
        ("priority", priority.is_some()),
    ];
    if given.iter().filter(|(_, is_given)| *is_given).count() > 1 {
        let given: Vec<_> =
            given.into_iter().filter_map(|(name, is_given)| is_given.then_some(name)).collect();
        let given = given.join("' and '");
        let one = "a message has only one of message_group, delivery_timestamp, delay and priority";
        return Err(Reason(format!("columns '{given}': {one}; leave the others null")));
    }
    Ok(match (group, at, delay, priority) {
        (Some(group), ..) => {
            check_group(group).map_err(of_column("message_group"))?;
            Kind::Fifo(group.to_owned())
        }
        (_, Some(at), ..) if at < 0 => {
            let why = "a delivery timestamp must not be before 1970";
            return Err(Reason(format!("column 'delivery_timestamp': {why}, this one is {at} ms")));
        }
        (_, Some(at), ..) => Kind::At(at),
        (_, _, Some(delay), _) => Kind::After(delay),
        (_, _, _, Some(priority)) => match i32::try_from(priority) {
            Ok(priority) if priority >= 0 => Kind::Priority(priority),
            _ => {
                let limit = i32::MAX;
                let why =
                    format!("a priority is 0 to {limit}, this one is {priority}; higher ones come first");
                return Err(Reason(format!("column 'priority': {why}")));
            }
        },
        _ => Kind::Normal,
    })
}

/// A row's delay in milliseconds, rounded up; `None` for 0.
fn delay(columns: &Columns<'_>, index: usize) -> Result<Option<u32>, Reason> {
    let Some((column, unit)) = columns.delay else { return Ok(None) };
    let Some(units) = column.number(index)? else { return Ok(None) };
    let unit = unit.max(1);
    let millis = units.div_euclid(unit).saturating_add(i64::from(units.rem_euclid(unit) > 0));
    match u32::try_from(millis) {
        Ok(millis) => Ok((millis > 0).then_some(millis)),
        Err(_) if units < 0 => {
            let millis = units as f64 / unit as f64;
            Err(Reason(format!("column 'delay' is {millis} ms; it must not be negative")))
        }
        Err(_) => Err(Reason(format!(
            "column 'delay' is {millis} ms; a delay is at most 49 days ({} ms)",
            u32::MAX
        ))),
    }
}
