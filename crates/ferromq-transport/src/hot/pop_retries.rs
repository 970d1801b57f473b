//! Topics in which a Java broker keeps what its pop consumers did not acknowledge in time: `%RETRY%GROUP_TOPIC`, and
//! `%RETRY%GROUP+TOPIC` where its `enableRetryTopicV2` is set.
//!
//! Nothing is put there here: what comes again comes from its own queue. What is there is received with the topic.

use std::borrow::Cow;

use ferromq_store::{
    progress::Leased,
    record::{MessageView, names::RETRY_PREFIX},
};

use super::Hot;

/// What stands between group and topic, by RocketMQ's number of the form.
const SEPARATORS: [(u8, char); 2] = [(1, '_'), (2, '+')];

impl Hot {
    /// The retry topics of a group and a topic that a Java broker made, with their queues. That broker gives the group an
    /// offset in each, which tells it from the retry topic of a group with such a name.
    pub(super) fn pop_retries(&self, group: &str, topic: &str) -> impl Iterator<Item = (String, u32)> {
        let is_derived = topic.starts_with('%');
        SEPARATORS.into_iter().filter_map(move |(_, separator)| {
            let name = (!is_derived).then(|| format!("{RETRY_PREFIX}{group}{separator}{topic}"))?;
            let entry = self.tables.topic(&name)?;
            self.store.groups().committed_offset(group, &name, 0).map(|_| (name, entry.read_queues))
        })
    }
}

/// RocketMQ's number of a topic's form: 0 is no retry topic.
pub(crate) fn mark(topic: &str) -> u8 {
    match topic.strip_prefix(RETRY_PREFIX) {
        Some(rest) if rest.contains('+') => 2,
        Some(_) => 1,
        None => 0,
    }
}

/// The topic a number stands for, asked for as `topic`.
pub(crate) fn marked_topic<'a>(topic: &'a str, group: &str, mark: &str) -> Option<Cow<'a, str>> {
    if mark == "0" {
        return Some(Cow::Borrowed(topic));
    }
    let (_, separator) = SEPARATORS.into_iter().find(|(number, _)| number.to_string() == mark)?;
    Some(Cow::Owned(format!("{RETRY_PREFIX}{group}{separator}{topic}")))
}

/// The topic whose messages a group's pop retry topic keeps; any other topic as it is.
pub(super) fn retried_topic<'a>(name: &'a str, group: &str) -> &'a str {
    let rest = name.strip_prefix(RETRY_PREFIX).and_then(|rest| rest.strip_prefix(group));
    let topic =
        rest.and_then(|rest| SEPARATORS.iter().find_map(|(_, separator)| rest.strip_prefix(*separator)));
    topic.filter(|topic| !topic.is_empty()).unwrap_or(name)
}

/// The topic in which the messages of a receive lie: the one that was asked for, or a retry topic of it.
pub(crate) fn lies_in<'a>(leased: &'a [Leased], asked: &'a str) -> &'a str {
    let first = leased.first().and_then(|first| MessageView::decode(first.record.bytes(), false).ok());
    first.map(|view| view.topic).filter(|topic| topic.starts_with(RETRY_PREFIX)).unwrap_or(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topic_of_a_pop_retry_topic_is_known_in_either_form() {
        assert_eq!(retried_topic("%RETRY%audit_flights", "audit"), "flights");
        assert_eq!(retried_topic("%RETRY%audit+a_b+c", "audit"), "a_b+c");
        for other in
            ["flights", "%RETRY%audit", "%RETRY%audit_", "%RETRY%auditor_flights", "%RETRY%other_flights"]
        {
            assert_eq!(retried_topic(other, "audit"), other);
        }
    }
}
