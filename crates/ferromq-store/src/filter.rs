//! Which messages a reader wants: all, those with a tag, or those an SQL92 expression holds for.

use crate::message::java_hash;

/// Which messages a reader wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum MessageFilter {
    /// Every message.
    #[default]
    All,
    /// Messages with one of these tags: Java hash (looked up in the consume queue) and the tag itself.
    Tags(Vec<(i64, String)>),
}

/// Why an expression is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the filter expression is wrong at position {position}: {reason}")]
pub struct FilterError {
    /// The byte of the expression, from 0, where it goes wrong.
    pub position: usize,
    /// What is wrong there.
    pub reason: String,
}

impl MessageFilter {
    /// Compiles an expression of RocketMQ's kind `TAG` (or no kind).
    ///
    /// # Errors
    /// An expression that is not well-formed, or of a kind nobody knows.
    pub fn parse(expression_type: &str, expression: &str) -> Result<Self, FilterError> {
        match expression_type {
            "TAG" | "" => Ok(Self::tags(expression)),
            _ => Err(FilterError {
                position: 0,
                reason: format!(
                    "expressions of the type {expression_type} are not known; use TAG, such as a || b"
                ),
            }),
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
            Self::All => true,
            Self::Tags(tags) => tags.iter().any(|(wanted, _)| *wanted == hash),
        }
    }

    /// Looks at the properties of the message.
    pub(crate) fn wants(&self, properties: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Tags(tags) => {
                let tag = crate::properties::get(properties, "TAGS");
                tags.iter().any(|(_, wanted)| Some(wanted.as_str()) == tag)
            }
        }
    }
}
