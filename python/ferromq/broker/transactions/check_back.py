"""
Check-back: asks producers about half messages that did not end in time.

Before it is asked about, a half message is put back: a copy with an incremented count, and the op message that ends the
old one, are one append, so that after a crash exactly one of them is open. A half message that was checked too often,
or is too old, moves to RocketMQ's discard topic in the same way. `check_requests` encodes and sends the request.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING

from ferromq._ferromq import Request, Store, StoredMessage
from ferromq.broker.transactions.check_requests import CheckOutcome, CheckRound, CheckSender, PendingCheck
from ferromq.broker.transactions.end_transaction import Allows, op_message
from ferromq.broker.transactions.half_message_index import AlreadyCommitted, HalfMessageIndex, Location, read
from ferromq.broker.transactions.half_records import (
    CHECK_TIMES,
    IMMUNITY_SECONDS,
    PREPARED_QUEUE_OFFSET,
    QUEUE,
    REAL_TOPIC,
    kept_origin,
    number,
    origin_of,
    real_queue,
    times_checked,
)
from ferromq.config.transactions import TransactionConfig
from ferromq.errors import FerromqError, MessageTooLarge
from ferromq.protocol import naming
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, failure, physical_offset, required, success

if TYPE_CHECKING:
    from ferromq._ferromq import NewStoredMessage

_log = logging.getLogger("ferromq.transactions")

ROUND_LIMIT = timedelta(seconds=60)
"""The time limit of a round; the next one continues where it stopped."""
_MILLISECOND = timedelta(milliseconds=1)
_AT_ONCE = 64
_BYTES_AT_ONCE = 1 << 20


class CheckVerdict(Enum):
    """What a round does with an open half message."""

    ASK = "ask"
    WAIT = "wait"
    """Its own immunity time has not passed: it is put back, and not counted."""
    FRESH = "fresh"
    """It is too young, and so are all later ones: the round ends."""
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class CheckRules:
    """When an open half message is checked."""

    timeout_ms: int
    max_checks: int
    retention_ms: int | None
    """The age above which it is discarded; None for no limit."""

    @classmethod
    def of(cls, config: TransactionConfig, retention: timedelta | None) -> "CheckRules":
        """Return the rules that the options set."""
        kept = None if retention in {None, timedelta.max} else retention
        return cls(
            config.transaction_timeout // _MILLISECOND,
            config.transaction_check_max,
            None if kept is None else kept // _MILLISECOND,
        )

    def judge(self, half: StoredMessage, properties: Mapping[str, str], times: int, now: int) -> CheckVerdict:
        """Return the verdict on a half message at *now* after so many checks, as in RocketMQ."""
        age, immunity = now - half.born_timestamp, self._immunity_ms(properties)
        is_lost = not properties.get(REAL_TOPIC) or real_queue(properties) is None
        is_old = self.retention_ms is not None and age > self.retention_ms
        if is_lost or is_old or times >= self.max_checks:
            return CheckVerdict.DISCARD
        if half.store_timestamp >= now:
            return CheckVerdict.FRESH
        if immunity is not None:
            return CheckVerdict.WAIT if age <= immunity else CheckVerdict.ASK
        # A producer with a fast clock is asked at once.
        return CheckVerdict.FRESH if 0 <= age <= self.timeout_ms else CheckVerdict.ASK

    def _immunity_ms(self, properties: Mapping[str, str]) -> int | None:
        """Return the message's own immunity time; None if it has none."""
        text = properties.get(IMMUNITY_SECONDS)
        if text is None:
            return None
        seconds = number(text, bits=64)
        return self.timeout_ms if seconds in {None, -1} else (seconds or 0) * 1_000


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The counts of a round."""

    sent: int = 0
    unreachable: int = 0
    """No producer of the group was reachable."""
    skipped: int = 0
    """Their producers' buffers were full: left for the next round, and not counted as checked."""
    waiting: int = 0
    discarded: int = 0
    lost: int = 0
    """Deleted by retention before they ended."""

    def __add__(self, other: "CheckReport") -> "CheckReport":
        return CheckReport(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


class TransactionChecker:
    """Checks the open half messages in rounds, one at a time."""

    def __init__(
        self,
        store: Store,
        halves: HalfMessageIndex,
        sender: CheckSender,
        *,
        config: Callable[[], TransactionConfig],
        is_slave: Callable[[], bool],
        now_ms: Callable[[], int],
        allows: Allows,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        """*pause* waits so many seconds for slow producers, and returns whether to stop."""
        self._store = store
        self._halves = halves
        self._sender = sender
        self._config = config
        self._is_slave = is_slave
        self._now_ms = now_ms
        self._allows = allows
        self._stopping = threading.Event()
        self._pause = pause or self._stopping.wait
        # Queue offsets counted as checked although no producer was asked yet.
        self._unsent: set[int] = set()
        # Queue offset → number of checks, of half messages without space for the count.
        self._uncounted: dict[int, int] = {}
        self.total = CheckReport()
        """The counts of all rounds since the start."""

    def stop(self) -> None:
        """End the running round soon; later rounds do nothing."""
        self._stopping.set()

    def round(self, now: int) -> CheckReport:
        """Check what is due at *now*, commit the progress, and return the counts."""
        if self._is_slave() or self._stopping.is_set():
            return CheckReport()
        report = CheckReport(lost=self._commit())
        self._forget_ended()
        check_round = CheckRound(self._sender, self._pause)
        rules = CheckRules.of(self._config(), self._store.options()["retention_age"])
        try:
            for batch, left in self._due(rules, check_round, now):
                report += self._take(batch, check_round) + CheckReport(skipped=left)
                if self._stopping.is_set() or self._now_ms() - now > ROUND_LIMIT // _MILLISECOND:
                    break
        except FerromqError as error:
            _log.warning("half messages cannot be put back now: %s", error)
        report += CheckReport(lost=self._commit())
        self.total += report
        if report != CheckReport():
            _log.info(
                "transactions checked sent=%d unreachable=%d skipped=%d waiting=%d discarded=%d",
                report.sent,
                report.unreachable,
                report.skipped,
                report.waiting,
                report.discarded,
            )
        return report

    def resume(self, request: Request) -> Answer:
        """
        Answer request 323: resume the check of a discarded transaction.

        `msgId` is the offset message id of its message in TRANS_CHECK_MAX_TIME_TOPIC. A transaction that is being
        checked already stays as it is; one that was committed since is refused.
        """
        if self._is_slave():
            return failure(ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave; ask its master")
        name = required(request.fields, "msgId")
        half = self._store.message_at(physical_offset(name))
        if half is None or half.topic != naming.DISCARD_TOPIC:
            return failure(ResponseCode.SYSTEM_ERROR, f"{name} is not a message in {naming.DISCARD_TOPIC}")
        properties = half.properties
        if not self._allows(request, properties.get(REAL_TOPIC, ""), "Update"):
            return failure(ResponseCode.NO_PERMISSION, f"the user may not Update the topic of the message {name}")
        if CHECK_TIMES in properties:
            properties[CHECK_TIMES] = "0"

        def put() -> Location:
            (place,) = self._store.append_as_one([copy_of(half, naming.HALF_TOPIC, properties)])
            return Location(*place[:2])

        try:
            is_resumed = self._halves.resume(half, put)
        except AlreadyCommitted:
            return failure(ResponseCode.SYSTEM_ERROR, f"the transaction of {name} was committed")
        if is_resumed:
            _log.warning("transaction check resumed message_id=%s peer=%s", half.message_id, request.peer)
        return success()

    def _commit(self) -> int:
        lost = self._halves.commit()
        if lost:
            _log.error("half messages were deleted by retention before they ended count=%d", lost)
        return lost

    def _forget_ended(self) -> None:
        self._unsent = {offset for offset in self._unsent if not self._halves.is_ended(offset)}
        self._uncounted = {
            offset: times for offset, times in self._uncounted.items() if not self._halves.is_ended(offset)
        }

    def _due(self, rules: CheckRules, check_round: CheckRound, now: int) -> Iterator[tuple[list["_DueCheck"], int]]:
        """Yield batches to be asked about, put back or discarded, with the number skipped for full buffers."""
        begin, end = self._halves.first_open(), self._store.max_offset(naming.HALF_TOPIC, QUEUE)
        batch, size, left = list[_DueCheck](), 0, 0
        for half in read(self._store, naming.HALF_TOPIC, begin, end):
            if self._halves.is_ended(half.queue_offset):
                continue
            due = self._judged(rules, half, now)
            if due.verdict is CheckVerdict.FRESH:
                break
            if batch and (len(batch) == _AT_ONCE or size + len(half.raw) > _BYTES_AT_ONCE):
                yield batch, left
                batch, size, left = [], 0, 0
            if due.verdict is CheckVerdict.ASK and check_round.is_skipped(due.group):
                left += 1
                continue
            batch.append(due)
            size += len(half.raw)
        yield batch, left

    def _judged(self, rules: CheckRules, half: StoredMessage, now: int) -> "_DueCheck":
        """Return the verdict on a half message, and its new properties."""
        offset, properties = half.queue_offset, half.properties
        times = times_checked(properties) + self._uncounted.get(offset, 0) - (offset in self._unsent)
        verdict = self._judge(rules, half, properties, times, now)
        if verdict is CheckVerdict.ASK:
            properties[CHECK_TIMES] = str(times + 1)
        elif verdict is CheckVerdict.WAIT:
            # RocketMQ compares it with op messages that end the first location.
            properties.setdefault(PREPARED_QUEUE_OFFSET, str(offset))
        stays = verdict is CheckVerdict.ASK and (offset in self._unsent or offset in self._uncounted)
        return _DueCheck(half, properties, Location(offset, half.physical_offset), verdict, stays)

    def _judge(
        self, rules: CheckRules, half: StoredMessage, properties: Mapping[str, str], times: int, now: int
    ) -> CheckVerdict:
        try:
            return rules.judge(half, properties, times, now)
        except Exception:  # noqa: BLE001 (one bad message must not stop the checks of others)
            # Any failure counts as a verdict of its own.
            _log.exception("half message cannot be judged message_id=%s", half.message_id)
            return CheckVerdict.DISCARD

    def _take(self, batch: list["_DueCheck"], check_round: CheckRound) -> CheckReport:
        """Put half messages back or discard them, and ask their producers. Raises what the store raises."""
        staying, moving = [due for due in batch if due.stays], [due for due in batch if not due.stays]
        try:
            moved = self._put_back(moving)
        except MessageTooLarge as error:
            if len(batch) > 1:
                return sum((self._take([due], check_round) for due in batch), CheckReport())
            (due,) = moving
            _log.warning("half message cannot be put back message_id=%s: %s", due.half.message_id, error)
            if due.verdict is not CheckVerdict.ASK:
                return CheckReport()
            # Without space for a higher count it is checked where it is, and counted in memory.
            self._uncounted[due.place.queue_offset] = 0
            staying, moved = [replace(due, stays=True)], []
        due_checks = [due for due in staying + moved if due.verdict is CheckVerdict.ASK]
        report = self._record(due_checks, check_round.send(due_checks))
        return sum((self._moved(due) for due in moved if due.verdict is not CheckVerdict.ASK), report)

    def _put_back(self, batch: list["_DueCheck"]) -> list["_DueCheck"]:
        """Put back those that are still open; returns them with their new locations."""
        if not batch:
            return []
        with self._halves.lock_all(due.half for due in batch) as open_halves:
            mine = {half.queue_offset for half in open_halves}
            batch = [due for due in batch if due.half.queue_offset in mine]
            if not batch:
                return []
            messages = [due.copy() for due in batch]
            messages.append(op_message(*(due.half.queue_offset for due in batch), is_moved=True))
            *places, (op_offset, _, _) = self._store.append_as_one(messages)
            batch = [due.at(Location(*place[:2])) for due, place in zip(batch, places, strict=True)]
            self._halves.move(
                ((due.half, None if due.verdict is CheckVerdict.DISCARD else due.place) for due in batch), op_offset
            )
        return batch

    def _moved(self, due: "_DueCheck") -> CheckReport:
        """Return the count for a half message that was only moved."""
        if due.verdict is CheckVerdict.WAIT:
            return CheckReport(waiting=1)
        _log.error(
            "transaction discarded topic=%s message_id=%s times_checked=%d; its message is in %s",
            due.properties.get(REAL_TOPIC),
            due.half.message_id,
            times_checked(due.properties) + self._uncounted.get(due.half.queue_offset, 0),
            naming.DISCARD_TOPIC,
        )
        return CheckReport(discarded=1)

    def _record(self, checks: list["_DueCheck"], outcomes: list[CheckOutcome]) -> CheckReport:
        """Record the outcomes, so that only requests with an outcome count as checks."""
        for due, outcome in zip(checks, outcomes, strict=True):
            offset = due.place.queue_offset
            is_counted = outcome is not CheckOutcome.BACKPRESSURE
            if offset in self._uncounted:
                self._uncounted[offset] += is_counted
            elif is_counted:
                self._unsent.discard(offset)
            else:
                self._unsent.add(offset)
        count = Counter(outcomes)
        return CheckReport(count[CheckOutcome.SENT], count[CheckOutcome.UNREACHABLE], count[CheckOutcome.BACKPRESSURE])


@dataclass(slots=True)
class _DueCheck(PendingCheck):
    """A half message to be asked about, put back or discarded."""

    verdict: CheckVerdict
    stays: bool
    """Whether it is checked where it is, and not put back."""

    def at(self, place: Location) -> "_DueCheck":
        """Return it at another location; `replace` is too slow for a hundred thousand of them in a round."""
        return _DueCheck(self.half, self.properties, place, self.verdict, self.stays)

    def copy(self) -> "NewStoredMessage":
        is_discarded = self.verdict is CheckVerdict.DISCARD
        return copy_of(self.half, naming.DISCARD_TOPIC if is_discarded else naming.HALF_TOPIC, self.properties)


def copy_of(half: StoredMessage, topic: str, properties: Mapping[str, str]) -> "NewStoredMessage":
    """Return a copy of a half message for another location; it names the first location."""
    return {
        "topic": topic,
        "queue_id": QUEUE,
        "body": half.body,
        "properties": properties,
        "flag": half.flag,
        "sys_flag": half.sys_flag,
        "born_timestamp": half.born_timestamp,
        "born_host": half.born_host,
        "reconsume_times": half.reconsume_times,
        "prepared_transaction_offset": kept_origin(origin_of(half)),
    }
