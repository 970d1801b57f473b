//! Evaluates an expression for the properties of a message.

use std::cmp::Ordering;

use super::{
    MAX_NAMES,
    expression::{Comparison, Expression, Search},
    values::{Incomparable, Value, compare, compare_order},
};
use crate::record::properties::iter_bytes;

/// True, false or unknown.
type Truth = Result<Option<bool>, Incomparable>;

/// The properties of a message during evaluation. Nothing is copied.
pub(super) struct Context<'a> {
    found: [Option<&'a [u8]>; MAX_NAMES],
}

impl<'a> Context<'a> {
    pub(super) fn new(properties: &'a [u8], names: &'a [Box<str>]) -> Self {
        let mut found = [None; MAX_NAMES];
        for (name, value) in iter_bytes(properties) {
            let slots = names.iter().zip(&mut found);
            if let Some((_, slot)) = slots.into_iter().find(|(wanted, _)| wanted.as_bytes() == name) {
                *slot = Some(value);
            }
        }
        Self { found }
    }

    fn property(&self, index: usize) -> Value<'a> {
        self.found.get(index).copied().flatten().map_or(Value::Null, Value::Text)
    }

    fn value(&self, expression: &'a Expression) -> Result<Value<'a>, Incomparable> {
        Ok(match expression {
            Expression::Int(number) => Value::Int(*number),
            Expression::Long(number) => Value::Long(*number),
            Expression::Double(number) => Value::Double(*number),
            Expression::Text(text) => Value::Text(text.as_bytes()),
            Expression::Property(index) => self.property(*index),
            Expression::Negate(of) => match self.value(of)? {
                Value::Int(number) => Value::Int(number.wrapping_neg()),
                Value::Long(number) => Value::Long(number.wrapping_neg()),
                Value::Double(number) => Value::Double(-number),
                Value::Null | Value::Bool(_) | Value::Text(_) => Value::Null,
            },
            condition => self.truth(condition)?.map_or(Value::Null, Value::Bool),
        })
    }

    /// The value of a condition. Parts are evaluated from the left until the result is known, so an illegal comparison
    /// after that does no harm.
    pub(super) fn truth(&self, expression: &'a Expression) -> Truth {
        Ok(match expression {
            Expression::Bool(value) => Some(*value),
            // A property is text, and text is not true.
            Expression::Cast(index) => (self.property(*index) != Value::Null).then_some(false),
            Expression::Not(of) => self.truth(of)?.map(|value| !value),
            Expression::And(parts) => return self.joined(parts, false),
            Expression::Or(parts) => return self.joined(parts, true),
            Expression::Compare(how, sides) => {
                let [left, right] = &**sides;
                return match how {
                    Comparison::Equal => equal(self.value(left)?, self.value(right)?),
                    _ => match self.value(left)? {
                        Value::Null => Ok(None),
                        left => ordered(*how, left, self.value(right)?),
                    },
                };
            }
            Expression::Between(is_negated, parts) => return self.between(*is_negated, parts),
            Expression::IsNull(of) => Some(self.value(of)? == Value::Null),
            Expression::Find(search, is_negated, of, text) => match self.value(of)? {
                Value::Text(value) if !text.is_empty() => Some(has(*search, value, text) != *is_negated),
                _ => Some(false),
            },
            Expression::In(is_negated, index, texts) => match self.property(*index) {
                Value::Text(value) => {
                    let is_in = texts.binary_search_by(|text| text.as_bytes().cmp(value)).is_ok();
                    Some(is_in != *is_negated)
                }
                _ => None,
            },
            // The parser casts properties; nothing else is a condition.
            Expression::Null
            | Expression::Int(_)
            | Expression::Long(_)
            | Expression::Double(_)
            | Expression::Text(_)
            | Expression::Property(_)
            | Expression::Negate(_) => None,
        })
    }

    /// AND, false once a part is false, or OR, true once a part is true.
    fn joined(&self, parts: &'a [Expression], decisive: bool) -> Truth {
        let mut is_unknown = false;
        for part in parts {
            match self.truth(part)? {
                Some(value) if value == decisive => return Ok(Some(decisive)),
                Some(_) => {}
                None => is_unknown = true,
            }
        }
        Ok((!is_unknown).then_some(!decisive))
    }

    /// Two comparisons joined by AND, or by OR if negated.
    fn between(&self, is_negated: bool, parts: &'a [Expression; 3]) -> Truth {
        let [value, low, high] = parts;
        let value = self.value(value)?;
        let ends = match is_negated {
            false => [(Comparison::GreaterOrEqual, low), (Comparison::LessOrEqual, high)],
            true => [(Comparison::Less, low), (Comparison::Greater, high)],
        };
        let mut is_unknown = value == Value::Null;
        if !is_unknown {
            for (how, end) in ends {
                match ordered(how, value, self.value(end)?)? {
                    Some(truth) if truth == is_negated => return Ok(Some(is_negated)),
                    Some(_) => {}
                    None => is_unknown = true,
                }
            }
        }
        Ok((!is_unknown).then_some(!is_negated))
    }
}

/// RocketMQ's equality: two absent values are equal; a present value differs from an absent one; an absent value
/// compared with a present one is unknown.
fn equal(left: Value<'_>, right: Value<'_>) -> Truth {
    Ok(match (left, right) {
        (Value::Null, Value::Null) => Some(true),
        (Value::Null, _) => None,
        (_, Value::Null) => Some(false),
        _ => Some(compare(left, right)? == Ordering::Equal),
    })
}

fn ordered(how: Comparison, left: Value<'_>, right: Value<'_>) -> Truth {
    if left == Value::Null || right == Value::Null {
        return Ok(None);
    }
    let order = compare_order(left, right)?;
    Ok(Some(match how {
        Comparison::Equal => order.is_eq(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
    }))
}

fn has(search: Search, value: &[u8], text: &str) -> bool {
    match (search, std::str::from_utf8(value)) {
        (Search::StartsWith, _) => value.starts_with(text.as_bytes()),
        (Search::EndsWith, _) => value.ends_with(text.as_bytes()),
        (Search::Contains, Ok(value)) => value.contains(text),
        (Search::Contains, Err(_)) => value.windows(text.len()).any(|part| part == text.as_bytes()),
    }
}
