//! The syntax tree of a filter expression.

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
