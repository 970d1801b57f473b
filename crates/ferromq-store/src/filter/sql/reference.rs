//! A simple reference evaluator, compared with the real one on generated expressions.

use std::collections::HashMap;

use proptest::prelude::*;

use super::{
    SqlFilter,
    expression::{Comparison, Expression, Search},
    tests::encoded,
};

/// A value of the reference evaluator; `None` for an illegal comparison.
#[derive(Debug, Clone, PartialEq)]
enum Plain {
    Null,
    Bool(bool),
    Int(i32),
    Long(i64),
    Double(f64),
    Text(String),
}

type Named = HashMap<String, String>;

/// Evaluates both sides always and compares by value, as Java's objects do.
fn plain(expression: &Expression, names: &[Box<str>], of: &Named) -> Option<Plain> {
    let again = |expression: &Expression| plain(expression, names, of);
    let property =
        |index: &usize| of.get(&*names[*index]).map_or(Plain::Null, |text| Plain::Text(text.clone()));
    Some(match expression {
        Expression::Null => Plain::Null,
        Expression::Bool(value) => Plain::Bool(*value),
        Expression::Int(number) => Plain::Int(*number),
        Expression::Long(number) => Plain::Long(*number),
        Expression::Double(number) => Plain::Double(*number),
        Expression::Text(text) => Plain::Text(text.to_string()),
        Expression::Property(index) => property(index),
        Expression::Cast(index) => match property(index) {
            Plain::Null => Plain::Null,
            _ => Plain::Bool(false),
        },
        Expression::Negate(inner) => match again(inner)? {
            Plain::Int(number) => Plain::Int(-number),
            Plain::Long(number) => Plain::Long(-number),
            Plain::Double(number) => Plain::Double(-number),
            _ => Plain::Null,
        },
        Expression::Not(inner) => match again(inner)? {
            Plain::Bool(value) => Plain::Bool(!value),
            _ => Plain::Null,
        },
        Expression::And(parts) => fold(parts, false, &again)?,
        Expression::Or(parts) => fold(parts, true, &again)?,
        Expression::Compare(Comparison::Equal, sides) => match (again(&sides[0])?, again(&sides[1])?) {
            (Plain::Null, Plain::Null) => Plain::Bool(true),
            (Plain::Null, _) => Plain::Null,
            (_, Plain::Null) => Plain::Bool(false),
            (left, right) => Plain::Bool(order(left, right, false)? == 0),
        },
        Expression::Compare(how, sides) => against(*how, &sides[0], &sides[1], &again)?,
        Expression::Between(false, parts) => {
            let low = against(Comparison::GreaterOrEqual, &parts[0], &parts[1], &again);
            two(low, || against(Comparison::LessOrEqual, &parts[0], &parts[2], &again), false)?
        }
        Expression::Between(true, parts) => {
            let low = against(Comparison::Less, &parts[0], &parts[1], &again);
            two(low, || against(Comparison::Greater, &parts[0], &parts[2], &again), true)?
        }
        Expression::IsNull(inner) => Plain::Bool(again(inner)? == Plain::Null),
        Expression::Find(search, is_negated, inner, text) => match again(inner)? {
            Plain::Text(value) if !text.is_empty() => {
                let is_there = match search {
                    Search::Contains => value.contains(&**text),
                    Search::StartsWith => value.starts_with(&**text),
                    Search::EndsWith => value.ends_with(&**text),
                };
                Plain::Bool(is_there ^ is_negated)
            }
            _ => Plain::Bool(false),
        },
        Expression::In(is_negated, index, texts) => match property(index) {
            Plain::Text(value) => Plain::Bool(texts.iter().any(|text| **text == *value) ^ is_negated),
            _ => Plain::Null,
        },
    })
}

fn fold(parts: &[Expression], decisive: bool, again: &dyn Fn(&Expression) -> Option<Plain>) -> Option<Plain> {
    let (first, rest) = parts.split_first().unwrap();
    rest.iter().fold(again(first), |left, part| two(left, || again(part), decisive))
}

fn two(left: Option<Plain>, right: impl FnOnce() -> Option<Plain>, decisive: bool) -> Option<Plain> {
    let left = left?;
    if left == Plain::Bool(decisive) {
        return Some(left);
    }
    match (left, right()?) {
        (_, Plain::Bool(value)) if value == decisive => Some(Plain::Bool(decisive)),
        (Plain::Null, _) | (_, Plain::Null) => Some(Plain::Null),
        _ => Some(Plain::Bool(!decisive)),
    }
}

fn against(
    how: Comparison,
    left: &Expression,
    right: &Expression,
    again: &dyn Fn(&Expression) -> Option<Plain>,
) -> Option<Plain> {
    let left = again(left)?;
    if left == Plain::Null {
        return Some(Plain::Null);
    }
    let right = again(right)?;
    if right == Plain::Null {
        return Some(Plain::Null);
    }
    let order = order(left, right, true)?;
    Some(Plain::Bool(match how {
        Comparison::Less => order < 0,
        Comparison::LessOrEqual => order <= 0,
        Comparison::Greater => order > 0,
        Comparison::GreaterOrEqual => order >= 0,
        Comparison::Equal => order == 0,
    }))
}

/// Compares small numbers as doubles. Texts here are never blank or in Java's rarer number forms.
fn order(left: Plain, right: Plain, is_order: bool) -> Option<i32> {
    fn number(plain: &Plain) -> Option<f64> {
        match plain {
            Plain::Int(number) => Some(f64::from(*number)),
            Plain::Long(number) => Some(*number as f64),
            Plain::Double(number) => Some(*number),
            _ => None,
        }
    }
    fn read(text: &str, like: &Plain) -> Option<f64> {
        match like {
            Plain::Int(_) => text.parse::<i32>().ok().map(f64::from),
            Plain::Long(_) => text.parse::<i64>().ok().map(|number| number as f64),
            _ => text.parse::<f64>().ok(),
        }
    }
    let (left, right) = match (&left, &right) {
        (Plain::Bool(left), Plain::Bool(right)) => return Some(i32::from(*left) - i32::from(*right)),
        (Plain::Bool(_), Plain::Text(_)) => return None,
        (Plain::Text(text), Plain::Bool(right)) => {
            return Some(i32::from(text == "true") - i32::from(*right));
        }
        (Plain::Text(left), Plain::Text(right)) if !is_order => return Some(i32::from(left != right)),
        (Plain::Text(left), Plain::Text(right)) => (left.parse().ok()?, right.parse().ok()?),
        (Plain::Text(text), other) => (read(text, other)?, number(other)?),
        (other, Plain::Text(text)) => (number(other)?, read(text, other)?),
        (left, right) => match (number(left), number(right)) {
            (Some(left), Some(right)) => (left, right),
            _ => return Some(-1),
        },
    };
    Some(if left < right { -1 } else { i32::from(left > right) })
}

/// Words of valid and invalid expressions.
fn words() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "a",
        "b",
        "c",
        "3",
        "4",
        "2.5",
        "3000000000",
        "'x'",
        "'y'",
        "''",
        "TRUE",
        "FALSE",
        "NULL",
        "=",
        "<>",
        "<",
        "<=",
        ">",
        ">=",
        "(",
        ")",
        ",",
        "+",
        "-",
        "AND",
        "OR",
        "NOT",
        "IS",
        "IS NULL",
        "IS NOT NULL",
        "BETWEEN",
        "IN",
        "IN ('x', '3')",
        "CONTAINS 'x'",
        "STARTSWITH '3'",
        "ENDSWITH 'x'",
        "a = 3",
        "b > 2",
        "c = 'x'",
        "NOT IN ('x')",
        "BETWEEN 3 AND 5",
        "NOT BETWEEN 2 AND 4.5",
        "--",
        "/*",
        "'",
    ]);
    prop::collection::vec(word, 1..12).prop_map(|words| words.join(" "))
}

/// Grammatical expressions, some of which only the type checks refuse.
fn expressions() -> impl Strategy<Value = String> {
    let value = prop::sample::select(vec![
        "a",
        "b",
        "c",
        "3",
        "4",
        "2.5",
        "-3",
        "3000000000",
        "'x'",
        "'3'",
        "TRUE",
        "FALSE",
        "+4",
        "-b",
    ]);
    let comparison = prop::sample::select(vec!["=", "<>", "<", "<=", ">", ">="]);
    let leaf = prop_oneof![
        4 => (value.clone(), comparison, value.clone()).prop_map(|(left, how, right)| format!("{left} {how} {right}")),
        1 => (value.clone(), value.clone(), value.clone(), any::<bool>()).prop_map(|(value, low, high, negated)| {
            format!("{value} {} {low} AND {high}", if negated { "NOT BETWEEN" } else { "BETWEEN" })
        }),
        1 => prop::sample::select(vec![
            "a IN ('x', '3')", "b NOT IN ('x', '4', '')", "c CONTAINS 'x'", "a NOT CONTAINS 'x'", "b STARTSWITH '3'",
            "c NOT ENDSWITH 'x'", "a IS NULL", "b IS NOT NULL", "c", "NULL", "TRUE",
        ]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(|parts| parts.join(" AND ")),
            prop::collection::vec(inner.clone(), 2..4).prop_map(|parts| parts.join(" OR ")),
            inner.clone().prop_map(|inner| format!("NOT ({inner})")),
            inner.clone().prop_map(|inner| format!("({inner})")),
            inner.clone().prop_map(|inner| format!("({inner}) IS NULL")),
            (inner.clone(), inner).prop_map(|(left, right)| format!("({left}) = ({right})")),
        ]
    })
}

fn messages() -> impl Strategy<Value = Named> {
    let value = prop::sample::select(vec!["3", "4", "-3", "2.5", "3000000001", "x", "yx", "true", "3x"]);
    prop::collection::hash_map(
        prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned),
        value.prop_map(str::to_owned),
        0..4,
    )
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,60}") {
        let _ = SqlFilter::parse(&text);
    }

    #[test]
    fn an_expression_holds_where_the_simple_evaluator_says_so(
        text in prop_oneof![1 => words(), 9 => expressions()],
        of in prop::collection::vec(messages(), 8),
    ) {
        if let Ok(filter) = SqlFilter::parse(&text) {
            for of in of {
                let pairs: Vec<(&str, &str)> = of.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                let wanted = plain(&filter.condition, &filter.names, &of) == Some(Plain::Bool(true));
                prop_assert_eq!(filter.matches(&encoded(&pairs)), wanted, "{} for {:?}", text, of);
            }
        }
    }

    #[test]
    fn no_properties_make_the_evaluation_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), text in expressions()) {
        if let Ok(filter) = SqlFilter::parse(&text) {
            let _ = filter.matches(&bytes);
        }
    }
}
