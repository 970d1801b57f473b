//! Messages of many threads for one broker and topic, gathered into requests.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex},
    time::Instant,
};

use bytes::Bytes;

use super::{Cause, has_passed};
use crate::{CallError, Patience, TICK, codec::Place, sync};

/// Requests under way at once: the broker stores one while the next travels.
pub(super) const IN_FLIGHT: usize = 2;
/// Messages of a request, at most.
pub(super) const MAX_MESSAGES: usize = 256;
/// Bytes of a request, about.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// The messages that wait, and how many requests are under way.
#[derive(Debug, Default)]
pub(super) struct Gather(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Arc<Message>>,
    in_flight: usize,
}

/// A message, and the thread that waits for it.
#[derive(Debug)]
struct Message {
    encoded: Bytes,
    /// When its thread stops waiting.
    until: Instant,
    state: Mutex<Wait>,
    changed: Condvar,
}

#[derive(Debug)]
enum Wait {
    /// The message waits, or is under way.
    Pending,
    /// The thread shall send these messages; its own is the first.
    Lead(Vec<Arc<Message>>),
    Done(Result<Place, Cause>),
    /// The thread has its outcome.
    Over,
}

impl Gather {
    /// Sends a message with `call`, in this thread or in another that calls this. `call` returns the place of each of
    /// the messages it is given.
    pub(super) fn send(
        &self,
        encoded: Bytes,
        patience: Patience<'_>,
        call: impl Fn(Vec<Bytes>, Patience<'_>) -> Result<Vec<Place>, Cause>,
    ) -> Result<Place, Cause> {
        let message = {
            let mut state = sync::lock(&self.0);
            if state.in_flight < IN_FLIGHT && state.waiting.is_empty() {
                state.in_flight += 1;
                None
            } else {
                let wait = Mutex::new(Wait::Pending);
                let message = Arc::new(Message {
                    encoded: encoded.clone(),
                    until: patience.until,
                    state: wait,
                    changed: Condvar::new(),
                });
                state.waiting.push_back(Arc::clone(&message));
                Some(message)
            }
        };
        let Some(message) = message else {
            let outcome = self.lead(|| call(vec![encoded], patience));
            return outcome.and_then(|places| places.into_iter().next().ok_or_else(no_place));
        };
        match self.wait(&message, patience)? {
            Turn::Done(outcome) => outcome,
            Turn::Lead(messages) => {
                let requests = messages.iter().map(|message| message.encoded.clone()).collect();
                // What ends this thread's own wait must not end the sends of the others.
                let patience = match messages.len() {
                    1 => patience,
                    _ => Patience { until: message.until, is_interrupted: &|| false },
                };
                distribute(self.lead(|| call(requests, patience)), &messages)
            }
        }
    }

    /// Makes a request. Afterwards, and also after a panic, another thread sends what waits then.
    fn lead<T>(&self, request: impl FnOnce() -> T) -> T {
        let _next = NextLeader(self);
        request()
    }

    fn wait(&self, message: &Arc<Message>, patience: Patience<'_>) -> Result<Turn, Cause> {
        let mut state = sync::lock(&message.state);
        loop {
            match std::mem::replace(&mut *state, Wait::Over) {
                Wait::Lead(messages) => return Ok(Turn::Lead(messages)),
                Wait::Done(outcome) => return Ok(Turn::Done(outcome)),
                Wait::Pending | Wait::Over => *state = Wait::Pending,
            }
            let is_late = has_passed(patience.until);
            state = if is_late {
                state
            } else {
                sync::wait_until(&message.changed, state, patience.until.min(Instant::now() + TICK))
            };
            if !matches!(*state, Wait::Pending) {
                continue;
            }
            // The caller's check may wait for a lock of its own.
            drop(state);
            if is_late || (patience.is_interrupted)() {
                return self.leave(message, is_late);
            }
            state = sync::lock(&message.state);
        }
    }

    /// Ends the wait of a thread that has no more time. If its message is not under way yet, it is not sent.
    fn leave(&self, message: &Arc<Message>, is_late: bool) -> Result<Turn, Cause> {
        let mut gather = sync::lock(&self.0);
        let before = gather.waiting.len();
        gather.waiting.retain(|other| !Arc::ptr_eq(other, message));
        let was_waiting = gather.waiting.len() < before;
        drop(gather);
        // It may have got its turn or its outcome meanwhile.
        let wait = std::mem::replace(&mut *sync::lock(&message.state), Wait::Over);
        match wait {
            Wait::Lead(messages) => Ok(Turn::Lead(messages)),
            Wait::Done(outcome) => Ok(Turn::Done(outcome)),
            Wait::Pending | Wait::Over => {
                let address: Arc<str> = Arc::from("the broker");
                Err(Cause::Call(match (is_late, was_waiting) {
                    (true, true) => CallError::NotSent { address, reason: LATE.into() },
                    (true, false) => CallError::Timeout { address },
                    (false, _) => CallError::Interrupted { address },
                }))
            }
        }
    }
}

pub(super) const LATE: &str = "its answers to the messages before took all the time";

enum Turn {
    Done(Result<Place, Cause>),
    Lead(Vec<Arc<Message>>),
}

/// Lets another thread send what waits, once a request is no longer under way.
struct NextLeader<'a>(&'a Gather);

impl Drop for NextLeader<'_> {
    fn drop(&mut self) {
        let mut state = sync::lock(&self.0.0);
        let mut bytes = 0;
        let fit = state.waiting.iter().take(MAX_MESSAGES).take_while(|message| {
            let is_first = bytes == 0;
            bytes += message.encoded.len();
            is_first || bytes <= MAX_BYTES
        });
        let count = fit.count();
        let mut messages: Vec<_> = state.waiting.drain(..count).collect();
        // The thread with the most time leads: the others leave when theirs is over.
        let latest =
            (0..messages.len()).max_by_key(|index| messages.get(*index).map(|message| message.until));
        if let Some(latest) = latest {
            messages.swap(0, latest);
        }
        // Under the lock: a thread that leaves finds its message either waiting or with its turn.
        match messages.first().map(Arc::clone) {
            Some(leader) => {
                *sync::lock(&leader.state) = Wait::Lead(messages);
                leader.changed.notify_one();
            }
            None => state.in_flight -= 1,
        }
    }
}

/// Ends the waits of the other threads, and returns the outcome of the first message, which is this thread's own.
fn distribute(outcome: Result<Vec<Place>, Cause>, messages: &[Arc<Message>]) -> Result<Place, Cause> {
    let mut each: Vec<Result<Place, Cause>> = match outcome {
        Ok(places) => places.into_iter().map(Ok).collect(),
        Err(cause) => vec![Err(cause); messages.len()],
    };
    each.resize_with(messages.len(), || Err(no_place()));
    let mut each = each.into_iter();
    let own = each.next().unwrap_or_else(|| Err(no_place()));
    for (message, outcome) in messages.iter().skip(1).zip(each) {
        *sync::lock(&message.state) = Wait::Done(outcome);
        message.changed.notify_one();
    }
    own
}

pub(super) fn no_place() -> Cause {
    Cause::Rpc(super::UNKNOWN, "the answer names no place of the message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Barrier,
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        thread,
        time::Duration,
    };

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn patience(limit: Duration) -> Patience<'static> {
        Patience { until: Instant::now() + limit, is_interrupted: &|| false }
    }

    fn place(encoded: &Bytes) -> Place {
        Place { queue_offset: encoded.len() as i64, ..Place::default() }
    }

    /// A call that waits until it is released, and reports what it was given.
    struct Server {
        begun: mpsc::Sender<usize>,
        release: Mutex<mpsc::Receiver<()>>,
    }

    impl Server {
        fn call(&self, messages: &[Bytes]) -> Result<Vec<Place>, Cause> {
            self.begun.send(messages.len()).unwrap();
            let _ = self.release.lock().unwrap().recv();
            Ok(messages.iter().map(place).collect())
        }
    }

    fn waiting(gather: &Gather, count: usize) {
        while gather.0.lock().unwrap().waiting.len() != count {
            thread::yield_now();
        }
    }

    #[test]
    fn messages_that_wait_share_a_request_and_each_gets_its_own_place() {
        let (gather, calls) = (Gather::default(), AtomicUsize::new(0));
        let barrier = Barrier::new(16);
        thread::scope(|scope| {
            for len in 1..=16 {
                let (gather, calls, barrier) = (&gather, &calls, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for _ in 0..500 {
                        let outcome = gather.send(vec![0; len].into(), patience(LONG), |messages, _| {
                            calls.fetch_add(1, Ordering::Relaxed);
                            thread::yield_now();
                            Ok(messages.iter().map(place).collect())
                        });
                        assert_eq!(outcome.unwrap().queue_offset, len as i64);
                    }
                });
            }
        });
        let state = gather.0.lock().unwrap();
        assert_eq!((state.in_flight, state.waiting.len()), (0, 0));
        assert!(calls.load(Ordering::Relaxed) < 16 * 500, "no request was shared");
    }

    #[test]
    fn a_failed_request_fails_each_of_its_messages_and_the_next_is_sent() {
        let (begun, begins) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let (gather, server) = (Gather::default(), Server { begun, release: Mutex::new(released) });
        thread::scope(|scope| {
            let send = |fails: bool| {
                let (gather, server) = (&gather, &server);
                move || {
                    gather.send(Bytes::from_static(b"x"), patience(LONG), |messages, _| {
                        let places = server.call(&messages);
                        if fails { Err(Cause::Shared) } else { places }
                    })
                }
            };
            let first: Vec<_> = (0..IN_FLIGHT).map(|_| scope.spawn(send(false))).collect();
            (0..IN_FLIGHT).for_each(|_| assert_eq!(begins.recv().unwrap(), 1));
            let shared: Vec<_> = (0..5).map(|_| scope.spawn(send(true))).collect();
            waiting(&gather, 5);
            release.send(()).unwrap();
            assert_eq!(begins.recv().unwrap(), 5, "those that waited share one request");
            (0..IN_FLIGHT).for_each(|_| release.send(()).unwrap());
            assert!(first.into_iter().all(|thread| thread.join().unwrap().is_ok()));
            assert!(shared.into_iter().all(|thread| thread.join().unwrap() == Err(Cause::Shared)));
            release.send(()).unwrap();
            assert!(send(false)().is_ok());
        });
        assert_eq!(gather.0.lock().unwrap().in_flight, 0);
    }

    #[test]
    fn a_thread_without_time_leaves_and_its_message_is_not_sent() {
        let (begun, begins) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let (gather, server) = (Gather::default(), Server { begun, release: Mutex::new(released) });
        thread::scope(|scope| {
            for _ in 0..IN_FLIGHT {
                scope.spawn(|| {
                    gather
                        .send(Bytes::from_static(b"x"), patience(LONG), |messages, _| server.call(&messages))
                });
                begins.recv().unwrap();
            }
            let late =
                gather.send(Bytes::from_static(b"late"), patience(Duration::from_millis(20)), |_, _| {
                    panic!("it is not its turn")
                });
            assert!(matches!(late, Err(Cause::Call(CallError::NotSent { .. }))), "{late:?}");
            let interrupted = Patience { until: Instant::now() + LONG, is_interrupted: &|| true };
            let left =
                gather.send(Bytes::from_static(b"left"), interrupted, |_, _| panic!("it is not its turn"));
            assert!(matches!(left, Err(Cause::Call(CallError::Interrupted { .. }))), "{left:?}");
            waiting(&gather, 0);
            (0..IN_FLIGHT).for_each(|_| release.send(()).unwrap());
        });
        assert_eq!(gather.0.lock().unwrap().in_flight, 0);
    }
}
