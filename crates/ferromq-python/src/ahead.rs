//! The messages that a consumer holds: received ahead of their use, and in use.
//!
//! They are kept here so that handing one out costs one call of Python. How many are held is decided in
//! `ferromq_client::Pace`. The locks are not held while Python runs.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use ferromq_client::{MAX_BATCH, Pace};
use parking_lot::{Condvar, Mutex};
use pyo3::{
    intern,
    prelude::*,
    types::{PyDict, PyList},
};

/// Adds the classes and constants of this file to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("MAX_BATCH", MAX_BATCH)?;
    module.add_class::<Held>()?;
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

    /// Let it be renewed no more, and wait while it is: what ends a lease needs its last receipt handle.
    pub fn leave(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let renewing = {
            let mut held = slf.borrow_mut();
            held.is_over = true;
            held.renewing.as_ref().map(|lock| lock.clone_ref(py))
        };
        if let Some(lock) = renewing {
            lock.call_method0(py, intern!(py, "acquire"))?;
            lock.call_method0(py, intern!(py, "release"))?;
        }
        Ok(())
    }
}

/// The messages a consumer holds, and how many more it may receive.
#[pyclass(module = "ferromq._ferromq", frozen)]
pub struct Ahead {
    invisible: f64,
    /// What is in use, by message, for those that end leases.
    by_message: Option<Py<PyDict>>,
    handover: Handover,
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

/// A loop goes on after this time, whatever became of the thread.
const LONGEST_HANDOVER: Duration = Duration::from_millis(1);

struct Inner {
    pace: Pace,
    waiting: VecDeque<Py<Held>>,
    /// By address.
    in_use: HashMap<usize, Py<Held>>,
    is_receiving: bool,
    is_due: bool,
}

#[pymethods]
impl Ahead {
    #[new]
    #[pyo3(signature = (invisible, prefetch=None, in_use=None))]
    fn new(invisible: f64, prefetch: Option<usize>, in_use: Option<Py<PyDict>>) -> Self {
        let inner = Inner {
            pace: Pace::new(invisible, prefetch),
            waiting: VecDeque::new(),
            in_use: HashMap::new(),
            is_receiving: false,
            is_due: false,
        };
        Self { invisible, by_message: in_use, handover: Handover::default(), inner: Mutex::new(inner) }
    }

    /// What waits, in its order.
    #[getter]
    fn waiting(&self, py: Python<'_>) -> Vec<Py<Held>> {
        self.inner.lock().waiting.iter().map(|held| held.clone_ref(py)).collect()
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
            let mut held = Held::new(message.unbind(), now, until, renew_from);
            held.in_order = in_order.clone().map(Bound::unbind);
            added.push(Py::new(messages.py(), held)?);
        }
        self.inner.lock().waiting.extend(added);
        Ok(())
    }

    /// Return the next message to use, or None. It drops expired messages: the broker delivers them again.
    fn take<'py>(&self, py: Python<'py>, now: f64) -> PyResult<Option<Bound<'py, Held>>> {
        loop {
            // Not in the condition: the lock would last as long as the block.
            let held = self.inner.lock().waiting.pop_front();
            let Some(held) = held else { return Ok(None) };
            let held = held.into_bound(py);
            if now <= held.borrow().until {
                self.begin(&held, now)?;
                return Ok(Some(held));
            }
        }
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
            Held::leave(before)?;
            if self.end(before, now, true)? {
                let mut inner = self.inner.lock();
                inner.is_due |= !inner.is_receiving || inner.pace.has_surplus(inner.waiting.len());
            }
        }
        self.take(py, now)
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
    fn take_one<'py>(&self, held: &Bound<'py, Held>, now: f64) -> PyResult<Option<Bound<'py, Held>>> {
        let found = {
            let mut inner = self.inner.lock();
            let place = inner.waiting.iter().position(|waiting| waiting.is(held));
            place.and_then(|place| inner.waiting.remove(place))
        };
        if found.is_none() || now > held.borrow().until {
            return Ok(None);
        }
        self.begin(held, now)?;
        Ok(Some(held.clone()))
    }

    /// Return messages to use at once; they are held no longer, unless they are put back.
    fn take_some<'py>(&self, py: Python<'py>, count: usize, now: f64) -> Vec<Bound<'py, Held>> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let held = self.inner.lock().waiting.pop_front();
            let Some(held) = held else { break };
            let held = held.into_bound(py);
            if now <= held.borrow().until {
                taken.push(held);
            }
        }
        taken
    }

    /// Hold the first messages of `take_some` again.
    fn put_back(&self, taken: Vec<Py<Held>>) {
        let mut inner = self.inner.lock();
        for held in taken.into_iter().rev() {
            inner.waiting.push_front(held);
        }
    }

    /// Note that a message is no longer in use, and learn from it unless it was not used at all.
    ///
    /// Return whether it is time to look at `room` and `has_surplus`.
    #[pyo3(signature = (held, now, *, is_used=true))]
    fn end(&self, held: &Bound<'_, Held>, now: f64, is_used: bool) -> PyResult<bool> {
        let (removed, is_time) = {
            let mut inner = self.inner.lock();
            let removed = inner.in_use.remove(&address(held));
            let (waiting, in_use) = (inner.waiting.len(), inner.in_use.len());
            let is_time = removed.is_some() && inner.pace.end(is_used, waiting, in_use, now);
            (removed, is_time)
        };
        if let (Some(_), Some(by_message)) = (removed, &self.by_message) {
            let (by_message, message) =
                (by_message.bind(held.py()), held.borrow().message.clone_ref(held.py()));
            if by_message.contains(&message)? {
                by_message.del_item(message)?;
            }
        }
        Ok(is_time)
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
    fn aging<'py>(
        &self,
        py: Python<'py>,
        now: f64,
        keep: bool,
    ) -> (Vec<Bound<'py, Held>>, Vec<Bound<'py, PyAny>>) {
        let is_old = |held: &Py<Held>| held.bind(py).borrow().renew_from <= now;
        let mut inner = self.inner.lock();
        let used = inner.in_use.values().filter(|held| is_old(held) && !held.bind(py).borrow().is_over);
        let mut renewed: Vec<_> = used.map(|held| held.bind(py).clone()).collect();
        if keep {
            renewed
                .extend(inner.waiting.iter().filter(|held| is_old(held)).map(|held| held.bind(py).clone()));
            return (renewed, Vec::new());
        }
        let surplus = inner.pace.surplus(inner.waiting.len());
        let mut given = Vec::new();
        while let Some(held) = inner.waiting.pop_front_if(|held| is_old(held)) {
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
        (renewed, messages(py, given))
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

    fn begin(&self, held: &Bound<'_, Held>, now: f64) -> PyResult<()> {
        {
            let mut inner = self.inner.lock();
            inner.in_use.insert(address(held), held.clone().unbind());
            let in_use = inner.in_use.len();
            inner.pace.begin(in_use, now);
        }
        if let Some(by_message) = &self.by_message {
            let message = held.borrow().message.clone_ref(held.py());
            by_message.bind(held.py()).set_item(message, held)?;
        }
        Ok(())
    }
}

fn address(held: &Bound<'_, Held>) -> usize {
    held.as_ptr().addr()
}

fn messages(py: Python<'_>, some: impl IntoIterator<Item = Py<Held>>) -> Vec<Bound<'_, PyAny>> {
    some.into_iter().map(|held| held.bind(py).borrow().message.bind(py).clone()).collect()
}
