"""
Which offsets a trigger of a stream reads, and as which ranges: what options, brokers and the checkpoint make together.

No Spark. Spark keeps the offsets, and here is nothing that a restart would miss: where a batch begins anywhere else
than where the one before ended (of a new query, of a new queue, after a loss), its end says so, too.
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
    Place,
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
"""Losses that one message tells of in full."""
_WAY_OUT = (
    "Set option 'failOnDataLoss' to 'false' to go on from what is there, or start the query with a new checkpoint"
)


class StreamOffsets:
    """Plans the triggers of one run of a query; lives in the driver."""

    def __init__(
        self,
        options: StreamOptions,
        watch: QueueMonitor,
        *,
        by_time: plan.OffsetsByTime = pull.offsets_by_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._watch = watch
        self._by_time = by_time
        self._clock = clock
        self._is_new = False
        self._has_begun = False
        self._target: Flat | None = None
        self._view: QueueSnapshot | None = None
        self._fresh: QueueSnapshot | None = None
        self._known: Flat = {}
        self._last: Offsets = {}
        self._waits_since: float | None = None
        self._turn = 0
        self._held_back: set[Place] = set()
        self._counted: tuple[Offsets, Offsets] | None = None
        self.lost_rows = 0
        """Rows known to be lost in this run."""

    def initial(self) -> Offsets:
        """
        Return what a new query has read: nothing.

        Spark asks again after a restart in the first batch, whose end says where it begins, whatever the options mean
        by then.
        """
        self._is_new = True
        return {}

    def prepare(self) -> None:
        """Fix what is there now as the end of the query (Trigger.AvailableNow)."""
        view = self._look(is_whole=self._options.fail_on_data_loss)
        self._target = {place: bounds.max_offset for place, bounds in view.held.items()}

    def latest(self, start: Offsets | None, max_rows: int | None) -> Offsets:
        """
        Return where the next batch ends; *start* where there is none.

        Without *max_rows* it ends at what is there. *start* is None where Spark does not tell it. Raises `DataLost`,
        and `ConnectionFailed` for brokers out of reach; where a query is new, `TopicNotFound` and `ConfigError`.
        """
        told = self._last if start is None else start
        begin = flat(told)
        is_new = not begin and not self._has_begun and (self._is_new or start is None)
        must = self._options.fail_on_data_loss
        # Later, brokers out of reach are known by what was read of them; where a query begins, nothing is.
        view = self._look(begin, wait=must, is_whole=must and is_new)
        base = self._begun(view) if is_new else self._settle(begin, view)
        self._fresh = view
        end = ends(base, view.held, self._target)
        if max_rows is not None and start is not None:
            end = self._admitted(base, end, max_rows)
        moved = elsewhere(begin, base)
        return told if end == begin and not moved else nested(end, moved)

    def report(self) -> Offsets | None:
        """Return the max offsets that were seen last, for Spark to show how far behind a query is."""
        if self._view is None:
            return None
        return nested({place: bounds.max_offset for place, bounds in self._view.held.items()})

    def ranges(self, start: Offsets, end: Offsets) -> list[plan.QueueRange]:
        """
        Return what the batch from *start* to *end* reads, cut into partitions.

        Raises `DataLost`, and `ConnectionFailed` for brokers out of reach; where a loss is no failure, counts it.
        """
        before, moved, stop = flat(start), begins(end), flat(end)
        self._last, self._has_begun = end, True
        if start == end or (before == stop and not moved):
            return []
        begin = before | moved
        needed = [place for place, offset in stop.items() if offset > begin.get(place, 0)]
        view, self._fresh = self._fresh, None
        if view is None:
            view = self._look(needed, wait=True)
        self._check_reach(view, needed)
        found, lost = spans(before, moved, stop, view.held, self._known)
        self._check(lost)
        if (start, end) != self._counted:
            self._counted = (start, end)
            self._count(lost)
        read = self._options.read
        whole = [view.queues[span.place].range(span.start, span.end) for span in found]
        return plan.partitions(whole, max_records=read.max_records_per_partition, min_partitions=read.min_partitions)

    def committed(self, end: Offsets) -> list[tuple[plan.Queue, int]]:
        """Return the queues of *end* that are in reach, each with the offset to read next."""
        queues = self._view.queues if self._view else {}
        return [(queues[place], offset) for place, offset in flat(end).items() if place in queues]

    def _look(self, places: Collection[Place] = (), *, wait: bool = False, is_whole: bool = False) -> QueueSnapshot:
        self._view = view = self._watch.look(places, wait=wait, is_whole=is_whole)
        return view

    def _check_reach(self, view: QueueSnapshot, needed: Collection[Place]) -> None:
        """Raise `ConnectionFailed` where some of *needed* are only out of reach."""
        away = view.away(needed) - self._deleted(view, needed)
        if away:
            topic, queue = min(away)
            raise unreachable(
                f"queue {queue} of topic {topic!r}",
                self._options.patience,
                ConnectionFailed("no route names its broker"),
            )

    def _deleted(self, view: QueueSnapshot, places: Collection[Place]) -> set[Place]:
        """
        Return which of *places* are away and count as deleted: nobody knows their topic.

        Where losses fail and name servers say which brokers are up, none does: those of brokers that are up are gone.
        """
        if self._options.fail_on_data_loss and self._options.read.address.namesrv is not None:
            return set()
        return {place for place in view.away(places) if place[0] in view.missing}

    def _begun(self, view: QueueSnapshot) -> Flat:
        """Return where a new query begins."""
        for error in view.missing.values():
            raise error
        self._remember(view)
        queues = list(view.queues.values())
        starts = plan.resolve("startingOffsets", self._options.read.starting, queues, self._by_time)
        return dict(zip(view.queues, starts, strict=True))

    def _remember(self, view: QueueSnapshot) -> None:
        self._known.update({place: bounds.max_offset for place, bounds in view.held.items()})

    def _settle(self, begin: Flat, view: QueueSnapshot) -> Flat:
        """Return where the next batch begins: *begin* without what is lost, and with queues that are new."""
        dropped = {place for place in begin if not self._options.read.topics.includes(place[0])}
        kept = {place: offset for place, offset in begin.items() if place not in dropped}
        away = view.away(kept)
        lost = losses(kept, view.held, view.gone(kept), self._known, self._target)
        if self._options.fail_on_data_loss:
            self._check_dropped(dropped)
            deleted = sorted(self._deleted(view, kept))
            lost += [Loss(place, kept[place], None, self._waiting(place, kept), is_exact=False) for place in deleted]
        self._check(lost)
        if self._options.fail_on_data_loss:
            self._check_reach(view, kept)
        self._note(away, kept)
        self._remember(view)
        new = [place for place in view.queues if place not in kept and (self._target is None or place in self._target)]
        return settled(kept, view.held, lost, new)

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

    def _waiting(self, place: Place, offsets: Flat) -> int:
        return max(0, self._known.get(place, 0) - offsets[place])

    def _check_dropped(self, dropped: Collection[Place]) -> None:
        if dropped:
            topics = ", ".join(sorted({repr(topic) for topic, _ in dropped}))
            raise DataLost(
                f"the checkpoint has offsets of {topics}, which the options do not ask for any more: its messages "
                f"would not be read. Ask for it, too, or: {_WAY_OUT}"
            )

    def _check(self, lost: list[Loss]) -> None:
        if lost and self._options.fail_on_data_loss:
            raise DataLost(f"data loss: {told(lost)}. {_WAY_OUT}")

    def _count(self, lost: list[Loss]) -> None:
        if lost:
            rows = sum(loss.rows for loss in lost)
            self.lost_rows += rows
            _log.warning("rows lost rows=%d in_this_run=%d: %s", rows, self.lost_rows, told(lost))

    def _note(self, away: set[Place], offsets: Flat) -> None:
        """Log queues that are out of reach, once each time they come to be."""
        for place in sorted(away - self._held_back):
            _log.warning(
                "queue out of reach, and kept at its offset topic=%s queue=%s queue_offset=%d waiting=%d: no route "
                "names it; its topic was deleted or its broker is down",
                *place,
                offsets[place],
                self._waiting(place, offsets),
            )
        for place in sorted(self._held_back - away):
            _log.info("queue in reach again topic=%s queue=%s", *place)
        self._held_back = away


def told(lost: list[Loss]) -> str:
    """Return the first losses in words, and how many more there are."""
    more = f"; and {len(lost) - _NAMED} queues more" if len(lost) > _NAMED else ""
    return "; ".join(map(str, lost[:_NAMED])) + more
