//! Reads the extension fields of a request.

use std::str::FromStr;

use crate::{TransportError, remoting::RemotingCommand};

/// The value of a field that must be there.
///
/// # Errors
/// `BadField` naming it.
pub(super) fn required<'a>(
    command: &'a RemotingCommand,
    name: &'static str,
) -> Result<&'a str, TransportError> {
    let value = command.field(name).filter(|value| !value.is_empty());
    value.ok_or(TransportError::BadField { name, reason: "it is missing" })
}

/// A number that must be there.
///
/// # Errors
/// `BadField` where it is missing or no number in range.
pub(super) fn number<T: FromStr>(command: &RemotingCommand, name: &'static str) -> Result<T, TransportError> {
    parse(required(command, name)?, name)
}

/// A number, or `default` where the field is absent or empty.
///
/// # Errors
/// `BadField` for what is no number in range.
pub(super) fn number_or<T: FromStr>(
    command: &RemotingCommand,
    name: &'static str,
    default: T,
) -> Result<T, TransportError> {
    match command.field(name) {
        None | Some("") => Ok(default),
        Some(text) => parse(text, name),
    }
}

/// Java's `true`; everything else is false.
pub(super) fn is_set(command: &RemotingCommand, name: &str) -> bool {
    command.field(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

fn parse<T: FromStr>(text: &str, name: &'static str) -> Result<T, TransportError> {
    text.parse().map_err(|_| TransportError::BadField { name, reason: "it is no number in range" })
}
