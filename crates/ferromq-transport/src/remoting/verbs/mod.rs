//! Hot verbs over remoting: turns requests into calls of `hot`, and their outcomes into responses.
//!
//! Each verb has an entry in [`HOT_VERBS`], a header in `headers`, and a file.

mod ack;
pub mod batch;
mod batch_ack;
mod consumer;
mod extra_info;
mod headers;
pub(crate) mod limited;
mod offset;
mod peek;
mod pop;
mod pull;
pub(crate) mod refused;
mod send;
mod send_back;
mod send_header;
mod send_properties;

use std::{net::SocketAddr, pin::Pin, sync::Arc};

use ferromq_store::StoreError;

use crate::{
    TransportError,
    hot::{Hot, latencies::Protocol},
    remoting::{Fields, RemotingCommand, codes::request},
};
use refused::Refused;
use send_header::SendHeader;

/// The hot verbs of the remoting protocol, the most frequent first.
static HOT_VERBS: [HotVerb; 14] = [
    HotVerb::send(request::SEND_MESSAGE_V2),
    HotVerb::send(request::SEND_BATCH_MESSAGE),
    HotVerb::inline(request::ACK_MESSAGE, ack::ack),
    HotVerb::query(request::PULL_MESSAGE, |hot, peer, command| Box::pin(pull::pull(hot, peer, command))),
    HotVerb::query(request::POP_MESSAGE, |hot, peer, command| Box::pin(pop::pop(hot, peer, command))),
    HotVerb::inline(request::BATCH_ACK_MESSAGE, ack::batch_ack),
    HotVerb::inline(request::CHANGE_MESSAGE_INVISIBLETIME, ack::change_invisible),
    HotVerb::inline(request::UPDATE_CONSUMER_OFFSET, offset::update),
    HotVerb::asynchronous(request::CONSUMER_SEND_MSG_BACK, |hot, peer, command| {
        Box::pin(send_back::send_back(hot, peer, command))
    }),
    HotVerb::send(request::SEND_MESSAGE),
    HotVerb::query(request::LITE_PULL_MESSAGE, |hot, peer, command| Box::pin(pull::pull(hot, peer, command))),
    HotVerb::query(request::PEEK_MESSAGE, |hot, peer, command| Box::pin(peek::peek(hot, peer, command))),
    HotVerb::query(request::NOTIFICATION, |hot, peer, command| Box::pin(peek::notify(hot, peer, command))),
    HotVerb::query(request::POLLING_INFO, |hot, peer, command| Box::pin(peek::polling(hot, peer, command))),
];

/// The hot verb of a request code; `None` for a cold one.
pub(crate) fn find(code: i32) -> Option<&'static HotVerb> {
    HOT_VERBS.iter().find(|verb| verb.code == code)
}

/// A verb of the hot path.
pub(crate) struct HotVerb {
    pub(crate) code: i32,
    /// Useless without a response: a one-way request is dropped.
    pub(crate) is_query: bool,
    /// Refused while the broker answers no reads.
    checks_reads: bool,
    handler: Handler,
}

/// How a verb is executed.
enum Handler {
    /// On the task that reads requests, without waiting.
    Inline(fn(&Hot, &RemotingCommand) -> Outcome),
    /// As `Inline` if the topic is known, but the response may have to wait for a flush.
    Send,
    /// In a future, which may wait.
    Async(for<'a> fn(&'a Arc<Hot>, SocketAddr, &'a RemotingCommand) -> ResponseFuture<'a>),
}

type Outcome = Result<RemotingCommand, Refused>;
pub(crate) type ResponseFuture<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// Result of a hot request so far.
pub(crate) enum BeginOutcome {
    /// The response.
    Answered(RemotingCommand),
    /// The messages are in the log. The response is valid once the log is durable up to this physical offset.
    Stored(RemotingCommand, u64),
    /// Nothing was done yet: call [`HotVerb::answer`].
    Pending,
}

impl HotVerb {
    const fn send(code: i32) -> Self {
        Self { code, is_query: false, checks_reads: false, handler: Handler::Send }
    }

    const fn inline(code: i32, run: fn(&Hot, &RemotingCommand) -> Outcome) -> Self {
        Self { code, is_query: false, checks_reads: false, handler: Handler::Inline(run) }
    }

    pub(crate) const fn asynchronous(
        code: i32,
        run: for<'a> fn(&'a Arc<Hot>, SocketAddr, &'a RemotingCommand) -> ResponseFuture<'a>,
    ) -> Self {
        Self { code, is_query: false, checks_reads: false, handler: Handler::Async(run) }
    }

    const fn query(
        code: i32,
        run: for<'a> fn(&'a Arc<Hot>, SocketAddr, &'a RemotingCommand) -> ResponseFuture<'a>,
    ) -> Self {
        Self { checks_reads: true, ..Self::framed_query(code, run) }
    }

    /// A query that itself refuses reads, in its own form.
    pub(crate) const fn framed_query(
        code: i32,
        run: for<'a> fn(&'a Arc<Hot>, SocketAddr, &'a RemotingCommand) -> ResponseFuture<'a>,
    ) -> Self {
        Self { is_query: true, ..Self::asynchronous(code, run) }
    }

    /// Executes as much of a request as needs no wait, so that most sends cost neither a future nor a task.
    pub(crate) fn begin(&self, hot: &Hot, peer: SocketAddr, command: &RemotingCommand) -> BeginOutcome {
        let stored = match self.handler {
            Handler::Inline(run) => {
                return BeginOutcome::Answered(refused::to_response(command, run(hot, command)));
            }
            Handler::Async(_) => return BeginOutcome::Pending,
            Handler::Send => send::send_now(hot, peer, command),
        };
        match stored {
            None => BeginOutcome::Pending,
            Some(Err(error)) => {
                refused_send(hot, peer, command, &error);
                BeginOutcome::Answered(refused::failed(command, &error))
            }
            Some(Ok(send::StoredSend { response, flush_to: None })) => BeginOutcome::Answered(response),
            Some(Ok(send::StoredSend { response, flush_to: Some(end) })) => {
                match hot.sends.durable_now(end) {
                    None => BeginOutcome::Stored(response, end),
                    Some(outcome) => BeginOutcome::Answered(flushed(response, outcome)),
                }
            }
        }
    }

    /// Answers a request; the caller drops the response to a one-way request.
    ///
    /// The future is dropped if the connection closes: a verb that waits must then leave no state behind.
    pub(crate) async fn answer(
        &self,
        hot: Arc<Hot>,
        peer: SocketAddr,
        command: RemotingCommand,
    ) -> RemotingCommand {
        if self.checks_reads
            && let Err(error) = hot.check_reads()
        {
            return refused::failed(&command, &error);
        }
        let outcome = match self.handler {
            Handler::Inline(run) => run(&hot, &command),
            Handler::Send => Box::pin(send::send(&hot, peer, &command)).await.map_err(|error| {
                refused_send(&hot, peer, &command, &error);
                Refused::from(error)
            }),
            Handler::Async(run) => run(&hot, peer, &command).await,
        };
        refused::to_response(&command, outcome)
    }
}

/// Counts and logs a refused send.
fn refused_send(hot: &Hot, peer: SocketAddr, command: &RemotingCommand, error: &TransportError) {
    let topic = SendHeader::parse(command).ok().map(|header| header.topic);
    hot.refused_send(peer, topic, (Protocol::Remoting, error.response_code()), error);
}

/// The response to a stored request after the outcome of its flush.
///
/// After a failed flush the messages still have their offsets: RocketMQ's clients read them from FLUSH_DISK_TIMEOUT as
/// from a success.
pub(crate) fn flushed(response: RemotingCommand, outcome: Result<(), StoreError>) -> RemotingCommand {
    let Err(error) = outcome else { return response };
    let keeps_offsets = matches!(error, StoreError::NotDurable { .. });
    let fields = if keeps_offsets { response.fields } else { Fields::default() };
    let error = TransportError::from(error);
    let (code, remark) = (error.response_code(), Some(error.to_string()));
    RemotingCommand { code, remark, fields, ..response }
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
    fn a_message_that_is_stored_but_not_flushed_is_answered_with_its_offset() {
        let error = StoreError::NotDurable { cause: "EIO".into() };
        let why = error.to_string();
        let answer = flushed(stored(), Err(error));
        assert_eq!((answer.code, answer.fields), (response::FLUSH_DISK_TIMEOUT, stored().fields));
        assert!(answer.remark.is_some_and(|remark| remark.contains(&why)));
    }

    #[test]
    fn a_successful_flush_changes_nothing_and_another_failure_names_no_offset() {
        assert_eq!(flushed(stored(), Ok(())), stored());
        let answer = flushed(stored(), Err(StoreError::Closed));
        assert!(answer.code != response::SUCCESS && answer.fields.is_empty());
    }
}
