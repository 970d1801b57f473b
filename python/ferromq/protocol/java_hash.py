"""Java's `String.hashCode`, which RocketMQ stores for tags."""


def java_hash(text: str) -> int:
    """Return what `String.hashCode` gives in Java, which stands for a tag."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
