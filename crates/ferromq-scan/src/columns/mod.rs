//! Records as the column buffers of Arrow: what lies in the log becomes rows, without an object for a message.
//!
//! Pure: bytes in, buffers out. Where the bytes come from (a file, a pull over either protocol) does not matter, so the
//! rows are the same. Checksums are checked; any bytes may be given. Arrow's types round the buffers are the caller's.

mod body;
mod buffers;
mod filter;
mod marks;
mod table;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub use body::decompressed;
pub use buffers::Buffers;
pub use filter::{QueueBegins, QueueStarts, RowFilter};

use self::{
    marks::{Marks, Room},
    table::Table,
};
use ferromq_store::record::MessageView;

/// The columns there are, in the order of the schema.
pub const NAMES: [&str; 15] = [
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
/// Those that are read from properties.
const OF_PROPERTIES: [&str; 5] = ["message_id", "keys", "tag", "properties", "born_host"];

/// Why bytes do not become rows.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColumnsError {
    /// A column that is none.
    #[error("column {0:?} is not known; allowed: {allowed}", allowed = NAMES.join(", "))]
    UnknownColumn(String),
    /// No sound record lies where one should.
    #[error("byte {at} of part {part}: {reason}")]
    Malformed {
        /// Which of the parts given, from 0 on.
        part: usize,
        /// Where in it.
        at: usize,
        /// Which rule is broken.
        reason: &'static str,
    },
    /// A column of one batch holds at most 2 GiB.
    #[error("more than 2 GiB do not fit one batch")]
    TooLarge,
}

/// The columns somebody wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted(u16);

impl Wanted {
    /// All of them.
    pub const ALL: Self = Self(u16::MAX);

    /// Those with these names.
    ///
    /// # Errors
    /// `UnknownColumn` naming the first that is none.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, ColumnsError> {
        names.into_iter().try_fold(Self(0), |wanted, name| {
            let at = NAMES.iter().position(|known| *known == name);
            at.map(|at| Self(wanted.0 | 1 << at)).ok_or_else(|| ColumnsError::UnknownColumn(name.to_owned()))
        })
    }

    fn has(self, name: &str) -> bool {
        NAMES.iter().position(|known| *known == name).is_some_and(|at| self.0 >> at & 1 == 1)
    }
}

/// Rows, and how far the records went that they were made of.
#[derive(Debug, Default)]
pub struct Batch {
    /// Rows in every column.
    pub rows: usize,
    /// Records looked at, those that are no rows among them.
    pub read: usize,
    /// Behind the queue offset of the record looked at last.
    pub next_offset: Option<u64>,
    /// Name and buffers of each column that was wanted.
    pub columns: Vec<(&'static str, Buffers)>,
}

/// Makes a batch of records, one after the other.
#[derive(Debug)]
pub struct BatchBuilder<'f> {
    filter: &'f RowFilter,
    with_marks: bool,
    with_user: bool,
    room: Room,
    table: Table,
    read: usize,
    next_offset: Option<u64>,
}

impl<'f> BatchBuilder<'f> {
    /// Room is made for `rows` rows whose bodies have `bytes` bytes.
    #[must_use]
    pub fn new(wanted: Wanted, filter: &'f RowFilter, rows: usize, bytes: usize) -> Self {
        let with_marks = filter.needs_marks() || OF_PROPERTIES.iter().any(|name| wanted.has(name));
        Self {
            filter,
            with_marks,
            with_user: wanted.has("properties"),
            room: Room::default(),
            table: Table::new(wanted, rows, bytes),
            read: 0,
            next_offset: None,
        }
    }

    /// Adds a record, where the filter holds of it.
    ///
    /// # Errors
    /// `TooLarge`; nothing was added then.
    pub fn add(&mut self, view: &MessageView<'_>) -> Result<(), ColumnsError> {
        if self.filter.holds_of_head(view) {
            let text = if self.with_marks { view.properties } else { &[] };
            let marks = Marks::read(text, self.with_user, std::mem::take(&mut self.room));
            let pushed = match self.filter.holds_of_marks(&marks) {
                true => self.table.push(view, &marks),
                false => Ok(()),
            };
            self.room = marks.into_room();
            pushed?;
        }
        self.pass(view);
        Ok(())
    }

    /// Says whether the filter holds of a record, as far as its properties need not be read.
    pub(crate) fn may_want(&self, view: &MessageView<'_>) -> bool {
        self.filter.holds_of_head(view)
    }

    /// Counts a record that is not to become a row.
    pub(crate) fn pass(&mut self, view: &MessageView<'_>) {
        self.read += 1;
        self.next_offset = Some(view.queue_offset.saturating_add(1));
    }

    /// Rows so far.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.table.rows
    }

    /// Bytes the columns hold, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.table.bytes
    }

    /// The batch.
    #[must_use]
    pub fn finish(self) -> Batch {
        let Self { read, next_offset, table, .. } = self;
        Batch { rows: table.rows, read, next_offset, columns: table.finish() }
    }
}

/// Makes one batch of `parts`, each a row of whole records as they lie in the log.
///
/// Records at and behind queue offset `end` are left out, as if they had not come.
///
/// # Errors
/// [`ColumnsError`] for bytes that are no sound records, and for more of them than one batch holds.
pub fn record_columns<'a>(
    parts: &[&'a [u8]],
    wanted: Wanted,
    filter: &RowFilter,
    end: Option<u64>,
) -> Result<Batch, ColumnsError> {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let rows = rows_expected(parts, bytes);
    let mut builder = BatchBuilder::new(wanted, filter, rows, bytes);
    for (part, whole) in parts.iter().enumerate() {
        let mut rest: &'a [u8] = whole;
        while !rest.is_empty() {
            let at = whole.len() - rest.len();
            let view = MessageView::decode(rest, true).map_err(|reason| ColumnsError::Malformed {
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
    Ok(builder.finish())
}

/// Records of one queue are mostly alike: as many as if all were as long as the first.
fn rows_expected(parts: &[&[u8]], bytes: usize) -> usize {
    const MOST: usize = 1 << 16;
    let first = parts.iter().find_map(|part| part.first_chunk::<4>());
    let first = first.map_or(0, |len| u32::from_be_bytes(*len) as usize);
    (bytes / first.max(ferromq_store::formats::message::MIN_RECORD_LEN as usize) + 1).min(MOST)
}
