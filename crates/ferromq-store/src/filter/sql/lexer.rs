//! Splits an SQL92 filter expression into tokens.

use std::fmt;

use crate::filter::filter_error::FilterError;

/// Keywords, in any case, and operators; longer operators first.
const KEYWORDS: [&str; 12] = [
    "NOT",
    "AND",
    "OR",
    "BETWEEN",
    "IN",
    "TRUE",
    "FALSE",
    "NULL",
    "IS",
    "CONTAINS",
    "STARTSWITH",
    "ENDSWITH",
];
const SIGNS: [&str; 11] = ["<>", ">=", "<=", "=", ">", "<", "(", ")", ",", "+", "-"];

/// A token.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token<'a> {
    /// A keyword in capitals, or an operator.
    Fixed(&'static str),
    /// The name of a property.
    Name(&'a str),
    /// An integer.
    Whole(&'a str),
    /// A number with a point or an exponent.
    Float(&'a str),
    /// A quoted text; two quotes stand for one.
    Text(String),
    /// End of the expression.
    End,
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(word) => write!(f, "{word}"),
            Self::Name(name) => write!(f, "the name {name}"),
            Self::Whole(digits) | Self::Float(digits) => write!(f, "the number {digits}"),
            Self::Text(text) => write!(f, "the text '{text}'"),
            Self::End => write!(f, "the end"),
        }
    }
}

/// Reads an expression token by token.
pub(super) struct Lexer<'a> {
    source: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(source: &'a str) -> Self {
        Self { source, at: 0 }
    }

    /// An error at a byte of the expression, reported in characters.
    pub(super) fn error(&self, byte: usize, reason: impl Into<String>) -> FilterError {
        let before = self.source.get(..byte).unwrap_or(self.source);
        FilterError { position: before.chars().count(), reason: reason.into() }
    }

    /// The next token and its first byte.
    pub(super) fn next(&mut self) -> Result<(Token<'a>, usize), FilterError> {
        self.skip_blanks()?;
        let start = self.at;
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok((Token::End, start)) };
        let second = rest.as_bytes().get(1).copied().unwrap_or(0);
        let token = match first {
            'a'..='z' | 'A'..='Z' | '_' | '$' => self.name(),
            '0'..='9' => self.number()?,
            '.' if second.is_ascii_digit() => self.number()?,
            '\'' => self.text()?,
            _ => match SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
                Some(sign) => {
                    self.at += sign.len();
                    Token::Fixed(sign)
                }
                None => return Err(self.error(start, format!("the character {first:?} means nothing here"))),
            },
        };
        Ok((token, start))
    }

    fn rest(&self) -> &'a str {
        self.source.get(self.at..).unwrap_or("")
    }

    /// Skips blanks and comments. A line comment ends with its line; on the last line, as in RocketMQ, two minus signs
    /// are operators.
    fn skip_blanks(&mut self) -> Result<(), FilterError> {
        loop {
            let rest = self.rest();
            let text = rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0c']);
            self.at += rest.len() - text.len();
            if let Some(comment) = text.strip_prefix("--")
                && let Some(end) = comment.find(['\n', '\r'])
            {
                self.at += 2 + end;
            } else if let Some(comment) = text.strip_prefix("/*") {
                let end =
                    comment.find("*/").ok_or_else(|| self.error(self.at, "the comment does not end"))?;
                self.at += end + 4;
            } else {
                return Ok(());
            }
        }
    }

    /// Skips matching characters and returns them.
    fn take_while(&mut self, is_wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !is_wanted(c)).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or("")
    }

    fn name(&mut self) -> Token<'a> {
        let name = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$');
        let keyword = KEYWORDS.into_iter().find(|word| word.eq_ignore_ascii_case(name));
        keyword.map_or(Token::Name(name), Token::Fixed)
    }

    fn number(&mut self) -> Result<Token<'a>, FilterError> {
        let start = self.at;
        let whole = self.take_while(|c| c.is_ascii_digit());
        let mut is_float = false;
        if self.rest().starts_with('.') {
            is_float = true;
            self.at += 1;
            self.take_while(|c| c.is_ascii_digit());
        }
        let exponent = self.exponent();
        is_float |= exponent > 0;
        self.at += exponent;
        let text = self.source.get(start..self.at).unwrap_or("");
        if !is_float && whole.len() > 1 && whole.starts_with('0') {
            return Err(self.error(start, format!("the number {whole} must not begin with 0")));
        }
        if !is_float && whole != "0" && self.rest().starts_with(['l', 'L']) {
            self.at += 1;
        }
        if self.rest().starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.')) {
            return Err(self.error(self.at, format!("the number {text} does not end here")));
        }
        Ok(if is_float { Token::Float(text) } else { Token::Whole(text) })
    }

    /// Length of the exponent that begins here.
    fn exponent(&self) -> usize {
        let rest = self.rest();
        let Some(digits) = rest.strip_prefix(['e', 'E']) else { return 0 };
        let digits = digits.strip_prefix(['+', '-']).unwrap_or(digits);
        let count = digits.bytes().take_while(u8::is_ascii_digit).count();
        if count == 0 { 0 } else { rest.len() - digits.len() + count }
    }

    fn text(&mut self) -> Result<Token<'a>, FilterError> {
        let start = self.at;
        let mut text = String::new();
        loop {
            self.at += 1;
            text.push_str(self.take_while(|c| c != '\''));
            match self.rest().as_bytes() {
                [] => return Err(self.error(start, "the text that begins here has no closing '")),
                [_, b'\'', ..] => {
                    text.push('\'');
                    self.at += 1;
                }
                _ => {
                    self.at += 1;
                    return Ok(Token::Text(text));
                }
            }
        }
    }
}
