//! Hot verbs over remoting: a request becomes a call of the hot path, its outcome a response.
//!
//! A verb has a line in [`HOT_VERBS`], a header in `headers`, and a file. `hot` does what it asks for.

mod ack;
pub mod batch;
mod batch_ack;
mod consumer;
mod extra_info;
mod headers;
mod offset;
mod peek;
mod pop;
mod pull;
mod refused;
mod send;
mod send_back;
mod send_header;
mod send_properties;

use std::{net::SocketAddr, pin::Pin, sync::Arc};

use ferromq_store::StoreError;

use crate::{
    TransportError,
    hot::Hot,
    remoting::{Fields, RemotingCommand, codes::request},
};
use refused::Refused;

/// The hot verbs of the remoting protocol, the most frequent first.
static HOT_VERBS: [HotVerb; 14] = [
    HotVerb::send(request::SEND_MESSAGE_V2),
    HotVerb::send(request::SEND_BATCH_MESSAGE),
    HotVerb::at_once(request::ACK_MESSAGE, ack::ack),
    HotVerb::query(request::PULL_MESSAGE, |hot, peer, command| Box::pin(pull::pull(hot, peer, command))),
    HotVerb::query(request::POP_MESSAGE, |hot, peer, command| Box::pin(pop::pop(hot, peer, command))),
    HotVerb::at_once(request::BATCH_ACK_MESSAGE, ack::batch_ack),
    HotVerb::at_once(request::CHANGE_MESSAGE_INVISIBLETIME, ack::change_invisible),
    HotVerb::at_once(request::UPDATE_CONSUMER_OFFSET, offset::update),
    HotVerb::waits(request::CONSUMER_SEND_MSG_BACK, |hot, peer, command| {
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
    code: i32,
    /// All it does is answer: a one-way request has no effect. A slave refuses it.
    pub(crate) is_query: bool,
    run: Run,
}

/// How a verb is run.
enum Run {
    /// On the task that read the request, which it never keeps waiting.
    AtOnce(fn(&Hot, &RemotingCommand) -> Outcome),
    /// As `AtOnce` where the topic is known; a flush may have to come before the answer.
    Send,
    /// It may wait.
    Waits(for<'a> fn(&'a Hot, SocketAddr, &'a RemotingCommand) -> Answering<'a>),
}

type Outcome = Result<RemotingCommand, Refused>;
type Answering<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// How far a hot request came at once.
pub(crate) enum Begun {
    /// The response is here.
    Answered(RemotingCommand),
    /// The messages are in the log; the response holds once what ends there is durable.
    Stored(RemotingCommand, u64),
    /// Nothing is done yet: see [`HotVerb::answer`].
    No,
}

impl HotVerb {
    const fn send(code: i32) -> Self {
        Self { code, is_query: false, run: Run::Send }
    }

    const fn at_once(code: i32, run: fn(&Hot, &RemotingCommand) -> Outcome) -> Self {
        Self { code, is_query: false, run: Run::AtOnce(run) }
    }

    const fn waits(
        code: i32,
        run: for<'a> fn(&'a Hot, SocketAddr, &'a RemotingCommand) -> Answering<'a>,
    ) -> Self {
        Self { code, is_query: false, run: Run::Waits(run) }
    }

    const fn query(
        code: i32,
        run: for<'a> fn(&'a Hot, SocketAddr, &'a RemotingCommand) -> Answering<'a>,
    ) -> Self {
        Self { is_query: true, ..Self::waits(code, run) }
    }

    /// Does what can be done at once of a request, so that most sends cost neither a future nor a task.
    pub(crate) fn begin(&self, hot: &Hot, peer: SocketAddr, command: &RemotingCommand) -> Begun {
        let stored = match self.run {
            Run::AtOnce(run) => return Begun::Answered(refused::settle(command, run(hot, command))),
            Run::Waits(_) => return Begun::No,
            Run::Send => send::send_now(hot, peer, command),
        };
        match stored {
            None => Begun::No,
            Some(Err(error)) => Begun::Answered(refused::failed(command, &error)),
            Some(Ok(send::Stored { response, flushed_to: None })) => Begun::Answered(response),
            Some(Ok(send::Stored { response, flushed_to: Some(end) })) => match hot.sends.durable_now(end) {
                None => Begun::Stored(response, end),
                Some(outcome) => Begun::Answered(flushed(response, outcome)),
            },
        }
    }

    /// Answers a request; the response of a one-way request is not sent.
    ///
    /// Dropped where the connection closes: a verb that waits must then leave nothing behind.
    pub(crate) async fn answer(
        &self,
        hot: Arc<Hot>,
        peer: SocketAddr,
        command: RemotingCommand,
    ) -> RemotingCommand {
        if self.is_query
            && let Err(error) = hot.check_reads()
        {
            return refused::failed(&command, &error);
        }
        let outcome = match self.run {
            Run::AtOnce(run) => run(&hot, &command),
            Run::Send => Box::pin(send::send(&hot, peer, &command)).await.map_err(Refused::from),
            Run::Waits(run) => run(&hot, peer, &command).await,
        };
        refused::settle(&command, outcome)
    }
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
