//! What live consumer groups subscribed to by heartbeat, pushed by the control plane.
//!
//! A pull that carries no subscription of its own uses it. Which clients a group has, and when they are gone, is
//! the control plane's business.

use std::{collections::HashMap, sync::Arc};

use ferromq_store::filter::{FilterError, MessageFilter};
use parking_lot::RwLock;

/// A subscription of a group to a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Which messages, or why the expression does not tell.
    pub filter: Result<Arc<MessageFilter>, FilterError>,
    /// Grows with each change; a pull names the one it was made for.
    pub version: i64,
    /// Whether each member of the group reads all messages.
    pub is_broadcasting: bool,
}

impl Subscription {
    /// Makes a subscription of an expression, as [`MessageFilter::parse`] reads it; where it is wrong, pulls are told.
    #[must_use]
    pub fn new(expression_type: &str, expression: &str, version: i64, is_broadcasting: bool) -> Self {
        let filter = MessageFilter::parse(expression_type, expression).map(Arc::new);
        Self { filter, version, is_broadcasting }
    }
}

/// What is known of a group and a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subscribed {
    /// The group has no live subscription at all.
    NoGroup,
    /// The group subscribed to other topics only.
    NoTopic,
    /// It did.
    To(Arc<Subscription>),
}

type Topics = HashMap<Box<str>, Arc<Subscription>>;

/// The subscriptions of all live groups.
#[derive(Debug, Default)]
pub struct Subscriptions(RwLock<HashMap<Box<str>, Topics>>);

impl Subscriptions {
    /// Adds or replaces what `group` subscribed to of `topic`.
    pub fn put(&self, group: &str, topic: &str, subscription: Subscription) {
        self.0.write().entry(group.into()).or_default().insert(topic.into(), Arc::new(subscription));
    }

    /// Forgets it.
    pub fn remove(&self, group: &str, topic: &str) {
        let mut groups = self.0.write();
        let Some(topics) = groups.get_mut(group) else { return };
        topics.remove(topic);
        if topics.is_empty() {
            groups.remove(group);
        }
    }

    pub(crate) fn find(&self, group: &str, topic: &str) -> Subscribed {
        match self.0.read().get(group) {
            None => Subscribed::NoGroup,
            Some(topics) => {
                topics.get(topic).map_or(Subscribed::NoTopic, |found| Subscribed::To(Arc::clone(found)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_is_known_until_it_is_removed() {
        let table = Subscriptions::default();
        assert_eq!(table.find("g", "t"), Subscribed::NoGroup);
        let subscription = Subscription::new("TAG", "a || b", 7, false);
        table.put("g", "t", subscription.clone());
        assert_eq!(table.find("g", "t"), Subscribed::To(Arc::new(subscription)));
        assert_eq!(table.find("g", "u"), Subscribed::NoTopic);
        table.remove("g", "u");
        table.remove("g", "t");
        assert_eq!(table.find("g", "t"), Subscribed::NoGroup);
    }

    #[test]
    fn a_subscription_knows_its_filter_or_what_is_wrong_with_it() {
        assert_eq!(Subscription::new("", "*", 1, false).filter, Ok(Arc::new(MessageFilter::All)));
        assert_eq!(
            Subscription::new("SQL92", "a > 1", 1, false).filter,
            MessageFilter::parse("SQL92", "a > 1").map(Arc::new)
        );
        assert_eq!(Subscription::new("SQL92", "a > ", 1, false).filter.unwrap_err().position, 4);
    }
}
