//! Calls of a connection are answered by the task that reads them: it reads what there is, answers it, and writes all
//! answers at once. A call that has to wait gets a task of its own.
//!
//! A task for each call would cost more than most calls do: it wakes another thread, and that one this again.

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

/// How often the connection goes on by itself before others have their turn.
const ROUNDS: u8 = 4;
/// So many calls that were read at once are begun here; more would keep the first of them from being answered.
const TOGETHER: usize = 64;

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Calls that the connection has read and not begun.
#[derive(Clone, Default)]
pub(super) struct Calls(Arc<Mutex<Vec<Call>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, call: F) {
        self.0.lock().push(Box::pin(call));
    }
}

impl Calls {
    fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Goes on with a call as far as it comes; true where it has to wait.
///
/// A call that panics ends alone, as if it had a task of its own.
fn begin(call: &mut Call, context: &mut Context<'_>) -> bool {
    let polled = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context)));
    polled.map_or_else(
        |_| {
            error!("a call panicked");
            false
        },
        |polled| polled.is_pending(),
    )
}

/// Has the call that awaits it go on in a task of its own.
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
    calls: Calls,
    wakes: Arc<Wakes>,
    waker: Waker,
}

impl<C> InlineCalls<C> {
    /// `connection` executes its calls on `calls`.
    pub(super) fn new(connection: C, calls: Calls) -> Self {
        let wakes = Arc::<Wakes>::default();
        Self { connection: Box::pin(connection), calls, waker: Waker::from(Arc::clone(&wakes)), wakes }
    }

    /// The connection.
    pub(super) fn connection(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }

    fn begin_calls(&self, context: &mut Context<'_>) {
        for (number, mut call) in self.calls.take().into_iter().enumerate() {
            if number >= TOGETHER || begin(&mut call, context) {
                tokio::spawn(call);
            }
        }
    }
}

impl<C> Drop for InlineCalls<C> {
    /// A call that is never begun keeps its executor, and so itself.
    fn drop(&mut self) {
        drop(self.calls.take());
    }
}

impl<C: Future> Future for InlineCalls<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<C::Output> {
        let me = &mut *self;
        let mut context = Context::from_waker(&me.waker);
        for _ in 0..ROUNDS {
            me.wakes.begin(task.waker());
            let ended = me.connection.as_mut().poll(&mut context);
            me.begin_calls(&mut context);
            if ended.is_ready() {
                return ended;
            }
            if me.wakes.sleep() {
                return Poll::Pending;
            }
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The connection waits and was not woken.
const ASLEEP: u8 = 0;
/// It is at work.
const AT_WORK: u8 = 1;
/// It was woken: while it was at work it goes on by itself, later its task is woken.
const WOKEN: u8 = 2;

/// Keeps those who wake a connection that is at work, above all its own answers, from waking its task.
#[derive(Default)]
struct Wakes {
    state: AtomicU8,
    task: Mutex<Option<Waker>>,
}

impl Wakes {
    /// From here the connection looks at everything that happened before.
    fn begin(&self, task: &Waker) {
        let mut known = self.task.lock();
        if !known.as_ref().is_some_and(|known| known.will_wake(task)) {
            *known = Some(task.clone());
        }
        drop(known);
        self.state.swap(AT_WORK, Ordering::AcqRel);
    }

    /// Lets the next wake-up wake the task; false if one came while it was at work.
    fn sleep(&self) -> bool {
        self.state.compare_exchange(AT_WORK, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Wake for Wakes {
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
    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A connection that reads the calls it is given when it is looked at, and never ends.
    struct Reading {
        calls: Calls,
        unread: Vec<Call>,
        looks: usize,
        waker: Arc<Mutex<Option<Waker>>>,
    }

    impl Future for Reading {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
            self.looks += 1;
            *self.waker.lock() = Some(context.waker().clone());
            for call in std::mem::take(&mut self.unread) {
                self.calls.execute(call);
            }
            Poll::Pending
        }
    }

    fn reading(unread: Vec<Call>) -> (InlineCalls<Reading>, Arc<Mutex<Option<Waker>>>) {
        let (calls, waker) = (Calls::default(), Arc::default());
        let reading = Reading { calls: calls.clone(), unread, looks: 0, waker: Arc::clone(&waker) };
        (InlineCalls::new(reading, calls), waker)
    }

    fn look(together: &mut InlineCalls<Reading>, task: &Arc<Counting>) -> Poll<()> {
        Pin::new(together).poll(&mut Context::from_waker(&Waker::from(Arc::clone(task))))
    }

    #[test]
    fn calls_that_wait_for_nothing_are_answered_before_the_connection_goes_on_and_wake_no_task() {
        let done = Arc::<AtomicUsize>::default();
        let (mut together, waker) = reading(Vec::new());
        together.connection().unread = (0..3)
            .map(|_| {
                let (done, waker) = (Arc::clone(&done), Arc::clone(&waker));
                let call: Call = Box::pin(async move {
                    done.fetch_add(1, Ordering::SeqCst);
                    // There is something to be written.
                    if let Some(waker) = &*waker.lock() {
                        waker.wake_by_ref();
                    }
                });
                call
            })
            .collect();
        let task = Arc::<Counting>::default();
        assert!(look(&mut together, &task).is_pending());
        assert_eq!(done.load(Ordering::SeqCst), 3);
        assert_eq!(together.connection().looks, 2);
        assert_eq!(task.0.load(Ordering::SeqCst), 0);
        // Asleep, it is woken once, however many there are to wake it.
        let waker = waker.lock().clone().unwrap();
        waker.wake_by_ref();
        waker.wake();
        assert_eq!(task.0.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn of_many_calls_the_first_are_answered_here_and_the_others_by_themselves() {
        let (done, mut outcomes) = tokio::sync::mpsc::unbounded_channel();
        let calls = (0..TOGETHER + 9).map(|number| {
            let done = done.clone();
            let call: Call = Box::pin(async move { _ = done.send(number) });
            call
        });
        let (mut together, _) = reading(calls.collect());
        assert!(look(&mut together, &Arc::default()).is_pending());
        assert_eq!(outcomes.len(), TOGETHER);
        for _ in 0..TOGETHER + 9 {
            outcomes.recv().await.unwrap();
        }
    }

    #[test]
    fn a_connection_that_ends_drops_the_calls_it_has_read() {
        let (together, _) = reading(Vec::new());
        let held = Arc::new(());
        let (calls, kept) = (together.calls.clone(), Arc::clone(&held));
        // As hyper's, the call keeps where it is executed.
        let executor = calls.clone();
        calls.execute(async move { drop((executor, kept)) });
        drop((together, calls));
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn a_connection_that_always_has_to_go_on_lets_others_have_their_turn() {
        struct Busy(usize);
        impl Future for Busy {
            type Output = ();
            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
                self.0 += 1;
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
        let mut together = InlineCalls::new(Busy(0), Calls::default());
        let task = Arc::<Counting>::default();
        let waker = Waker::from(Arc::clone(&task));
        assert!(Pin::new(&mut together).poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(together.connection().0, usize::from(ROUNDS));
        assert_eq!(task.0.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_call_that_waits_goes_on_by_itself_and_one_that_panics_ends_alone() {
        let (answer, waiting) = oneshot::channel::<u8>();
        let (done, outcome) = oneshot::channel();
        let panics: Call = Box::pin(async { panic!("as the test wants") });
        let waits: Call = Box::pin(async move { _ = done.send(waiting.await) });
        let (mut together, _) = reading(vec![panics, waits]);
        let task = Arc::<Counting>::default();
        assert!(look(&mut together, &task).is_pending());
        // Nothing polls the connection again.
        answer.send(7).unwrap();
        assert_eq!(outcome.await.unwrap(), Ok(7));
    }
}
