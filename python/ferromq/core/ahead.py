"""
How much a consumer holds: messages received ahead of their use, and those in use, which the core keeps.

No I/O and no threads, and time is given: `client.receive_ahead` and `aio._ahead` carry it out.
"""

from collections.abc import Mapping, Sequence

from ferromq._ferromq import MAX_BATCH, Ahead, Held, MessageView
from ferromq.core.arguments import whole_number
from ferromq.core.retry import order_of
from ferromq.errors import FerromqError, LeaseExpired

__all__ = ["MAX_BATCH", "Ahead", "Held", "Many", "check_prefetch", "sort_out", "take_alike", "to_receive"]

IN_ORDER = 32
"""In a group that keeps order, how many to receive at once for several workers: a queue is handed out to one consumer
as long as a message of its last receive is under way, so that those of other message groups must come with it."""
RENEWALS = 3
"""How often a lease is renewed within its length."""
_WAIT_SHARE = 0.5
"""The share of a lease that a receive of many messages may wait for the last of them."""


def check_prefetch(prefetch: int | None) -> int | None:
    """Return how many messages may be held; raises `ConfigError` unless at least one may, and `TypeError`."""
    return None if prefetch is None else whole_number("prefetch", prefetch, 1)


def to_receive(
    ahead: Ahead, hungry: int, workers: int, at_least: int, *, in_order: bool, can_be_ended: bool = True
) -> int:
    """
    Return how many messages to receive now for *workers*, of which *hungry* wait for one; 0: none.

    A receive that cannot be ended would take what is given back; so none begins while messages wait.
    """
    if ahead.count and not can_be_ended:
        return 0
    if not in_order:
        return ahead.room(hungry, at_least)
    if ahead.count or not hungry:
        return 0  # nothing ahead: what comes depends on what is acknowledged
    return ahead.room(hungry, max(IN_ORDER if workers > 1 else 1, at_least))


def take_alike(ahead: Ahead, order: str, now: float) -> Held | None:
    """Return the next message of an order to use, however many of other orders wait before it."""
    for held in ahead.waiting:
        if order_of(held.message) == order:
            taken = ahead.take_one(held, now)
            if taken is not None:
                return taken
    return None


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
