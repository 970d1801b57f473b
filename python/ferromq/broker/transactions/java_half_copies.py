"""
Copies of half messages that a RocketMQ broker put back.

Unlike ours, they do not name the first location, and no op message ends the location before. They are recognized by
their first queue offset, if they name one, else by id, born time and producer group.
"""

from collections.abc import Iterator

from ferromq._ferromq import Store, StoredMessage
from ferromq.broker.transactions.half_records import (
    QUEUE,
    UNIQUE_KEY,
    first_place,
    identity,
    is_copy,
    origin_of,
    times_checked,
)
from ferromq.protocol import naming

_MOST_PLACES = 1_000


def first_of(store: Store, copy: StoredMessage) -> StoredMessage | None:
    """Return the half message that a copy names as its first; None if that is another message, or deleted."""
    offset = first_place(copy.properties)
    if offset is None or not 0 <= offset < copy.queue_offset:
        return None
    _, found, _ = store.get(naming.HALF_TOPIC, QUEUE, offset, 1)
    # A producer can set the property, and must not end another producer's message.
    is_first = found and found[0].queue_offset == offset and identity(found[0]) == identity(copy)
    return found[0] if is_first else None


def before(store: Store, copy: StoredMessage) -> Iterator[StoredMessage]:
    """Yield the earlier locations of a copy that a RocketMQ broker put back."""
    first, times = first_place(copy.properties), times_checked(copy.properties)
    for each in _same(store, copy):
        if each.queue_offset >= copy.queue_offset:
            continue
        if first is None:
            is_before = times_checked(each.properties) < times
        else:
            is_before = first in {each.queue_offset, first_place(each.properties)}
        if is_before:
            yield each


def after(store: Store, half: StoredMessage) -> list[StoredMessage]:
    """Return later copies of a half message made by a RocketMQ broker, or made from such a copy; last first."""
    found = [each for each in _same(store, half) if each.queue_offset > half.queue_offset and _is_foreign(store, each)]
    return sorted(found, key=lambda each: each.queue_offset, reverse=True)


def _same(store: Store, half: StoredMessage) -> Iterator[StoredMessage]:
    key = half.properties.get(UNIQUE_KEY)
    if key is None:
        return
    whole = identity(half)
    for each in store.query_by_unique_key(naming.HALF_TOPIC, key, _MOST_PLACES):
        if identity(each) == whole:
            yield each


def _is_foreign(store: Store, copy: StoredMessage) -> bool:
    if not copy.prepared_transaction_offset:
        return is_copy(copy.properties)
    origin = store.message_at(origin_of(copy))
    return origin is not None and origin.topic == naming.HALF_TOPIC and is_copy(origin.properties)
