//! A bounded pool of threads for work that waits for the interpreter; it knows no Python.
//!
//! Two promises: what does not fit is refused at once, and jobs of one strand run one after the other in the
//! order they came. What a job does is the business of `handler`.
//!
//! The interpreter runs one thread at a time, and each hand-over between threads costs more than a quick job. So one
//! thread runs the jobs one after the other, and others join where that one waits: for the disk or a peer, which
//! it says ([`blocking`]), or for anything else, when no job was begun for a while.

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Jobs that wait for a thread; more are refused.
const WAITING_JOBS: usize = 1024;
/// Jobs that wait in one strand; more are refused.
const WAITING_IN_STRAND: usize = 256;
/// Jobs that wait are begun by one more thread when none was begun for so long.
const STALL: Duration = Duration::from_micros(500);

type Job = Box<dyn FnOnce() + Send>;

enum Turn {
    Job(Job),
    /// The next job of a strand.
    Strand(u64),
}

#[derive(Default)]
struct State {
    turns: VecDeque<Turn>,
    /// Strands with a job that waits or runs.
    strands: HashMap<u64, VecDeque<Job>>,
    stopping: bool,
    threads: usize,
    /// Jobs that run and do not say that they wait.
    running: usize,
    /// Whether a thread waits for a stall; where none does and jobs wait, one is woken.
    is_watched: bool,
    begun_at: Option<Instant>,
}

impl State {
    /// The moment from which one more thread may begin a job; `None`: now.
    fn stalled_at(&self) -> Option<Instant> {
        let begun_at = self.begun_at.filter(|_| self.running > 0 && !self.stopping)?;
        Some(begun_at + STALL).filter(|stalled_at| *stalled_at > Instant::now())
    }
}

thread_local! {
    /// The pool this thread runs a job of.
    static CURRENT: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// Runs `wait`, which may wait for the disk or a peer; another job may begin meanwhile where a thread of a pool calls
/// this. What is said to wait within it waits already.
pub fn blocking<T>(wait: impl FnOnce() -> T) -> T {
    let Some(shared) = CURRENT.take() else { return wait() };
    let _waiting = Waiting::begin(shared);
    wait()
}

/// A job of a pool that waits for the disk or a peer.
struct Waiting(Arc<Shared>);

impl Waiting {
    fn begin(shared: Arc<Shared>) -> Self {
        let mut state = shared.state.lock();
        state.running -= 1;
        let others_wait = !state.turns.is_empty();
        drop(state);
        if others_wait {
            // The one that watches may be among the sleeping: whoever wakes looks.
            shared.work.notify_one();
        }
        Self(shared)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.state.lock().running += 1;
        CURRENT.set(Some(Arc::clone(&self.0)));
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    ended: Condvar,
}

/// The pool. Dropping it lets its threads end after the jobs that wait.
pub struct Pool(Arc<Shared>);

impl Pool {
    /// Starts `threads` threads, at least one.
    pub fn start(threads: usize) -> io::Result<Self> {
        let pool = Self(Arc::default());
        for number in 0..threads.max(1) {
            let shared = Arc::clone(&pool.0);
            pool.0.state.lock().threads += 1;
            let started =
                thread::Builder::new().name(format!("ferromq-handler-{number}")).spawn(move || work(&shared));
            if let Err(error) = started {
                pool.0.state.lock().threads -= 1;
                return Err(error);
            }
        }
        Ok(pool)
    }

    /// Queues a job; false where too many wait or the pool is stopping.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.0.state.lock();
        if state.stopping || state.turns.len() >= WAITING_JOBS {
            return false;
        }
        state.turns.push_back(Turn::Job(Box::new(job)));
        self.0.call_somebody(state);
        true
    }

    /// Queues a job whatever waits; only for jobs of which there is one at a time.
    pub fn submit_always(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.turns.push_back(Turn::Job(Box::new(job)));
        self.0.call_somebody(state);
    }

    /// Queues a job of a strand; false where too many of it wait, unless it is the `last` one.
    pub fn submit_to(&self, strand: u64, last: bool, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.0.state.lock();
        if let Some(waiting) = state.strands.get_mut(&strand) {
            let fits = last || waiting.len() < WAITING_IN_STRAND;
            if fits {
                waiting.push_back(Box::new(job));
            }
            return fits;
        }
        if !last && (state.stopping || state.turns.len() >= WAITING_JOBS) {
            return false;
        }
        state.strands.insert(strand, VecDeque::from([Box::new(job) as Job]));
        state.turns.push_back(Turn::Strand(strand));
        self.0.call_somebody(state);
        true
    }

    /// Takes no new jobs and waits up to `patience` for those that wait and run; false where some still do.
    pub fn stop(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.0.state.lock();
        state.stopping = true;
        self.0.work.notify_all();
        while state.threads > 0 {
            if self.0.ended.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.threads == 0
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.state.lock().stopping = true;
        self.0.work.notify_all();
    }
}

impl Shared {
    /// Wakes a thread, unless one runs and one watches it: those see what waits.
    fn call_somebody(&self, state: MutexGuard<'_, State>) {
        let is_seen = state.running > 0 && state.is_watched;
        drop(state);
        if !is_seen {
            self.work.notify_one();
        }
    }
}

fn work(shared: &Arc<Shared>) {
    CURRENT.set(Some(Arc::clone(shared)));
    let mut state = shared.state.lock();
    while let Some(turn) = next(shared, &mut state) {
        state.running += 1;
        state.begun_at = Some(Instant::now());
        if !state.turns.is_empty() && !state.is_watched {
            shared.work.notify_one();
        }
        match turn {
            Turn::Job(job) => {
                drop(state);
                run(job);
                state = shared.state.lock();
            }
            Turn::Strand(strand) => {
                let job = state.strands.get_mut(&strand).and_then(VecDeque::pop_front);
                drop(state);
                job.into_iter().for_each(run);
                state = shared.state.lock();
                requeue(&mut state, strand);
            }
        }
        state.running -= 1;
    }
    state.threads -= 1;
    shared.ended.notify_all();
}

/// Waits for a turn this thread may take; `None` where the pool stops and none is left.
fn next(shared: &Shared, state: &mut MutexGuard<'_, State>) -> Option<Turn> {
    loop {
        let stalled_at = state.stalled_at();
        match (state.turns.is_empty(), stalled_at) {
            (true, _) if state.stopping => return None,
            (false, None) => return state.turns.pop_front(),
            (false, Some(stalled_at)) if !state.is_watched => {
                state.is_watched = true;
                shared.work.wait_until(state, stalled_at);
                state.is_watched = false;
            }
            _ => shared.work.wait(state),
        }
    }
}

/// Gives the strand its next turn behind everybody else, or forgets it.
fn requeue(state: &mut State, strand: u64) {
    if state.strands.get(&strand).is_some_and(|waiting| !waiting.is_empty()) {
        state.turns.push_back(Turn::Strand(strand));
    } else {
        state.strands.remove(&strand);
    }
}

/// A job that panics must not take its thread along: the pool would shrink until nothing is answered.
fn run(job: Job) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
        tracing::error!("cold handler panicked");
    }
}
