//! Answers the calls of a connection on the task that reads them: it reads the calls that have arrived, answers them,
//! and writes all answers at once. A call that has to wait moves to a task of its own.
//!
//! One task per call would cost more than most calls do: it wakes another thread, which wakes this one for the answer.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use hyper::rt::Executor;
use parking_lot::Mutex;
use tracing::error;

/// Rounds of a connection before it yields to other tasks.
const MAX_ROUNDS: u8 = 4;
/// Most calls of one read that start inline; more would delay the answer to the first.
const MAX_INLINE: usize = 64;

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Calls that the connection has read but not started.
#[derive(Clone, Default)]
pub(super) struct UnstartedCalls(Arc<Mutex<Vec<Call>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for UnstartedCalls {
    fn execute(&self, call: F) {
        self.0.lock().push(Box::pin(call));
    }
}

impl UnstartedCalls {
    fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Polls a call. Returns whether it has to wait.
///
/// A panic ends only its own call, as if the call had a task of its own.
fn poll_call(call: &mut Call, context: &mut Context<'_>) -> bool {
    let polled = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context)));
    polled.map_or_else(
        |_| {
            error!("a gRPC call panicked");
            false
        },
        |polled| polled.is_pending(),
    )
}

/// Moves the call that awaits it to a task of its own.
#[derive(Default)]
pub(super) struct OwnTask(bool);

impl Future for OwnTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A connection and the calls it reads.
pub(super) struct InlineCalls<C> {
    connection: Pin<Box<C>>,
    calls: UnstartedCalls,
    gate: Arc<WakeGate>,
    waker: Waker,
}

impl<C> InlineCalls<C> {
    /// `connection` must use `calls` as the executor of its calls.
    pub(super) fn new(connection: C, calls: UnstartedCalls) -> Self {
        let gate = Arc::<WakeGate>::default();
        Self { connection: Box::pin(connection), calls, waker: Waker::from(Arc::clone(&gate)), gate }
    }

    /// The connection.
    pub(super) fn connection(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }

    fn start_calls(&self, context: &mut Context<'_>) {
        for (number, mut call) in self.calls.take().into_iter().enumerate() {
            if number >= MAX_INLINE || poll_call(&mut call, context) {
                tokio::spawn(call);
            }
        }
    }
}

impl<C> Drop for InlineCalls<C> {
    /// Drops unstarted calls: each holds its executor, and so itself.
    fn drop(&mut self) {
        drop(self.calls.take());
    }
}

impl<C: Future> Future for InlineCalls<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<C::Output> {
        let this = &mut *self;
        let mut context = Context::from_waker(&this.waker);
        for _ in 0..MAX_ROUNDS {
            this.gate.begin(task.waker());
            let ended = this.connection.as_mut().poll(&mut context);
            this.start_calls(&mut context);
            if ended.is_ready() {
                return ended;
            }
            if this.gate.sleep() {
                return Poll::Pending;
            }
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The connection waits and has not been woken.
const ASLEEP: u8 = 0;
/// The connection is being polled.
const RUNNING: u8 = 1;
/// The connection was woken. If that happened during a poll it continues by itself, otherwise its task was woken.
const WOKEN: u8 = 2;

/// Absorbs wake-ups of a connection that is being polled, most of them from its own answers, so that its task is not
/// woken.
#[derive(Default)]
struct WakeGate {
    state: AtomicU8,
    task: Mutex<Option<Waker>>,
}

impl WakeGate {
    /// Begins a poll, which sees everything that happened before it.
    fn begin(&self, task: &Waker) {
        let mut known = self.task.lock();
        if !known.as_ref().is_some_and(|known| known.will_wake(task)) {
            *known = Some(task.clone());
        }
        drop(known);
        self.state.swap(RUNNING, Ordering::AcqRel);
    }

    /// Lets the next wake-up wake the task. Returns false if one came during the poll.
    fn sleep(&self) -> bool {
        self.state.compare_exchange(RUNNING, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Wake for WakeGate {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP
            && let Some(task) = &*self.task.lock()
        {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::oneshot;

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A connection that reads the given calls when it is polled, and never ends.
    struct ReadingConnection {
        calls: UnstartedCalls,
        unread: Vec<Call>,
        polls: usize,
        waker: Arc<Mutex<Option<Waker>>>,
    }

    impl Future for ReadingConnection {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            self.polls += 1;
            *self.waker.lock() = Some(context.waker().clone());
            for call in std::mem::take(&mut self.unread) {
                self.calls.execute(call);
            }
            Poll::Pending
        }
    }

    fn reading(unread: Vec<Call>) -> (InlineCalls<ReadingConnection>, Arc<Mutex<Option<Waker>>>) {
        let (calls, waker) = (UnstartedCalls::default(), Arc::default());
        let reading = ReadingConnection { calls: calls.clone(), unread, polls: 0, waker: Arc::clone(&waker) };
        (InlineCalls::new(reading, calls), waker)
    }

    fn poll(serving: &mut InlineCalls<ReadingConnection>, task: &Arc<WakeCounter>) -> Poll<()> {
        Pin::new(serving).poll(&mut Context::from_waker(&Waker::from(Arc::clone(task))))
    }

    #[test]
    fn calls_that_do_not_wait_are_answered_in_the_same_poll_and_wake_no_task() {
        let done = Arc::<AtomicUsize>::default();
        let (mut serving, waker) = reading(Vec::new());
        serving.connection().unread = (0..3)
            .map(|_| {
                let (done, waker) = (Arc::clone(&done), Arc::clone(&waker));
                let call: Call = Box::pin(async move {
                    done.fetch_add(1, Ordering::SeqCst);
                    // The answer has to be written.
                    if let Some(waker) = &*waker.lock() {
                        waker.wake_by_ref();
                    }
                });
                call
            })
            .collect();
        let task = Arc::<WakeCounter>::default();
        assert!(poll(&mut serving, &task).is_pending());
        assert_eq!(done.load(Ordering::SeqCst), 3);
        assert_eq!(serving.connection().polls, 2);
        assert_eq!(task.0.load(Ordering::SeqCst), 0);
        // Several wake-ups of a sleeping connection wake its task once.
        let waker = waker.lock().clone().unwrap();
        waker.wake_by_ref();
        waker.wake();
        assert_eq!(task.0.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn the_first_of_many_calls_are_answered_inline_and_the_others_on_their_own_tasks() {
        let (done, mut outcomes) = tokio::sync::mpsc::unbounded_channel();
        let calls = (0..MAX_INLINE + 9).map(|number| {
            let done = done.clone();
            let call: Call = Box::pin(async move { _ = done.send(number) });
            call
        });
        let (mut serving, _) = reading(calls.collect());
        assert!(poll(&mut serving, &Arc::default()).is_pending());
        assert_eq!(outcomes.len(), MAX_INLINE);
        for _ in 0..MAX_INLINE + 9 {
            outcomes.recv().await.unwrap();
        }
    }

    #[test]
    fn a_connection_that_ends_drops_its_unstarted_calls() {
        let (serving, _) = reading(Vec::new());
        let held = Arc::new(());
        let (calls, kept) = (serving.calls.clone(), Arc::clone(&held));
        // Like hyper's calls, this one holds its executor.
        let executor = calls.clone();
        calls.execute(async move { drop((executor, kept)) });
        drop((serving, calls));
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn a_connection_that_is_always_ready_yields_to_other_tasks() {
        struct Busy(usize);
        impl Future for Busy {
            type Output = ();
            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
                self.0 += 1;
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
        let mut serving = InlineCalls::new(Busy(0), UnstartedCalls::default());
        let task = Arc::<WakeCounter>::default();
        let waker = Waker::from(Arc::clone(&task));
        assert!(Pin::new(&mut serving).poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(serving.connection().0, usize::from(MAX_ROUNDS));
        assert_eq!(task.0.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_call_that_waits_continues_on_its_own_task_and_a_panic_ends_one_call() {
        let (answer, waiting) = oneshot::channel::<u8>();
        let (done, outcome) = oneshot::channel();
        let panics: Call = Box::pin(async { panic!("expected by the test") });
        let waits: Call = Box::pin(async move { _ = done.send(waiting.await) });
        let (mut serving, _) = reading(vec![panics, waits]);
        let task = Arc::<WakeCounter>::default();
        assert!(poll(&mut serving, &task).is_pending());
        // Nothing polls the connection again.
        answer.send(7).unwrap();
        assert_eq!(outcome.await.unwrap(), Ok(7));
    }
}
