"""Which messages wait for one of their order that is under way, while a consumer's handlers work. No I/O."""

import threading
import time
from collections import deque
from itertools import islice

from ferromq.core.ahead import Held


class Orders:
    """
    The messages of each order that were taken and have not ended; thread-safe.

    There are no more of an order than the broker hands out before the first is acknowledged.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Held]] = {}
        # When one of the order ended that comes again.
        self._broken: dict[str, float] = {}

    def place(self, held: Held) -> None:
        """
        Decide whether a message that was taken may begin, or else waits here.

        It is behind one that comes again if it was received before that was known: then it neither begins nor waits.
        """
        if held.order is None:
            return
        with self._lock:
            if self._broken:
                # What was received later came as it should, and so does what comes after it.
                self._broken = {order: at for order, at in self._broken.items() if at >= held.received}
            held.is_behind = held.order in self._broken
            held.may_begin = not held.is_behind and self._is_first(held.order, held)

    def _is_first(self, order: str, held: Held) -> bool:
        waiting = self._waiting.setdefault(order, deque())
        waiting.append(held)
        return len(waiting) == 1

    def first(self, held: Held, count: int) -> list[Held]:
        """Return up to *count* messages of an order whose first one, *held*, may begin; they follow each other."""
        if held.order is None:
            return [held]
        with self._lock:  # another thread may take one meanwhile
            return list(islice(self._waiting[held.order], count))

    def leave(self, held: Held) -> tuple[Held | None, list[Held]]:
        """
        Return what may begin now that *held* has ended, and what is behind it if it comes again.

        That ends the order.
        """
        if held.order is None:
            return None, []
        with self._lock:
            if held.comes_again:
                self._broken[held.order] = time.monotonic()
                return None, [each for each in self._waiting.pop(held.order) if each is not held]
            waiting = self._waiting[held.order]
            waiting.popleft()
            if waiting:
                return waiting[0], []
            del self._waiting[held.order]
            return None, []
