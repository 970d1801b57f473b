"""Java's `String.hashCode`, which RocketMQ stores for tags."""


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode` of a text."""
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
