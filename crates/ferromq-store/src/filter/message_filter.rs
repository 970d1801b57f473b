//! Which messages a reader wants: all, those with a tag, or those an SQL92 expression holds for.

use std::sync::Arc;

use crate::{
    filter::{filter_error::FilterError, sql::SqlFilter},
    record::{names::java_hash, properties},
};

/// Which messages a reader wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum MessageFilter {
    /// Every message.
    #[default]
    All,
    /// Messages with one of these tags: Java hash (looked up in the consume queue) and the tag itself.
    Tags(Vec<(i64, String)>),
    /// Messages whose properties the expression holds for.
    Sql(Arc<SqlFilter>),
}

impl MessageFilter {
    /// Compiles an expression of RocketMQ's kinds: `TAG` (or no kind), as [`Self::tags`], and `SQL92`.
    ///
    /// # Errors
    /// An expression that is not well-formed, or of another kind.
    pub fn parse(expression_type: &str, expression: &str) -> Result<Self, FilterError> {
        match expression_type {
            "TAG" | "" => Ok(Self::tags(expression)),
            "SQL92" => SqlFilter::parse(expression).map(Arc::new).map(Self::Sql),
            other => {
                let reason =
                    format!("there are expressions of the types TAG and SQL92, and none of {other:?}");
                Err(FilterError { position: 0, reason })
            }
        }
    }

    /// Makes the filter of `*`, an empty string, or tags joined by `||`.
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

    /// Looks at what the consume queue knows: `false` is final, `true` asks for [`Self::wants`].
    pub(crate) fn may_have_hash(&self, hash: i64) -> bool {
        match self {
            Self::All | Self::Sql(_) => true,
            Self::Tags(tags) => tags.iter().any(|(wanted, _)| *wanted == hash),
        }
    }

    /// Looks at the properties of the message.
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
