"""
What becomes of transactions: what this process decided, and what it answers when a broker asks.

The state is shared by the synchronous client and `ferromq.aio`; check-backs are answered on a thread of their own for
both, so that a blocked event loop does not cost a transaction its end.
"""

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, NoReturn

from ferromq._ferromq import Message, MessageView, decode_received
from ferromq._proto import messages as pb
from ferromq.client.client import Client
from ferromq.core import send_plans
from ferromq.core.plans import Common
from ferromq.core.requests import Join, Plan, backoff, seconds
from ferromq.core.send_plans import Draft, Half
from ferromq.errors import ConfigError, FerromqError, OutcomeUnknown, RequestError, Unsupported
from ferromq.message import Batch, Resolution

_log = logging.getLogger("ferromq.client")

_REMEMBERED = 10_000
"""Decisions kept whose broker did not say that it heard them."""
_LOOK_PERIOD = 30.0
"""Seconds between looks for new brokers of the topics whose transactions are checked."""


class Open:
    """
    The half messages of one transaction, and what was decided of them.

    Not thread-safe; carrying it out is the business of those who have connections.
    """

    def __init__(self, decisions: "Decisions") -> None:
        self._decisions = decisions
        self.halves: list[Half] = []
        self.resolution = Resolution.UNKNOWN

    def send(self, common: Common, topic: str, message: Message, recovery_ms: int) -> Plan[Batch]:
        """
        Send a half message. Raises `RuntimeError` where the transaction has ended.

        Should one whose sending failed be stored nevertheless, it is rolled back when the broker asks.
        """
        if self.resolution is not Resolution.UNKNOWN:
            raise RuntimeError(f"the transaction has ended: {self.resolution.value}")
        if message.lane is not None:
            raise ValueError("a message of a transaction has no message group, delivery time or priority")
        draft = Draft(send_plans.reserve_ids(common, 1), recovery_ms)
        self._decisions.begin(draft.message_id, self)
        try:
            batch = yield from send_plans.send(common, topic, [message], half=draft)
            transaction_id = _transaction_id(batch)
        except RequestError:
            self._decisions.settled(draft.message_id)
            raise
        except BaseException:
            self._decisions.decide(draft.message_id, is_commit=False)
            raise
        self.halves.append(Half(draft.message_id, topic, transaction_id, batch.endpoint))
        return batch

    def decide(self, resolution: Resolution) -> None:
        """Decide, before any broker is told. Raises `RuntimeError` where the opposite was decided."""
        if self.resolution not in {Resolution.UNKNOWN, resolution}:
            raise RuntimeError(f"the transaction has ended: {self.resolution.value}")
        self.resolution = resolution
        for half in self.halves:
            self._decisions.decide(half.message_id, is_commit=resolution is Resolution.COMMIT)

    def end(self, common: Common) -> Plan[None]:
        """Tell the brokers; those that have heard it are not told again when this is called again after a failure."""
        failure: FerromqError | None = None
        for half in list(self.halves):
            plan = send_plans.end_transaction(
                common, half, is_commit=self.resolution is Resolution.COMMIT, is_checked=False
            )
            try:
                yield from plan
            except FerromqError as error:
                if isinstance(error, OutcomeUnknown):
                    error.add_note(
                        f"the {self.resolution.value} of message {half.message_id} is decided; this producer repeats "
                        "it when the broker asks, and after the end of the process its checker is asked"
                    )
                failure = failure or error
            else:
                self.halves.remove(half)
                self._decisions.settled(half.message_id)
        if failure is not None:
            raise failure


def _transaction_id(batch: Batch) -> str:
    handles = batch.handles.get(0)
    if handles is None or not handles.transaction_id:
        raise Unsupported(f"{batch.endpoint} knows no transactions: it took the half message as an ordinary one")
    return handles.transaction_id


class Decisions:
    """What this process knows of its transactions, by message id; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, weakref.ref[Open]] = {}
        self._decided: OrderedDict[str, bool] = OrderedDict()

    def begin(self, message_id: str, transaction: Open) -> None:
        """Keep in mind that a transaction is open, for as long as it lives."""
        with self._lock:
            self._open[message_id] = weakref.ref(transaction, lambda _: self._forget(message_id))

    def decide(self, message_id: str, *, is_commit: bool) -> None:
        """Keep a decision in mind until it is `settled`."""
        with self._lock:
            self._open.pop(message_id, None)
            self._decided[message_id] = is_commit
            if len(self._decided) > _REMEMBERED:
                self._decided.popitem(last=False)

    def settled(self, message_id: str) -> None:
        """Forget a transaction: its broker knows, or has none."""
        with self._lock:
            self._open.pop(message_id, None)
            self._decided.pop(message_id, None)

    def known(self, message_id: str) -> Resolution | None:
        """Return what is known: UNKNOWN while it is open here; None where the checker must be asked."""
        with self._lock:
            is_commit = self._decided.get(message_id)
            if is_commit is not None:
                return Resolution.COMMIT if is_commit else Resolution.ROLLBACK
            is_open = message_id in self._open
        return Resolution.UNKNOWN if is_open else None

    def _forget(self, message_id: str) -> None:
        # Called wherever garbage is collected, maybe by a thread that holds the lock: one step, without it.
        self._open.pop(message_id, None)


class HalfLease:
    """Stands for the lease of a half message, which has none."""

    def ack_later(self, message: MessageView, /) -> NoReturn:
        """Raise: nobody received it."""
        raise TypeError(f"message {message.message_id} is no received one; the checker returns what became of it")

    def change_invisible_duration(self, message: MessageView, _duration: timedelta | float, /) -> NoReturn:
        """Raise: nobody received it."""
        self.ack_later(message)


class Checks:
    """Answers check-backs, one at a time, on a thread of its own."""

    def __init__(
        self,
        client: Client,
        decisions: Decisions,
        ask: Callable[[MessageView], Resolution | None],
        topics: tuple[str, ...] = (),
    ) -> None:
        """*topics*: transactions of other producers may wait there for an answer, too."""
        self._client = client
        self._decisions = decisions
        self._ask = ask
        self._waiting: SimpleQueue[tuple[str, pb.RecoverOrphanedTransactionCommand] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._queued: set[str] = set()
        client.session.on_orphan = self._take
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="ferromq-checker", daemon=True).start()
        for topic in topics:
            client.session.publish(client.common.whole(topic))
        if topics:
            threading.Thread(target=self._look, args=(topics,), name="ferromq-check-topics", daemon=True).start()

    def close(self) -> None:
        """End; what waits is asked again by the broker."""
        self._closed.set()
        self._waiting.put(None)

    def _take(self, endpoint: str, command: pb.RecoverOrphanedTransactionCommand) -> None:
        message_id = command.message.system_properties.message_id
        with self._lock:
            # The broker asks again and again; one answer will do.
            if message_id in self._queued:
                return
            self._queued.add(message_id)
        self._waiting.put((endpoint, command))

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None and not self._closed.is_set():
            endpoint, command = item
            message_id = command.message.system_properties.message_id
            try:
                self._answer(endpoint, command, message_id)
            except FerromqError as error:
                if not self._closed.is_set():
                    _log.warning("check-back not answered, the broker asks again message_id=%s: %s", message_id, error)
            except Exception:  # noqa: BLE001 (the next one must be answered)
                _log.exception("checker failed, the broker asks again message_id=%s", message_id)
            finally:
                with self._lock:
                    self._queued.discard(message_id)

    def _answer(self, endpoint: str, command: pb.RecoverOrphanedTransactionCommand, message_id: str) -> None:
        resolution = self._decisions.known(message_id)
        if resolution is None:
            answer = pb.ReceiveMessageResponse(message=command.message).SerializeToString()
            namespace = self._client.common.namespace
            (message,) = decode_received([answer], False, HalfLease(), endpoint, namespace)[1]  # noqa: FBT003
            resolution = self._ask(message)
        if resolution is None or resolution is Resolution.UNKNOWN:
            return
        if not isinstance(resolution, Resolution):
            raise TypeError(f"a checker returns a ferromq.Resolution, not {resolution!r}")
        topic = command.message.topic.name
        half = Half(message_id, topic, command.transaction_id, endpoint)
        is_commit = resolution is Resolution.COMMIT
        self._client.run(send_plans.end_transaction(self._client.common, half, is_commit=is_commit, is_checked=True))
        self._decisions.settled(message_id)

    def _look(self, topics: tuple[str, ...]) -> None:
        """Make the producer known at all brokers of the topics."""
        failures = 0
        while True:
            try:
                for topic in topics:
                    self._client.run(_everywhere(self._client, topic))
                failures = 0
            except FerromqError as error:
                failures += 1
                if failures == 1 and not self._closed.is_set():
                    _log.warning("transactions are not checked for now topics=%s: %s", ",".join(topics), error)
            if self._closed.wait(backoff(min(failures, 4)) if failures else _LOOK_PERIOD):
                return


def _everywhere(client: Client, topic: str) -> Plan[None]:
    route = yield from client.common.route(topic)
    failure: FerromqError | None = None
    for endpoint in {queue.endpoint for queue in route.writable}:
        try:
            yield Join(endpoint, client.common.attempt_timeout, topic)
        except FerromqError as error:  # a broker that is away keeps the others from nothing
            failure = error
    if failure is not None:
        raise failure


def recovery_ms(check_after: timedelta | float | None) -> int:
    """Return the milliseconds after which the broker asks; 0: as its settings say."""
    return 0 if check_after is None else max(1, round(seconds(check_after) * 1000))


def no_checker() -> ConfigError:
    """Return the error of a transaction whose producer could not answer a check-back."""
    return ConfigError(
        "a transaction needs a producer with a checker, which says what became of it when the broker did not hear its "
        "end: Producer(endpoint, topic, checker=function)"
    )


Checker = Callable[[MessageView], Any]
