//! Divides a table by the hash of a name, so that threads seldom contend for one lock.

use std::hash::{BuildHasher, RandomState};

/// The shards of a table. Peers choose the names, so the hash is keyed.
#[derive(Debug)]
pub(crate) struct Shards<S, const COUNT: usize> {
    shards: Box<[S]>,
    hasher: RandomState,
}

impl<S: Default, const COUNT: usize> Shards<S, COUNT> {
    pub(crate) fn new() -> Self {
        Self { shards: (0..COUNT).map(|_| S::default()).collect(), hasher: RandomState::new() }
    }
}

impl<S, const COUNT: usize> Shards<S, COUNT> {
    /// The shard of a name. There always is one: the remainder is below their number.
    pub(crate) fn of(&self, name: &str) -> Option<&S> {
        self.shards.get(self.hasher.hash_one(name) as usize % COUNT)
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, S> {
        self.shards.iter()
    }
}
