//! RocketMQ's SQL92 filter over the properties of messages.
//!
//! Grammar, types and three-valued logic are RocketMQ's. An expression is compiled once; evaluation copies and
//! allocates nothing. Parsing differs in two points: words after a complete expression are an error, where RocketMQ
//! ignores them, and `0.0` is a number.

mod evaluate;
mod expression;
mod lexer;
mod parser;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
mod values;

use self::{evaluate::Context, expression::Expression, parser::Parser};
use crate::filter::filter_error::FilterError;

/// Longest expression, in bytes.
const MAX_BYTES: usize = 64 << 10;
/// Most properties in an expression, which one pass over a message's properties finds.
const MAX_NAMES: usize = 128;
/// Deepest tree of an expression: each level uses stack in parsing and in evaluation.
const MAX_DEPTH: usize = 128;

/// A compiled expression.
#[derive(Debug, Clone, PartialEq)]
pub struct SqlFilter {
    condition: Expression,
    /// The properties that it reads.
    names: Box<[Box<str>]>,
}

/// The numbers of an expression are finite, so it equals itself.
impl Eq for SqlFilter {}

impl SqlFilter {
    /// Compiles an expression such as `region = 'eu' AND price BETWEEN 3 AND 5`.
    ///
    /// # Errors
    /// An expression that is malformed, compares incomparable values, is longer than 64 KiB, is nested more than 128
    /// deep, or names more than 128 properties.
    pub fn parse(expression: &str) -> Result<Self, FilterError> {
        if expression.len() > MAX_BYTES {
            let reason = format!("it has {} bytes, more than {MAX_BYTES}", expression.len());
            return Err(FilterError { position: MAX_BYTES, reason });
        }
        let (condition, names) = Parser::parse(expression)?;
        Ok(Self { condition, names: names.into() })
    }

    /// Whether the expression holds for a message's properties, given as `NAME \x01 VALUE \x02 …`.
    ///
    /// An unknown value, or a comparison of a number with a property that is not a number, does not hold.
    #[must_use]
    pub fn matches(&self, properties: &[u8]) -> bool {
        Context::new(properties, &self.names).truth(&self.condition) == Ok(Some(true))
    }
}
