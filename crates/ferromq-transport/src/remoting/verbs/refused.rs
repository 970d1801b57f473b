//! A request that is refused with a code of its own, or failed.

use crate::{TransportError, remoting::RemotingCommand};

/// Why a request gets no answer of its verb.
pub(super) enum Refused {
    /// This is the response.
    With(Box<RemotingCommand>),
    /// The error says which.
    Failed(TransportError),
}

impl Refused {
    /// A response with a code and words for a person.
    pub(super) fn new(command: &RemotingCommand, code: i32, why: impl Into<String>) -> Self {
        Self::With(Box::new(command.respond(code, Some(why.into()))))
    }
}

impl From<TransportError> for Refused {
    fn from(error: TransportError) -> Self {
        Self::Failed(error)
    }
}

impl From<ferromq_store::StoreError> for Refused {
    fn from(error: ferromq_store::StoreError) -> Self {
        Self::Failed(error.into())
    }
}

/// The response of a verb, be it an answer or a refusal.
pub(super) fn settle(
    command: &RemotingCommand,
    outcome: Result<RemotingCommand, Refused>,
) -> RemotingCommand {
    match outcome {
        Ok(response) => response,
        Err(Refused::With(response)) => *response,
        Err(Refused::Failed(error)) => failed(command, &error),
    }
}

/// The response to a request that failed.
pub(super) fn failed(command: &RemotingCommand, error: &TransportError) -> RemotingCommand {
    command.respond(error.response_code(), Some(error.to_string()))
}
