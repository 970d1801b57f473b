"""Reads and writes the fields of half messages and op messages; nothing here accesses the store."""

import re
from collections.abc import Iterator, Mapping

from ferromq._ferromq import StoredMessage
from ferromq.protocol import naming

GROUP = naming.TRANSACTION_GROUP
"""The group whose committed offsets are RocketMQ's progress over half and op messages."""
QUEUE = 0
"""The only queue of half messages, and of op messages."""
OP_TAG = "d"
UNIQUE_KEY = "UNIQ_KEY"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PRODUCER_GROUP = "PGROUP"
PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
"""The first queue offset of a half message that was put back during its immunity time."""
MOVED = "MOVED"
"""Our property of an op message: its half messages were put back or discarded, not ended by their producer."""
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE = "REAL_QID"
KIND_BITS = 12
"""The transaction's bits in a record's system flag."""
COMMITTED = 8
MAY_WAIT = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
"""The properties of delayed messages."""
_NUMBER = re.compile(r"[+-]?\d+\Z")
_MOST_DIGITS = 1_000
# Any number of so few digits fits in 32 bits.
_FEW_DIGITS = 9
# The prepared transaction offset for a half message at offset 0, since 0 itself means none.
_AT_ZERO = -1


def op_offsets(message: StoredMessage) -> Iterator[int]:
    """Yield the queue offsets of the half messages that an op message ends; RocketMQ 5.x joins several by commas."""
    if message.tag != OP_TAG:
        return
    for text in message.body.split(b","):
        offset = number(text.decode("latin-1").strip(), bits=64)
        if offset is not None and offset >= 0:
            yield offset


def number(text: str, *, bits: int) -> int | None:
    """Return a number of so many *bits* as Java parses it; None if it does not parse."""
    if len(text) <= _FEW_DIGITS and text.isascii() and text.isdecimal():
        return int(text)
    if len(text) > _MOST_DIGITS or not _NUMBER.match(text):
        return None
    value, limit = int(text), 1 << (bits - 1)
    return value if -limit <= value < limit else None


def real_queue(properties: Mapping[str, str]) -> int | None:
    """Return the queue that a half message is for; None if it names none."""
    queue = number(properties.get(REAL_QUEUE, ""), bits=32)
    return queue if queue is not None and queue >= 0 else None


def times_checked(properties: Mapping[str, str]) -> int:
    """Return how often the producer was asked; -1 for a malformed number, as in RocketMQ."""
    times = number(properties.get(CHECK_TIMES, "0"), bits=32)
    return -1 if times is None else times


def is_copy(properties: Mapping[str, str]) -> bool:
    """Return whether a half message was put back at least once."""
    return CHECK_TIMES in properties or PREPARED_QUEUE_OFFSET in properties


def first_place(properties: Mapping[str, str]) -> int | None:
    """Return the first queue offset that a half message names; None if it names none."""
    return number(properties.get(PREPARED_QUEUE_OFFSET, ""), bits=64)


def identity(half: StoredMessage) -> tuple[str | None, int, str | None]:
    """Return what all copies of a half message have in common, whichever broker put it back."""
    properties = half.properties
    return properties.get(UNIQUE_KEY), half.born_timestamp, properties.get(PRODUCER_GROUP)


def origin_of(half: StoredMessage) -> int:
    """Return the first physical offset of a half message; copies keep it as prepared transaction offset."""
    kept = half.prepared_transaction_offset
    return 0 if kept == _AT_ZERO else kept or half.physical_offset


def kept_origin(origin: int) -> int:
    """Return the prepared transaction offset of a copy, from the first physical offset."""
    return origin or _AT_ZERO
