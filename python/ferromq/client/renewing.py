"""
Keeps the leases of messages that a consumer holds, on threads: renews them in use, and gives back what waits too long.

Consumers of event loops use it, too: a handler that blocks the loop prevents no renewal.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol

from ferromq.client.at_once import at_once
from ferromq.client.client import Client
from ferromq.client.connection import remaining
from ferromq.core import plans
from ferromq.core.ahead import RENEWALS, Held
from ferromq.core.leases import NOT_RENEWED, by_endpoint
from ferromq.core.subscriptions import Subscription
from ferromq.errors import FerromqError, OutcomeUnknown, RequestError
from ferromq.message import MessageView
from ferromq.process.limited_log import LimitedLog

_log = logging.getLogger("ferromq.client")

_AT_ONCE = 8
"""How many threads give messages of one broker back at once, or change their leases, at most."""
_ALONE = 16
"""How many messages one thread gives back alone."""
_RENEWAL = 1.0
"""Seconds in which a renewal may be answered, however short the lease: without the answer its handle is unknown."""

Aging = tuple[list[Held], list[MessageView]]
"""What to renew, and what to give back."""


def each_by_broker(
    work: Callable[[MessageView], None], messages: Iterable[MessageView], alone: int, until: float
) -> None:
    """Call *work* with each message before *until*, so many *alone* on one thread; no broker waits for another one."""

    def each(some: list[MessageView]) -> None:
        at_once(work, some, min(1 + len(some) // alone, _AT_ONCE), until)

    brokers = by_endpoint(messages).values()
    at_once(each, brokers, len(brokers), until)


class ChangesLeases(Protocol):
    """The two calls that a renewer needs; see `LeaseCalls`."""

    def change(self, message: MessageView, duration: float, timeout: float | None = None) -> None:
        """Change a lease."""

    def give_back(self, messages: Sequence[MessageView], until: float) -> None:
        """End leases of messages that were not used."""


class LeaseCalls:
    """The calls that change leases, in the calling thread."""

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription

    def change(
        self, message: MessageView, duration: float, timeout: float | None = None, *, suspend: bool = False
    ) -> None:
        """Change a lease that is not renewed meanwhile; times in seconds. *suspend*: count no attempt."""
        common, subscription = self._client.common, self._subscription
        self._client.run(
            plans.change_invisible_duration(common, subscription, message, duration, suspend=suspend, timeout=timeout)
        )

    def give_back(self, messages: Sequence[MessageView], until: float) -> None:
        """
        End the leases of messages that were not used, without counting an attempt; after *until* they expire.

        Many are given back by several threads: one call after the other would take longer than their leases last.
        """
        common, subscription = self._client.common, self._subscription

        def give(message: MessageView) -> None:
            left = remaining(until)
            plan = plans.change_invisible_duration(common, subscription, message, 0.0, suspend=True, timeout=left)
            try:
                self._client.run(plan)
            except FerromqError as error:
                _log.debug("not given back, the lease expires message_id=%s: %s", message.message_id, error)

        each_by_broker(give, messages, _ALONE, until)


class Renewer:
    """
    Renews leases on threads, those of each broker on one of its own: a slow broker does not delay the others.

    *aging* says what to renew and what to give back now; None ends the renewer. It is called on a thread. *under_way*
    has the renewals under way: what ends a lease waits for its renewal, and needs the receipt handle that it brings.
    """

    def __init__(
        self,
        leases: ChangesLeases,
        invisible: float,
        aging: Callable[[], Aging | None],
        under_way: dict[MessageView, Future[None]],
    ) -> None:
        self._leases = leases
        self._invisible = invisible
        self._aging = aging
        self._under_way = under_way
        self._thread: threading.Thread | None = None
        self._giving: list[threading.Thread] = []
        self._soon = threading.Event()
        self._renewing: set[str] = set()
        """Brokers at which a thread renews leases just now."""
        self._silent: set[str] = set()
        """Brokers that did not answer the last renewal."""
        self._seldom = LimitedLog(_log)
        self._is_over = False

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ferromq-renew", daemon=True)
            self._thread.start()

    def hurry(self) -> None:
        """Look at the leases now."""
        self._soon.set()

    def stop(self) -> None:
        """Renew no more."""
        self._is_over = True
        self._soon.set()

    def give_back(self, given: Sequence[MessageView], until: float, after: Callable[[], None] = lambda: None) -> None:
        """Begin to give messages back, by *until* (monotonic), once *after* has returned."""

        def give() -> None:
            after()
            self._leases.give_back(given, until)

        giving = threading.Thread(target=give, daemon=True)
        giving.start()
        self._giving = [each for each in (*self._giving, giving) if each.is_alive()]

    def wait_for_given(self, until: float) -> None:
        """Wait until what is given back is through, at most *until* (monotonic)."""
        for giving in self._giving:
            giving.join(remaining(until))

    def _run(self) -> None:
        period = self._invisible / RENEWALS / 2
        while True:
            self._soon.wait(period)
            self._soon.clear()
            if self._is_over:
                return
            aging = self._aging()
            if aging is None:
                return
            renewed, given = aging
            if given:
                # Beside the renewals, which must not wait for it. Half of their leases is left.
                self.give_back(given, time.monotonic() + self._invisible / 2)
            self._renew_all(renewed, max(period, _RENEWAL))

    def _renew_all(self, renewed: list[Held], timeout: float) -> None:
        """Begin to renew leases, each broker's on a thread of its own; a broker that is still busy is left out."""
        brokers: dict[str, list[Held]] = {}
        for held in renewed:
            # Reentrant: the garbage collector may end an abandoned loop in any thread, also in one that holds it.
            held.renewing = held.renewing or threading.RLock()
            brokers.setdefault(held.message.endpoint, []).append(held)
        for endpoint in brokers.keys() - self._renewing:
            self._renewing.add(endpoint)
            # What ends first comes first, and what is not reached in a share of the lease is sorted anew.
            some = sorted(brokers[endpoint], key=lambda held: held.until)
            until = time.monotonic() + self._invisible / RENEWALS
            work = endpoint, some, timeout, until
            try:
                threading.Thread(target=self._renew_at, args=work, name="ferromq-renew-at", daemon=True).start()
            except RuntimeError:  # the interpreter ends: it starts no more threads
                self._renew_at(*work)

    def _renew_at(self, endpoint: str, some: list[Held], timeout: float, until: float) -> None:
        """Renew leases of one broker, one after the other, as long as it answers and until *until* (monotonic)."""
        was_silent = endpoint in self._silent
        self._silent.discard(endpoint)
        try:
            for held in some:
                if not remaining(until):
                    return
                error = self._renew_one(held, timeout)
                if error is not None and not was_silent:
                    self._seldom.log(logging.WARNING, NOT_RENEWED, held.message.message_id, error)
                if isinstance(error, OutcomeUnknown):
                    self._silent.add(endpoint)
                    return
        finally:
            self._renewing.discard(endpoint)

    def _renew_one(self, held: Held, timeout: float) -> FerromqError | None:
        with held.renewing or threading.RLock():
            # Known to others before it looks whether the lease is left: who leaves it looks in the other order.
            ended = self._under_way[held.message] = Future[None]()
            try:
                if held.is_over or held.message.is_settled or self._is_over or held.renew_from > time.monotonic():
                    return None
                self._leases.change(held.message, self._invisible, timeout)
            except FerromqError as error:
                # A lease that was lost is not held any longer.
                held.is_over = held.is_over or isinstance(error, RequestError)
                return error
            finally:
                del self._under_way[held.message]
                ended.set_result(None)
            held.renewed(time.monotonic(), self._invisible)
            return None
