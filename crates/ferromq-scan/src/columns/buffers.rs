//! Growing Arrow columns: little-endian values, offsets and validity bits.
//!
//! They know nothing of messages. The caller's estimate sets their capacity.

/// The buffers of one column.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Buffers {
    /// Number of null rows.
    pub null_count: usize,
    /// One bit a row, least significant first; `None` if no row is null.
    pub validity: Option<Vec<u8>>,
    /// Numbers: values. Text and bytes: offsets, data. Lists of text: offsets, then the items' two. Maps of text:
    /// offsets, then the keys' two, then the values' two.
    pub data: Vec<Vec<u8>>,
}

/// Validity bits, allocated at the first null.
#[derive(Debug, Default)]
struct Validity {
    bits: Vec<u8>,
    len: usize,
    nulls: usize,
}

impl Validity {
    fn push(&mut self, valid: bool) {
        if self.nulls > 0 {
            self.push_bit(valid);
        } else if !valid {
            let len = std::mem::take(&mut self.len);
            self.bits.reserve(len / 8 + 1);
            (0..len).for_each(|_| self.push_bit(true));
            self.push_bit(false);
        } else {
            self.len += 1;
        }
    }

    fn push_bit(&mut self, valid: bool) {
        if self.len.is_multiple_of(8) {
            self.bits.push(0);
        }
        match self.bits.last_mut() {
            Some(last) if valid => *last |= 1 << (self.len % 8),
            _ => self.nulls += 1,
        }
        self.len += 1;
    }

    fn finish(self, data: Vec<Vec<u8>>) -> Buffers {
        Buffers { null_count: self.nulls, validity: (self.nulls > 0).then_some(self.bits), data }
    }
}

/// A column of non-null numbers of one width.
#[derive(Debug)]
pub(super) struct Numbers(Vec<u8>);

impl Numbers {
    pub(super) fn with_rows(rows: usize, width: usize) -> Self {
        Self(Vec::with_capacity(rows * width))
    }

    pub(super) fn push<const N: usize>(&mut self, value: [u8; N]) {
        self.0.extend_from_slice(&value);
    }

    pub(super) fn finish(self) -> Buffers {
        Buffers { data: vec![self.0], ..Buffers::default() }
    }
}

/// Arrow's 32-bit offsets: a leading 0, then the end of each item.
#[derive(Debug)]
struct ItemOffsets(Vec<u8>);

impl ItemOffsets {
    fn with_rows(rows: usize) -> Self {
        let mut offsets = Vec::with_capacity((rows + 1) * 4);
        offsets.extend_from_slice(&[0; 4]);
        Self(offsets)
    }

    /// The end fits 32 bits: the table refuses a row that takes a column past 2 GiB.
    fn push(&mut self, end: usize) {
        self.0.extend_from_slice(&(end as u32).to_le_bytes());
    }
}

/// A column of text or bytes.
#[derive(Debug)]
pub(super) struct Texts {
    offsets: ItemOffsets,
    data: Vec<u8>,
    validity: Validity,
}

impl Texts {
    pub(super) fn with_rows(rows: usize, bytes: usize) -> Self {
        Self {
            offsets: ItemOffsets::with_rows(rows),
            data: Vec::with_capacity(bytes),
            validity: Validity::default(),
        }
    }

    pub(super) fn push(&mut self, value: Option<&[u8]>) {
        self.data.extend_from_slice(value.unwrap_or_default());
        self.end(value.is_some());
    }

    /// Adds the value that `write` appends.
    pub(super) fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.data);
        self.end(true);
    }

    fn end(&mut self, valid: bool) {
        self.validity.push(valid);
        self.offsets.push(self.data.len());
    }

    pub(super) fn finish(self) -> Buffers {
        self.validity.finish(vec![self.offsets.0, self.data])
    }
}

/// A column of text lists; a row without items is an empty list.
#[derive(Debug)]
pub(super) struct Lists {
    offsets: ItemOffsets,
    items: Texts,
}

impl Lists {
    pub(super) fn with_rows(rows: usize, bytes: usize) -> Self {
        Self { offsets: ItemOffsets::with_rows(rows), items: Texts::with_rows(rows, bytes) }
    }

    pub(super) fn push<'a>(&mut self, items: impl Iterator<Item = &'a str>) {
        items.for_each(|item| self.items.push(Some(item.as_bytes())));
        self.offsets.push(self.items.validity.len);
    }

    pub(super) fn finish(self) -> Buffers {
        Buffers { data: vec![self.offsets.0, self.items.offsets.0, self.items.data], ..Buffers::default() }
    }
}

/// A column of maps from text to text; a row without entries is an empty map.
#[derive(Debug)]
pub(super) struct Maps {
    offsets: ItemOffsets,
    keys: Texts,
    values: Texts,
}

impl Maps {
    pub(super) fn with_rows(rows: usize, bytes: usize) -> Self {
        Self {
            offsets: ItemOffsets::with_rows(rows),
            keys: Texts::with_rows(rows, bytes),
            values: Texts::with_rows(rows, bytes),
        }
    }

    pub(super) fn push(&mut self, entries: &[(&str, &str)]) {
        for (key, value) in entries {
            self.keys.push(Some(key.as_bytes()));
            self.values.push(Some(value.as_bytes()));
        }
        self.offsets.push(self.keys.validity.len);
    }

    pub(super) fn finish(self) -> Buffers {
        let data = vec![
            self.offsets.0,
            self.keys.offsets.0,
            self.keys.data,
            self.values.offsets.0,
            self.values.data,
        ];
        Buffers { data, ..Buffers::default() }
    }
}
