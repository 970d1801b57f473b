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

use std::{net::SocketAddr, sync::Arc};

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
            Some(Ok(())) => Begun::Answered(response),
            Some(Err(error)) => Begun::Answered(refuse(command, &error.into())),
        },
    }
}

/// The response of a request that is stored, once it holds.
pub(crate) async fn after_flush(hot: Arc<Hot>, response: RemotingCommand, end: u64) -> RemotingCommand {
    match hot.durable(end).await {
        Ok(()) => response,
        Err(error) => {
            let error = TransportError::from(error);
            let (code, remark) = (error.response_code(), Some(error.to_string()));
            RemotingCommand { code, remark, fields: Fields::default(), ..response }
        }
    }
}

/// Answers a hot request; the response of a one-way request is not sent.
///
/// Dropped where the connection closes: a verb that waits must then leave nothing behind.
pub(crate) async fn answer(hot: Arc<Hot>, peer: SocketAddr, command: RemotingCommand) -> RemotingCommand {
    let outcome = match command.code {
        request::UPDATE_CONSUMER_OFFSET => offset::update(&hot, &command),
        request::PULL_MESSAGE | request::LITE_PULL_MESSAGE => pull::pull(&hot, peer, &command).await,
        request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => {
            send::send(&hot, peer, &command).await
        }
        request::CONSUMER_SEND_MSG_BACK => send_back::send_back(&hot, peer, &command).await,
        request::POP_MESSAGE => pop::pop(&hot, peer, &command).await,
        request::ACK_MESSAGE => ack::ack(&hot, &command),
        request::BATCH_ACK_MESSAGE => ack::batch_ack(&hot, &command),
        request::CHANGE_MESSAGE_INVISIBLETIME => ack::change_invisible(&hot, &command),
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
