//! What the properties of a record say, split into the columns they are.

use ferromq_store::record::properties;

/// Room for properties, kept between records.
#[derive(Debug, Default)]
pub(super) struct Room(Vec<(&'static str, &'static str)>);

/// An empty vector in the same memory: the standard library collects in place.
fn recycled<'a>(mut entries: Vec<(&str, &str)>) -> Vec<(&'a str, &'a str)> {
    entries.clear();
    entries.into_iter().map(|_| ("", "")).collect()
}

/// Slices of a record's properties.
#[derive(Debug, Default)]
pub(super) struct Marks<'a> {
    pub(super) tag: Option<&'a str>,
    pub(super) unique_key: Option<&'a str>,
    /// What a broker noted of the producer's address.
    pub(super) born_host: Option<&'a str>,
    keys: Option<&'a str>,
    /// The user's own, each name once, in order.
    pub(super) user: Vec<(&'a str, &'a str)>,
}

/// Where a message that a consumer gave back, or a dead letter, comes from: it is in no column.
fn tells_origin(name: &str) -> bool {
    matches!(name, "DLQ_ORIGIN_TOPIC" | "DLQ_ORIGIN_MESSAGE_ID" | "RETRY_TOPIC" | "ORIGIN_MESSAGE_ID")
}

impl<'a> Marks<'a> {
    /// Reads these properties; the user's own only where `with_user`. The last of equal names counts.
    pub(super) fn read(text: &'a [u8], with_user: bool, room: Room) -> Self {
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

    /// The room for the next ones.
    pub(super) fn into_room(self) -> Room {
        Room(recycled(self.user))
    }

    pub(super) fn each_key(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.keys.unwrap_or_default().split(' ').filter(|key| !key.is_empty())
    }
}
