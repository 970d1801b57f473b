//! Subscriptions that live consumer groups announced by heartbeat, pushed by the control plane.
//!
//! A pull without a subscription of its own uses them. The control plane knows the clients of a group, and when they
//! are gone.

use std::{collections::HashMap, sync::Arc};

use ferromq_store::filter::{FilterError, MessageFilter};
use parking_lot::RwLock;

/// A subscription of a group to a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Selects the messages, or is the error of the expression.
    pub filter: Result<Arc<MessageFilter>, FilterError>,
    /// Grows with each change; a pull names the version it was made for.
    pub version: i64,
    /// Whether each member of the group reads all messages.
    pub is_broadcasting: bool,
}

impl Subscription {
    /// Creates a subscription from an expression, as [`MessageFilter::parse`] reads it; pulls report an invalid one.
    #[must_use]
    pub fn new(expression_type: &str, expression: &str, version: i64, is_broadcasting: bool) -> Self {
        let filter = MessageFilter::parse(expression_type, expression).map(Arc::new);
        Self { filter, version, is_broadcasting }
    }
}

/// A group's subscription to a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subscribed {
    /// The group has no live subscription at all.
    NoGroup,
    /// The group subscribes to other topics only.
    NoTopic,
    /// The subscription.
    To(Arc<Subscription>),
}

type Topics = HashMap<Box<str>, Arc<Subscription>>;

/// The subscriptions of all live groups.
#[derive(Debug, Default)]
pub struct Subscriptions(RwLock<HashMap<Box<str>, Topics>>);

impl Subscriptions {
    /// Adds or replaces the subscription of `group` to `topic`.
    pub fn put(&self, group: &str, topic: &str, subscription: Subscription) {
        self.0.write().entry(group.into()).or_default().insert(topic.into(), Arc::new(subscription));
    }

    /// Removes the subscription of `group` to `topic`.
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
    fn a_subscription_has_its_filter_or_the_error_of_its_expression() {
        assert_eq!(Subscription::new("", "*", 1, false).filter, Ok(Arc::new(MessageFilter::All)));
        assert_eq!(
            Subscription::new("SQL92", "a > 1", 1, false).filter,
            MessageFilter::parse("SQL92", "a > 1").map(Arc::new)
        );
        assert_eq!(Subscription::new("SQL92", "a > ", 1, false).filter.unwrap_err().position, 4);
    }
}
