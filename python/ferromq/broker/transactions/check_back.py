"""
Check-back: asks producers what became of half messages that nobody ended in time.

A half message that is asked about is put back: its copy, counted once more, and the op message that ends the old one
are one append, so that whenever the broker is killed exactly one of them is open. What was asked about too often, or is
too old, moves to RocketMQ's discard topic in the same way. How the question is written is decided by `check_requests`.
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
from ferromq.broker.transactions.end_transaction import op_message
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
"""How long one round may take; the next one goes on where it stopped."""
_MILLISECOND = timedelta(milliseconds=1)
_AT_ONCE = 64
_BYTES_AT_ONCE = 1 << 20


class CheckVerdict(Enum):
    """What becomes of an open half message in a round."""

    ASK = "ask"
    WAIT = "wait"
    """It says itself that it is too young to be asked about: it is put back, and not counted."""
    FRESH = "fresh"
    """It is too young, and so is what comes after it: the round ends."""
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class CheckRules:
    """When an open half message is asked about."""

    timeout_ms: int
    max_checks: int
    retention_ms: int | None
    """Age above which it is given up; None: at no age."""

    @classmethod
    def of(cls, config: TransactionConfig, retention: timedelta | None) -> "CheckRules":
        """Return the rules of the options."""
        kept = None if retention in {None, timedelta.max} else retention
        return cls(
            config.transaction_timeout // _MILLISECOND,
            config.transaction_check_max,
            None if kept is None else kept // _MILLISECOND,
        )

    def judge(self, half: StoredMessage, properties: Mapping[str, str], times: int, now: int) -> CheckVerdict:
        """Say what becomes of a half message at *now* that was asked about so many *times*, as RocketMQ does."""
        age, immunity = now - half.born_timestamp, self._immunity_ms(properties)
        is_lost = not properties.get(REAL_TOPIC) or real_queue(properties) is None
        is_old = self.retention_ms is not None and age > self.retention_ms
        if is_lost or is_old or times >= self.max_checks:
            return CheckVerdict.DISCARD
        if half.store_timestamp >= now:
            return CheckVerdict.FRESH
        if immunity is not None:
            return CheckVerdict.WAIT if age <= immunity else CheckVerdict.ASK
        # A producer whose clock is ahead is asked at once.
        return CheckVerdict.FRESH if 0 <= age <= self.timeout_ms else CheckVerdict.ASK

    def _immunity_ms(self, properties: Mapping[str, str]) -> int | None:
        """Return how long the message itself says that nobody may be asked about it; None where it says nothing."""
        text = properties.get(IMMUNITY_SECONDS)
        if text is None:
            return None
        seconds = number(text, bits=64)
        return self.timeout_ms if seconds in {None, -1} else (seconds or 0) * 1_000


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a round did with open half messages."""

    asked: int = 0
    unasked: int = 0
    """Nobody of the producer group could be reached."""
    refused: int = 0
    """Their producers took no more questions: left for the next round, and not counted as checked."""
    waiting: int = 0
    discarded: int = 0
    lost: int = 0
    """Retention deleted them before they ended."""

    def __add__(self, other: "CheckReport") -> "CheckReport":
        return CheckReport(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


class TransactionChecker:
    """Looks through the open half messages, round by round; one round runs at a time."""

    def __init__(
        self,
        store: Store,
        halves: HalfMessageIndex,
        requests: CheckSender,
        *,
        config: Callable[[], TransactionConfig],
        is_slave: Callable[[], bool],
        now_ms: Callable[[], int],
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        """*pause* waits so many seconds for producers that read slowly, and says whether all is to end."""
        self._store = store
        self._halves = halves
        self._requests = requests
        self._config = config
        self._is_slave = is_slave
        self._now_ms = now_ms
        self._stopping = threading.Event()
        self._pause = pause or self._stopping.wait
        # By queue offset: counted as checked, but nobody was asked yet.
        self._unheard: set[int] = set()
        # By queue offset: how often those were asked about that have no room for the count.
        self._uncounted: dict[int, int] = {}
        self.total = CheckReport()
        """What all rounds since the start did."""

    def stop(self) -> None:
        """EndRequest the round under way soon, and do nothing in others."""
        self._stopping.set()

    def round(self, now: int) -> CheckReport:
        """Ask about what is due at *now*, commit how far everything has ended, and say what was done."""
        if self._is_slave() or self._stopping.is_set():
            return CheckReport()
        report = CheckReport(lost=self._commit())
        self._forget_ended()
        asking = CheckRound(self._requests, self._pause)
        rules = CheckRules.of(self._config(), self._store.options()["retention_age"])
        try:
            for batch, left in self._due(rules, asking, now):
                report += self._take(batch, asking) + CheckReport(refused=left)
                if self._stopping.is_set() or self._now_ms() - now > ROUND_LIMIT // _MILLISECOND:
                    break
        except FerromqError as error:
            _log.warning("half messages cannot be put back now: %s", error)
        report += CheckReport(lost=self._commit())
        self.total += report
        if report != CheckReport():
            _log.info(
                "transactions checked asked=%d unasked=%d refused=%d waiting=%d discarded=%d",
                report.asked,
                report.unasked,
                report.refused,
                report.waiting,
                report.discarded,
            )
        return report

    def resume(self, request: Request) -> Answer:
        """
        Answer request 323: ask once more about a transaction that was given up.

        `msgId` is the offset message id of its message in TRANS_CHECK_MAX_TIME_TOPIC. One that is asked about again
        already stays as it is; one that was committed in the meantime is refused.
        """
        if self._is_slave():
            return failure(ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave; ask its master")
        name = required(request.fields, "msgId")
        half = self._store.message_at(physical_offset(name))
        if half is None or half.topic != naming.DISCARD_TOPIC:
            return failure(ResponseCode.SYSTEM_ERROR, f"{name} is no message in {naming.DISCARD_TOPIC}")
        properties = half.properties
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
            _log.warning("transaction asked about again message_id=%s peer=%s", half.message_id, request.peer)
        return success()

    def _commit(self) -> int:
        lost = self._halves.commit()
        if lost:
            _log.error("half messages were deleted by retention before they ended count=%d", lost)
        return lost

    def _forget_ended(self) -> None:
        self._unheard = {offset for offset in self._unheard if not self._halves.is_ended(offset)}
        self._uncounted = {
            offset: times for offset, times in self._uncounted.items() if not self._halves.is_ended(offset)
        }

    def _due(self, rules: CheckRules, asking: CheckRound, now: int) -> Iterator[tuple[list["_DueCheck"], int]]:
        """Yield those to be asked about, put back or discarded, some at a time; and how many of others were left."""
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
            if due.verdict is CheckVerdict.ASK and asking.is_left(due.group):
                left += 1
                continue
            batch.append(due)
            size += len(half.raw)
        yield batch, left

    def _judged(self, rules: CheckRules, half: StoredMessage, now: int) -> "_DueCheck":
        """Say what becomes of a half message, and with which properties."""
        offset, properties = half.queue_offset, half.properties
        times = times_checked(properties) + self._uncounted.get(offset, 0) - (offset in self._unheard)
        verdict = self._judge(rules, half, properties, times, now)
        if verdict is CheckVerdict.ASK:
            properties[CHECK_TIMES] = str(times + 1)
        elif verdict is CheckVerdict.WAIT:
            # What RocketMQ compares op messages with that end the first place.
            properties.setdefault(PREPARED_QUEUE_OFFSET, str(offset))
        stays = verdict is CheckVerdict.ASK and (offset in self._unheard or offset in self._uncounted)
        return _DueCheck(half, properties, Location(offset, half.physical_offset), verdict, stays)

    def _judge(
        self, rules: CheckRules, half: StoredMessage, properties: Mapping[str, str], times: int, now: int
    ) -> CheckVerdict:
        try:
            return rules.judge(half, properties, times, now)
        except Exception:  # noqa: BLE001 (whatever it is)
            # One alone must not keep all others from being asked about.
            _log.exception("half message cannot be judged message_id=%s", half.message_id)
            return CheckVerdict.DISCARD

    def _take(self, batch: list["_DueCheck"], asking: CheckRound) -> CheckReport:
        """Put half messages back, or discard them, and ask their producers. Raises what the store raises."""
        staying, moving = [due for due in batch if due.stays], [due for due in batch if not due.stays]
        try:
            moved = self._put_back(moving)
        except MessageTooLarge as error:
            if len(batch) > 1:
                return sum((self._take([due], asking) for due in batch), CheckReport())
            (due,) = moving
            _log.warning("half message cannot be put back message_id=%s: %s", due.half.message_id, error)
            if due.verdict is not CheckVerdict.ASK:
                return CheckReport()
            # Counted once more it has no room, so it is asked about where it is, and counted here.
            self._uncounted[due.place.queue_offset] = 0
            staying, moved = [replace(due, stays=True)], []
        asked = [due for due in staying + moved if due.verdict is CheckVerdict.ASK]
        report = self._tell(asked, asking.ask(asked))
        return sum((self._moved(due) for due in moved if due.verdict is not CheckVerdict.ASK), report)

    def _put_back(self, batch: list["_DueCheck"]) -> list["_DueCheck"]:
        """Put those back that are still open, and return them with their new places."""
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
        """Say what was done with one by moving it alone."""
        if due.verdict is CheckVerdict.WAIT:
            return CheckReport(waiting=1)
        _log.error(
            "transaction given up topic=%s message_id=%s times_checked=%d; its message is in %s",
            due.properties.get(REAL_TOPIC),
            due.half.message_id,
            times_checked(due.properties) + self._uncounted.get(due.half.queue_offset, 0),
            naming.DISCARD_TOPIC,
        )
        return CheckReport(discarded=1)

    def _tell(self, asked: list["_DueCheck"], outcomes: list[CheckOutcome]) -> CheckReport:
        """Keep in mind what became of questions, so that only what could be asked counts as a check."""
        for due, outcome in zip(asked, outcomes, strict=True):
            offset = due.place.queue_offset
            is_heard = outcome is not CheckOutcome.BACKPRESSURE
            if offset in self._uncounted:
                self._uncounted[offset] += is_heard
            elif is_heard:
                self._unheard.discard(offset)
            else:
                self._unheard.add(offset)
        count = Counter(outcomes)
        return CheckReport(count[CheckOutcome.SENT], count[CheckOutcome.UNREACHABLE], count[CheckOutcome.BACKPRESSURE])


@dataclass(slots=True)
class _DueCheck(PendingCheck):
    """A half message that is asked about, put back or discarded."""

    verdict: CheckVerdict
    stays: bool
    """It is asked about where it lies, and not put back."""

    def at(self, place: Location) -> "_DueCheck":
        """Return it as it lies elsewhere; a hundred thousand of them a round are too many for `replace`."""
        return _DueCheck(self.half, self.properties, place, self.verdict, self.stays)

    def copy(self) -> "NewStoredMessage":
        is_discarded = self.verdict is CheckVerdict.DISCARD
        return copy_of(self.half, naming.DISCARD_TOPIC if is_discarded else naming.HALF_TOPIC, self.properties)


def copy_of(half: StoredMessage, topic: str, properties: Mapping[str, str]) -> "NewStoredMessage":
    """Return a half message as it goes to another place, which says where it lay first."""
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
