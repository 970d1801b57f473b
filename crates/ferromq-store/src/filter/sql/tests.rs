//! Cases from RocketMQ's own tests and sources.

use super::SqlFilter;
use crate::record::properties;

pub(super) fn encoded(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    pairs.iter().for_each(|(name, value)| properties::push(&mut out, name, value));
    out
}

fn parse(expression: &str) -> SqlFilter {
    SqlFilter::parse(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
}

fn holds(expression: &str, pairs: &[(&str, &str)]) -> bool {
    parse(expression).matches(&encoded(pairs))
}

/// An expression, with properties that match and that do not.
type Facts = [(
    &'static str,
    &'static [&'static [(&'static str, &'static str)]],
    &'static [&'static [(&'static str, &'static str)]],
)];

fn check(facts: &Facts) {
    for (expression, wanted, others) in facts {
        for pairs in *wanted {
            assert!(holds(expression, pairs), "{expression} holds for {pairs:?}");
        }
        for pairs in *others {
            assert!(!holds(expression, pairs), "{expression} does not hold for {pairs:?}");
        }
    }
}

#[test]
fn comparisons_follow_rocketmqs_own_tests() {
    check(&[
        (
            "a=3 and b<>4 And c>5 AND d<=4",
            &[&[("a", "3"), ("b", "5"), ("c", "6"), ("d", "1")]],
            &[&[("a", "4"), ("b", "5"), ("c", "6"), ("d", "1")], &[]],
        ),
        (
            "a=3 or b<>4 Or c>5 OR d<=4",
            &[
                &[("a", "3")],
                &[("a", "4"), ("b", "5")],
                &[("a", "4"), ("b", "4"), ("c", "6")],
                &[("a", "4"), ("b", "4"), ("c", "3"), ("d", "2")],
            ],
            &[&[("a", "4"), ("b", "4"), ("c", "3"), ("d", "10")]],
        ),
        ("a in ('3', '4', '5')", &[&[("a", "3")], &[("a", "5")]], &[&[("a", "8")], &[]]),
        ("a not in ('3', '4', '5')", &[&[("a", "8")]], &[&[("a", "3")], &[("a", "4")], &[]]),
        ("a between 2 and 10", &[&[("a", "2")], &[("a", "10")]], &[&[("a", "1")], &[("a", "11")], &[]]),
        ("a not between 2 and 10", &[&[("a", "1")], &[("a", "11")]], &[&[("a", "2")], &[("a", "10")], &[]]),
        ("a is null", &[&[("abc", "2")], &[("a", "")]], &[&[("a", "2")]]),
        ("a is not null", &[&[("a", "2")]], &[&[("abc", "2")]]),
        ("a is not null and a='hello'", &[&[("a", "hello")]], &[&[], &[("a", "Hello")]]),
        ("a is null OR a='hello'", &[&[], &[("a", "hello")]], &[&[("a", "abc")]]),
        (
            "a=TRUE OR b=FALSE",
            &[&[("a", "true"), ("b", "false")], &[("a", "TRUE")]],
            &[&[("a", "false"), ("b", "true")]],
        ),
        ("TAGS is not null and TAGS='''''tag'''''", &[&[("TAGS", "''tag''")]], &[&[("TAGS", "tag")]]),
        ("a > 3.1E10", &[&[("a", "3.1415E10")]], &[&[("a", "3.1e10")]]),
        ("a > 3.14", &[&[("a", "3.1415")]], &[&[("a", "3.14")], &[("a", "x")]]),
        ("a > b", &[&[("a", "20"), ("b", "10")]], &[&[("a", "10"), ("b", "20")], &[("a", "20")]]),
        ("a between up and low", &[], &[&[("a", "3.14")], &[("a", "3.14"), ("up", "up"), ("low", "low")]]),
        ("a=b", &[&[("a", "3.14"), ("b", "3.14")], &[]], &[&[("a", "3.14"), ("b", "3.140")]]),
        ("a<>b", &[&[("a", "3.14"), ("b", "3.141")]], &[&[("a", "3.14"), ("b", "3.14")]]),
    ]);
}

#[test]
fn searches_follow_rocketmqs_own_tests() {
    let axb: &[(&str, &str)] = &[("value", "axb")];
    for (search, found, missed) in
        [("contains", "'x'", "'u'"), ("startswith", "'ax'", "'x'"), ("ENDSWITH", "'xb'", "'x'")]
    {
        for (subject, properties) in [("value", axb), ("'axb'", &[][..])] {
            assert!(holds(&format!("{subject} {search} {found}"), properties));
            assert!(!holds(&format!("{subject} {search} {missed}"), properties));
            assert!(!holds(&format!("{subject} not {search} {found}"), properties));
            assert!(holds(&format!("{subject} not {search} {missed}"), properties));
            for nothing in [format!("{subject} {search} ''"), format!("{subject} not {search} ''")] {
                assert!(!holds(&nothing, properties), "{nothing}");
            }
        }
        assert!(!holds(&format!("value {search} 'x'"), &[]));
        assert!(!holds(&format!("value not {search} 'x'"), &[]));
    }
    assert!(holds(
        "a not in ('4', '5') and b between 3 and 10 and c not contains 'axbc'",
        &[("a", "3"), ("b", "3"), ("c", "axbdc")]
    ));
}

#[test]
fn a_property_is_read_as_the_kind_of_number_it_is_compared_with() {
    check(&[
        (
            "a > 3",
            &[&[("a", "4")], &[("a", "+4")]],
            &[&[("a", "3.5")], &[("a", "3000000000")], &[("a", " 4")]],
        ),
        (
            "a > 3.0",
            &[&[("a", "3.5")], &[("a", "3000000000")], &[("a", " 4 ")], &[("a", "4f")]],
            &[&[("a", "x")]],
        ),
        ("a > 3000000000", &[&[("a", "3000000001")]], &[&[("a", "3000000000.5")]]),
        ("a > 3L", &[&[("a", "4")]], &[&[("a", "2")]]),
        ("a = 1.0", &[&[("a", "1")], &[("a", "1e0")]], &[&[("a", "1.01")]]),
        ("a >= -2", &[&[("a", "-2")], &[("a", "0")]], &[&[("a", "-3")]]),
        ("a = - -5", &[&[("a", "5")]], &[]),
        ("5 < a", &[&[("a", "6")]], &[&[("a", "5")]]),
        ("a = '1'", &[&[("a", "1")]], &[&[("a", "1.0")]]),
        ("-a < 0", &[], &[&[("a", "5")]]),
    ]);
}

#[test]
fn what_cannot_be_compared_spoils_the_expression_unless_the_answer_was_there_before() {
    check(&[
        ("a = 3 OR b = 'x'", &[&[("a", "3"), ("b", "y")]], &[&[("a", "none"), ("b", "x")]]),
        ("b = 'x' OR a = 3", &[&[("a", "none"), ("b", "x")]], &[]),
        ("NOT (a = 3)", &[&[("a", "4")]], &[&[("a", "none")], &[]]),
        ("b = 'x' AND a = 3", &[], &[&[("a", "none"), ("b", "y")], &[("a", "none"), ("b", "x")]]),
        ("NOT (b = 'x' AND a = 3)", &[&[("a", "none"), ("b", "y")]], &[&[("a", "none"), ("b", "x")]]),
    ]);
}

#[test]
fn what_is_unknown_stays_unknown_until_something_decides() {
    check(&[
        ("a = 1 OR b = 1", &[&[("b", "1")], &[("a", "1")]], &[&[("b", "2")]]),
        ("NOT (a = 1 OR b = 1)", &[&[("a", "2"), ("b", "2")]], &[&[("b", "2")], &[]]),
        ("NOT (a = 1 AND b = 1)", &[&[("b", "2")]], &[&[("b", "1")], &[]]),
        ("(a = 1) IS NULL", &[&[]], &[&[("a", "2")]]),
        ("NOT (5 = a)", &[&[], &[("a", "4")]], &[&[("a", "5")]]),
        ("a <> 5", &[&[("a", "4")]], &[&[]]),
        ("NULL OR a = 1", &[&[("a", "1")]], &[&[]]),
        ("NOT NULL", &[], &[&[]]),
    ]);
}

#[test]
fn not_binds_as_tightly_as_a_sign_and_a_property_alone_is_never_true() {
    check(&[
        ("NOT a = 3", &[], &[&[("a", "4")], &[("a", "3")], &[]]),
        ("NOT a", &[&[("a", "anything")]], &[&[]]),
        ("a", &[], &[&[("a", "true")], &[]]),
        ("a IS NULL OR b", &[&[]], &[&[("a", "x"), ("b", "true")]]),
    ]);
}

#[test]
fn blanks_comments_and_names_are_rocketmqs() {
    check(&[
        (
            "a\t=\n3 -- the end of the line\n and /* ** */ b = 4",
            &[&[("a", "3"), ("b", "4")]],
            &[&[("a", "3")]],
        ),
        ("_a$1 = 'x' AND A = 'y'", &[&[("_a$1", "x"), ("A", "y")]], &[&[("_a$1", "x"), ("a", "y")]]),
        ("a = 'x''y'", &[&[("a", "x'y")]], &[]),
        ("a = 'größe'", &[&[("a", "größe")]], &[]),
        ("a=.5 or a=5.E1", &[&[("a", "0.5")], &[("a", "50")]], &[]),
        ("a > --5", &[&[("a", "6")]], &[&[("a", "5")]]),
    ]);
    assert!(holds("a = 'last'", &[("a", "first"), ("a", "last")]));
}

#[test]
fn a_wrong_expression_is_refused_with_the_place_and_the_reason() {
    for (expression, position, reason) in [
        ("", 0, "found the end"),
        ("   ", 3, "found the end"),
        ("a and between 2 and 10", 6, "found BETWEEN"),
        ("a between 10 and 0", 10, "above the high end"),
        ("a > 100000000000000000000000", 4, "9223372036854775807"),
        ("a > 1e400", 4, "too large or too small"),
        ("a > 1e-400", 4, "too large or too small"),
        ("a = 3 b = 4", 6, "found the name b"),
        ("a = 3)", 5, "found )"),
        ("(a = 3", 6, "expected )"),
        ("a = 'x", 4, "no closing"),
        ("a = 007", 4, "begin with 0"),
        ("a = 5x", 5, "does not end"),
        ("a = \"x\"", 4, "means nothing"),
        ("größe = 3", 2, "means nothing"),
        ("a = 'größe' ; ", 12, "means nothing"),
        ("a = NULL", 4, "IS NULL"),
        ("a > 'x'", 4, "less or greater"),
        ("a > TRUE", 4, "less or greater"),
        ("(a = 3) > 1", 1, "less or greater"),
        ("a between NULL and 3", 10, "less or greater"),
        ("TRUE = 3", 7, "cannot be compared"),
        ("'x'", 0, "a condition"),
        ("3 or a = 1", 0, "a condition"),
        ("a = 1 AND -b", 10, "a condition"),
        ("'x' IN ('x')", 0, "only a property"),
        ("NOT a IN ('x')", 0, "only a property"),
        ("a IN (3)", 6, "a text in quotes"),
        ("a IN ()", 6, "a text in quotes"),
        ("a contains x", 11, "a text in quotes"),
        ("value not contains 123", 19, "a text in quotes"),
        ("a not = 3", 6, "expected BETWEEN, IN"),
        ("a is 3", 5, "expected NULL"),
        ("a = 3 /* open", 6, "comment"),
        ("a like 'x%'", 2, "found the name like"),
    ] {
        let error = SqlFilter::parse(expression).expect_err(expression);
        assert_eq!(error.position, position, "{expression}: {error}");
        assert!(error.reason.contains(reason), "{expression}: {error}");
        assert!(error.to_string().contains(&format!("position {position}: ")), "{error}");
    }
}

#[test]
fn the_length_and_the_depth_of_an_expression_are_bounded() {
    let nested = |depth: usize| format!("{}a = 1{}", "(".repeat(depth), ")".repeat(depth));
    assert!(SqlFilter::parse(&nested(127)).is_ok());
    for deep in [
        nested(128),
        nested(30_000),
        "NOT ".repeat(10_000) + "a",
        "-".repeat(60_000),
        "a = ".repeat(9_000) + "a",
    ] {
        assert!(SqlFilter::parse(&deep).unwrap_err().reason.contains("nested more than 128"));
    }
    let many = vec!["a = 1"; 5_000].join(" OR ");
    assert!(parse(&many).matches(&encoded(&[("a", "1")])));
    let names: Vec<String> = (0..100).map(|number| format!("n{number} = 1")).collect();
    assert!(
        parse(&names.join(" AND ")).matches(&encoded(
            &(0..100)
                .map(|number| (format!("n{number}"), "1"))
                .collect::<Vec<_>>()
                .iter()
                .map(|(name, value)| (name.as_str(), *value))
                .collect::<Vec<_>>()
        ))
    );
    let long = SqlFilter::parse(&format!("a = '{}'", "x".repeat(70_000))).unwrap_err();
    assert!(long.reason.contains("more than 65536"), "{long}");
}

#[test]
fn an_expression_names_so_many_properties_and_no_more() {
    let names = |count: usize| {
        (0..count).map(|number| format!("n{number} IS NULL")).collect::<Vec<_>>().join(" AND ")
    };
    // A repeated property counts once.
    let most = names(128) + " AND n127 IS NULL";
    assert!(SqlFilter::parse(&most).unwrap().matches(b""));
    assert!(!SqlFilter::parse(&most).unwrap().matches(b"n127\x01v\x02"));
    let error = SqlFilter::parse(&names(129)).unwrap_err();
    assert!(error.reason.contains("more than 128 properties"), "{error}");
    assert_eq!(error.position, names(128).len() + " AND ".len());
}
