//! The properties of a record that become columns.

use ferromq_store::record::properties;

/// The allocation that the next record reuses.
#[derive(Debug, Default)]
pub(super) struct PropertyBuffer(Vec<(&'static str, &'static str)>);

/// An empty vector in the same memory: the standard library collects in place.
fn recycled<'a>(mut entries: Vec<(&str, &str)>) -> Vec<(&'a str, &'a str)> {
    entries.clear();
    entries.into_iter().map(|_| ("", "")).collect()
}

/// The properties of a record that columns need.
#[derive(Debug, Default)]
pub(super) struct RowProperties<'a> {
    pub(super) tag: Option<&'a str>,
    pub(super) unique_key: Option<&'a str>,
    /// The producer's address as noted by a broker.
    pub(super) born_host: Option<&'a str>,
    keys: Option<&'a str>,
    /// User properties by name, each name once.
    pub(super) user: Vec<(&'a str, &'a str)>,
}

/// Whether the property names the origin of a redelivered or dead message. No column holds it.
fn tells_origin(name: &str) -> bool {
    matches!(name, "DLQ_ORIGIN_TOPIC" | "DLQ_ORIGIN_MESSAGE_ID" | "RETRY_TOPIC" | "ORIGIN_MESSAGE_ID")
}

impl<'a> RowProperties<'a> {
    /// Reads the properties, with the user's own if `with_user`. The last of equal names counts.
    pub(super) fn read(text: &'a [u8], with_user: bool, room: PropertyBuffer) -> Self {
        let mut marks = Self { user: recycled(room.0), ..Self::default() };
        for (name, value) in properties::iter(text) {
            match name {
                "TAGS" => marks.tag = Some(value),
                "KEYS" => marks.keys = Some(value),
                "UNIQ_KEY" => marks.unique_key = Some(value),
                "__BORNHOST" => marks.born_host = Some(value),
                name if with_user && (!properties::is_hidden(name) || tells_origin(name)) => {
                    marks.user.push((name, value));
                }
                _ => {}
            }
        }
        if marks.user.len() > 1 {
            marks.user.reverse();
            marks.user.sort_by_key(|(name, _)| *name); // stable: the last one now comes first
            marks.user.dedup_by_key(|(name, _)| *name);
        }
        marks
    }

    /// Returns the allocation for the next record.
    pub(super) fn into_buffer(self) -> PropertyBuffer {
        PropertyBuffer(recycled(self.user))
    }

    pub(super) fn each_key(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.keys.unwrap_or_default().split(' ').filter(|key| !key.is_empty())
    }
}
