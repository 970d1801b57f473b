//! Values of a filter expression, compared as Java does.
//!
//! A property is text. Compared with a number it is parsed as that type of number, as in RocketMQ: `3.5` is no number
//! if the expression has `3`, and is one if it has `3.0`.

use std::cmp::Ordering;

/// The value of a part of an expression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    Int(i32),
    Long(i64),
    Double(f64),
    Text(&'a [u8]),
}

/// Two values that cannot be compared; the whole expression then does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Incomparable;

/// Compares two values as RocketMQ does. Of two unrelated types, each is less than the other.
pub(super) fn compare(left: Value<'_>, right: Value<'_>) -> Result<Ordering, Incomparable> {
    use Value::{Bool, Double, Int, Long, Text};
    Ok(match (left, right) {
        (Bool(left), Bool(right)) => left.cmp(&right),
        (Bool(_), Text(_)) => return Err(Incomparable),
        (Text(left), Bool(right)) => left.eq_ignore_ascii_case(b"true").cmp(&right),
        (Int(left), Int(right)) => left.cmp(&right),
        (Int(left), Long(right)) => i64::from(left).cmp(&right),
        (Int(left), Double(right)) => compare_doubles(f64::from(left), right),
        (Int(left), Text(right)) => left.cmp(&whole(right)?),
        (Text(left), Int(right)) => whole::<i32>(left)?.cmp(&right),
        (Long(left), Int(right)) => left.cmp(&i64::from(right)),
        (Long(left), Long(right)) => left.cmp(&right),
        (Long(left), Double(right)) => compare_doubles(left as f64, right),
        (Long(left), Text(right)) => left.cmp(&whole(right)?),
        (Text(left), Long(right)) => whole::<i64>(left)?.cmp(&right),
        (Double(left), Int(right)) => compare_doubles(left, f64::from(right)),
        (Double(left), Long(right)) => compare_doubles(left, right as f64),
        (Double(left), Double(right)) => compare_doubles(left, right),
        (Double(left), Text(right)) => compare_doubles(left, double(right)?),
        (Text(left), Double(right)) => compare_doubles(double(left)?, right),
        (Text(left), Text(right)) => left.cmp(right),
        _ => Ordering::Less,
    })
}

/// As [`compare`], for order operators: two texts are compared as numbers.
pub(super) fn compare_order(left: Value<'_>, right: Value<'_>) -> Result<Ordering, Incomparable> {
    match (left, right) {
        (Value::Text(left), Value::Text(right)) => Ok(compare_doubles(double(left)?, double(right)?)),
        _ => compare(left, right),
    }
}

/// Java's order: -0.0 is below 0.0, and NaN is above all numbers.
fn compare_doubles(left: f64, right: f64) -> Ordering {
    match (left.is_nan(), right.is_nan()) {
        (false, false) => left.total_cmp(&right),
        (left, right) => left.cmp(&right),
    }
}

fn whole<N: std::str::FromStr>(text: &[u8]) -> Result<N, Incomparable> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Incomparable)
}

/// Parses what Java's `Double.valueOf` parses, without its hexadecimal form.
fn double(text: &[u8]) -> Result<f64, Incomparable> {
    let text = std::str::from_utf8(text).map_err(|_| Incomparable)?.trim_matches(|c: char| c <= ' ');
    let (is_negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, text.get(1..).unwrap_or("")),
        [b'+', ..] => (false, text.get(1..).unwrap_or("")),
        _ => (false, text),
    };
    let number = match digits {
        "NaN" => f64::NAN,
        "Infinity" => f64::INFINITY,
        _ if digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
            let digits = digits.strip_suffix(['f', 'F', 'd', 'D']).unwrap_or(digits);
            digits.parse::<f64>().map_err(|_| Incomparable)?
        }
        _ => return Err(Incomparable),
    };
    Ok(if is_negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_read_as_java_reads_them() {
        for (text, number) in [
            ("3", 3.0),
            (" 3.5 ", 3.5),
            ("-.5", -0.5),
            ("5.", 5.0),
            ("+1e3", 1e3),
            ("1.5f", 1.5),
            ("2D", 2.0),
            ("-Infinity", f64::NEG_INFINITY),
            ("1e999", f64::INFINITY),
        ] {
            assert_eq!(double(text.as_bytes()), Ok(number), "{text}");
        }
        assert!(double(b"NaN").is_ok_and(f64::is_nan));
        for text in ["", " ", "inf", "nan", "infinity", "1e", "e5", ".", "1,5", "0x1p3", "--1", "1 2", "f"] {
            assert_eq!(double(text.as_bytes()), Err(Incomparable), "{text}");
        }
        assert_eq!(double(b"\xff"), Err(Incomparable));
    }

    #[test]
    fn what_is_no_number_is_above_all_numbers_and_minus_zero_below_zero() {
        assert_eq!(compare_doubles(f64::NAN, f64::INFINITY), Ordering::Greater);
        assert_eq!(compare_doubles(f64::INFINITY, -f64::NAN), Ordering::Less);
        assert_eq!(compare_doubles(f64::NAN, -f64::NAN), Ordering::Equal);
        assert_eq!(compare_doubles(-0.0, 0.0), Ordering::Less);
    }
}
