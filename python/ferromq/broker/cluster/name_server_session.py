"""
One name server of a broker: what it was told last, and the rounds in which it is told more, one after the other.

What is said in a round is `name_servers`' business.
"""

import enum
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from ferromq.broker.cluster.identity import BrokerIdentity
from ferromq.broker.metadata.tables import TableContent
from ferromq.broker.metadata.topics import TopicConfig
from ferromq.errors import RequestTimeout

_log = logging.getLogger("ferromq.broker")

_FEW = 64
"""Topics that are told one by one; more are told with all others, which is one request."""
_MANY = 1024
"""Topics that are told in one request where a name server takes changes."""

ReadTopics = Callable[[], TableContent[TopicConfig]]
"""Returns what the table of topics holds at that moment."""


class NameServerFailed(Exception):  # noqa: N818 (carried to one log line, never to a user)
    """A name server is not reached, or answered with an error."""


class RegistrationScope(enum.IntEnum):
    """How much a name server is to be told in a round; the greater includes the less."""

    CHANGES = 0
    """What it was not told yet."""
    RENEWAL = 1
    """That the broker lives; everything only where it has another version of the topics, or none."""
    FULL = 2


class RegistrationAnswer(NamedTuple):
    """What a name server told in a good answer, and whom it told it."""

    fields: dict[str, str]
    body: bytes
    generation: int = 0
    is_new: bool = False
    """Whether it had lost, or never had, what this broker puts into its key-value table."""
    is_change: bool = False
    """Whether it was told, and answered, of topics that changed, and not of all."""


class AckedState(NamedTuple):
    """What a name server has acknowledged."""

    identity: BrokerIdentity
    content: TableContent[TopicConfig]
    takes_changes: bool = False
    """Whether it takes several topics for a change; RocketMQ's takes them for the whole table."""

    def step_to(self, identity: BrokerIdentity, content: TableContent[TopicConfig]) -> Mapping[str, TopicConfig]:
        """
        Return the few topics that make it *content*; nothing where more changed, or one is gone.

        A name server that does not take changes has to be told one by one: it refuses a single topic of a broker it
        does not know, and takes several for a whole table.
        """
        if identity != self.identity:
            return {}
        before, after = self.content.entries, content.entries
        names = changed_since(self.content, content)
        changed = {name: after[name] for name in names if name in after}
        is_gone = any(name in before for name in names if name not in after)
        return changed if len(changed) <= (_MANY if self.takes_changes else _FEW) and not is_gone else {}


def changed_since(before: TableContent[TopicConfig], after: TableContent[TopicConfig]) -> Sequence[str]:
    """Return the names of the topics that are not in both contents, or are another object in each."""
    names = after.since(before)
    if names is not None:
        return names
    # A table keeps the entries that did not change.
    put = [name for name, topic in after.entries.items() if before.entries.get(name) is not topic]
    return put + [name for name in before.entries if name not in after.entries]


class RoundResult(NamedTuple):
    """How a round went."""

    is_done: bool
    told: RegistrationAnswer | None = None


@dataclass(slots=True)
class RegistrationRound:
    """A round to come: whoever asks for more before it begins, joins it."""

    read: ReadTopics
    asked: RegistrationScope
    result: "Future[RoundResult]" = field(default_factory=Future)


class NameServerSession:
    """
    Tells one name server, in rounds on a thread of its own; thread-safe.

    A round reads the table when it begins, after the end of the one before: an older table never follows a newer one.
    A failure is logged once until the name server answers again.
    """

    def __init__(
        self, address: str, tell: Callable[["NameServerSession", RegistrationRound], RegistrationAnswer | None]
    ) -> None:
        self.address = address
        self.known: AckedState | None = None
        """What it acknowledged last, and nothing failed since; only for the round under way."""
        self.written: Collection[str] = ()
        """The topics whose order configurations this broker wrote there in the round before."""
        self.is_failing = False
        self.is_late = False
        """Whether it did not answer in time when it was asked last: what it is told then may arrive all the same."""
        self._tell = tell
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._is_leaving = False
        self._next: RegistrationRound | None = None
        self._running: RegistrationRound | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ferromq-register")

    def ask(self, asked: RegistrationScope, read: ReadTopics) -> "Future[RoundResult]":
        """Ask for a round that begins after this call, and return its result to be."""
        with self._lock:
            turn = self._next
            if turn is not None:
                turn.asked = max(turn.asked, asked)
                return turn.result
            turn = self._next = RegistrationRound(read, asked)
        try:
            self._thread.submit(self._run)
        except RuntimeError:
            # The interpreter ends and gives no work to other threads any more.
            self._run()
        return turn.result

    def under_way(self) -> "Future[RoundResult] | None":
        """Return the result to be of the round under way, if there is one."""
        with self._lock:
            return self._running.result if self._running else None

    def leave(self, goodbye: Callable[[], object], seconds: float) -> None:
        """Begin no more rounds, and say *goodbye* where the one under way ends in time."""
        self._is_leaving = True
        if not self._telling.acquire(timeout=seconds):
            return
        try:
            goodbye()
        except NameServerFailed as error:
            self.note_failure(error)
        finally:
            self._telling.release()

    def close(self) -> None:
        """End for good; rounds to come are not done."""
        self._is_leaving = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            turn, self._next = self._next, None
        if turn is not None:
            turn.result.set_result(RoundResult(is_done=False))

    def note_failure(self, error: NameServerFailed) -> None:
        """Log a failure, as a warning only where it is the first."""
        with self._lock:
            is_new, self.is_failing = not self.is_failing, True
            self.is_late = isinstance(error.__cause__, RequestTimeout)
        level = logging.WARNING if is_new else logging.DEBUG
        _log.log(level, "name server failed address=%s: %s", self.address, error)

    def _run(self) -> None:
        with self._telling:
            with self._lock:
                turn, self._next = self._next, None
                self._running = turn
            if turn is None:
                return
            try:
                result = self._try(turn)
            except BaseException as error:
                self._end()
                turn.result.set_exception(error)
                raise
            self._end()
            turn.result.set_result(result)

    def _end(self) -> None:
        with self._lock:
            self._running = None

    def _try(self, turn: RegistrationRound) -> RoundResult:
        if self._is_leaving:
            return RoundResult(is_done=False)
        try:
            told = self._tell(self, turn)
        except NameServerFailed as error:
            self.note_failure(error)
            return RoundResult(is_done=False)
        with self._lock:
            was_failing, self.is_failing, self.is_late = self.is_failing, False, False
        if was_failing:
            _log.warning("name server is back address=%s", self.address)
        return RoundResult(is_done=True, told=told)
