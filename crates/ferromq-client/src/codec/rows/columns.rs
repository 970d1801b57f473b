//! Reads columns in Arrow's layout, in place. Any bytes are safe: buffers that do not fit are [`InvalidColumn`].

use std::ops::Range;

/// Buffers are inconsistent, or too short for the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InvalidColumn;

/// Validity and values of a column.
#[derive(Debug, Clone, Copy, Default)]
pub struct Column<'a> {
    /// Index of the first row's value.
    pub first: usize,
    /// One bit per value; `None` if no value is null.
    pub validity: Option<&'a [u8]>,
    /// Eight bytes per value: a number, or the start of the value in another buffer. The end of the last value follows
    /// the starts.
    pub values: &'a [u8],
}

impl Column<'_> {
    fn is_valid(&self, at: usize) -> Result<bool, InvalidColumn> {
        let Some(bits) = self.validity else { return Ok(true) };
        bits.get(at / 8).map(|byte| byte >> (at % 8) & 1 == 1).ok_or(InvalidColumn)
    }

    fn value(&self, at: usize) -> Result<i64, InvalidColumn> {
        let begin = at.checked_mul(8).ok_or(InvalidColumn)?;
        let end = begin.checked_add(8).ok_or(InvalidColumn)?;
        let bytes = self.values.get(begin..end).and_then(|bytes| bytes.try_into().ok());
        bytes.map(i64::from_ne_bytes).ok_or(InvalidColumn)
    }

    fn place(&self, index: usize) -> Result<usize, InvalidColumn> {
        self.first.checked_add(index).ok_or(InvalidColumn)
    }

    /// The number of a row; `None` if null.
    pub(super) fn number(&self, index: usize) -> Result<Option<i64>, InvalidColumn> {
        let at = self.place(index)?;
        if self.is_valid(at)? { self.value(at).map(Some) } else { Ok(None) }
    }

    /// The range of a row in another buffer; `None` if null.
    pub(super) fn span(&self, index: usize) -> Result<Option<Range<usize>>, InvalidColumn> {
        let at = self.place(index)?;
        if !self.is_valid(at)? {
            return Ok(None);
        }
        let begin = usize::try_from(self.value(at)?).map_err(|_| InvalidColumn)?;
        let end = usize::try_from(self.value(at + 1)?).map_err(|_| InvalidColumn)?;
        if begin <= end { Ok(Some(begin..end)) } else { Err(InvalidColumn) }
    }
}

/// A column of texts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Texts<'a> {
    /// Range of each text in `data`.
    pub spans: Column<'a>,
    /// All texts, concatenated.
    pub data: &'a [u8],
}

impl<'a> Texts<'a> {
    /// The bytes of a row, not checked to be UTF-8; `None` if null.
    pub(super) fn bytes(&self, index: usize) -> Result<Option<&'a [u8]>, InvalidColumn> {
        let Some(span) = self.spans.span(index)? else { return Ok(None) };
        self.data.get(span).map(Some).ok_or(InvalidColumn)
    }

    /// Whether one of `rows` is `text`. Fails at the first row beyond the buffers.
    pub(super) fn holds(&self, rows: Range<usize>, text: &str) -> Result<bool, InvalidColumn> {
        for row in rows {
            if self.bytes(row)? == Some(text.as_bytes()) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The keys of each row.
#[derive(Debug, Clone, Copy)]
pub enum Keys<'a> {
    /// One key per row.
    One(Texts<'a>),
    /// Several keys per row: the range of each row in the texts.
    Several(Column<'a>, Texts<'a>),
}

/// The properties of each row.
#[derive(Debug, Clone, Copy)]
pub struct Entries<'a> {
    /// Range of each row in `names` and `values`.
    pub spans: Column<'a>,
    /// Names.
    pub names: Texts<'a>,
    /// Values.
    pub values: Texts<'a>,
}

/// The columns of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Columns<'a> {
    /// Number of rows.
    pub rows: usize,
    /// Range of each body, in a separate buffer.
    pub body: Column<'a>,
    /// Length of that buffer.
    pub body_len: usize,
    /// Topic.
    pub topic: Option<Texts<'a>>,
    /// Keys.
    pub keys: Option<Keys<'a>>,
    /// Tag.
    pub tag: Option<Texts<'a>>,
    /// Properties.
    pub properties: Option<Entries<'a>>,
    /// Delivery times, in milliseconds since 1970.
    pub delivery_timestamp: Option<Column<'a>>,
    /// Delays, and the number of their units per millisecond.
    pub delay: Option<(Column<'a>, i64)>,
    /// Message group.
    pub message_group: Option<Texts<'a>>,
    /// Priority.
    pub priority: Option<Column<'a>>,
}
