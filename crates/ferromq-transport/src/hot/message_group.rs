//! Maps a message group to its queue, as RocketMQ does: a group keeps its queue under either broker.

use ferromq_store::record::names::java_hash;

/// The queue of a message group among `queues`: Guava's consistent hash of the name's Java hash code.
///
/// If the number of queues changes by one, few groups move. Returns 0 without queues.
#[must_use]
pub fn queue_of_group(group: &str, queues: u32) -> u32 {
    // Java sign-extends the hash code.
    let mut state = i64::from(java_hash(0, group)).cast_unsigned();
    let mut queue = 0;
    loop {
        state = state.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        // As an `int` this overflows to a negative number once in 2^31 draws; that ends the search, too.
        let draw = f64::from(((state >> 33) as i32).wrapping_add(1)) / f64::from(1u32 << 31);
        let next = f64::from(queue + 1) / draw;
        if !(0.0..f64::from(queues)).contains(&next) {
            return queue;
        }
        queue = next as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guava 32.0.1's results.
    const KNOWN: [(&str, i32, [u32; 8]); 10] = [
        ("", 0, [0, 0, 0, 0, 0, 0, 0, 0]),
        ("a", 97, [0, 0, 0, 0, 0, 0, 29, 49_599]),
        ("group-1", 293_427_299, [0, 1, 1, 1, 7, 15, 36, 2_629]),
        ("order-4711", 708_276_994, [0, 0, 0, 3, 3, 3, 20, 11_473]),
        ("größe", 98_762_257, [0, 0, 0, 3, 4, 8, 73, 8_929]),
        ("漢字", 905_333, [0, 1, 1, 1, 1, 1, 28, 64_529]),
        ("😀", 1_772_899, [0, 1, 1, 1, 4, 4, 31, 38_160]),
        ("zzzzzzzzzzzzzzzzzz", 1_788_224, [0, 0, 0, 3, 5, 11, 23, 13_699]),
        ("FB", 2_236, [0, 0, 0, 0, 0, 0, 52, 48_926]),
        ("Ea", 2_236, [0, 0, 0, 0, 0, 0, 52, 48_926]),
    ];

    #[test]
    fn a_group_goes_to_the_queue_rocketmq_chooses() {
        for (group, hash, queues) in KNOWN {
            assert_eq!(java_hash(0, group), hash, "{group}");
            let ours = [1, 2, 3, 4, 8, 16, 100, 65_536].map(|count| queue_of_group(group, count));
            assert_eq!(ours, queues, "{group}");
        }
        assert_eq!(queue_of_group("a", 0), 0);
    }
}
