//! The selected columns of a batch under construction.

use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
};

use super::{
    ColumnSet, ColumnsError, body,
    buffers::{Buffers, Lists, Maps, Numbers, Texts},
    row_properties::RowProperties,
};
use ferromq_store::record::{MessageView, OffsetMessageId};

/// Bytes of a row that its record does not hold as text: hosts and IDs.
const WRITTEN_OUT: usize = 256;
const MOST_BYTES: usize = i32::MAX as usize;

/// Caches the text of a value that mostly repeats.
#[derive(Debug)]
struct LastText<T> {
    value: Option<T>,
    text: Vec<u8>,
}

impl<T: PartialEq + Copy + std::fmt::Display> LastText<T> {
    const fn new() -> Self {
        Self { value: None, text: Vec::new() }
    }

    fn of(&mut self, value: T) -> &[u8] {
        if self.value != Some(value) {
            self.text.clear();
            // Writing to a vector cannot fail.
            let _ = write!(self.text, "{value}");
            self.value = Some(value);
        }
        &self.text
    }
}

/// All columns; `None` for those not selected.
#[derive(Debug)]
pub(super) struct ColumnTable {
    pub(super) rows: usize,
    /// Upper bound of the bytes in any column.
    pub(super) bytes: usize,
    /// Whether a damaged body is null; otherwise it is as stored, and its checksum was verified before.
    pub(super) null_bodies: bool,
    topic: Option<Texts>,
    queue_id: Option<Numbers>,
    queue_offset: Option<Numbers>,
    physical_offset: Option<Numbers>,
    message_id: Option<Texts>,
    keys: Option<Lists>,
    tag: Option<Texts>,
    properties: Option<Maps>,
    body: Option<Texts>,
    born_timestamp: Option<Numbers>,
    store_timestamp: Option<Numbers>,
    born_host: Option<Texts>,
    store_host: Option<Texts>,
    reconsume_times: Option<Numbers>,
    sys_flag: Option<Numbers>,
    last_born_host: LastText<IpAddr>,
    last_store_host: LastText<SocketAddr>,
}

impl ColumnTable {
    /// Allocates capacity for `rows` rows with `bytes` bytes of bodies in total.
    pub(super) fn new(wanted: ColumnSet, rows: usize, bytes: usize) -> Self {
        let texts =
            |name, each: usize| wanted.has(name).then(|| Texts::with_rows(rows, rows.saturating_mul(each)));
        let numbers = |name, width| wanted.has(name).then(|| Numbers::with_rows(rows, width));
        Self {
            rows: 0,
            bytes: 0,
            null_bodies: false,
            topic: texts("topic", 16),
            queue_id: numbers("queue_id", 4),
            queue_offset: numbers("queue_offset", 8),
            physical_offset: numbers("physical_offset", 8),
            message_id: texts("message_id", 34),
            keys: wanted.has("keys").then(|| Lists::with_rows(rows, rows.saturating_mul(16))),
            tag: texts("tag", 8),
            properties: wanted.has("properties").then(|| Maps::with_rows(rows, rows.saturating_mul(16))),
            body: wanted.has("body").then(|| Texts::with_rows(rows, bytes)),
            born_timestamp: numbers("born_timestamp", 8),
            store_timestamp: numbers("store_timestamp", 8),
            born_host: texts("born_host", 16),
            store_host: texts("store_host", 22),
            reconsume_times: numbers("reconsume_times", 4),
            sys_flag: numbers("sys_flag", 4),
            last_born_host: LastText::new(),
            last_store_host: LastText::new(),
        }
    }

    /// Adds a row, or nothing on an error.
    pub(super) fn push(
        &mut self,
        view: &MessageView<'_>,
        marks: &RowProperties<'_>,
    ) -> Result<(), ColumnsError> {
        let (body, sys_flag) = match (&self.body, &self.sys_flag) {
            (None, None) => (None, view.sys_flag),
            // The flag depends on the body even if the body is not selected.
            _ => {
                let (body, sys_flag) = body::of_row(view.sys_flag, view.body);
                let is_null = self.null_bodies && body::is_damaged(view, sys_flag);
                ((!is_null).then_some(body), sys_flag)
            }
        };
        let bytes = body.as_ref().map_or(0, |body| body.len())
            + view.topic.len()
            + view.properties.len()
            + WRITTEN_OUT;
        if bytes > MOST_BYTES - self.bytes {
            return Err(ColumnsError::TooLarge);
        }
        self.bytes += bytes;
        self.rows += 1;
        put(&mut self.body, |column| column.push(body.as_deref()));
        self.push_numbers(view, sys_flag);
        self.push_texts(view, marks);
        Ok(())
    }

    fn push_numbers(&mut self, view: &MessageView<'_>, sys_flag: i32) {
        let (born, stored) = (micros(view.born_timestamp), micros(view.store_timestamp));
        put(&mut self.queue_id, |column| column.push(view.queue_id.to_le_bytes()));
        put(&mut self.queue_offset, |column| column.push(view.queue_offset.to_le_bytes()));
        put(&mut self.physical_offset, |column| column.push(view.physical_offset.to_le_bytes()));
        put(&mut self.born_timestamp, |column| column.push(born.to_le_bytes()));
        put(&mut self.store_timestamp, |column| column.push(stored.to_le_bytes()));
        put(&mut self.reconsume_times, |column| column.push(view.reconsume_times.to_le_bytes()));
        put(&mut self.sys_flag, |column| column.push(sys_flag.to_le_bytes()));
    }

    fn push_texts(&mut self, view: &MessageView<'_>, marks: &RowProperties<'_>) {
        put(&mut self.topic, |column| column.push(Some(view.topic.as_bytes())));
        put(&mut self.message_id, |column| match marks.unique_key {
            Some(key) => column.push(Some(key.as_bytes())),
            None => column.push_with(|out| {
                // Writing to a vector cannot fail.
                let _ = write!(out, "{}", OffsetMessageId::of(view));
            }),
        });
        put(&mut self.keys, |column| column.push(marks.each_key()));
        put(&mut self.tag, |column| column.push(marks.tag.map(str::as_bytes)));
        put(&mut self.properties, |column| column.push(&marks.user));
        let last = &mut self.last_born_host;
        put(&mut self.born_host, |column| {
            column.push(Some(match marks.born_host {
                Some(host) => host.as_bytes(),
                None => last.of(view.born_host.ip()),
            }));
        });
        let last = &mut self.last_store_host;
        put(&mut self.store_host, |column| column.push(Some(last.of(view.store_host))));
    }

    /// The selected columns, in the order of [`super::COLUMN_NAMES`].
    pub(super) fn finish(self) -> Vec<(&'static str, Buffers)> {
        let columns = [
            ("topic", self.topic.map(Texts::finish)),
            ("queue_id", self.queue_id.map(Numbers::finish)),
            ("queue_offset", self.queue_offset.map(Numbers::finish)),
            ("physical_offset", self.physical_offset.map(Numbers::finish)),
            ("message_id", self.message_id.map(Texts::finish)),
            ("keys", self.keys.map(Lists::finish)),
            ("tag", self.tag.map(Texts::finish)),
            ("properties", self.properties.map(Maps::finish)),
            ("body", self.body.map(Texts::finish)),
            ("born_timestamp", self.born_timestamp.map(Numbers::finish)),
            ("store_timestamp", self.store_timestamp.map(Numbers::finish)),
            ("born_host", self.born_host.map(Texts::finish)),
            ("store_host", self.store_host.map(Texts::finish)),
            ("reconsume_times", self.reconsume_times.map(Numbers::finish)),
            ("sys_flag", self.sys_flag.map(Numbers::finish)),
        ];
        columns.into_iter().filter_map(|(name, buffers)| Some((name, buffers?))).collect()
    }
}

fn put<T>(column: &mut Option<T>, push: impl FnOnce(&mut T)) {
    if let Some(column) = column {
        push(column);
    }
}

/// Converts milliseconds to microseconds, Spark's resolution. A producer's time out of range becomes the nearest valid
/// one.
fn micros(ms: i64) -> i64 {
    ms.saturating_mul(1_000)
}
