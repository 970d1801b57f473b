//! The bytes gRPC connections may hold: requests that arrive or are answered, and answers no client has taken yet.
//!
//! All connections share a [`Budget`]; each has an [`Allowance`] of it, so that a client which stops in the middle of
//! its requests, or reads no answer, is refused before the others are. What is counted carries a [`Share`], and
//! dropping that gives it back.

use std::sync::{
    Arc,
    atomic::{AtomicIsize, AtomicUsize, Ordering},
};

use bytes::Bytes;
use tonic::Status;

/// What a stream that stays open counts for, besides the bytes on it.
const STREAM: usize = 4 << 10;
/// Streams that stay open (telemetry, reflection, health) on one connection: clients of one process share it.
pub(super) const MAX_STREAMS: usize = 256;

/// Bytes that are left, for everybody.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicIsize,
    /// What one connection may hold.
    connection: usize,
}

impl Budget {
    pub(super) fn new(bytes: usize, connection: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicIsize::new(signed(bytes)), connection })
    }

    /// What a new connection may hold.
    pub(super) fn allowance(self: &Arc<Self>) -> Arc<Allowance> {
        Arc::new(Allowance {
            budget: Arc::clone(self),
            left: AtomicIsize::new(signed(self.connection)),
            streams: AtomicUsize::new(0),
        })
    }
}

/// What one connection may hold of the budget.
#[derive(Debug)]
pub(super) struct Allowance {
    budget: Arc<Budget>,
    left: AtomicIsize,
    streams: AtomicUsize,
}

impl Allowance {
    /// Nothing taken yet.
    pub(super) fn share(self: &Arc<Self>) -> Share {
        Share { allowance: Arc::clone(self), taken: AtomicUsize::new(0) }
    }

    /// One more stream that stays open.
    pub(super) fn stream(self: &Arc<Self>) -> Result<OpenStream, Status> {
        let streams = &self.streams;
        let one_more = |open: usize| (open < MAX_STREAMS).then_some(open + 1);
        if streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Err(Status::resource_exhausted(format!(
                "the connection has {MAX_STREAMS} telemetry, reflection and health streams, which is the limit; end some"
            )));
        }
        // From here its drop counts it off.
        let stream = OpenStream(self.share());
        stream.0.take(STREAM)?;
        Ok(stream)
    }
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

fn take(left: &AtomicIsize, bytes: isize) -> bool {
    let less = |left: isize| left.checked_sub(bytes).filter(|left| *left >= 0);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
}

/// A stream that counts as open while this is there.
#[derive(Debug)]
pub(super) struct OpenStream(Share);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.allowance.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What one holder took; dropping it gives that back.
#[derive(Debug)]
pub(super) struct Share {
    allowance: Arc<Allowance>,
    taken: AtomicUsize,
}

impl Share {
    /// Takes `bytes` more, or none of them.
    pub(super) fn take(&self, bytes: usize) -> Result<(), Status> {
        let Allowance { budget, left, .. } = &*self.allowance;
        if !take(left, signed(bytes)) {
            return Err(Status::resource_exhausted(format!(
                "the connection holds as many bytes of requests and unread answers as one may, {}; read answers or \
                 send less at a time",
                budget.connection
            )));
        }
        if !take(&budget.left, signed(bytes)) {
            left.fetch_add(signed(bytes), Ordering::Relaxed);
            return Err(Status::resource_exhausted("the server holds as many bytes as it may; try again"));
        }
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Counts `bytes` that are held already and cannot be refused any more; what comes next is refused instead.
    pub(super) fn count(&self, bytes: usize) {
        self.allowance.left.fetch_sub(signed(bytes), Ordering::Relaxed);
        self.allowance.budget.left.fetch_sub(signed(bytes), Ordering::Relaxed);
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back up to `bytes` of what was taken.
    pub(super) fn give_back(&self, bytes: usize) {
        self.return_bytes(self.less(bytes));
    }

    /// Moves up to `bytes` of what was taken to a share of their own.
    pub(super) fn split(&self, bytes: usize) -> Self {
        Self { allowance: Arc::clone(&self.allowance), taken: AtomicUsize::new(self.less(bytes)) }
    }

    /// Forgets up to `bytes`; returns how many.
    fn less(&self, bytes: usize) -> usize {
        let less = |taken: usize| Some(taken.saturating_sub(bytes));
        let before = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or(0);
        before.min(bytes)
    }

    fn return_bytes(&self, bytes: usize) {
        self.allowance.left.fetch_add(signed(bytes), Ordering::Relaxed);
        self.allowance.budget.left.fetch_add(signed(bytes), Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let taken = std::mem::take(self.taken.get_mut());
        self.return_bytes(taken);
    }
}

/// Bytes that keep a share for as long as somebody holds them.
pub(super) fn kept<S: Send + 'static>(bytes: Bytes, share: S) -> Bytes {
    struct Kept<S>(Bytes, S);
    impl<S> AsRef<[u8]> for Kept<S> {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Bytes::from_owner(Kept(bytes, share))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_connection_that_has_its_share_is_refused_and_another_is_not() {
        let budget = Budget::new(100, 40);
        let (first, second) = (budget.allowance(), budget.allowance());
        let (a, b) = (first.share(), first.share());
        a.take(30).unwrap();
        assert!(b.take(11).unwrap_err().message().contains("40"));
        b.take(10).unwrap();
        let other = second.share();
        other.take(40).unwrap();
        drop(a);
        b.take(20).unwrap();
        // 70 of 100 are taken, and a third connection may have what is left.
        let third = budget.allowance().share();
        assert!(third.take(31).unwrap_err().message().contains("server"));
        third.take(30).unwrap();
    }

    #[test]
    fn streams_are_counted_for_each_connection_and_come_back() {
        let budget = Budget::new(1 << 30, 1 << 30);
        let allowance = budget.allowance();
        let mut open: Vec<_> = (0..MAX_STREAMS).map(|_| allowance.stream().unwrap()).collect();
        assert!(allowance.stream().is_err());
        budget.allowance().stream().unwrap();
        open.pop();
        allowance.stream().unwrap();
        let poor = Budget::new(STREAM, STREAM).allowance();
        let one = poor.stream().unwrap();
        assert!(poor.stream().is_err());
        drop(one);
        poor.stream().unwrap();
        assert_eq!(poor.streams.load(Ordering::Relaxed), 0);
    }

    proptest! {
        #[test]
        fn whatever_is_taken_comes_back(steps in prop::collection::vec((0u8..5, 0usize..60), 0..60)) {
            let budget = Budget::new(200, 120);
            let allowance = budget.allowance();
            let mut shares = vec![allowance.share()];
            for (step, bytes) in steps {
                let last = shares.last().unwrap();
                match step {
                    0 => _ = last.take(bytes),
                    1 => last.count(bytes),
                    2 => last.give_back(bytes),
                    3 => { let part = last.split(bytes); shares.push(part) }
                    _ => shares.push(allowance.share()),
                }
                let taken: usize = shares.iter().map(|share| share.taken.load(Ordering::Relaxed)).sum();
                prop_assert_eq!(allowance.left.load(Ordering::Relaxed), 120 - signed(taken));
            }
            drop(shares);
            prop_assert_eq!(allowance.left.load(Ordering::Relaxed), 120);
            prop_assert_eq!(budget.left.load(Ordering::Relaxed), 200);
        }
    }
}
