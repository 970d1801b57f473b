//! Topics in which a Java broker keeps messages that its pop consumers did not acknowledge in time:
//! `%RETRY%GROUP_TOPIC`, and `%RETRY%GROUP+TOPIC` if its `enableRetryTopicV2` is set.
//!
//! ferromq stores nothing there: it redelivers a message from its own queue. Messages that are there are received with
//! the topic.

use std::borrow::Cow;

use ferromq_store::{
    progress::Leased,
    record::{MessageView, names::RETRY_PREFIX},
};

use super::Hot;

/// The separator of group and topic, by RocketMQ's number of the form.
const SEPARATORS: [(u8, char); 2] = [(1, '_'), (2, '+')];

impl Hot {
    /// The retry topics that a Java broker made for a group and a topic, with their number of queues. That broker
    /// commits an offset of the group in each, which distinguishes it from the retry topic of a group with such a name.
    pub(super) fn pop_retries(&self, group: &str, topic: &str) -> impl Iterator<Item = (String, u32)> {
        let is_derived = topic.starts_with('%');
        SEPARATORS.into_iter().filter_map(move |(_, separator)| {
            let name = (!is_derived).then(|| format!("{RETRY_PREFIX}{group}{separator}{topic}"))?;
            let entry = self.tables.topic(&name)?;
            self.store.groups().committed_offset(group, &name, 0).map(|_| (name, entry.read_queues))
        })
    }
}

/// RocketMQ's number of a topic's form; 0 if it is no retry topic.
pub(crate) fn mark(topic: &str) -> u8 {
    match topic.strip_prefix(RETRY_PREFIX) {
        Some(rest) if rest.contains('+') => 2,
        Some(_) => 1,
        None => 0,
    }
}

/// The topic that a number stands for in a request for `topic`.
pub(crate) fn marked_topic<'a>(topic: &'a str, group: &str, mark: &str) -> Option<Cow<'a, str>> {
    if mark == "0" {
        return Some(Cow::Borrowed(topic));
    }
    let (_, separator) = SEPARATORS.into_iter().find(|(number, _)| number.to_string() == mark)?;
    Some(Cow::Owned(format!("{RETRY_PREFIX}{group}{separator}{topic}")))
}

/// The topic whose messages a group's pop retry topic keeps; any other topic unchanged.
pub(super) fn retried_topic<'a>(name: &'a str, group: &str) -> &'a str {
    let rest = name.strip_prefix(RETRY_PREFIX).and_then(|rest| rest.strip_prefix(group));
    let topic =
        rest.and_then(|rest| SEPARATORS.iter().find_map(|(_, separator)| rest.strip_prefix(*separator)));
    topic.filter(|topic| !topic.is_empty()).unwrap_or(name)
}

/// The topic that holds the messages of a receive: the requested one, or a retry topic of it.
pub(crate) fn stored_topic<'a>(leased: &'a [Leased], requested: &'a str) -> &'a str {
    let first = leased.first().and_then(|first| MessageView::decode(first.record.bytes(), false).ok());
    first.map(|view| view.topic).filter(|topic| topic.starts_with(RETRY_PREFIX)).unwrap_or(requested)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pop_retry_topic_yields_its_topic_in_either_form() {
        assert_eq!(retried_topic("%RETRY%audit_flights", "audit"), "flights");
        assert_eq!(retried_topic("%RETRY%audit+a_b+c", "audit"), "a_b+c");
        for other in
            ["flights", "%RETRY%audit", "%RETRY%audit_", "%RETRY%auditor_flights", "%RETRY%other_flights"]
        {
            assert_eq!(retried_topic(other, "audit"), other);
        }
    }
}
