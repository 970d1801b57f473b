//! Columns as Arrow lays them out, read in place. Any bytes may be given: what does not fit is [`Unsound`].

use std::ops::Range;

/// Buffers that are no column of so many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unsound;

/// Validity and values of a column.
#[derive(Debug, Clone, Copy, Default)]
pub struct Column<'a> {
    /// Which of the values is the first row's.
    pub first: usize,
    /// A bit for each value; none where nothing is null.
    pub validity: Option<&'a [u8]>,
    /// Eight bytes for each value: a number; or where it begins in another buffer, and behind the last where that ends.
    pub values: &'a [u8],
}

impl Column<'_> {
    fn is_valid(&self, at: usize) -> Result<bool, Unsound> {
        let Some(bits) = self.validity else { return Ok(true) };
        bits.get(at / 8).map(|byte| byte >> (at % 8) & 1 == 1).ok_or(Unsound)
    }

    fn value(&self, at: usize) -> Result<i64, Unsound> {
        let begin = at.checked_mul(8).ok_or(Unsound)?;
        let end = begin.checked_add(8).ok_or(Unsound)?;
        let bytes = self.values.get(begin..end).and_then(|bytes| bytes.try_into().ok());
        bytes.map(i64::from_ne_bytes).ok_or(Unsound)
    }

    fn place(&self, index: usize) -> Result<usize, Unsound> {
        self.first.checked_add(index).ok_or(Unsound)
    }

    /// The number of a row.
    pub(super) fn number(&self, index: usize) -> Result<Option<i64>, Unsound> {
        let at = self.place(index)?;
        if self.is_valid(at)? { self.value(at).map(Some) } else { Ok(None) }
    }

    /// What a row has of another buffer.
    pub(super) fn span(&self, index: usize) -> Result<Option<Range<usize>>, Unsound> {
        let at = self.place(index)?;
        if !self.is_valid(at)? {
            return Ok(None);
        }
        let begin = usize::try_from(self.value(at)?).map_err(|_| Unsound)?;
        let end = usize::try_from(self.value(at + 1)?).map_err(|_| Unsound)?;
        if begin <= end { Ok(Some(begin..end)) } else { Err(Unsound) }
    }
}

/// A column of texts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Texts<'a> {
    /// Where each one lies.
    pub spans: Column<'a>,
    /// All of them, one after the other.
    pub data: &'a [u8],
}

impl<'a> Texts<'a> {
    /// The bytes of a row, which are to be UTF-8.
    pub(super) fn bytes(&self, index: usize) -> Result<Option<&'a [u8]>, Unsound> {
        let Some(span) = self.spans.span(index)? else { return Ok(None) };
        self.data.get(span).map(Some).ok_or(Unsound)
    }

    /// Whether one of these rows is `text`. Ends at the first row that the buffers do not hold.
    pub(super) fn holds(&self, rows: Range<usize>, text: &str) -> Result<bool, Unsound> {
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
    /// One.
    One(Texts<'a>),
    /// Several: which of the texts.
    Several(Column<'a>, Texts<'a>),
}

/// The properties of each row: which of the names and values.
#[derive(Debug, Clone, Copy)]
pub struct Entries<'a> {
    /// Where those of a row are.
    pub spans: Column<'a>,
    /// Names.
    pub names: Texts<'a>,
    /// Values.
    pub values: Texts<'a>,
}

/// The columns of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Columns<'a> {
    /// How many rows there are.
    pub rows: usize,
    /// Where each body lies, in a buffer that stays where it is.
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
    /// Milliseconds since 1970.
    pub delivery_timestamp: Option<Column<'a>>,
    /// Delays, and how many of their units are a millisecond.
    pub delay: Option<(Column<'a>, i64)>,
    /// Message group.
    pub message_group: Option<Texts<'a>>,
    /// Priority.
    pub priority: Option<Column<'a>>,
}
