//! Parses text to a tree by RocketMQ's grammar and type checks, and reports the position of an error.

use std::cmp::Ordering;

use super::{
    MAX_DEPTH, MAX_NAMES,
    expression::{Comparison, Expression, Search},
    lexer::{Lexer, Token},
    values::{self, Value},
};
use crate::filter::filter_error::FilterError;

/// Parses one expression.
pub(super) struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
    /// First byte of the current token.
    at: usize,
    /// Depth of open brackets and signs.
    nesting: usize,
    names: Vec<Box<str>>,
}

/// A part of the expression, its first byte, and the depth of its tree.
struct Part {
    expression: Expression,
    at: usize,
    depth: usize,
}

type Parsed = Result<Part, FilterError>;

impl<'a> Parser<'a> {
    /// Parses the whole expression; tokens after its end are an error.
    pub(super) fn parse(source: &'a str) -> Result<(Expression, Vec<Box<str>>), FilterError> {
        let mut lexer = Lexer::new(source);
        let (token, at) = lexer.next()?;
        let mut parser = Self { lexer, token, at, nesting: 0, names: Vec::new() };
        let all = parser.either()?;
        let all = parser.condition(all)?;
        if parser.token != Token::End {
            return Err(parser.unexpected("AND, OR or the end"));
        }
        Ok((all.expression, parser.names))
    }

    fn step(&mut self) -> Result<Token<'a>, FilterError> {
        let (token, at) = self.lexer.next()?;
        self.at = at;
        Ok(std::mem::replace(&mut self.token, token))
    }

    /// Accepts a keyword or operator, if it is the next token.
    fn accept(&mut self, word: &'static str) -> Result<bool, FilterError> {
        let is_it = self.token == Token::Fixed(word);
        if is_it {
            self.step()?;
        }
        Ok(is_it)
    }

    fn expect(&mut self, word: &'static str) -> Result<(), FilterError> {
        if self.accept(word)? { Ok(()) } else { Err(self.unexpected(word)) }
    }

    fn unexpected(&self, wanted: &str) -> FilterError {
        self.lexer.error(self.at, format!("expected {wanted}, found {}", self.token))
    }

    fn part(&self, at: usize, depth: usize, expression: Expression) -> Parsed {
        if depth > MAX_DEPTH {
            return Err(self.too_deep(at));
        }
        Ok(Part { expression, at, depth })
    }

    fn too_deep(&self, at: usize) -> FilterError {
        self.lexer
            .error(at, format!("the expression is nested more than {MAX_DEPTH} deep; join conditions with AND, OR or IN without brackets"))
    }

    /// Requires a condition; a property is cast to one.
    fn condition(&self, part: Part) -> Parsed {
        match part.expression {
            Expression::Property(index) => Ok(Part { expression: Expression::Cast(index), ..part }),
            ref other if other.is_condition() => Ok(part),
            _ => Err(self.lexer.error(part.at, "a condition is wanted here, such as price > 3")),
        }
    }

    fn either(&mut self) -> Parsed {
        self.joined("OR", Self::both, Expression::Or)
    }

    fn both(&mut self) -> Parsed {
        self.joined("AND", Self::equality, Expression::And)
    }

    fn joined(
        &mut self,
        word: &'static str,
        side: impl Fn(&mut Self) -> Parsed,
        join: impl Fn(Vec<Expression>) -> Expression,
    ) -> Parsed {
        let first = side(self)?;
        if self.token != Token::Fixed(word) {
            return Ok(first);
        }
        let first = self.condition(first)?;
        let (at, mut depth, mut parts) = (first.at, first.depth, vec![first.expression]);
        while self.accept(word)? {
            let next = side(self)?;
            let next = self.condition(next)?;
            depth = depth.max(next.depth);
            parts.push(next.expression);
        }
        self.part(at, depth + 1, join(parts))
    }

    fn equality(&mut self) -> Parsed {
        let mut left = self.comparison()?;
        loop {
            if self.accept("=")? {
                let right = self.comparison()?;
                left = self.equal(left, right)?;
            } else if self.accept("<>")? {
                let right = self.comparison()?;
                let equal = self.equal(left, right)?;
                left = self.not(equal)?;
            } else if self.accept("IS")? {
                let is_negated = self.accept("NOT")?;
                self.expect("NULL")?;
                left = self.part(left.at, left.depth + 1, Expression::IsNull(Box::new(left.expression)))?;
                if is_negated {
                    left = self.not(left)?;
                }
            } else {
                return Ok(left);
            }
        }
    }

    fn not(&self, part: Part) -> Parsed {
        self.part(part.at, part.depth + 1, Expression::Not(Box::new(part.expression)))
    }

    fn equal(&self, left: Part, right: Part) -> Parsed {
        for side in [&left, &right] {
            if side.expression == Expression::Null {
                return Err(self.lexer.error(side.at, "NULL equals nothing; use IS NULL or IS NOT NULL"));
            }
        }
        if matches!(left.expression, Expression::Bool(_))
            && right.expression.is_constant()
            && !right.expression.is_condition()
        {
            return Err(self.lexer.error(right.at, "TRUE and FALSE cannot be compared with this"));
        }
        self.compare(Comparison::Equal, left, right)
    }

    fn compare(&self, how: Comparison, left: Part, right: Part) -> Parsed {
        let depth = left.depth.max(right.depth) + 1;
        let sides = Box::new([left.expression, right.expression]);
        self.part(left.at, depth, Expression::Compare(how, sides))
    }

    /// Only numbers and properties have an order.
    fn check_order(&self, part: &Part) -> Result<(), FilterError> {
        let expression = &part.expression;
        if expression.is_condition() || expression.is_constant() && !expression.is_number() {
            return Err(self.lexer.error(part.at, "only numbers and properties can be less or greater"));
        }
        Ok(())
    }

    fn comparison(&mut self) -> Parsed {
        let mut left = self.unary()?;
        loop {
            let order = match self.token {
                Token::Fixed(">") => Some(Comparison::Greater),
                Token::Fixed(">=") => Some(Comparison::GreaterOrEqual),
                Token::Fixed("<") => Some(Comparison::Less),
                Token::Fixed("<=") => Some(Comparison::LessOrEqual),
                _ => None,
            };
            if let Some(how) = order {
                self.step()?;
                let right = self.unary()?;
                self.check_order(&left)?;
                self.check_order(&right)?;
                left = self.compare(how, left, right)?;
                continue;
            }
            let is_negated = self.accept("NOT")?;
            left = match self.token {
                Token::Fixed("CONTAINS") => self.find(left, Search::Contains, is_negated)?,
                Token::Fixed("STARTSWITH") => self.find(left, Search::StartsWith, is_negated)?,
                Token::Fixed("ENDSWITH") => self.find(left, Search::EndsWith, is_negated)?,
                Token::Fixed("BETWEEN") => self.between(left, is_negated)?,
                Token::Fixed("IN") => self.in_list(left, is_negated)?,
                _ if is_negated => {
                    return Err(self.unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH"));
                }
                _ => return Ok(left),
            };
        }
    }

    fn find(&mut self, value: Part, search: Search, is_negated: bool) -> Parsed {
        self.step()?;
        let text = self.text()?;
        let find = Expression::Find(search, is_negated, Box::new(value.expression), text);
        self.part(value.at, value.depth + 1, find)
    }

    fn between(&mut self, value: Part, is_negated: bool) -> Parsed {
        self.step()?;
        let low = self.unary()?;
        self.expect("AND")?;
        let high = self.unary()?;
        for part in [&value, &low, &high] {
            self.check_order(part)?;
        }
        if !is_negated && low.expression.is_constant() && high.expression.is_constant() {
            let ends = (constant(&low.expression), constant(&high.expression));
            if values::compare(ends.1, ends.0) == Ok(Ordering::Less) {
                return Err(self.lexer.error(low.at, "the low end of BETWEEN is above the high end"));
            }
        }
        let depth = value.depth.max(low.depth).max(high.depth) + 1;
        let parts = Box::new([value.expression, low.expression, high.expression]);
        self.part(value.at, depth, Expression::Between(is_negated, parts))
    }

    fn in_list(&mut self, value: Part, is_negated: bool) -> Parsed {
        let Expression::Property(index) = value.expression else {
            return Err(self.lexer.error(value.at, "only a property can be IN a list"));
        };
        self.step()?;
        self.expect("(")?;
        let mut texts = vec![self.text()?];
        while self.accept(",")? {
            texts.push(self.text()?);
        }
        self.expect(")")?;
        texts.sort_unstable();
        texts.dedup();
        self.part(value.at, 1, Expression::In(is_negated, index, texts.into()))
    }

    fn text(&mut self) -> Result<Box<str>, FilterError> {
        if !matches!(self.token, Token::Text(_)) {
            return Err(self.unexpected("a text in quotes"));
        }
        match self.step()? {
            Token::Text(text) => Ok(text.into()),
            _ => Ok(Box::default()),
        }
    }

    /// A value with its signs. NOT binds as tightly: `NOT a = 3` compares `NOT a` with 3.
    fn unary(&mut self) -> Parsed {
        let at = self.at;
        if self.nesting == MAX_DEPTH {
            return Err(self.too_deep(at));
        }
        self.nesting += 1;
        let part = if self.accept("+")? {
            self.unary()?
        } else if self.accept("-")? {
            let of = self.unary()?;
            self.part(at, of.depth + 1, Expression::Negate(Box::new(of.expression)))?
        } else if self.accept("NOT")? {
            let of = self.unary()?;
            let of = self.condition(of)?;
            self.not(Part { at, ..of })?
        } else {
            self.primary()?
        };
        self.nesting -= 1;
        Ok(part)
    }

    fn primary(&mut self) -> Parsed {
        let at = self.at;
        let expression = match self.token {
            Token::Fixed("TRUE") => Expression::Bool(true),
            Token::Fixed("FALSE") => Expression::Bool(false),
            Token::Fixed("NULL") => Expression::Null,
            Token::Name(name) => Expression::Property(self.property(name)?),
            Token::Whole(digits) => self.whole(digits)?,
            Token::Float(text) => self.float(text)?,
            Token::Text(_) => return Ok(Part { expression: Expression::Text(self.text()?), at, depth: 1 }),
            Token::Fixed("(") => {
                self.step()?;
                let inner = self.either()?;
                self.expect(")")?;
                return Ok(inner);
            }
            _ => return Err(self.unexpected("a property, a value or a bracket")),
        };
        self.step()?;
        Ok(Part { expression, at, depth: 1 })
    }

    fn property(&mut self, name: &str) -> Result<usize, FilterError> {
        if let Some(index) = self.names.iter().position(|known| **known == *name) {
            return Ok(index);
        }
        if self.names.len() == MAX_NAMES {
            return Err(self
                .lexer
                .error(self.at, format!("the expression names more than {MAX_NAMES} properties")));
        }
        self.names.push(name.into());
        Ok(self.names.len() - 1)
    }

    fn whole(&self, digits: &str) -> Result<Expression, FilterError> {
        let number: i64 = digits
            .parse()
            .map_err(|_| self.lexer.error(self.at, format!("the number {digits} is above {}", i64::MAX)))?;
        Ok(i32::try_from(number).map_or(Expression::Long(number), Expression::Int))
    }

    fn float(&self, text: &str) -> Result<Expression, FilterError> {
        let number: f64 = text.parse().unwrap_or(f64::INFINITY);
        let mantissa = text.split(['e', 'E']).next().unwrap_or(text);
        let is_zero = mantissa.bytes().all(|byte| matches!(byte, b'0' | b'.'));
        if number.is_infinite() || number == 0.0 && !is_zero {
            let why = "the number is too large or too small for a double";
            return Err(self.lexer.error(self.at, why));
        }
        Ok(Expression::Double(number))
    }
}

fn constant(expression: &Expression) -> Value<'_> {
    match expression {
        Expression::Bool(value) => Value::Bool(*value),
        Expression::Int(number) => Value::Int(*number),
        Expression::Long(number) => Value::Long(*number),
        Expression::Double(number) => Value::Double(*number),
        Expression::Text(text) => Value::Text(text.as_bytes()),
        _ => Value::Null,
    }
}
