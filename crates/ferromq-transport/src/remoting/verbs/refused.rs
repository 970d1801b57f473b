//! A request that a verb refused with a response of its own, or that failed.

use crate::{TransportError, remoting::RemotingCommand};

/// Why a verb did not carry out a request.
pub(crate) enum Refused {
    /// A refusal: the response.
    With(Box<RemotingCommand>),
    /// An error, which determines the response.
    Failed(TransportError),
}

impl Refused {
    /// Refuses with a code, and the reason as the remark.
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

/// The response to a request, for any outcome of its verb.
pub(super) fn to_response(
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
