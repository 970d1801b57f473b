"""The future of a submitted message."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING
from typing import Any

from ferromq.message import Batch, SendReceipt


class ReceiptFuture(Future[SendReceipt]):
    """
    A future that makes its condition only once it is waited for, cancelled, or given a callback.

    A program keeps one for each message under way. The condition and the lists of `Future` are ten objects, whose
    creation and visits by the garbage collector cost more than all else of `submit`. Most futures are asked for their
    result once they have ended, and need none of them. *lock* is that of the producer's futures.
    """

    def __init__(self, lock: threading.Lock) -> None:
        # Not the base's, which makes them all.
        self._state = PENDING
        self._result: SendReceipt | None = None
        self._exception: BaseException | None = None
        self._lock = lock
        self._made: threading.Condition | None = None
        self._lists: dict[str, list[Any]] = _NO_LISTS
        self._batch: Batch | None = None
        """The receipts of its request, until its own is read."""
        self._index = 0

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # an attribute of the base
        if (made := self._made) is None:
            with self._lock:
                made = self._made = self._made or threading.Condition()
            self._read()  # it may have ended just before
        return made

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self._list("waiters")

    @property
    def _done_callbacks(self) -> list[Callable[[Future[SendReceipt]], object]]:
        return self._list("callbacks")

    def _list(self, name: str) -> list[Any]:
        """Return a list of the base, which holds the condition."""
        if self._lists is _NO_LISTS:
            self._lists = {}
        return self._lists.setdefault(name, [])

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._state == FINISHED or super().done()

    def result(self, timeout: float | None = None) -> SendReceipt:
        """Return the receipt; waits up to *timeout* seconds. Raises as `Future.result` does."""
        if self._state == FINISHED and self._exception is None:
            self._read()
            assert self._result is not None
            return self._result
        return super().result(timeout)

    def _read(self) -> None:
        if (batch := self._batch) is not None:
            self._result = batch.receipt(self._index)
            self._batch = None


_NO_LISTS: dict[str, list[Any]] = {}


def end_unseen(
    futures: Sequence[ReceiptFuture], lock: threading.Lock, outcome: Batch | Exception
) -> list[tuple[int, ReceiptFuture]]:
    """End the futures of a request that have no condition, and return the others with their index."""
    seen = []
    with lock:
        for index, future in enumerate(futures):
            if future._made is not None:  # noqa: SLF001
                seen.append((index, future))
                continue
            if isinstance(outcome, Exception):
                future._exception = outcome  # noqa: SLF001
            else:
                future._batch, future._index = outcome, index  # noqa: SLF001
            future._state = FINISHED  # noqa: SLF001
    return seen
