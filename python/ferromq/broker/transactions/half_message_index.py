"""
An index of half messages: which have ended, where the open ones are, and which op messages still count.

RocketMQ keeps two committed offsets of the group CID_RMQ_SYS_TRANS: all half messages below the one have ended, and
op messages below the other end no half message above it. Both are read at start and advanced here. `end_transaction`
ends half messages, `check_back` moves them.
"""

import logging
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

from ferromq._ferromq import Store, StoredMessage
from ferromq.broker.transactions import java_half_copies
from ferromq.broker.transactions.half_records import (
    COMMITTED,
    GROUP,
    KIND_BITS,
    MAY_WAIT,
    MOVED,
    QUEUE,
    REAL_TOPIC,
    UNIQUE_KEY,
    first_place,
    identity,
    is_copy,
    op_offsets,
    origin_of,
)
from ferromq.protocol import naming

_log = logging.getLogger("ferromq.transactions")

_READ_AT_ONCE = 1_000
_UNKNOWN = (1 << 63) - 1
_STEP_BACK_MS = 3_600_000
"""The step back of a RocketMQ broker's clock that is tolerated between a half message and its commit."""


class AlreadyCommitted(Exception):  # noqa: N818 (an answer, not a failure of ours)
    """A transaction to be resumed was committed already."""


class Location(NamedTuple):
    """The location of a half message."""

    queue_offset: int
    physical_offset: int


class EndedHalfMessages:
    """
    The queue offsets of ended half messages: all below one offset, and a byte each above it.

    Not thread-safe.
    """

    def __init__(self, below: int = 0) -> None:
        """Begin with all half messages *below* a queue offset ended."""
        self._below = below
        self._flags = bytearray()

    def __contains__(self, queue_offset: int) -> bool:
        place = queue_offset - self._below
        return place < 0 or (place < len(self._flags) and self._flags[place] != 0)

    def add(self, queue_offset: int) -> None:
        """Mark a half message as ended; idempotent."""
        place = queue_offset - self._below
        if place < 0:
            return
        if place >= len(self._flags):
            self._flags += bytes(place + 1 - len(self._flags))
        self._flags[place] = 1

    def first_open(self) -> int:
        """Return the lowest queue offset that has not ended, which may be the next one to be stored."""
        found = self._flags.find(0)
        return self._below + (len(self._flags) if found < 0 else found)

    def count_open(self, end: int) -> int:
        """Return the number of open half messages below the queue offset *end*."""
        stored = max(0, end - self._below)
        return stored - self._flags.count(1, 0, stored)

    def forget(self, below: int) -> int:
        """Mark all *below* a queue offset as ended; returns how many were open."""
        count = min(max(0, below - self._below), len(self._flags))
        lost = max(0, below - self._below) - self._flags.count(1, 0, count)
        del self._flags[:count]
        self._below = max(self._below, below)
        return lost


class _OpMessages:
    """The highest half message that each op message above the committed offset ends. Not thread-safe."""

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self._highest = array("q")

    def add(self, op_offset: int, half_offset: int) -> None:
        place = op_offset - self._begin
        if place < 0:
            return
        # Other threads are storing those in between.
        self._highest.extend([_UNKNOWN] * (place + 1 - len(self._highest)))
        self._highest[place] = half_offset

    def done(self, below: int, end: int) -> int:
        """Return the first op message before *end* that ends a half message at *below* or above it."""
        limit = min(len(self._highest), max(0, end - self._begin))
        return self._begin + next((n for n in range(limit) if self._highest[n] >= below), limit)

    def forget(self, below: int) -> None:
        del self._highest[: max(0, below - self._begin)]
        self._begin = max(self._begin, below)


class HalfMessageIndex:
    """The half messages of a broker; thread-safe."""

    def __init__(self, store: Store) -> None:
        """Read from *store* which half messages ended, and where the open ones were put back."""
        self._store = store
        self._changed = threading.Condition()
        self._ending: set[int] = set()
        self._moved: dict[int, Location] = {}
        # First queue offset → queue offset and origin, of copies by RocketMQ brokers.
        self._by_first: dict[int, tuple[int, int]] = {}
        self._resuming: set[int] = set()
        self._resumed: set[int] = set()
        first = max(
            store.committed_offset(GROUP, naming.HALF_TOPIC, QUEUE) or 0, store.min_offset(naming.HALF_TOPIC, QUEUE)
        )
        self._ended = EndedHalfMessages(first)
        begin = self._first_op(first, store.committed_offset(GROUP, naming.OP_TOPIC, QUEUE))
        self._ops = _OpMessages(begin)
        self._load_ops(begin)
        self._load_open()

    def is_ended(self, queue_offset: int) -> bool:
        """Return whether the half message at this queue offset has ended or was put back elsewhere."""
        with self._changed:
            return queue_offset in self._ended

    def first_open(self) -> int:
        """Return the lowest queue offset that has not ended, which may be the next one to be stored."""
        with self._changed:
            return self._ended.first_open()

    def count_open(self) -> int:
        """Return the number of open half messages that are readable."""
        end = self._store.max_offset(naming.HALF_TOPIC, QUEUE)
        with self._changed:
            return self._ended.count_open(end)

    @contextmanager
    def lock(self, half: StoredMessage) -> Iterator[Location | None]:
        """
        Lock a half message and yield its current location, whichever of its locations *half* is; None if it ended.

        Leaving the context does not end it; `end` does.
        """
        origin, place = origin_of(half), Location(half.queue_offset, half.physical_offset)
        with self._changed:
            while True:
                # It may be put back while this waits for the lock.
                now = self._now(origin, place)
                if now.queue_offset not in self._ending:
                    break
                self._changed.wait()
            is_open = now.queue_offset not in self._ended
            if is_open:
                self._ending.add(now.queue_offset)
        try:
            yield now if is_open else None
        finally:
            if is_open:
                self._release([now.queue_offset])

    def open_copy(self, half: StoredMessage) -> StoredMessage | None:
        """Return an open copy of a half message that ended at the named location; None without such a copy."""
        first = first_place(half.properties)
        with self._changed:
            _, origin = self._by_first.get(half.queue_offset if first is None else first, (0, None))
        known = None if origin is None else self._store.message_at(origin)
        is_same = known is not None and identity(known) == identity(half)
        copies = [known] if known is not None and is_same else java_half_copies.after(self._store, half)
        with self._changed:
            for copy in copies:
                now = self._now(origin_of(copy), Location(copy.queue_offset, copy.physical_offset))
                if now.queue_offset not in self._ended:
                    return copy
        return None

    @contextmanager
    def lock_all(self, halves: Iterable[StoredMessage]) -> Iterator[list[StoredMessage]]:
        """Lock and yield those of *halves* that are open and not locked."""
        with self._changed:
            mine = [
                half
                for half in halves
                if half.queue_offset not in self._ended
                and half.queue_offset not in self._ending
                and not (self._resuming and origin_of(half) in self._resuming)
            ]
            self._ending.update(half.queue_offset for half in mine)
        try:
            yield mine
        finally:
            self._release([half.queue_offset for half in mine])

    def end(self, half: StoredMessage, op_offset: int) -> None:
        """Mark a half message as ended by the op message at *op_offset*."""
        origin = origin_of(half)
        with self._changed:
            self._ended.add(half.queue_offset)
            self._ops.add(op_offset, half.queue_offset)
            self._moved.pop(origin, None)

    def move(self, halves: Iterable[tuple[StoredMessage, Location | None]], op_offset: int) -> None:
        """Set the new locations of half messages (None: discarded); the op message at *op_offset* ends the old ones."""
        known = [(half, origin_of(half), place) for half, place in halves]
        with self._changed:
            for half, origin, place in known:
                self._ended.add(half.queue_offset)
                if place is None:
                    self._moved.pop(origin, None)
                    self._resumed.discard(origin)
                else:
                    self._moved[origin] = place
            self._ops.add(op_offset, max(half.queue_offset for half, _, _ in known))

    def resume(self, half: StoredMessage, put: Callable[[], Location]) -> bool:
        """
        Restore a discarded half message at the location from *put*; returns False if it is open or ended since.

        Raises `AlreadyCommitted`, and what *put* raises. Only one thread resumes it, and others can end it meanwhile.
        """
        origin, place = origin_of(half), None
        with self._changed:
            self._changed.wait_for(lambda: origin not in self._resuming)
            if origin in self._moved:
                return False
            self._resuming.add(origin)
        try:
            if self.is_committed(half, is_thorough=True):
                raise AlreadyCommitted
            # A message that was resumed and has no location has ended; reads of the store may lag behind.
            if origin not in self._resumed:
                place = put()
        finally:
            with self._changed:
                if place is not None:
                    self._moved[origin] = place
                    self._resumed.add(origin)
                self._resuming.discard(origin)
                self._changed.notify_all()
        return place is not None

    def commit(self) -> int:
        """Commit the progress as RocketMQ does; returns how many open half messages were lost to retention."""
        store = self._store
        kept, end = store.min_offset(naming.HALF_TOPIC, QUEUE), store.max_offset(naming.HALF_TOPIC, QUEUE)
        op_end = store.max_offset(naming.OP_TOPIC, QUEUE)
        with self._changed:
            lost = self._ended.forget(kept)
            # Messages that are not readable yet cannot be committed.
            below = min(self._ended.first_open(), end)
            self._ended.forget(below)
            op_below = self._ops.done(below, op_end)
            self._ops.forget(op_below)
        # In this order: after a crash op messages may be read twice, but none is missed.
        for topic, offset in ((naming.HALF_TOPIC, below), (naming.OP_TOPIC, op_below)):
            if offset > (store.committed_offset(GROUP, topic, QUEUE) or 0):
                store.commit_offset(GROUP, topic, QUEUE, offset)
        return lost

    def _now(self, origin: int, place: Location) -> Location:
        return self._moved.get(origin, place)

    def _release(self, queue_offsets: Iterable[int]) -> None:
        with self._changed:
            self._ending.difference_update(queue_offsets)
            self._changed.notify_all()

    def _first_op(self, first: int, committed: int | None) -> int:
        """
        Return the first op message that may end a half message at *first* or above: one stored after it.

        RocketMQ's *committed* offset says the same, but the two offsets in a file may be from different moments.
        """
        store = self._store
        stored = store.stored_time(naming.HALF_TOPIC, QUEUE, first)
        if stored is None:
            begin = store.max_offset(naming.OP_TOPIC, QUEUE) if committed is None else committed
        else:
            begin = store.offset_by_time(naming.OP_TOPIC, QUEUE, stored)
            begin = begin if committed is None else min(begin, committed)
        return max(begin, store.min_offset(naming.OP_TOPIC, QUEUE))

    def _load_ops(self, begin: int) -> None:
        end = self._store.max_offset(naming.HALF_TOPIC, QUEUE)
        for message in read(self._store, naming.OP_TOPIC, begin, self._store.max_offset(naming.OP_TOPIC, QUEUE)):
            # An op message follows the half messages that it ends, so higher offsets are ignored.
            offsets = [offset for offset in op_offsets(message) if offset < end]
            for offset in offsets:
                self._ended.add(offset)
            self._ops.add(message.queue_offset, max(offsets, default=-1))

    def _load_open(self) -> None:
        begin, end = self._ended.first_open(), self._store.max_offset(naming.HALF_TOPIC, QUEUE)
        for half in read(self._store, naming.HALF_TOPIC, begin, end):
            is_open = half.queue_offset not in self._ended
            if is_open and self.is_committed(half):
                self._ended.add(half.queue_offset)
                is_open = False
            if is_open and half.prepared_transaction_offset:
                self._moved[origin_of(half)] = Location(half.queue_offset, half.physical_offset)
            # Even an ended copy ends the locations before it.
            if is_copy(half.properties):
                self._load_copy(half, is_open=is_open)
        self._load_ends_of_copies()

    def _load_copy(self, copy: StoredMessage, *, is_open: bool) -> None:
        """End the locations before a copy that a RocketMQ broker put back; no op message ends them."""
        if not copy.prepared_transaction_offset:
            for older in java_half_copies.before(self._store, copy):
                self._end_place(older.queue_offset, origin_of(older))
        first = java_half_copies.first_of(self._store, copy)
        if first is not None:
            self._end_place(first.queue_offset, None)
            older_place = self._by_first.get(first.queue_offset)
            if older_place is not None:
                self._end_place(*older_place)
            if is_open:
                self._by_first[first.queue_offset] = copy.queue_offset, origin_of(copy)

    def _load_ends_of_copies(self) -> None:
        """End copies whose first location a RocketMQ broker ended after it put them back."""
        if not self._by_first:
            return
        begin = self._first_op(min(self._by_first), None)
        for message in read(self._store, naming.OP_TOPIC, begin, self._store.max_offset(naming.OP_TOPIC, QUEUE)):
            for offset in op_offsets(message):
                if offset in self._by_first and MOVED not in message.properties:
                    self._end_place(*self._by_first.pop(offset))

    def _end_place(self, queue_offset: int, origin: int | None) -> None:
        self._ended.add(queue_offset)
        now = None if origin is None else self._moved.get(origin)
        if origin is not None and now is not None and now.queue_offset == queue_offset:
            del self._moved[origin]

    def is_committed(self, half: StoredMessage, *, is_thorough: bool = False) -> bool:
        """
        Return whether a half message without an op message was committed, from the stored messages.

        RocketMQ stores the op message up to three seconds after the committed message, or never if it stops meanwhile.
        The committed message names the half message, or the one that was put back.
        """
        was_put_back = is_copy(half.properties) or half.prepared_transaction_offset != 0
        return any(
            found.prepared_transaction_offset == half.physical_offset
            or (was_put_back and found.born_timestamp == half.born_timestamp)
            for found in self._committed_ones(half, is_thorough=is_thorough)
        )

    def is_discarded(self, half: StoredMessage) -> bool:
        """Return whether an ended half message was moved to the discard topic, and not committed since."""
        key = half.properties.get(UNIQUE_KEY)
        # A scan, since the index may have been disabled when the message was discarded.
        begin_ms = max(0, half.store_timestamp - _STEP_BACK_MS)
        found = _since(self._store, naming.DISCARD_TOPIC, QUEUE, begin_ms, key) if key is not None else iter(())
        return any(each.born_timestamp == half.born_timestamp for each in found) and not self.was_committed(half)

    def was_committed(self, half: StoredMessage) -> bool:
        """Return whether an ended half message was committed, as far as readers see: they are a moment behind."""
        ones = self._committed_ones(half, is_thorough=True)
        return any(each.born_timestamp == half.born_timestamp for each in ones)

    def _committed_ones(self, half: StoredMessage, *, is_thorough: bool) -> Iterator[StoredMessage]:
        """
        Yield the committed messages with the id of a half message; a producer's retry has the same id.

        Without an index the queues are scanned if *is_thorough*; otherwise only older index files are searched.
        """
        properties = half.properties
        key, topic = properties.get(UNIQUE_KEY), properties.get(REAL_TOPIC)
        if key is None or topic is None:
            return
        # The commit is later than the half message; of a copy, the first store time is unknown.
        is_first = not is_copy(properties) and not half.prepared_transaction_offset
        begin_ms = max(0, half.store_timestamp - _STEP_BACK_MS) if is_first else 0
        waits = (naming.SCHEDULE_TOPIC, naming.TIMER_TOPIC) if MAY_WAIT & properties.keys() else ()
        for place in (topic, *waits):
            named: Iterable[StoredMessage]
            if is_thorough and not self._store.options()["index_enabled"]:
                queues = self._store.queues().get(place, ())
                named = chain.from_iterable(_since(self._store, place, queue_id, begin_ms, key) for queue_id in queues)
            else:
                named = self._store.query_by_unique_key(place, key, begin_ms=begin_ms)
            for found in named:
                if found.sys_flag & KIND_BITS == COMMITTED:
                    yield found


def _since(store: Store, topic: str, queue_id: int, begin_ms: int, key: str) -> Iterator[StoredMessage]:
    """Yield the messages of a queue with a unique key, stored at a time or later."""
    begin = store.offset_by_time(topic, queue_id, begin_ms)
    for each in read(store, topic, begin, store.max_offset(topic, queue_id), queue_id=queue_id):
        if each.properties.get(UNIQUE_KEY) == key:
            yield each


def read(
    store: Store, topic: str, begin: int, end: int, at_once: int = _READ_AT_ONCE, *, queue_id: int = QUEUE
) -> Iterator[StoredMessage]:
    """Yield the stored messages of a queue between two queue offsets."""
    offset = begin
    while offset < end:
        _, messages, following = store.get(topic, queue_id, offset, min(at_once, end - offset))
        yield from messages
        if following <= offset:
            _log.error("messages cannot be read topic=%s from queue_offset=%d to queue_offset=%d", topic, offset, end)
            return
        offset = following
