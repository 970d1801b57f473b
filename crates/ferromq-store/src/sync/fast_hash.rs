//! A hash for tables that are looked into at each read: a few instructions for a short name.
//!
//! It begins with a random number of the process, so that names cannot be chosen to collide without knowing it. Nothing
//! on disk depends on it.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A table whose keys are hashed by [`FastHash`].
pub(crate) type FastMap<K, V> = std::collections::HashMap<K, V, FastHash>;

/// Multiplies and rotates eight bytes at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FastHash {
    seed: u64,
}

impl Default for FastHash {
    fn default() -> Self {
        Self { seed: RandomState::new().hash_one(0) }
    }
}

impl BuildHasher for FastHash {
    type Hasher = FastHasher;

    fn build_hasher(&self) -> FastHasher {
        FastHasher { state: self.seed }
    }
}

pub(crate) struct FastHasher {
    state: u64,
}

impl FastHasher {
    fn add(&mut self, word: u64) {
        // An odd number without pattern: 2^64 divided by the golden ratio.
        self.state = (self.state ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }
}

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.add(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
        self.add(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    fn write_u8(&mut self, byte: u8) {
        self.add(u64::from(byte));
    }

    fn write_u32(&mut self, number: u32) {
        self.add(u64::from(number));
    }

    fn finish(&self) -> u64 {
        // The table takes bits from both ends.
        self.state.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ self.state >> 32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_that_differ_a_little_get_different_hashes() {
        let hash = FastHash::default();
        let names: Vec<String> = (0..50_000).map(|number| format!("topic-{number}")).collect();
        let hashes: HashSet<u64> = names.iter().map(|name| hash.hash_one(name)).collect();
        assert_eq!(hashes.len(), names.len());
        // The low bits choose the place in a table.
        let low: HashSet<u64> = (0..4096u32).map(|id| hash.hash_one(id) & 0xFFF).collect();
        assert!(low.len() > 2000, "{}", low.len());
        assert_ne!(hash.hash_one("a"), hash.hash_one("a\0"));
    }
}
