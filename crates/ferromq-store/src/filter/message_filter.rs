//! Selects messages: all, by tag, or by an SQL92 expression.

use std::sync::Arc;

use crate::{
    filter::{filter_error::FilterError, sql::SqlFilter},
    record::{names::java_hash, properties},
};

/// The messages that a reader wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum MessageFilter {
    /// Every message.
    #[default]
    All,
    /// Messages with one of these tags: the tag's Java hash, compared with the consume queue, and the tag.
    Tags(Vec<(i64, String)>),
    /// Messages for which the expression holds.
    Sql(Arc<SqlFilter>),
}

impl MessageFilter {
    /// Compiles an expression of a RocketMQ type: `TAG` or empty, as [`Self::tags`], or `SQL92`.
    ///
    /// # Errors
    /// A malformed expression or an unknown type.
    pub fn parse(expression_type: &str, expression: &str) -> Result<Self, FilterError> {
        match expression_type {
            "TAG" | "" => Ok(Self::tags(expression)),
            "SQL92" => SqlFilter::parse(expression).map(Arc::new).map(Self::Sql),
            other => {
                let reason = format!("the expression type {other:?} is unknown; use TAG or SQL92");
                Err(FilterError { position: 0, reason })
            }
        }
    }

    /// The filter for `*`, an empty string, or tags joined by `||`.
    #[must_use]
    pub fn tags(expression: &str) -> Self {
        let tags: Vec<(i64, String)> = expression
            .split("||")
            .map(str::trim)
            .filter(|tag| !tag.is_empty())
            .map(|tag| (i64::from(java_hash(0, tag)), tag.to_owned()))
            .collect();
        if tags.is_empty() || tags.iter().any(|(_, tag)| tag == "*") { Self::All } else { Self::Tags(tags) }
    }

    /// Compares the tag hash of the consume queue: `false` is final, `true` requires [`Self::wants`].
    pub(crate) fn may_have_hash(&self, hash: i64) -> bool {
        match self {
            Self::All | Self::Sql(_) => true,
            Self::Tags(tags) => tags.iter().any(|(wanted, _)| *wanted == hash),
        }
    }

    /// Compares the properties of the message.
    pub(crate) fn wants(&self, properties: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Tags(tags) => {
                let tag = properties::get(properties, "TAGS");
                tags.iter().any(|(_, wanted)| Some(wanted.as_str()) == tag)
            }
            Self::Sql(filter) => filter.matches(properties),
        }
    }
}
