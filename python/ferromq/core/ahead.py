"""
How much a consumer holds: messages received ahead of their use, and those in use.

No I/O and no threads, and time is given: `client.receive_ahead` and `aio._ahead` carry it out.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ferromq._ferromq import MessageView
from ferromq.core.arguments import whole_number
from ferromq.core.retry import InOrder, order_of
from ferromq.errors import FerromqError, LeaseExpired

if TYPE_CHECKING:
    import threading

MAX_BATCH = 1000
IN_ORDER = 32
"""In a group that keeps order, how many to receive at once for several workers: a queue is handed out to one consumer
as long as a message of its last receive is under way, so that those of other message groups must come with it."""
RENEWALS = 3
"""How often a lease is renewed within its length."""
_AHEAD = 0.5
"""Seconds of work that is held at most, and as a share of a lease:"""
_SHARE = 0.2
_WAIT_SHARE = 0.5
"""The share of a lease that a receive of many messages may wait for the last of them."""
_WINDOW = 0.25
"""Seconds of work after which its rate is measured anew, however few messages they were."""


def check_prefetch(prefetch: int | None) -> int | None:
    """Return how many messages may be held; raises `ConfigError` unless at least one may, and `TypeError`."""
    return None if prefetch is None else whole_number("prefetch", prefetch, 1)


class Held:
    """A message that is used or waits for it; times are monotonic."""

    in_order: InOrder | None = None
    """Says, where a loop keeps order, whether it may be used."""
    order: str | None = None
    """What it shares with those it waits for; None: nothing. Decided once: the group may be another meanwhile."""
    is_behind: bool = False
    """One of its order that is redelivered goes before it."""
    may_begin: bool = True
    is_begun: bool = False
    is_over: bool = False
    """Its lease is ended, or left to itself: it must not be renewed."""
    comes_again: bool = False
    """The broker was not told its end: what is behind it must not go before it."""
    renewing: "threading.RLock | None" = None
    """Held while a thread renews it."""

    def __init__(self, message: MessageView, received: float, until: float, renew_from: float) -> None:
        self.message = message
        self.received = received
        self.until = until
        """When its lease ends."""
        self.renew_from = renew_from

    def renewed(self, now: float, duration: float, share: float = 1 / RENEWALS) -> None:
        """Note that its lease ends *duration* from now, and is to be renewed after a share of that."""
        self.until, self.renew_from = now + duration, now + duration * share

    def leave(self) -> None:
        """Let it be renewed no more, and wait while it is: what ends a lease needs its last receipt handle."""
        self.is_over = True
        renewing = self.renewing
        if renewing is not None:
            with renewing:
                pass


class Ahead:
    """
    The messages a consumer holds, and how many more it may receive. Not thread-safe.

    It holds one message for each worker before there is a rate, and then no more than the workers finish, at the rate
    that was measured, in half a second or a fifth of a lease.
    """

    def __init__(self, invisible: float, prefetch: int | None = None) -> None:
        self.waiting: deque[Held] = deque()
        self.in_use: set[Held] = set()
        self._invisible = invisible
        self._horizon = min(_AHEAD, invisible * _SHARE)
        self._prefetch = prefetch
        # How many are held at the measured rate; 0: there is none.
        self._limit = 0
        self._count = 0
        # Seconds in which at least one message was in use, and since when one is.
        self._busy = 0.0
        # How many were in use at once meanwhile.
        self._workers = 0
        self._since = 0.0

    def room(self, hungry: int, at_least: int = 1) -> int:
        """Return how many messages to receive now, while *hungry* workers wait for one; 0: none."""
        workers = hungry + len(self.in_use)
        most = max(workers, self._limit, at_least)
        if self._prefetch is not None:
            most = min(most, self._prefetch)
        room = most - len(self.waiting) - len(self.in_use)
        if workers and room > 0 and (hungry > len(self.waiting) or 2 * room >= most):
            return min(room, MAX_BATCH)
        return 0

    def to_receive(self, hungry: int, workers: int, at_least: int, *, in_order: bool) -> int:
        """Return how many messages to receive now for *workers*, of which *hungry* wait for one; 0: none."""
        if not in_order:
            return self.room(hungry, at_least)
        if self.waiting or not hungry:
            return 0  # nothing ahead: what comes depends on what is acknowledged
        return self.room(hungry, max(IN_ORDER if workers > 1 else 1, at_least))

    def add(self, messages: Iterable[MessageView], now: float, in_order: InOrder | None = None) -> None:
        """Take messages that were received just now."""
        until, renew_from = now + self._invisible, now + self._invisible / RENEWALS
        for message in messages:
            held = Held(message, now, until, renew_from)
            if in_order is not None:
                held.in_order = in_order
            self.waiting.append(held)

    def take(self, now: float) -> Held | None:
        """Return the next message to use, None when there is none; what has expired is dropped: it is redelivered."""
        while self.waiting:
            held = self.waiting.popleft()
            if now <= held.until:
                return self._use(held, now)
        return None

    def take_alike(self, order: str, now: float) -> Held | None:
        """Return the next message of an order to use, as `take`, however many of other orders wait before it."""
        for held in [each for each in self.waiting if order_of(each.message) == order]:
            self.waiting.remove(held)
            if now <= held.until:
                return self._use(held, now)
        return None

    def _use(self, held: Held, now: float) -> Held:
        if not self.in_use:
            self._since = now
        self.in_use.add(held)
        self._workers = max(self._workers, len(self.in_use))
        return held

    def take_some(self, count: int, now: float) -> list[Held]:
        """Return messages to use at once; they are held no longer, unless they are put back."""
        taken: list[Held] = []
        while self.waiting and len(taken) < count:
            held = self.waiting.popleft()
            if now <= held.until:
                taken.append(held)
        return taken

    def put_back(self, taken: Iterable[Held]) -> None:
        """Hold the first messages of `take_some` again."""
        self.waiting.extendleft(reversed([*taken]))

    def end(self, held: Held, now: float, *, is_used: bool = True) -> bool:
        """
        Note that a message is no longer in use, and learn from it unless it was not used at all.

        Says whether it is time to look at `room` and `has_surplus`.
        """
        if held not in self.in_use:
            return False
        self.in_use.remove(held)
        self._busy += now - self._since
        self._since = now
        self._count += is_used
        # Of several workers that end at once only the first has a duration: each must have ended once.
        is_round = self._count >= max(1, self._workers)
        if is_round and (self._count >= self._limit // 2 or self._busy >= _WINDOW):
            fits = 2 * MAX_BATCH if self._busy <= 0 else int(self._count / self._busy * self._horizon)
            # Grows fast, but on evidence: twice what was just seen to work.
            self._limit = min(fits, 2 * max(self._limit, self._count), 2 * MAX_BATCH)
            self._count, self._busy, self._workers = 0, 0.0, len(self.in_use)
            return True
        return 2 * len(self.waiting) <= self._limit

    def has_surplus(self) -> bool:
        """Say whether far more waits than the workers finish in time: they have become slower."""
        return len(self.waiting) > 2 * max(self._limit, 1)

    def aging(self, now: float, *, keep: bool) -> tuple[list[Held], list[MessageView]]:
        """
        Return what to renew, and what to give back, which is held no longer; called often within a lease.

        What waits although a third of its lease is over waits for workers that are slower than before: others may have
        it. With *keep* it is renewed.
        """
        renewed = [held for held in self.in_use if held.renew_from <= now and not held.is_over]
        if keep:
            return renewed + [held for held in self.waiting if held.renew_from <= now], []
        given: list[MessageView] = []
        surplus = len(self.waiting) - max(self._limit, 1) if self.has_surplus() else 0
        while self.waiting and self.waiting[0].renew_from <= now:
            given.append(self.waiting.popleft().message)
        while len(given) < surplus:
            given.append(self.waiting.pop().message)
        if given:
            self._limit //= 2
        return renewed, given

    def take_all(self) -> list[MessageView]:
        """Return all that waits; it is held no longer."""
        left = [held.message for held in self.waiting]
        self.waiting.clear()
        return left


def sort_out(
    taken: list[Held], failures: Mapping[MessageView, FerromqError], *, in_order: bool
) -> tuple[list[Held], list[Held], list[Held]]:
    """
    Return which of the messages may be used whose leases were changed, which are kept, and which are given back.

    One whose lease had ended is left out: it is redelivered. *in_order* no message is used behind one that is not, and
    what follows a redelivered message is given back, so that it comes behind it.
    """
    used: list[Held] = []
    kept: list[Held] = []
    behind: list[Held] = []
    comes_again = False
    for held in taken:
        failure = failures.get(held.message)
        if isinstance(failure, LeaseExpired):
            comes_again = in_order
        elif comes_again:
            behind.append(held)
        elif failure is None and not (in_order and kept):
            used.append(held)
        else:
            kept.append(held)
    return used, kept, behind


class Many:
    """
    Several receives that are one: what the next one asks for, and when there are enough messages. Time is given.

    Raises `ValueError` for a wait during which too much of the first messages' leases would pass.
    """

    def __init__(self, count: int, wait: float, invisible: float, now: float) -> None:
        whole_number("count", count, 1)
        if wait > invisible * _WAIT_SHARE:
            raise ValueError(
                f"a wait of {wait:g} s uses up more than half of a lease of {invisible:g} s; give a shorter wait, "
                f"or an invisible_duration of at least {wait / _WAIT_SHARE:g} s"
            )
        self.messages: list[MessageView] = []
        self._count = count
        self._until = now + wait
        self._is_first = True

    def next(self, now: float) -> tuple[int, float] | None:
        """Return how many messages the next receive asks for and the seconds that it may wait; None: it is over."""
        missing, left = self._count - len(self.messages), max(0.0, self._until - now)
        if not missing or not (left or self._is_first):
            return None
        self._is_first = False
        return min(missing, MAX_BATCH), left

    def add(self, messages: Sequence[MessageView]) -> None:
        """Take the result of a receive."""
        self.messages += messages
