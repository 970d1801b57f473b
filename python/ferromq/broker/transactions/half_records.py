"""What a half message, and the mark that one ended, say of themselves; nothing here asks the store."""

import re
from collections.abc import Iterator, Mapping

from ferromq._ferromq import StoredMessage

GROUP = "CID_RMQ_SYS_TRANS"
"""The group under which RocketMQ keeps how far half and op messages are looked through."""
QUEUE = 0
"""The one queue of half messages, and of op messages."""
OP_TAG = "d"
UNIQUE_KEY = "UNIQ_KEY"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PRODUCER_GROUP = "PGROUP"
PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
"""Where a half message lay first that was put back because it said that it is too young to be asked about."""
MOVED = "MOVED"
"""Ours, of an op message: the half messages it names are put back or given up, not ended by their producer."""
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE = "REAL_QID"
KIND_BITS = 12
"""What a record's system flag says of a transaction."""
COMMITTED = 8
MAY_WAIT = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
"""Properties of a message that is delivered later."""
_NUMBER = re.compile(r"[+-]?\d+\Z")
_MOST_DIGITS = 1_000
# So many are a number of 32 bits, whatever they are.
_FEW_DIGITS = 9
# As a prepared transaction offset: the half message is the first record of the log. 0 says that there is none.
_AT_ZERO = -1


def op_offsets(message: StoredMessage) -> Iterator[int]:
    """Yield the queue offsets of half messages an op message ends: one in RocketMQ 4.x, joined by commas in 5.x."""
    if message.tag != OP_TAG:
        return
    for text in message.body.split(b","):
        offset = number(text.decode("latin-1").strip(), bits=64)
        if offset is not None and offset >= 0:
            yield offset


def number(text: str, *, bits: int) -> int | None:
    """Return a number as Java reads one of so many *bits*; None for what it does not take for one."""
    if len(text) <= _FEW_DIGITS and text.isascii() and text.isdecimal():
        return int(text)
    if len(text) > _MOST_DIGITS or not _NUMBER.match(text):
        return None
    value, limit = int(text), 1 << (bits - 1)
    return value if -limit <= value < limit else None


def real_queue(properties: Mapping[str, str]) -> int | None:
    """Return the queue a half message goes to; None where it names none."""
    queue = number(properties.get(REAL_QUEUE, ""), bits=32)
    return queue if queue is not None and queue >= 0 else None


def times_checked(properties: Mapping[str, str]) -> int:
    """Return how often the producer was asked; -1 where that is no number, as RocketMQ takes it."""
    times = number(properties.get(CHECK_TIMES, "0"), bits=32)
    return -1 if times is None else times


def is_copy(properties: Mapping[str, str]) -> bool:
    """Say whether a half message was put back at least once."""
    return CHECK_TIMES in properties or PREPARED_QUEUE_OFFSET in properties


def first_place(properties: Mapping[str, str]) -> int | None:
    """Return the queue offset a half message says it lay at first; None where it says nothing."""
    return number(properties.get(PREPARED_QUEUE_OFFSET, ""), bits=64)


def identity(half: StoredMessage) -> tuple[str | None, int, str | None]:
    """Return what all places of a half message have in common, whichever broker put it back."""
    properties = half.properties
    return properties.get(UNIQUE_KEY), half.born_timestamp, properties.get(PRODUCER_GROUP)


def origin_of(half: StoredMessage) -> int:
    """Return where the half message lay first, which a copy that was put back keeps as prepared transaction offset."""
    kept = half.prepared_transaction_offset
    return 0 if kept == _AT_ZERO else kept or half.physical_offset


def kept_origin(origin: int) -> int:
    """Return the prepared transaction offset by which a copy tells where the half message lay first."""
    return origin or _AT_ZERO
