//! The backlog of the slot being delivered: its next messages, up to a limit of memory.
//!
//! A slot may hold any number of messages. Those beyond the limit stay in the chain of the timer log, which is read
//! again once the messages in memory are delivered.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet},
};

/// When a message is due, and the place of its unit in the timer log.
pub(crate) type DueUnit = (i64, u64);

/// Selects the first due of entries in any order.
pub(crate) struct Selection {
    first: BinaryHeap<DueUnit>,
    after: Option<DueUnit>,
    most: usize,
    is_cut: bool,
}

impl Selection {
    /// Selects at most `most` entries after `after`, but at least one.
    pub(crate) fn new(after: Option<DueUnit>, most: usize) -> Self {
        Self { first: BinaryHeap::new(), after, most: most.max(1), is_cut: false }
    }

    pub(crate) fn offer(&mut self, entry: DueUnit) {
        if self.after.is_some_and(|after| entry <= after) {
            return;
        }
        if self.first.len() >= self.most {
            self.is_cut = true;
            if self.first.peek().is_some_and(|last| *last <= entry) {
                return;
            }
            self.first.pop();
        }
        self.first.push(entry);
    }

    pub(crate) fn finish(self) -> Waiting {
        let beyond = self.first.peek().copied().filter(|_| self.is_cut);
        Waiting {
            next: self.first.into_iter().map(Reverse).collect(),
            beyond,
            taken: self.after,
            most: self.most,
        }
    }
}

pub(crate) struct Waiting {
    next: BinaryHeap<Reverse<DueUnit>>,
    /// Entries from here on are only in the chain.
    beyond: Option<DueUnit>,
    /// The furthest entry taken. Entries of the chain up to it are delivered, or in `next`.
    taken: Option<DueUnit>,
    most: usize,
}

impl Waiting {
    /// Adds a message whose unit was just added to the chain.
    pub(crate) fn push(&mut self, entry: DueUnit) {
        if self.beyond.is_some_and(|beyond| entry > beyond) {
            return;
        }
        self.next.push(Reverse(entry));
        if self.next.len() >= self.most.saturating_mul(2) {
            self.shrink();
        }
    }

    /// Drops entries beyond the limit of memory, which the chain still holds. Entries due before a taken one stay: the
    /// chain could not tell them from delivered ones.
    fn shrink(&mut self) {
        let mut all = std::mem::take(&mut self.next).into_sorted_vec();
        // Reversed entries: the first due are last.
        all.reverse();
        let late = all.partition_point(|Reverse(entry)| self.taken.is_some_and(|taken| *entry <= taken));
        let kept = late.max(self.most);
        if kept < all.len() {
            all.truncate(kept);
            // Entries already taken must not be selected again.
            self.beyond = all.last().map(|Reverse(entry)| *entry).max(self.taken);
        }
        self.next = all.into();
    }

    pub(crate) fn peek(&self) -> Option<DueUnit> {
        self.next.peek().map(|Reverse(entry)| *entry)
    }

    pub(crate) fn pop(&mut self) -> Option<DueUnit> {
        let Reverse(entry) = self.next.pop()?;
        self.taken = self.taken.max(Some(entry));
        Some(entry)
    }

    /// Returns entries that were taken but not delivered.
    pub(crate) fn give_back(&mut self, entries: impl Iterator<Item = DueUnit>) {
        self.next.extend(entries.map(Reverse));
    }

    /// Where to read the chain from once memory is empty; `None` if nothing is left.
    pub(crate) fn rest(&self) -> Option<Selection> {
        (self.next.is_empty() && self.beyond.is_some()).then(|| Selection::new(self.taken, self.most))
    }

    /// Messages in memory.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.next.len()
    }

    /// Whether any entry is still to be delivered, and a test that decides it for each entry of the chain.
    pub(crate) fn pending(&self) -> (bool, impl Fn(DueUnit) -> bool + use<>) {
        let places: HashSet<u64> = self.next.iter().map(|Reverse((_, at))| *at).collect();
        let beyond = self.beyond;
        let is_any = !places.is_empty() || beyond.is_some();
        (is_any, move |entry: DueUnit| {
            places.contains(&entry.1) || beyond.is_some_and(|beyond| entry > beyond)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_million_messages_of_one_second_cost_what_a_few_cost() {
        let mut selection = Selection::new(None, 1_000);
        (0..1_000_000u64).rev().for_each(|at| selection.offer((7, at)));
        assert!(selection.first.capacity() < 4_000, "{}", selection.first.capacity());
        let mut waiting = selection.finish();
        (1_000_000..1_100_000u64).for_each(|at| waiting.push((7, at)));
        (0..100_000u64).for_each(|at| waiting.push((6, 2_000_000 + at)));
        assert!(waiting.next.capacity() < 10_000, "{}", waiting.next.capacity());
        assert_eq!(waiting.pop(), Some((6, 2_000_000)));
    }

    proptest! {
        #[test]
        fn each_message_is_taken_once_and_in_order_but_for_late_ones(
            first in prop::collection::vec(0i64..20, 0..60),
            steps in prop::collection::vec((0u8..4, 0i64..20), 0..200),
            most in 1usize..8,
        ) {
            // The chain as the timer log has it; entries are unique by their place.
            let mut chain: Vec<DueUnit> = first.iter().zip(0..).map(|(due, at)| (*due, at)).collect();
            let mut selection = Selection::new(None, most);
            chain.iter().for_each(|entry| selection.offer(*entry));
            let (mut waiting, mut done) = (selection.finish(), Vec::new());
            let take = |waiting: &mut Waiting, chain: &[DueUnit]| {
                if let Some(mut rest) = waiting.rest() {
                    chain.iter().rev().for_each(|entry| rest.offer(*entry));
                    *waiting = rest.finish();
                }
                waiting.pop()
            };
            for (kind, due) in steps {
                match kind {
                    0 => {
                        let entry = (due, chain.len() as u64);
                        chain.push(entry);
                        waiting.push(entry);
                    }
                    1 => {
                        let taken = take(&mut waiting, &chain);
                        waiting.give_back(taken.into_iter());
                    }
                    _ => done.extend(take(&mut waiting, &chain)),
                }
                let (_, is_pending) = waiting.pending();
                for entry in &chain {
                    prop_assert_eq!(is_pending(*entry), !done.contains(entry), "{:?}", entry);
                }
            }
            while let Some(entry) = take(&mut waiting, &chain) {
                done.push(entry);
            }
            done.sort_unstable();
            chain.sort_unstable();
            prop_assert_eq!(done, chain);
        }
    }
}
