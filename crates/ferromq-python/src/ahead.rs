//! The messages that a consumer holds: received ahead of their use, and in use.
//!
//! They are kept here so that handing one out costs one call of Python. How many are held is decided in
//! `ferromq_client::Pace`. The locks are not held while Python runs.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use ferromq_client::{MAX_BATCH, Pace};
use parking_lot::{Condvar, Mutex};
use pyo3::{intern, prelude::*, types::PyList};
use rustc_hash::FxHashMap;

/// Adds the classes and constants of this file to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("MAX_BATCH", MAX_BATCH)?;
    module.add_class::<Held>()?;
    module.add_class::<InUse>()?;
    module.add_class::<Loop>()?;
    module.add_class::<Ahead>()
}

/// How often a lease is renewed within its length.
const RENEWALS: f64 = 3.0;

/// A message that is used or waits for it; times are monotonic.
#[allow(clippy::struct_excessive_bools)] // what may be true of a message, each on its own
#[pyclass(module = "ferromq._ferromq", get_all, set_all)]
pub struct Held {
    message: Py<PyAny>,
    received: f64,
    /// When its lease ends.
    until: f64,
    renew_from: f64,
    /// Says, where a loop keeps order, whether it may be used.
    in_order: Option<Py<PyAny>>,
    /// What it shares with those it waits for; None: nothing. Decided once: the group may be another meanwhile.
    order: Option<Py<PyAny>>,
    /// One of its order that is redelivered goes before it.
    is_behind: bool,
    may_begin: bool,
    is_begun: bool,
    /// Its lease is ended, or left to itself: it must not be renewed.
    is_over: bool,
    /// The broker was not told its end: what is behind it must not go before it.
    comes_again: bool,
    /// Held while a thread renews it.
    renewing: Option<Py<PyAny>>,
}

#[pymethods]
impl Held {
    #[new]
    const fn new(message: Py<PyAny>, received: f64, until: f64, renew_from: f64) -> Self {
        Self {
            message,
            received,
            until,
            renew_from,
            in_order: None,
            order: None,
            is_behind: false,
            may_begin: true,
            is_begun: false,
            is_over: false,
            comes_again: false,
            renewing: None,
        }
    }

    /// Note that its lease ends *duration* from now, and is to be renewed after a share of that.
    #[pyo3(signature = (now, duration, share=1.0 / RENEWALS))]
    fn renewed(&mut self, now: f64, duration: f64, share: f64) {
        (self.until, self.renew_from) = (now + duration, now + duration * share);
    }

    /// Let it be renewed no more, and wait while it is unless told not to: what ends a lease needs its last receipt handle.
    #[pyo3(signature = (*, waits=true))]
    pub fn leave(slf: &Bound<'_, Self>, waits: bool) -> PyResult<()> {
        let py = slf.py();
        let renewing = {
            let mut held = slf.borrow_mut();
            held.is_over = true;
            held.renewing.as_ref().filter(|_| waits).map(|lock| lock.clone_ref(py))
        };
        if let Some(lock) = renewing {
            lock.call_method0(py, intern!(py, "acquire"))?;
            lock.call_method0(py, intern!(py, "release"))?;
        }
        Ok(())
    }
}

impl Held {
    fn address(&self, py: Python<'_>) -> usize {
        address(self.message.bind(py))
    }
}

/// What a consumer uses, by message: what receives puts it here, and what ends leases looks it up.
#[pyclass(module = "ferromq._ferromq", frozen)]
pub struct InUse(Mutex<FxHashMap<usize, Py<Held>>>);

#[pymethods]
impl InUse {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    fn __len__(&self) -> usize {
        self.0.lock().len()
    }

    /// Return what is in use, in no order.
    fn values(&self, py: Python<'_>) -> Vec<Py<Held>> {
        self.0.lock().values().map(|held| held.clone_ref(py)).collect()
    }

    /// Return the use of a message, or None.
    fn get<'py>(&self, message: &Bound<'py, PyAny>) -> Option<Bound<'py, Held>> {
        self.of(message)
    }
}

impl InUse {
    pub fn of<'py, T>(&self, message: &Bound<'py, T>) -> Option<Bound<'py, Held>> {
        let held = self.0.lock().get(&address(message)).map(|held| held.clone_ref(message.py()));
        held.map(|held| held.into_bound(message.py()))
    }

    fn add(&self, held: &Bound<'_, Held>) {
        let before = self.0.lock().insert(held.borrow().address(held.py()), held.clone().unbind());
        drop(before);
    }

    fn remove(&self, held: &Bound<'_, Held>) {
        let before = self.0.lock().remove(&held.borrow().address(held.py()));
        drop(before);
    }
}

/// The messages a consumer holds, and how many more it may receive.
#[pyclass(module = "ferromq._ferromq", frozen)]
pub struct Ahead {
    invisible: f64,
    in_use: Py<InUse>,
    handover: Handover,
    is_stopped: AtomicBool,
    inner: Mutex<Inner>,
}

/// Hands the interpreter lock from a loop to the thread that receives for it.
///
/// The thread would wait for the interpreter's switch interval of 5 ms otherwise: the loop needs a message each
/// microsecond or two.
#[derive(Default)]
pub struct Handover {
    is_asked: AtomicBool,
    lock: Mutex<()>,
    taken: Condvar,
}

impl Handover {
    /// Asks for the lock: the caller is about to wait for it.
    pub fn ask(&self) {
        self.is_asked.store(true, Ordering::Release);
    }

    /// Notes that the caller has the lock.
    pub fn take(&self) {
        self.is_asked.store(false, Ordering::Release);
        drop(self.lock.lock());
        self.taken.notify_all();
    }

    /// Gives the lock to the thread that asked for it.
    fn give(&self, py: Python<'_>) {
        if self.is_asked.load(Ordering::Acquire) {
            py.detach(|| {
                let mut guard = self.lock.lock();
                let is_asked = |(): &mut ()| self.is_asked.load(Ordering::Acquire);
                self.taken.wait_while_for(&mut guard, is_asked, LONGEST_HANDOVER);
            });
        }
    }
}

/// What to renew, and the messages to give back.
type Aging<'py> = (Vec<Bound<'py, Held>>, Vec<Bound<'py, PyAny>>);

/// A loop goes on after this time, whatever became of the thread.
const LONGEST_HANDOVER: Duration = Duration::from_millis(1);

/// A message that waits. Most are in use one after the other: a `Held` is made when it is needed.
enum Waiting {
    Unordered { message: Py<PyAny>, received: f64, until: f64, renew_from: f64 },
    Held(Py<Held>),
}

impl Waiting {
    fn renew_from(&self, py: Python<'_>) -> f64 {
        match self {
            Self::Unordered { renew_from, .. } => *renew_from,
            Self::Held(held) => held.bind(py).borrow().renew_from,
        }
    }

    fn is_ordered(&self, py: Python<'_>) -> bool {
        match self {
            Self::Unordered { .. } => false,
            Self::Held(held) => held.bind(py).borrow().in_order.is_some(),
        }
    }

    fn message(&self, py: Python<'_>) -> Py<PyAny> {
        match self {
            Self::Unordered { message, .. } => message.clone_ref(py),
            Self::Held(held) => held.bind(py).borrow().message.clone_ref(py),
        }
    }

    fn into_held(self, py: Python<'_>) -> PyResult<Bound<'_, Held>> {
        match self {
            Self::Unordered { message, received, until, renew_from } => {
                Bound::new(py, Held::new(message, received, until, renew_from))
            }
            Self::Held(held) => Ok(held.into_bound(py)),
        }
    }
}

struct Inner {
    pace: Pace,
    waiting: VecDeque<Waiting>,
    /// By address.
    in_use: FxHashMap<usize, Py<Held>>,
    is_receiving: bool,
    is_due: bool,
}

#[pymethods]
impl Ahead {
    #[new]
    #[pyo3(signature = (invisible, prefetch=None, in_use=None))]
    fn new(
        py: Python<'_>,
        invisible: f64,
        prefetch: Option<usize>,
        in_use: Option<Py<InUse>>,
    ) -> PyResult<Self> {
        let in_use = in_use.map_or_else(|| Py::new(py, InUse::new()), Ok)?;
        let inner = Inner {
            pace: Pace::new(invisible, prefetch),
            waiting: VecDeque::new(),
            in_use: FxHashMap::default(),
            is_receiving: false,
            is_due: false,
        };
        Ok(Self {
            invisible,
            in_use,
            handover: Handover::default(),
            is_stopped: AtomicBool::new(false),
            inner: Mutex::new(inner),
        })
    }

    /// What waits, in its order.
    #[getter]
    fn waiting(&self, py: Python<'_>) -> PyResult<Vec<Py<Held>>> {
        self.hold_all(py)?;
        let inner = self.inner.lock();
        Ok(inner
            .waiting
            .iter()
            .filter_map(|waiting| match waiting {
                Waiting::Held(held) => Some(held.clone_ref(py)),
                Waiting::Unordered { .. } => None,
            })
            .collect())
    }

    /// How many wait.
    #[getter]
    fn count(&self) -> usize {
        self.inner.lock().waiting.len()
    }

    /// What is in use, in no order.
    #[getter]
    fn in_use(&self, py: Python<'_>) -> Vec<Py<Held>> {
        self.inner.lock().in_use.values().map(|held| held.clone_ref(py)).collect()
    }

    /// Return how many messages to receive now, while *hungry* workers wait for one; 0: none.
    #[pyo3(signature = (hungry, at_least=1))]
    fn room(&self, hungry: usize, at_least: usize) -> usize {
        let inner = self.inner.lock();
        inner.pace.room(hungry, at_least, inner.waiting.len(), inner.in_use.len())
    }

    /// Take messages that were received just now.
    #[pyo3(signature = (messages, now, in_order=None))]
    fn add(
        &self,
        messages: &Bound<'_, PyList>,
        now: f64,
        in_order: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (until, renew_from) = (now + self.invisible, now + self.invisible / RENEWALS);
        let mut added = Vec::with_capacity(messages.len());
        for message in messages {
            let message = message.unbind();
            added.push(match &in_order {
                None => Waiting::Unordered { message, received: now, until, renew_from },
                Some(in_order) => {
                    let mut held = Held::new(message, now, until, renew_from);
                    held.in_order = Some(in_order.clone().unbind());
                    Waiting::Held(Py::new(messages.py(), held)?)
                }
            });
        }
        self.inner.lock().waiting.extend(added);
        Ok(())
    }

    /// Return the next message to use, or None. It drops expired messages: the broker delivers them again.
    fn take<'py>(&self, py: Python<'py>, now: f64) -> PyResult<Option<Bound<'py, Held>>> {
        self.take_if(py, now, |_| true)
    }

    /// Note that *before* is no longer in use, let it be renewed no more, and return the next message to use as `take`.
    #[pyo3(signature = (before, now))]
    fn advance<'py>(
        &self,
        py: Python<'py>,
        before: Option<&Bound<'py, Held>>,
        now: f64,
    ) -> PyResult<Option<Bound<'py, Held>>> {
        self.handover.give(py);
        if let Some(before) = before {
            self.leave(before, now)?;
        }
        self.take(py, now)
    }

    /// Return a loop over messages that wait; *now* is the time of its begin.
    #[pyo3(name = "loop")]
    fn make_loop(slf: &Bound<'_, Self>, now: f64) -> Loop {
        Loop { ahead: slf.clone().unbind(), began: Instant::now(), now, held: Mutex::new(None) }
    }

    /// Let loops end.
    fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Whether a receive is under way.
    #[getter]
    fn is_receiving(&self) -> bool {
        self.inner.lock().is_receiving
    }

    #[setter]
    fn set_is_receiving(&self, is_receiving: bool) {
        self.inner.lock().is_receiving = is_receiving;
    }

    /// Whether `advance` found that it is time to look at `room` and `has_surplus`. The caller unsets it after that look.
    #[getter]
    fn is_due(&self) -> bool {
        self.inner.lock().is_due
    }

    #[setter]
    fn set_is_due(&self, is_due: bool) {
        self.inner.lock().is_due = is_due;
    }

    /// Use one of those that wait, unless it has expired or waits no more.
    fn take_one<'py>(&self, held: &Bound<'py, Held>, now: f64) -> Option<Bound<'py, Held>> {
        let found = {
            let mut inner = self.inner.lock();
            let is_it = |waiting: &Waiting| matches!(waiting, Waiting::Held(known) if known.is(held));
            let place = inner.waiting.iter().position(is_it);
            place.and_then(|place| inner.waiting.remove(place))
        };
        if found.is_none() || now > held.borrow().until {
            return None;
        }
        self.begin(held, now);
        Some(held.clone())
    }

    /// Return messages to use at once; they are held no longer, unless they are put back.
    fn take_some<'py>(&self, py: Python<'py>, count: usize, now: f64) -> PyResult<Vec<Bound<'py, Held>>> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let waiting = self.inner.lock().waiting.pop_front();
            let Some(waiting) = waiting else { break };
            let held = waiting.into_held(py)?;
            if now <= held.borrow().until {
                taken.push(held);
            }
        }
        Ok(taken)
    }

    /// Hold the first messages of `take_some` again.
    fn put_back(&self, taken: Vec<Py<Held>>) {
        let mut inner = self.inner.lock();
        for held in taken.into_iter().rev() {
            inner.waiting.push_front(Waiting::Held(held));
        }
    }

    /// Note that a message is no longer in use, and learn from it unless it was not used at all.
    ///
    /// Return whether it is time to look at `room` and `has_surplus`.
    #[pyo3(signature = (held, now, *, is_used=true))]
    fn end(&self, held: &Bound<'_, Held>, now: f64, is_used: bool) -> bool {
        let (removed, is_time) = {
            let mut inner = self.inner.lock();
            let removed = inner.in_use.remove(&address(held));
            let (waiting, in_use) = (inner.waiting.len(), inner.in_use.len());
            let is_time = removed.is_some() && inner.pace.end(is_used, waiting, in_use, now);
            (removed, is_time)
        };
        if removed.is_some() {
            self.in_use.get().remove(held);
        }
        is_time
    }

    /// Return whether far more waits than the workers finish in time: they have become slower.
    fn has_surplus(&self) -> bool {
        let inner = self.inner.lock();
        inner.pace.has_surplus(inner.waiting.len())
    }

    /// Return what to renew, and the messages to give back, which are held no longer; called often within a lease.
    ///
    /// What waits although a third of its lease is over waits for workers that are slower than before: others may have it.
    /// With *keep* it is renewed.
    #[pyo3(signature = (now, *, keep))]
    fn aging<'py>(&self, py: Python<'py>, now: f64, keep: bool) -> PyResult<Aging<'py>> {
        if keep {
            self.hold_all(py)?;
        }
        let is_old = |held: &Py<Held>| held.bind(py).borrow().renew_from <= now;
        let mut inner = self.inner.lock();
        let used = inner.in_use.values().filter(|held| is_old(held) && !held.bind(py).borrow().is_over);
        let mut renewed: Vec<_> = used.map(|held| held.bind(py).clone()).collect();
        if keep {
            renewed.extend(inner.waiting.iter().filter_map(|waiting| match waiting {
                Waiting::Held(held) if is_old(held) => Some(held.bind(py).clone()),
                _ => None,
            }));
            return Ok((renewed, Vec::new()));
        }
        let surplus = inner.pace.surplus(inner.waiting.len());
        let mut given = Vec::new();
        while let Some(held) = inner.waiting.pop_front_if(|waiting| waiting.renew_from(py) <= now) {
            given.push(held);
        }
        while given.len() < surplus
            && let Some(held) = inner.waiting.pop_back()
        {
            given.push(held);
        }
        if !given.is_empty() {
            inner.pace.slow_down();
        }
        drop(inner);
        Ok((renewed, messages(py, given)))
    }

    /// Return what is in use; it is in use no longer.
    fn finish<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, Held>> {
        let left = std::mem::take(&mut self.inner.lock().in_use);
        let left: Vec<_> = left.into_values().map(|held| held.into_bound(py)).collect();
        for held in &left {
            self.in_use.get().remove(held);
        }
        left
    }

    /// Return the messages that wait; they are held no longer.
    fn take_all<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyAny>> {
        let left = std::mem::take(&mut self.inner.lock().waiting);
        messages(py, left)
    }
}

impl Ahead {
    /// Where the thread that receives asks for the interpreter lock.
    pub const fn handover(&self) -> &Handover {
        &self.handover
    }

    /// Whether a receive of `count` messages may follow one that is answered, before what it brought is here.
    pub fn has_room_behind(&self, count: usize) -> bool {
        let inner = self.inner.lock();
        let held = inner.waiting.len() + inner.in_use.len();
        inner.pace.has_room_for_two(count, held) && !self.is_stopped.load(Ordering::Acquire)
    }

    fn begin(&self, held: &Bound<'_, Held>, now: f64) {
        {
            let mut inner = self.inner.lock();
            inner.in_use.insert(address(held), held.clone().unbind());
            let in_use = inner.in_use.len();
            inner.pace.begin(in_use, now);
        }
        self.in_use.get().add(held);
    }

    /// Ends the use of a message, whose lease is renewed no more, and notes whether it is time to look.
    fn leave(&self, before: &Bound<'_, Held>, now: f64) -> PyResult<()> {
        Held::leave(before, true)?;
        if self.end(before, now, true) {
            let mut inner = self.inner.lock();
            inner.is_due |= !inner.is_receiving || inner.pace.has_surplus(inner.waiting.len());
        }
        Ok(())
    }

    /// The next message to use, if it is as `fits` says.
    fn take_if<'py>(
        &self,
        py: Python<'py>,
        now: f64,
        fits: impl Fn(&Waiting) -> bool,
    ) -> PyResult<Option<Bound<'py, Held>>> {
        loop {
            // Not in the condition: the lock would last as long as the block.
            let waiting = self.inner.lock().waiting.pop_front_if(|waiting| fits(waiting));
            let Some(waiting) = waiting else { return Ok(None) };
            let held = waiting.into_held(py)?;
            if now <= held.borrow().until {
                self.begin(&held, now);
                return Ok(Some(held));
            }
        }
    }

    /// Makes a `Held` of each message that waits. New objects may let Python run: the lock is not held meanwhile.
    fn hold_all(&self, py: Python<'_>) -> PyResult<()> {
        let mut made = FxHashMap::default();
        let found: Vec<_> = {
            let inner = self.inner.lock();
            let unordered = inner.waiting.iter().filter_map(|waiting| match waiting {
                Waiting::Unordered { message, received, until, renew_from } => {
                    Some(Held::new(message.clone_ref(py), *received, *until, *renew_from))
                }
                Waiting::Held(_) => None,
            });
            unordered.collect()
        };
        for held in found {
            made.insert(held.address(py), Py::new(py, held)?);
        }
        for waiting in &mut self.inner.lock().waiting {
            if let Waiting::Unordered { message, .. } = waiting
                && let Some(held) = made.remove(&address(message.bind(py)))
            {
                *waiting = Waiting::Held(held);
            }
        }
        Ok(())
    }
}

/// Hands out messages that wait and keep no order, each in use until the next one is taken.
///
/// It ends where none waits, and where something is to be done before the next one; it may go on after that.
#[pyclass(module = "ferromq._ferromq", frozen)]
pub struct Loop {
    ahead: Py<Ahead>,
    /// The time in seconds, of Python's clock, and when it was that.
    now: f64,
    began: Instant,
    held: Mutex<Option<Py<Held>>>,
}

#[pymethods]
impl Loop {
    const fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let ahead = self.ahead.get();
        ahead.handover.give(py);
        let now = self.now + self.began.elapsed().as_secs_f64();
        if let Some(before) = self.leave(py) {
            ahead.leave(&before, now)?;
        }
        if ahead.is_stopped.load(Ordering::Acquire) || ahead.inner.lock().is_due {
            return Ok(None);
        }
        let taken = ahead.take_if(py, now, |waiting| !waiting.is_ordered(py))?;
        Ok(taken.map(|held| {
            let message = held.borrow().message.clone_ref(py);
            *self.held.lock() = Some(held.unbind());
            message
        }))
    }

    /// Return what is in use, if anything is, and leave it to the caller.
    fn leave<'py>(&self, py: Python<'py>) -> Option<Bound<'py, Held>> {
        let held = self.held.lock().take();
        held.map(|held| held.into_bound(py))
    }
}

fn address<T>(object: &Bound<'_, T>) -> usize {
    object.as_ptr().addr()
}

fn messages(py: Python<'_>, some: impl IntoIterator<Item = Waiting>) -> Vec<Bound<'_, PyAny>> {
    some.into_iter().map(|waiting| waiting.message(py).into_bound(py)).collect()
}
