"""
Plans the batches of a stream from its options, the brokers and Spark's checkpoint.

The checkpoint alone decides what a restarted query reads. If a batch begins elsewhere than the previous one ended (in a
new query, in a new queue, after a loss), its end offset also records its start.
"""

import logging
import time
from collections.abc import Callable, Collection

from ferromq.errors import ConnectionFailed, DataLost
from ferromq.spark.read import plan, pull
from ferromq.spark.stream.options import StreamOptions
from ferromq.spark.stream.plan import (
    Flat,
    Loss,
    Offsets,
    QueueKey,
    begins,
    elsewhere,
    ends,
    flat,
    limited,
    losses,
    nested,
    settled,
    spans,
    waiting,
)
from ferromq.spark.stream.queue_monitor import QueueMonitor, QueueSnapshot, unreachable

_log = logging.getLogger("ferromq.spark")

_NAMED = 5
"""Losses that one message lists."""
_WAY_OUT = (
    "Set option 'failOnDataLoss' to 'false' to continue with what is left, or start the query with a new checkpoint"
)


class StreamOffsets:
    """Plans the triggers of one run of a query; lives in the driver."""

    def __init__(
        self,
        options: StreamOptions,
        monitor: QueueMonitor,
        *,
        by_time: plan.OffsetsByTime = pull.offsets_by_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._monitor = monitor
        self._by_time = by_time
        self._clock = clock
        self._is_new = False
        self._has_begun = False
        self._target: Flat | None = None
        self._snapshot: QueueSnapshot | None = None
        self._fresh: QueueSnapshot | None = None
        self._known: Flat = {}
        self._last: Offsets = {}
        self._waits_since: float | None = None
        self._turn = 0
        self._held_back: set[QueueKey] = set()
        self._counted: tuple[Offsets, Offsets] | None = None
        self.lost_rows = 0
        """Rows known to be lost in this run."""

    def initial(self) -> Offsets:
        """
        Return the offsets of a new query, which are empty.

        The end of the first batch records its start, so a restart in that batch does not evaluate the options again.
        """
        self._is_new = True
        return {}

    def prepare(self) -> None:
        """Fix the current max offsets as the end of the query (Trigger.AvailableNow)."""
        snapshot = self._look(is_whole=self._options.fail_on_data_loss)
        self._target = {key: bounds.max_offset for key, bounds in snapshot.held.items()}

    def latest(self, start: Offsets | None, max_rows: int | None) -> Offsets:
        """
        Return the end of the next batch, or *start* if there is none.

        Without *max_rows* the batch ends at the max offsets. *start* is None if Spark does not pass it. Raises
        `DataLost`, and `ConnectionFailed` for unreachable brokers; for a new query also `TopicNotFound` and
        `ConfigError`.
        """
        known = self._last if start is None else start
        begin = flat(known)
        is_new = not begin and not self._has_begun and (self._is_new or start is None)
        must = self._options.fail_on_data_loss
        # Later the offsets name the brokers; a new query must see all of them.
        snapshot = self._look(begin, wait=must, is_whole=must and is_new)
        base = self._begun(snapshot) if is_new else self._settle(begin, snapshot)
        self._fresh = snapshot
        end = ends(base, snapshot.held, self._target)
        if max_rows is not None and start is not None:
            end = self._admitted(base, end, max_rows)
        moved = elsewhere(begin, base)
        return known if end == begin and not moved else nested(end, moved)

    def report(self) -> Offsets | None:
        """Return the latest known max offsets, from which Spark computes how far behind a query is."""
        if self._snapshot is None:
            return None
        return nested({key: bounds.max_offset for key, bounds in self._snapshot.held.items()})

    def ranges(self, start: Offsets, end: Offsets) -> list[plan.QueueRange]:
        """
        Return the partitions of the batch from *start* to *end*.

        Raises `DataLost`, and `ConnectionFailed` for unreachable brokers. Losses that do not fail the query are
        counted.
        """
        before, moved, stop = flat(start), begins(end), flat(end)
        self._last, self._has_begun = end, True
        if start == end or (before == stop and not moved):
            return []
        begin = before | moved
        needed = [key for key, offset in stop.items() if offset > begin.get(key, 0)]
        snapshot, self._fresh = self._fresh, None
        if snapshot is None:
            snapshot = self._look(needed, wait=True)
        self._check_reach(snapshot, needed)
        found, lost = spans(before, moved, stop, snapshot.held, self._known)
        self._check(lost)
        if (start, end) != self._counted:
            self._counted = (start, end)
            self._count(lost)
        read = self._options.read
        whole = [snapshot.queues[span.key].range(span.start, span.end) for span in found]
        return plan.partitions(whole, max_records=read.max_records_per_partition, min_partitions=read.min_partitions)

    def committed(self, end: Offsets) -> list[tuple[plan.Queue, int]]:
        """Return the reachable queues of *end*, each with the next offset to read."""
        queues = self._snapshot.queues if self._snapshot else {}
        return [(queues[key], offset) for key, offset in flat(end).items() if key in queues]

    def _look(self, keys: Collection[QueueKey] = (), *, wait: bool = False, is_whole: bool = False) -> QueueSnapshot:
        self._snapshot = snapshot = self._monitor.look(keys, wait=wait, is_whole=is_whole)
        return snapshot

    def _check_reach(self, snapshot: QueueSnapshot, needed: Collection[QueueKey]) -> None:
        """Raise `ConnectionFailed` if some of *needed* are unreachable."""
        away = snapshot.away(needed) - self._deleted(snapshot, needed)
        if away:
            topic, queue = min(away)
            raise unreachable(
                f"queue {queue} of topic {topic!r}",
                self._options.unreachable_timeout,
                ConnectionFailed("no route names its broker"),
            )

    def _deleted(self, snapshot: QueueSnapshot, keys: Collection[QueueKey]) -> set[QueueKey]:
        """
        Return the unreachable *keys* that count as deleted, because their topic is unknown.

        There are none if losses fail the query and name servers list the registered brokers: then deleted queues are
        already known as gone.
        """
        if self._options.fail_on_data_loss and self._options.read.address.namesrv is not None:
            return set()
        return {key for key in snapshot.away(keys) if key[0] in snapshot.missing}

    def _begun(self, snapshot: QueueSnapshot) -> Flat:
        """Return the start of a new query."""
        for error in snapshot.missing.values():
            raise error
        self._remember(snapshot)
        queues = list(snapshot.queues.values())
        starts = plan.resolve("startingOffsets", self._options.read.starting, queues, self._by_time)
        return dict(zip(snapshot.queues, starts, strict=True))

    def _remember(self, snapshot: QueueSnapshot) -> None:
        self._known.update({key: bounds.max_offset for key, bounds in snapshot.held.items()})

    def _settle(self, begin: Flat, snapshot: QueueSnapshot) -> Flat:
        """Return the start of the next batch: *begin* without lost messages, and with new queues."""
        dropped = {key for key in begin if not self._options.read.topics.includes(key[0])}
        kept = {key: offset for key, offset in begin.items() if key not in dropped}
        away = snapshot.away(kept)
        lost = losses(kept, snapshot.held, snapshot.gone(kept), self._known, self._target)
        if self._options.fail_on_data_loss:
            self._check_dropped(dropped)
            deleted = sorted(self._deleted(snapshot, kept))
            lost += [Loss(key, kept[key], None, self._waiting(key, kept), is_exact=False) for key in deleted]
        self._check(lost)
        if self._options.fail_on_data_loss:
            self._check_reach(snapshot, kept)
        self._note(away, kept)
        self._remember(snapshot)
        new = [key for key in snapshot.queues if key not in kept and (self._target is None or key in self._target)]
        return settled(kept, snapshot.held, lost, new)

    def _admitted(self, base: Flat, full: Flat, max_rows: int) -> Flat:
        rows = waiting(base, full)
        least = self._options.min_offsets
        if rows and least is not None and rows < least and self._target is None:
            now = self._clock()
            if self._waits_since is None:
                self._waits_since = now
            if now - self._waits_since < self._options.max_delay:
                return base
        self._waits_since = None
        self._turn += 1
        return limited(base, full, max_rows, self._turn)

    def _waiting(self, key: QueueKey, offsets: Flat) -> int:
        return max(0, self._known.get(key, 0) - offsets[key])

    def _check_dropped(self, dropped: Collection[QueueKey]) -> None:
        if dropped:
            topics = ", ".join(sorted({repr(topic) for topic, _ in dropped}))
            raise DataLost(
                f"the checkpoint has offsets of {topics}, but the options no longer include it: its messages would not "
                f"be read. Include it, or: {_WAY_OUT}"
            )

    def _check(self, lost: list[Loss]) -> None:
        if lost and self._options.fail_on_data_loss:
            raise DataLost(f"data loss: {_describe(lost)}. {_WAY_OUT}")

    def _count(self, lost: list[Loss]) -> None:
        if lost:
            rows = sum(loss.rows for loss in lost)
            self.lost_rows += rows
            _log.warning("rows lost rows=%d in_this_run=%d: %s", rows, self.lost_rows, _describe(lost))

    def _note(self, away: set[QueueKey], offsets: Flat) -> None:
        """Log queues that have become unreachable or reachable."""
        for key in sorted(away - self._held_back):
            _log.warning(
                "queue unreachable, and kept at its offset topic=%s queue=%s queue_offset=%d waiting=%d: no route "
                "names it; its topic was deleted or its broker is down",
                *key,
                offsets[key],
                self._waiting(key, offsets),
            )
        for key in sorted(self._held_back - away):
            _log.info("queue reachable again topic=%s queue=%s", *key)
        self._held_back = away


def _describe(lost: list[Loss]) -> str:
    """Return a text of the first losses and the number of others."""
    more = f"; and {len(lost) - _NAMED} queues more" if len(lost) > _NAMED else ""
    return "; ".join(map(str, lost[:_NAMED])) + more
