//! A bounded pool of threads for jobs that need the interpreter. `handler` makes the jobs; this file has no Python.
//!
//! A job that exceeds the limits is rejected at once. The jobs of a strand run one after the other, in the order of
//! submission.
//!
//! The interpreter runs one thread at a time, and a switch between threads costs more than a short job. So one thread
//! runs jobs one after the other. Another one joins if the first waits for the disk or a peer, which it declares by
//! [`blocking`], or if no job was started for `STALL`.

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Most queued jobs; more are rejected.
const MAX_QUEUED: usize = 1024;
/// Most queued jobs of a strand; more are rejected.
const MAX_QUEUED_IN_STRAND: usize = 256;
/// Time without the start of a job after which another thread starts queued ones.
const STALL: Duration = Duration::from_micros(500);

type Job = Box<dyn FnOnce() + Send>;

/// An entry of the pool's queue.
enum Queued {
    Job(Job),
    /// The strand whose next job is to run.
    Strand(u64),
}

#[derive(Default)]
struct State {
    queue: VecDeque<Queued>,
    /// Strands with queued or running jobs, and their queued jobs.
    strands: HashMap<u64, VecDeque<Job>>,
    stopping: bool,
    threads: usize,
    /// Running jobs, except those inside `blocking`.
    running: usize,
    /// Whether a thread waits for the next stall. If none does and jobs are queued, one is woken.
    is_watched: bool,
    last_start: Option<Instant>,
}

impl State {
    /// When another thread may start a job; `None`: now.
    fn stalled_at(&self) -> Option<Instant> {
        let last_start = self.last_start.filter(|_| self.running > 0 && !self.stopping)?;
        Some(last_start + STALL).filter(|stalled_at| *stalled_at > Instant::now())
    }
}

thread_local! {
    /// The pool of this thread, unless it is inside `blocking`.
    static CURRENT: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// Runs `wait`, which may wait for the disk or a peer. Meanwhile, if a thread of a pool calls this, another job may
/// start. Nested calls have no further effect.
pub fn blocking<T>(wait: impl FnOnce() -> T) -> T {
    let Some(shared) = CURRENT.take() else { return wait() };
    let _guard = BlockingGuard::begin(shared);
    wait()
}

/// Excludes a job from the running ones while it waits for the disk or a peer.
struct BlockingGuard(Arc<Shared>);

impl BlockingGuard {
    fn begin(shared: Arc<Shared>) -> Self {
        let mut state = shared.state.lock();
        state.running -= 1;
        let has_queued = !state.queue.is_empty();
        drop(state);
        if has_queued {
            // This may wake the watching thread instead of an idle one. Either checks the queue.
            shared.work.notify_one();
        }
        Self(shared)
    }
}

impl Drop for BlockingGuard {
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

/// The pool. After a drop, its threads run the queued jobs and end.
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

    /// Queues a job. Returns false if the queue is full or the pool is stopping.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.0.state.lock();
        if state.stopping || state.queue.len() >= MAX_QUEUED {
            return false;
        }
        state.queue.push_back(Queued::Job(Box::new(job)));
        self.0.wake_one(state);
        true
    }

    /// Queues a job without a limit; only for a job that is queued at most once at a time.
    pub fn submit_always(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.queue.push_back(Queued::Job(Box::new(job)));
        self.0.wake_one(state);
    }

    /// Queues a job of a strand. Returns false if a queue is full or the pool is stopping, unless it is the `last` job.
    pub fn submit_to(&self, strand: u64, last: bool, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.0.state.lock();
        if let Some(waiting) = state.strands.get_mut(&strand) {
            let fits = last || waiting.len() < MAX_QUEUED_IN_STRAND;
            if fits {
                waiting.push_back(Box::new(job));
            }
            return fits;
        }
        if !last && (state.stopping || state.queue.len() >= MAX_QUEUED) {
            return false;
        }
        state.strands.insert(strand, VecDeque::from([Box::new(job) as Job]));
        state.queue.push_back(Queued::Strand(strand));
        self.0.wake_one(state);
        true
    }

    /// Rejects new jobs and waits up to `patience` for queued and running ones. Returns false if some are left.
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
    /// Wakes a thread for a queued job, unless a running and a watching thread will take it.
    fn wake_one(&self, state: MutexGuard<'_, State>) {
        let is_covered = state.running > 0 && state.is_watched;
        drop(state);
        if !is_covered {
            self.work.notify_one();
        }
    }
}

fn work(shared: &Arc<Shared>) {
    CURRENT.set(Some(Arc::clone(shared)));
    let mut state = shared.state.lock();
    while let Some(queued) = next(shared, &mut state) {
        state.running += 1;
        state.last_start = Some(Instant::now());
        if !state.queue.is_empty() && !state.is_watched {
            shared.work.notify_one();
        }
        match queued {
            Queued::Job(job) => {
                drop(state);
                run(job);
                state = shared.state.lock();
            }
            Queued::Strand(strand) => {
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

/// Waits for an entry that this thread may take. `None`: the pool stops and its queue is empty.
fn next(shared: &Shared, state: &mut MutexGuard<'_, State>) -> Option<Queued> {
    loop {
        let stalled_at = state.stalled_at();
        match (state.queue.is_empty(), stalled_at) {
            (true, _) if state.stopping => return None,
            (false, None) => return state.queue.pop_front(),
            (false, Some(stalled_at)) if !state.is_watched => {
                state.is_watched = true;
                shared.work.wait_until(state, stalled_at);
                state.is_watched = false;
            }
            _ => shared.work.wait(state),
        }
    }
}

/// Moves the strand to the end of the queue, or removes it if it has no more jobs.
fn requeue(state: &mut State, strand: u64) {
    if state.strands.get(&strand).is_some_and(|waiting| !waiting.is_empty()) {
        state.queue.push_back(Queued::Strand(strand));
    } else {
        state.strands.remove(&strand);
    }
}

/// Runs a job. A panic must not end the thread, or the pool would shrink until no request is answered.
fn run(job: Job) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
        tracing::error!("cold handler panicked");
    }
}
