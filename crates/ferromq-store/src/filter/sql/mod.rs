//! SQL92 over the properties of messages, as RocketMQ means it.
//!
//! Grammar, kinds of values and three-valued logic are RocketMQ's. An expression is compiled once; looking at a message
//! copies and allocates nothing. Two things differ, both where an expression is read: words after a complete expression
//! are an error here and are passed over there, and `0.0` is a number here.

mod evaluate;
mod expression;
mod lexer;
mod parser;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
mod values;

use std::fmt;

use self::{
    evaluate::Context,
    expression::{Expression, Shown},
    parser::Parser,
};
use crate::filter::filter_error::FilterError;

/// Longest expression in bytes.
const MAX_BYTES: usize = 64 << 10;
/// Most properties an expression names: they are looked up in one walk over those of a message.
const MAX_NAMES: usize = 128;
/// Deepest tree of an expression; each level of brackets costs stack where it is read and where it is evaluated.
const MAX_DEPTH: usize = 128;

/// A compiled expression.
#[derive(Debug, Clone, PartialEq)]
pub struct SqlFilter {
    condition: Expression,
    /// The properties it looks at.
    names: Box<[Box<str>]>,
}

/// Numbers of an expression are finite: it equals itself.
impl Eq for SqlFilter {}

impl SqlFilter {
    /// Compiles an expression such as `region = 'eu' AND price BETWEEN 3 AND 5`.
    ///
    /// # Errors
    /// An expression that is not well-formed, compares what cannot be compared, is longer than 64 KiB, nested more
    /// than 128 deep, or that names more than 128 properties.
    pub fn parse(expression: &str) -> Result<Self, FilterError> {
        if expression.len() > MAX_BYTES {
            let reason = format!("it has {} bytes, more than {MAX_BYTES}", expression.len());
            return Err(FilterError { position: MAX_BYTES, reason });
        }
        let (condition, names) = Parser::parse(expression)?;
        Ok(Self { condition, names: names.into() })
    }

    /// Whether the expression holds for a message with these properties, in RocketMQ's form.
    ///
    /// It does not where its value is unknown, or where it compares a property that is no number with a number.
    #[must_use]
    pub fn matches(&self, properties: &[u8]) -> bool {
        Context::new(properties, &self.names).truth(&self.condition) == Ok(Some(true))
    }
}

/// The expression with brackets round every part; it is read as the same filter.
impl fmt::Display for SqlFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Shown { expression: &self.condition, names: &self.names })
    }
}
