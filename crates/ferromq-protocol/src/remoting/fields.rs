//! The extension fields of a command: names and values in one string.
//!
//! A header costs two allocations, not two per field.

use std::{fmt, fmt::Write};

/// Names and values in the order written. The last of equal names counts, see [`Self::get`].
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Fields {
    /// Name, value, name, value …
    text: String,
    /// Ends of the name and of the value of each field, in `text`.
    ends: Vec<(usize, usize)>,
}

impl Fields {
    /// The value called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Appends a field with the displayed text of `value`.
    pub fn put(&mut self, name: &str, value: impl fmt::Display) {
        self.text.push_str(name);
        let name_end = self.text.len();
        // Writing to a string fails only if `Display` does; the value is then the text written so far.
        let _ = write!(self.text, "{value}");
        self.ends.push((name_end, self.text.len()));
    }

    /// Appends a field.
    pub fn push(&mut self, name: &str, value: &str) {
        let name = self.open(name);
        self.close(name, Some(value));
    }

    /// Returns the fields with one more.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.put(name, value);
        self
    }

    /// Names and values in the order written.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter { text: &self.text, ends: &self.ends, begin: 0 }
    }

    /// The number of fields.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Allocated memory, in bytes.
    pub fn memory(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<(usize, usize)>()
    }

    /// Returns whether there are no fields.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// No fields, with capacity for those of the response to a send, a pull or a pop.
    pub fn for_response() -> Self {
        Self { text: String::with_capacity(RESPONSE_BYTES), ends: Vec::with_capacity(RESPONSE_FIELDS) }
    }

    /// Begins a field; [`Self::close`] sets its value.
    pub(super) fn open(&mut self, name: &str) -> OpenField {
        let begin = self.text.len();
        self.text.push_str(name);
        OpenField(begin)
    }

    /// Sets the value of the field begun last; `None` removes the field.
    pub(super) fn close(&mut self, name: OpenField, value: Option<&str>) {
        let name_end = self.text.len();
        match value {
            Some(value) => {
                self.text.push_str(value);
                self.ends.push((name_end, self.text.len()));
            }
            None => self.text.truncate(name.0),
        }
    }

    /// Reserves capacity for a header of about `bytes`.
    pub(super) fn reserve_header(&mut self, bytes: usize) {
        self.text.reserve(bytes);
        self.ends.reserve(EXPECTED_FIELDS);
    }
}

/// Usual size of a response's fields.
const RESPONSE_BYTES: usize = 192;
const RESPONSE_FIELDS: usize = 8;

/// A field without a value yet: the start of its name.
pub(super) struct OpenField(usize);

/// Usual number of fields of a send or pull request.
const EXPECTED_FIELDS: usize = 16;

/// Iterates over fields, from both ends.
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    text: &'a str,
    ends: &'a [(usize, usize)],
    /// Start of the first field of `ends` in `text`.
    begin: usize,
}

impl<'a> Iter<'a> {
    fn field(&self, begin: usize, (name_end, end): (usize, usize)) -> Option<(&'a str, &'a str)> {
        Some((self.text.get(begin..name_end)?, self.text.get(name_end..end)?))
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let (first, rest) = self.ends.split_first()?;
        let begin = std::mem::replace(&mut self.begin, first.1);
        self.ends = rest;
        self.field(begin, *first)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.ends.len(), Some(self.ends.len()))
    }
}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let (last, rest) = self.ends.split_last()?;
        let begin = rest.last().map_or(self.begin, |(_, end)| *end);
        self.ends = rest;
        self.field(begin, *last)
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl<'a> IntoIterator for &'a Fields {
    type Item = (&'a str, &'a str);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<N: AsRef<str>, V: AsRef<str>> FromIterator<(N, V)> for Fields {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut fields = Self::default();
        pairs.into_iter().for_each(|(name, value)| fields.push(name.as_ref(), value.as_ref()));
        fields
    }
}

impl From<Vec<(String, String)>> for Fields {
    fn from(pairs: Vec<(String, String)>) -> Self {
        pairs.into_iter().collect()
    }
}

impl<N: AsRef<str>, V: AsRef<str>, const COUNT: usize> From<[(N, V); COUNT]> for Fields {
    fn from(pairs: [(N, V); COUNT]) -> Self {
        pairs.into_iter().collect()
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_the_order_written_from_both_ends() {
        let fields = Fields::from([("a", "1"), ("", ""), ("ä", "ö")]).with("n", -5);
        let wanted = [("a", "1"), ("", ""), ("ä", "ö"), ("n", "-5")];
        assert_eq!(fields.iter().collect::<Vec<_>>(), wanted);
        assert!(fields.iter().rev().eq(wanted.into_iter().rev()));
        let mut both = fields.iter();
        assert_eq!((both.next(), both.next_back(), both.len()), (Some(wanted[0]), Some(wanted[3]), 2));
        assert_eq!((both.next_back(), both.next(), both.next()), (Some(wanted[2]), Some(wanted[1]), None));
    }

    #[test]
    fn the_last_of_equal_names_counts() {
        let fields = Fields::from([("a", "1"), ("b", "2"), ("a", "3")]);
        assert_eq!((fields.get("a"), fields.get("b"), fields.get("")), (Some("3"), Some("2"), None));
    }

    #[test]
    fn fields_cut_in_other_places_are_not_equal() {
        assert_ne!(Fields::from([("ab", "c")]), Fields::from([("a", "bc")]));
        assert_ne!(Fields::from([("a", "b"), ("c", "")]), Fields::from([("a", "bc"), ("", "")]));
    }
}
