//! The syntax tree of a filter expression, and its text form.

use std::fmt;

/// Comparison operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Text searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    Contains,
    StartsWith,
    EndsWith,
}

/// A node. [`Expression::is_condition`] tells RocketMQ's boolean expressions.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    Null,
    Bool(bool),
    Int(i32),
    Long(i64),
    Double(f64),
    Text(Box<str>),
    /// A property, by its index among the filter's names.
    Property(usize),
    Negate(Box<Expression>),
    /// A property used as a condition.
    Cast(usize),
    Not(Box<Expression>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
    Compare(Comparison, Box<[Expression; 2]>),
    /// Value, low end, high end.
    Between(bool, Box<[Expression; 3]>),
    IsNull(Box<Expression>),
    /// A negated search is not NOT: both are false without a text.
    Find(Search, bool, Box<Expression>, Box<str>),
    /// Sorted texts.
    In(bool, usize, Box<[Box<str>]>),
}

impl Expression {
    /// Whether the value is true, false or unknown.
    pub(super) fn is_condition(&self) -> bool {
        match self {
            Self::Int(_)
            | Self::Long(_)
            | Self::Double(_)
            | Self::Text(_)
            | Self::Property(_)
            | Self::Negate(_) => false,
            Self::Null
            | Self::Bool(_)
            | Self::Cast(_)
            | Self::Not(_)
            | Self::And(_)
            | Self::Or(_)
            | Self::Compare(..)
            | Self::Between(..)
            | Self::IsNull(_)
            | Self::Find(..)
            | Self::In(..) => true,
        }
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self, Self::Int(_) | Self::Long(_) | Self::Double(_))
    }

    pub(super) fn is_constant(&self) -> bool {
        self.is_number() || matches!(self, Self::Null | Self::Bool(_) | Self::Text(_))
    }
}

/// Writes an expression with brackets around every part, so that it parses as the same expression.
pub(super) struct Shown<'a> {
    pub expression: &'a Expression,
    pub names: &'a [Box<str>],
}

impl Shown<'_> {
    fn of<'b>(&'b self, expression: &'b Expression) -> Shown<'b> {
        Shown { expression, names: self.names }
    }

    fn name(&self, index: usize) -> &str {
        self.names.get(index).map_or("", |name| name)
    }

    fn list(&self, f: &mut fmt::Formatter<'_>, parts: &[Expression], word: &str) -> fmt::Result {
        for (index, part) in parts.iter().enumerate() {
            let before = if index == 0 { "(" } else { word };
            write!(f, "{before}{}", self.of(part))?;
        }
        f.write_str(")")
    }
}

struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", self.0.replace('\'', "''"))
    }
}

const fn not(is_negated: bool) -> &'static str {
    if is_negated { "NOT " } else { "" }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.expression {
            Expression::Null => f.write_str("NULL"),
            Expression::Bool(value) => f.write_str(if *value { "TRUE" } else { "FALSE" }),
            Expression::Int(number) => write!(f, "{number}"),
            Expression::Long(number) => write!(f, "{number}"),
            Expression::Double(number) => write!(f, "{number:e}"),
            Expression::Text(text) => write!(f, "{}", Quoted(text)),
            Expression::Property(index) | Expression::Cast(index) => f.write_str(self.name(*index)),
            Expression::Negate(of) => write!(f, "(- {})", self.of(of)),
            Expression::Not(of) => write!(f, "(NOT {})", self.of(of)),
            Expression::And(parts) => self.list(f, parts, " AND "),
            Expression::Or(parts) => self.list(f, parts, " OR "),
            Expression::Compare(how, sides) => {
                let [left, right] = &**sides;
                let sign = match how {
                    Comparison::Equal => "=",
                    Comparison::Less => "<",
                    Comparison::LessOrEqual => "<=",
                    Comparison::Greater => ">",
                    Comparison::GreaterOrEqual => ">=",
                };
                write!(f, "({} {sign} {})", self.of(left), self.of(right))
            }
            Expression::Between(is_negated, parts) => {
                let [value, low, high] = &**parts;
                let (value, low, high) = (self.of(value), self.of(low), self.of(high));
                write!(f, "({value} {}BETWEEN {low} AND {high})", not(*is_negated))
            }
            Expression::IsNull(of) => write!(f, "({} IS NULL)", self.of(of)),
            Expression::Find(search, is_negated, of, text) => {
                let word = match search {
                    Search::Contains => "CONTAINS",
                    Search::StartsWith => "STARTSWITH",
                    Search::EndsWith => "ENDSWITH",
                };
                write!(f, "({} {}{word} {})", self.of(of), not(*is_negated), Quoted(text))
            }
            Expression::In(is_negated, index, texts) => {
                write!(f, "({} {}IN (", self.name(*index), not(*is_negated))?;
                for (index, text) in texts.iter().enumerate() {
                    write!(f, "{}{}", if index == 0 { "" } else { ", " }, Quoted(text))?;
                }
                f.write_str("))")
            }
        }
    }
}
