//! Hot verbs over remoting: a request becomes a call of the hot path, its outcome a response.
//!
//! One verb a file. What a verb does is `hot`'s business, what bytes look like that of `remoting`.

mod ack;
pub mod batch;
mod batch_ack;
mod consumer;
mod extra_info;
mod fields;
mod offset;
mod peek;
mod pop;
mod pull;
mod refused;
mod send;
mod send_back;
mod send_header;
mod send_properties;

pub(crate) use consumer::MAX_WAIT;

use std::{net::SocketAddr, sync::Arc};

use ferromq_store::StoreError;

use crate::{
    TransportError,
    hot::Hot,
    remoting::{Fields, RemotingCommand, codes::request},
};

/// How far a hot request came at once.
pub(crate) enum Begun {
    /// The response is here.
    Answered(RemotingCommand),
    /// The messages are in the log; the response holds once what ends there is durable.
    Stored(RemotingCommand, u64),
    /// Nothing is done yet: see [`answer`].
    No,
}

/// Does what can be done at once of a hot request, so that most sends cost neither a future nor a task.
pub(crate) fn begin(hot: &Hot, peer: SocketAddr, command: &RemotingCommand) -> Begun {
    let stored = match command.code {
        request::UPDATE_CONSUMER_OFFSET => return begun(command, offset::update(hot, command)),
        request::ACK_MESSAGE => return begun(command, ack::ack(hot, command)),
        request::BATCH_ACK_MESSAGE => return begun(command, ack::batch_ack(hot, command)),
        request::CHANGE_MESSAGE_INVISIBLETIME => return begun(command, ack::change_invisible(hot, command)),
        request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => {
            send::send_now(hot, peer, command)
        }
        _ => None,
    };
    match stored {
        None => Begun::No,
        Some(Err(error)) => Begun::Answered(refuse(command, &error)),
        Some(Ok(send::Stored { response, flushed_to: None })) => Begun::Answered(response),
        Some(Ok(send::Stored { response, flushed_to: Some(end) })) => match hot.durable_now(end) {
            None => Begun::Stored(response, end),
            Some(outcome) => Begun::Answered(flushed(response, outcome)),
        },
    }
}

fn begun(command: &RemotingCommand, outcome: Result<RemotingCommand, TransportError>) -> Begun {
    Begun::Answered(outcome.unwrap_or_else(|error| refuse(command, &error)))
}

/// Says whether all a request does is answer: nobody hears it where it comes one-way.
pub(crate) fn only_answers(code: i32) -> bool {
    matches!(
        code,
        request::PULL_MESSAGE
            | request::LITE_PULL_MESSAGE
            | request::POP_MESSAGE
            | request::PEEK_MESSAGE
            | request::NOTIFICATION
            | request::POLLING_INFO
    )
}

/// The response of a request that is stored, once it is known whether it is as durable as promised.
///
/// Where a flush failed the messages have their places all the same: RocketMQ's clients read them from
/// FLUSH_DISK_TIMEOUT as from a success.
pub(crate) fn flushed(response: RemotingCommand, outcome: Result<(), StoreError>) -> RemotingCommand {
    let Err(error) = outcome else { return response };
    let keeps_places = matches!(error, StoreError::NotDurable { .. });
    let fields = if keeps_places { response.fields } else { Fields::default() };
    let error = TransportError::from(error);
    let (code, remark) = (error.response_code(), Some(error.to_string()));
    RemotingCommand { code, remark, fields, ..response }
}

/// Answers a hot request; the response of a one-way request is not sent.
///
/// Dropped where the connection closes: a verb that waits must then leave nothing behind.
pub(crate) async fn answer(hot: Arc<Hot>, peer: SocketAddr, command: RemotingCommand) -> RemotingCommand {
    if only_answers(command.code)
        && let Err(error) = hot.check_reads()
    {
        return refuse(&command, &error);
    }
    let outcome = match command.code {
        request::PULL_MESSAGE | request::LITE_PULL_MESSAGE => pull::pull(&hot, peer, &command).await,
        request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => {
            send::send(&hot, peer, &command).await
        }
        request::CONSUMER_SEND_MSG_BACK => send_back::send_back(&hot, peer, &command).await,
        request::POP_MESSAGE => pop::pop(&hot, peer, &command).await,
        request::PEEK_MESSAGE => peek::peek(&hot, peer, &command).await,
        request::NOTIFICATION => peek::notify(&hot, peer, &command).await,
        request::POLLING_INFO => peek::polling(&hot, peer, &command).await,
        _ => Ok(command.respond_unsupported()),
    };
    outcome.unwrap_or_else(|error| refuse(&command, &error))
}

/// The response to a request that failed.
fn refuse(command: &RemotingCommand, error: &TransportError) -> RemotingCommand {
    command.respond(error.response_code(), Some(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::codes::response;

    fn stored() -> RemotingCommand {
        let fields = [("msgId", "7F"), ("queueId", "2"), ("queueOffset", "5")];
        RemotingCommand { fields: Fields::from(fields), ..RemotingCommand::default() }
    }

    #[test]
    fn a_message_that_is_stored_but_not_flushed_is_answered_with_its_place() {
        let error = StoreError::NotDurable { cause: "EIO".into() };
        let why = error.to_string();
        let answer = flushed(stored(), Err(error));
        assert_eq!((answer.code, answer.fields), (response::FLUSH_DISK_TIMEOUT, stored().fields));
        assert!(answer.remark.is_some_and(|remark| remark.contains(&why)));
    }

    #[test]
    fn a_flush_that_was_done_changes_nothing_and_another_failure_names_no_place() {
        assert_eq!(flushed(stored(), Ok(())), stored());
        let answer = flushed(stored(), Err(StoreError::Closed));
        assert!(answer.code != response::SUCCESS && answer.fields.is_empty());
    }
}
