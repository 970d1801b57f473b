"""Java's `String.hashCode`, which RocketMQ stores for tags, and the queues of message groups, which follow from it."""

_MASK = (1 << 64) - 1


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode` of a text."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def queue_of_group(group: str, queues: int) -> int:
    """
    Return the queue that a broker chooses for a message group among its *queues*; 0 without queues.

    It is Guava's `Hashing.consistentHash` (a jump consistent hash with its linear congruential generator) of the name's
    Java hash code, as in RocketMQ's proxy and in `hot/message_group.rs`.
    """
    state, queue = java_hash(group) & _MASK, 0
    while True:
        state = (state * 2862933555777941757 + 1) & _MASK
        draw = ((state >> 33) + 1) / (1 << 31)
        following = (queue + 1) / draw
        if not following < queues:
            return queue
        queue = int(following)
