"""
The session with one name server: what it acknowledged, and rounds of registration, one at a time.

`name_servers` decides what a round sends.
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
"""The most topics registered one by one; more are registered with the whole table in one request."""
_MANY = 1024
"""The most topics registered in one request with a name server that accepts changes."""

ReadTopics = Callable[[], TableContent[TopicConfig]]
"""Returns the current content of the table of topics."""


class NameServerFailed(Exception):  # noqa: N818 (carried to one log line, never to a user)
    """A name server cannot be reached, or answered with an error."""


class RegistrationScope(enum.IntEnum):
    """How much a round of registration sends; the greater includes the less."""

    CHANGES = 0
    """The topics that the name server has not acknowledged."""
    RENEWAL = 1
    """The version; all topics only if the name server has another version, or none."""
    FULL = 2


class RegistrationAnswer(NamedTuple):
    """A name server's successful answer to a registration."""

    fields: dict[str, str]
    body: bytes
    generation: int = 0
    is_new: bool = False
    """Whether it lacked this broker's entry in its key-value table."""
    is_change: bool = False
    """Whether it answered a registration of changed topics, not of all."""


class AckedState(NamedTuple):
    """The registration that a name server acknowledged."""

    identity: BrokerIdentity
    content: TableContent[TopicConfig]
    takes_changes: bool = False
    """Whether it accepts a change of several topics; RocketMQ's takes them for the whole table."""

    def step_to(self, identity: BrokerIdentity, content: TableContent[TopicConfig]) -> Mapping[str, TopicConfig]:
        """
        Return the topics to register for *content*; empty if too many changed, or one was deleted.

        A name server that accepts no changes gets topics one by one: it refuses a single topic of an unknown broker,
        and takes several for the whole table.
        """
        if identity != self.identity:
            return {}
        before, after = self.content.entries, content.entries
        names = changed_since(self.content, content)
        changed = {name: after[name] for name in names if name in after}
        is_gone = any(name in before for name in names if name not in after)
        return changed if len(changed) <= (_MANY if self.takes_changes else _FEW) and not is_gone else {}


def changed_since(before: TableContent[TopicConfig], after: TableContent[TopicConfig]) -> Sequence[str]:
    """Return the names of topics that differ between two contents."""
    names = after.since(before)
    if names is not None:
        return names
    # Unchanged entries are the same objects.
    put = [name for name, topic in after.entries.items() if before.entries.get(name) is not topic]
    return put + [name for name in before.entries if name not in after.entries]


class RoundResult(NamedTuple):
    """The result of a round."""

    is_done: bool
    answer: RegistrationAnswer | None = None


@dataclass(slots=True)
class RegistrationRound:
    """A round that has not begun; further requests join it."""

    read: ReadTopics
    scope: RegistrationScope
    result: "Future[RoundResult]" = field(default_factory=Future)


class NameServerSession:
    """
    Registers with one name server, in rounds on its own thread; thread-safe.

    A round reads the table when it begins, after the previous one ended, so an older table never follows a newer one.
    A failure is logged once until the name server answers again.
    """

    def __init__(
        self,
        address: str,
        register_round: Callable[["NameServerSession", RegistrationRound], RegistrationAnswer | None],
    ) -> None:
        self.address = address
        self.known: AckedState | None = None
        """The last acknowledged registration, None after a failure; for the current round only."""
        self.written: Collection[str] = ()
        """The topics whose order configurations the previous round wrote."""
        self.is_failing = False
        self.is_late = False
        """Whether its last answer timed out; later requests may arrive all the same."""
        self._register_round = register_round
        self._lock = threading.Lock()
        self._round_lock = threading.Lock()
        self._is_leaving = False
        self._next: RegistrationRound | None = None
        self._current: RegistrationRound | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ferromq-register")

    def request_round(self, scope: RegistrationScope, read: ReadTopics) -> "Future[RoundResult]":
        """Request a round that begins after this call; returns its future result."""
        with self._lock:
            round_ = self._next
            if round_ is not None:
                round_.scope = max(round_.scope, scope)
                return round_.result
            round_ = self._next = RegistrationRound(read, scope)
        try:
            self._thread.submit(self._run)
        except RuntimeError:
            # The interpreter is shutting down and starts no threads.
            self._run()
        return round_.result

    def running(self) -> "Future[RoundResult] | None":
        """Return the future result of the current round, if any."""
        with self._lock:
            return self._current.result if self._current else None

    def unregister(self, send: Callable[[], object], seconds: float) -> None:
        """Begin no more rounds, and call *send* if the current one ends in time."""
        self._is_leaving = True
        if not self._round_lock.acquire(timeout=seconds):
            return
        try:
            send()
        except NameServerFailed as error:
            self.note_failure(error)
        finally:
            self._round_lock.release()

    def close(self) -> None:
        """Stop; pending rounds are not done."""
        self._is_leaving = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            round_, self._next = self._next, None
        if round_ is not None:
            round_.result.set_result(RoundResult(is_done=False))

    def note_failure(self, error: NameServerFailed) -> None:
        """Log a failure, as a warning only if it is the first."""
        with self._lock:
            is_new, self.is_failing = not self.is_failing, True
            self.is_late = isinstance(error.__cause__, RequestTimeout)
        level = logging.WARNING if is_new else logging.DEBUG
        _log.log(level, "name server failed address=%s: %s", self.address, error)

    def _run(self) -> None:
        with self._round_lock:
            with self._lock:
                round_, self._next = self._next, None
                self._current = round_
            if round_ is None:
                return
            try:
                result = self._try(round_)
            except BaseException as error:
                self._end()
                round_.result.set_exception(error)
                raise
            self._end()
            round_.result.set_result(result)

    def _end(self) -> None:
        with self._lock:
            self._current = None

    def _try(self, round_: RegistrationRound) -> RoundResult:
        if self._is_leaving:
            return RoundResult(is_done=False)
        try:
            answer = self._register_round(self, round_)
        except NameServerFailed as error:
            self.note_failure(error)
            return RoundResult(is_done=False)
        with self._lock:
            was_failing, self.is_failing, self.is_late = self.is_failing, False, False
        if was_failing:
            _log.warning("name server is back address=%s", self.address)
        return RoundResult(is_done=True, answer=answer)
