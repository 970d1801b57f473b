//! A bounded pool of threads for work that waits for the interpreter; it knows no Python.
//!
//! Two promises: what does not fit is refused at once, and jobs of one strand run one after the other in the
//! order they came. What a job does is the business of `handler`.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// Jobs that wait for a thread; more are refused.
const WAITING_JOBS: usize = 1024;
/// Jobs that wait in one strand; more are refused.
const WAITING_IN_STRAND: usize = 256;

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
        drop(state);
        self.0.work.notify_one();
        true
    }

    /// Queues a job whatever waits; only for jobs that are bounded otherwise.
    pub fn submit_always(&self, job: impl FnOnce() + Send + 'static) {
        self.0.state.lock().turns.push_back(Turn::Job(Box::new(job)));
        self.0.work.notify_one();
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
        drop(state);
        self.0.work.notify_one();
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

fn work(shared: &Shared) {
    let mut state = shared.state.lock();
    loop {
        match state.turns.pop_front() {
            Some(Turn::Job(job)) => {
                drop(state);
                run(job);
                state = shared.state.lock();
            }
            Some(Turn::Strand(strand)) => {
                let job = state.strands.get_mut(&strand).and_then(VecDeque::pop_front);
                drop(state);
                job.into_iter().for_each(run);
                state = shared.state.lock();
                requeue(&mut state, strand);
            }
            None if state.stopping => break,
            None => shared.work.wait(&mut state),
        }
    }
    state.threads -= 1;
    shared.ended.notify_all();
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
