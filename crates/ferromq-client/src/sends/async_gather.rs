//! Messages of an event loop for one broker and topic, gathered into requests.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Instant,
};

use bytes::Bytes;

use super::{
    Cause,
    gather::{IN_FLIGHT, MAX_BYTES, MAX_MESSAGES, no_place},
    has_passed,
};
use crate::{CallError, codec::Place, sync};

/// Starts a request with these messages, which ends by the time given, and calls back with the place of each.
pub(super) type StartRequest = dyn Fn(Vec<Bytes>, Instant, EndRequest) + Send + Sync;
pub(super) type EndRequest = Box<dyn FnOnce(Result<Vec<Place>, Cause>) + Send>;

/// The messages that wait, and how many requests are under way.
#[derive(Debug, Default)]
pub(super) struct AsyncGather(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Message>,
    in_flight: usize,
}

/// A message, and what is called with its place.
pub(super) struct Message {
    pub(super) encoded: Bytes,
    pub(super) until: Instant,
    pub(super) done: Box<dyn FnOnce(Result<Place, Cause>) + Send>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").field("until", &self.until).finish_non_exhaustive()
    }
}

impl AsyncGather {
    /// Sends a message at once, or with others once a request is no longer under way.
    pub(super) fn add(self: &Arc<Self>, message: Message, start: &Arc<StartRequest>) {
        {
            let mut state = sync::lock(&self.0);
            if state.in_flight >= IN_FLIGHT {
                state.waiting.push_back(message);
                return;
            }
            state.in_flight += 1;
        }
        self.request(vec![message], start);
    }

    fn request(self: &Arc<Self>, messages: Vec<Message>, start: &Arc<StartRequest>) {
        let until = messages.iter().map(|message| message.until).max().unwrap_or_else(Instant::now);
        let encoded = messages.iter().map(|message| message.encoded.clone()).collect();
        let (gather, again) = (Arc::clone(self), Arc::clone(start));
        let end = move |outcome: Result<Vec<Place>, Cause>| {
            let is_lost = matches!(outcome, Err(Cause::Call(_)));
            distribute(outcome, messages);
            match is_lost {
                // The next request would end the same way.
                true => gather.give_up(),
                false => gather.next(&again),
            }
        };
        start(encoded, until, Box::new(end));
    }

    /// Ends what waits, after a request without an answer.
    fn give_up(&self) {
        let waiting = {
            let mut state = sync::lock(&self.0);
            state.in_flight -= 1;
            std::mem::take(&mut state.waiting)
        };
        for message in waiting {
            let (address, reason) = ("the broker".into(), "the request before it has no answer".into());
            (message.done)(Err(Cause::Call(CallError::NotSent { address, reason })));
        }
    }

    /// Sends what waits.
    fn next(self: &Arc<Self>, start: &Arc<StartRequest>) {
        let (late, messages) = {
            let mut state = sync::lock(&self.0);
            let (mut late, mut messages, mut bytes) = (Vec::new(), Vec::new(), 0);
            while let Some(message) = state.waiting.pop_front() {
                if has_passed(message.until) {
                    late.push(message);
                    continue;
                }
                bytes += message.encoded.len();
                if !messages.is_empty() && (bytes > MAX_BYTES || messages.len() == MAX_MESSAGES) {
                    state.waiting.push_front(message);
                    break;
                }
                messages.push(message);
            }
            if messages.is_empty() {
                state.in_flight -= 1;
            }
            (late, messages)
        };
        for message in late {
            let (address, reason) = ("the broker".into(), super::gather::LATE.into());
            (message.done)(Err(Cause::Call(CallError::NotSent { address, reason })));
        }
        if !messages.is_empty() {
            self.request(messages, start);
        }
    }
}

fn distribute(outcome: Result<Vec<Place>, Cause>, messages: Vec<Message>) {
    match outcome {
        Ok(places) => {
            let mut places = places.into_iter();
            for message in messages {
                (message.done)(places.next().ok_or_else(no_place));
            }
        }
        Err(cause) => messages.into_iter().for_each(|message| (message.done)(Err(cause.clone()))),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    type Requests = mpsc::Receiver<(Vec<Bytes>, EndRequest)>;

    fn server() -> (Arc<StartRequest>, Requests) {
        let (begun, requests) = mpsc::channel();
        let begun = Mutex::new(begun);
        let start = move |messages, _until, end| sync::lock(&begun).send((messages, end)).unwrap();
        (Arc::new(start), requests)
    }

    fn message(
        body: &'static str,
        left: Duration,
        done: &mpsc::Sender<(&'static str, Result<Place, Cause>)>,
    ) -> Message {
        let done = done.clone();
        let done = Box::new(move |outcome| done.send((body, outcome)).unwrap());
        Message { encoded: Bytes::from_static(body.as_bytes()), until: Instant::now() + left, done }
    }

    fn places(messages: &[Bytes]) -> Vec<Place> {
        let place = |message: &Bytes| Place { queue_offset: message.len() as i64, ..Place::default() };
        messages.iter().map(place).collect()
    }

    #[test]
    fn messages_that_wait_share_a_request_and_each_gets_its_own_place() {
        let ((start, requests), (done, outcomes)) = (server(), mpsc::channel());
        let (gather, long) = (Arc::new(AsyncGather::default()), Duration::from_secs(60));
        for body in ["1", "22", "333", "4444", "55555"] {
            gather.add(message(body, long, &done), &start);
        }
        let under_way: Vec<_> = requests.try_iter().collect();
        assert_eq!(under_way.iter().map(|(messages, _)| messages.len()).collect::<Vec<_>>(), [1, 1]);
        for (messages, end) in under_way {
            end(Ok(places(&messages)));
        }
        let (messages, end) = requests.try_recv().unwrap();
        assert_eq!(messages, ["333", "4444", "55555"]);
        assert!(requests.try_recv().is_err());
        end(Ok(places(&messages)));
        for (body, outcome) in outcomes.try_iter() {
            assert_eq!(outcome.unwrap().queue_offset, body.len() as i64);
        }
        assert_eq!(sync::lock(&gather.0).in_flight, 0);
    }

    #[test]
    fn a_failed_request_fails_its_messages_and_one_without_time_is_not_sent() {
        let ((start, requests), (done, outcomes)) = (server(), mpsc::channel());
        let (gather, long) = (Arc::new(AsyncGather::default()), Duration::from_secs(60));
        for (body, left) in [("a", long), ("b", long), ("late", Duration::ZERO), ("c", long)] {
            gather.add(message(body, left, &done), &start);
        }
        let (_, end) = requests.try_recv().unwrap();
        end(Err(Cause::Shared));
        assert_eq!(outcomes.try_iter().map(|(body, _)| body).collect::<Vec<_>>(), ["a", "late"]);
        let (_, second) = requests.try_recv().unwrap();
        let (messages, third) = requests.try_recv().unwrap();
        assert_eq!(messages, ["c"]);
        second(Err(Cause::Shared));
        third(Ok(Vec::new()));
        assert!(outcomes.try_iter().all(|(_, outcome)| outcome.is_err()));
        assert_eq!(sync::lock(&gather.0).in_flight, 0);
    }
}
