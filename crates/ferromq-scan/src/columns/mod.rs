//! Turns records into the column buffers of Arrow, without an object a message.
//!
//! The source of the bytes does not matter: a file or a pull over either protocol gives the same rows. Checksums are
//! verified; any bytes are accepted. The caller adds Arrow's types.

mod body;
mod buffers;
mod column_table;
mod filter;
mod row_properties;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use thiserror::Error;

pub use buffers::Buffers;
pub use ferromq_store::formats::compression::decompressed;
pub use filter::{QueueBegins, QueueStarts, RowFilter};

use self::{
    column_table::ColumnTable,
    row_properties::{PropertyBuffer, RowProperties},
};
use ferromq_store::record::MessageView;

/// All columns, in the order of the schema.
pub const COLUMN_NAMES: [&str; 15] = [
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "message_id",
    "keys",
    "tag",
    "properties",
    "body",
    "born_timestamp",
    "store_timestamp",
    "born_host",
    "store_host",
    "reconsume_times",
    "sys_flag",
];
/// The columns that are read from properties.
const OF_PROPERTIES: [&str; 5] = ["message_id", "keys", "tag", "properties", "born_host"];

/// Why bytes cannot become rows.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColumnsError {
    /// There is no column of this name.
    #[error("column {0:?} is not known; allowed: {allowed}", allowed = COLUMN_NAMES.join(", "))]
    UnknownColumn(String),
    /// No sound record begins where one should.
    #[error("byte {at} of part {part}: {reason}")]
    Malformed {
        /// Index of the part.
        part: usize,
        /// Byte position in the part.
        at: usize,
        /// The broken rule.
        reason: &'static str,
    },
    /// A column of one batch holds at most 2 GiB.
    #[error("a batch is limited to 2 GiB")]
    TooLarge,
}

/// A set of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnSet(u16);

impl ColumnSet {
    /// All columns.
    pub const ALL: Self = Self(u16::MAX);

    /// The columns with these names.
    ///
    /// # Errors
    /// `UnknownColumn` with the first unknown name.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, ColumnsError> {
        names.into_iter().try_fold(Self(0), |wanted, name| {
            let at = COLUMN_NAMES.iter().position(|known| *known == name);
            at.map(|at| Self(wanted.0 | 1 << at)).ok_or_else(|| ColumnsError::UnknownColumn(name.to_owned()))
        })
    }

    fn has(self, name: &str) -> bool {
        COLUMN_NAMES.iter().position(|known| *known == name).is_some_and(|at| self.0 >> at & 1 == 1)
    }
}

/// A batch of rows.
#[derive(Debug, Default)]
pub struct RowBatch {
    /// Number of rows in every column.
    pub rows: usize,
    /// Number of records read, filtered ones included.
    pub read: usize,
    /// Queue offset after the last record read.
    pub next_offset: Option<u64>,
    /// Name and buffers of each selected column.
    pub columns: Vec<(&'static str, Buffers)>,
}

/// Builds a batch from records, one at a time.
#[derive(Debug)]
pub struct BatchBuilder<'f> {
    filter: &'f RowFilter,
    with_properties: bool,
    with_user: bool,
    room: PropertyBuffer,
    table: ColumnTable,
    read: usize,
    next_offset: Option<u64>,
}

impl<'f> BatchBuilder<'f> {
    /// Allocates capacity for `rows` rows with `bytes` bytes of bodies in total.
    #[must_use]
    pub fn new(wanted: ColumnSet, filter: &'f RowFilter, rows: usize, bytes: usize) -> Self {
        let with_properties = filter.needs_properties() || OF_PROPERTIES.iter().any(|name| wanted.has(name));
        Self {
            filter,
            with_properties,
            with_user: wanted.has("properties"),
            room: PropertyBuffer::default(),
            table: ColumnTable::new(wanted, rows, bytes),
            read: 0,
            next_offset: None,
        }
    }

    /// Adds a record if the filter selects it.
    ///
    /// # Errors
    /// `TooLarge`; the batch is unchanged.
    pub fn add(&mut self, view: &MessageView<'_>) -> Result<(), ColumnsError> {
        if self.filter.holds_of_head(view) {
            let text = if self.with_properties { view.properties } else { &[] };
            let marks = RowProperties::read(text, self.with_user, std::mem::take(&mut self.room));
            let pushed = match self.filter.holds_of_properties(&marks) {
                true => self.table.push(view, &marks),
                false => Ok(()),
            };
            self.room = marks.into_buffer();
            pushed?;
        }
        self.pass(view);
        Ok(())
    }

    /// Whether the filter may select a record, judged without its properties.
    pub(crate) fn may_want(&self, view: &MessageView<'_>) -> bool {
        self.filter.holds_of_head(view)
    }

    /// Counts a record that becomes no row.
    pub(crate) fn pass(&mut self, view: &MessageView<'_>) {
        self.read += 1;
        self.next_offset = Some(view.queue_offset.saturating_add(1));
    }

    /// Number of rows so far.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.table.rows
    }

    /// Approximate bytes in the columns.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.table.bytes
    }

    /// Finishes the batch.
    #[must_use]
    pub fn finish(self) -> RowBatch {
        let Self { read, next_offset, table, .. } = self;
        RowBatch { rows: table.rows, read, next_offset, columns: table.finish() }
    }
}

/// Builds one batch from `parts`, each a sequence of whole records as the log stores them.
///
/// Leaves out records at and behind queue offset `end`.
///
/// # Errors
/// [`ColumnsError`] for bytes that are no sound records, and for more rows than one batch holds.
pub fn record_columns(
    parts: &[&[u8]],
    wanted: ColumnSet,
    filter: &RowFilter,
    end: Option<u64>,
) -> Result<RowBatch, ColumnsError> {
    let bytes = parts.iter().map(|part| part.len()).sum();
    let mut builder = BatchBuilder::new(wanted, filter, rows_expected(parts, bytes), bytes);
    add_all(&mut builder, parts, true, end)?;
    Ok(builder.finish())
}

/// Builds one batch from the records of answers, of messages that were received or pulled.
///
/// A body that does not match its checksum or does not decompress is null, and the rows of other messages are there.
#[derive(Debug)]
pub struct MessageColumns {
    wanted: ColumnSet,
    /// Expected bytes of all records.
    bytes: usize,
    /// Made with the first records, whose size tells the number of rows.
    builder: Option<BatchBuilder<'static>>,
}

impl MessageColumns {
    /// Begins a batch of about `bytes` bytes of records.
    #[must_use]
    pub fn new(wanted: ColumnSet, bytes: usize) -> Self {
        Self { wanted, bytes, builder: None }
    }

    /// Adds the records of an answer.
    ///
    /// # Errors
    /// As [`record_columns`], but for checksums; the rows before the error are in the batch.
    pub fn add(&mut self, records: &[u8]) -> Result<(), ColumnsError> {
        let builder = self.builder.get_or_insert_with(|| {
            let rows = rows_expected(&[records], self.bytes);
            let mut builder = BatchBuilder::new(self.wanted, &NO_FILTER, rows, self.bytes);
            builder.table.null_bodies = true;
            builder
        });
        add_all(builder, &[records], false, None)
    }

    /// Finishes the batch.
    #[must_use]
    pub fn finish(self) -> RowBatch {
        let empty = || BatchBuilder::new(self.wanted, &NO_FILTER, 0, 0);
        self.builder.unwrap_or_else(empty).finish()
    }
}

static NO_FILTER: LazyLock<RowFilter> = LazyLock::new(RowFilter::default);

fn add_all(
    builder: &mut BatchBuilder<'_>,
    parts: &[&[u8]],
    check: bool,
    end: Option<u64>,
) -> Result<(), ColumnsError> {
    for (part, whole) in parts.iter().enumerate() {
        let mut rest = *whole;
        while !rest.is_empty() {
            let at = whole.len() - rest.len();
            let view = MessageView::decode(rest, check).map_err(|reason| ColumnsError::Malformed {
                part,
                at,
                reason,
            })?;
            if end.is_none_or(|end| view.queue_offset < end) {
                builder.add(&view)?;
            }
            rest = rest.get(view.total_size as usize..).unwrap_or_default();
        }
    }
    Ok(())
}

/// Estimates the number of rows from the first record's size: records of one queue are mostly alike.
fn rows_expected(parts: &[&[u8]], bytes: usize) -> usize {
    const MOST: usize = 1 << 16;
    let first = parts.iter().find_map(|part| part.first_chunk::<4>());
    let first = first.map_or(0, |len| u32::from_be_bytes(*len) as usize);
    (bytes / first.max(ferromq_store::formats::message::MIN_RECORD_LEN as usize) + 1).min(MOST)
}
