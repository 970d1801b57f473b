"""The cluster as one visitor sees it: an administrator, whose calls wait for one of a few slots."""

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ferromq.aio import Admin
from ferromq.errors import FerromqError

if TYPE_CHECKING:
    from ferromq.admin import BrokerStatus

T = TypeVar("T")
Keys = tuple[str, str]
"""An access key and its secret key."""
Connect = Callable[[Keys], Admin]
"""Makes an administrator that signs its requests with these keys."""
_SLOTS = 8
_MOST_WAITING = 64
_READS = 2
"""Questions of all visitors whose answers have bodies of messages: each may hold many of the largest."""
_MOST_WAITING_READS = 8
"""They have an own limit, so those that wait for a place do not turn other questions away."""
_AT_ONCE = 2
"""Questions of one page about names. So its visitors do not fill the queue of all."""
_CALLS = 3
"""How many timeouts of a call a visitor waits for a question."""
_NOT_ASKED = "it was not asked: the servers took too long to answer about others"
NO_KEYS: Keys = ("", "")
"""Keys of an administrator that signs nothing, whatever the environment has."""


class Busy(FerromqError):  # noqa: N818 (as the others)
    """Too many questions wait for servers that do not answer."""


class StillRunning(Busy):
    """A question takes longer than its visitor waits. It goes on."""


@dataclass(slots=True)
class _Line:
    """Questions that wait for places."""

    what: str
    most: int
    needed: Sequence[asyncio.Semaphore]
    """The places that each of them takes, in this order."""
    count: int = 0


class Slots:
    """
    Bounds the calls that are under way, of all visitors together.

    A call runs on a thread until it ends, even when its visitor is gone; so it keeps its slot until then.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.longest = _CALLS * timeout
        """Seconds that a visitor waits for a question."""
        self._free = asyncio.Semaphore(_SLOTS)
        self._line = _Line("questions to the cluster", _MOST_WAITING, (self._free,))
        reads = asyncio.Semaphore(_READS)
        self._read_line = _Line("questions that read messages", _MOST_WAITING_READS, (reads, self._free))
        self._running: set[asyncio.Future[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self.threads = ThreadPoolExecutor(_SLOTS, "ferromq-dashboard-call")

    async def run(self, question: Callable[[], Awaitable[T]], *, reads_messages: bool = False) -> T:
        """
        Run a question in a slot. Raises `Busy` if no slot gets free in time, and `StillRunning`.

        Of questions that read messages only some run at a time.
        """
        line = self._read_line if reads_messages else self._line
        if line.count >= line.most:
            raise Busy(f"{line.most} {line.what} wait for answers; try again later")
        await self._take(line)
        task = asyncio.ensure_future(question())
        self._running.add(task)
        task.add_done_callback(functools.partial(self._ended, line.needed))
        # A question may take several calls; a visitor who is told that it takes too long does not end it.
        ended, _ = await asyncio.wait({task}, timeout=self.longest)
        if not ended:
            raise StillRunning(f"the cluster did not answer within {self.longest:g} s")
        return task.result()

    async def _take(self, line: "_Line") -> None:
        """Wait for places; if it ends before all are there, none is taken."""
        line.count += 1
        taken: list[asyncio.Semaphore] = []
        try:
            async with asyncio.timeout(self._timeout):
                for each in line.needed:
                    await each.acquire()
                    taken.append(each)
        except BaseException as error:
            for each in taken:
                each.release()
            if not isinstance(error, TimeoutError):
                raise
            count = _SLOTS if self._free.locked() else _READS
            raise Busy(
                f"{count} questions to the cluster had no answer within {self._timeout:g} s; try again later"
            ) from None
        finally:
            line.count -= 1

    def _ended(self, taken: Sequence[asyncio.Semaphore], task: "asyncio.Future[Any]") -> None:
        self._running.discard(task)
        for each in taken:
            each.release()
        if not task.cancelled():
            task.exception()  # its visitor may be gone

    def close_later(self, admin: Admin) -> None:
        """Close an administrator on a thread."""
        task = asyncio.create_task(admin.close(0))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Wait for administrators that close, and let the threads end."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        self.threads.shutdown(wait=False, cancel_futures=True)


class Cluster:
    """Asks the cluster for one visitor, or for all who did not sign in."""

    def __init__(self, connect: Connect, slots: Slots, keys: Keys) -> None:
        self._admin = connect(keys)
        self._slots = slots
        self.known: dict[tuple[str, str, int], tuple[BrokerStatus, float]] = {}
        """The brokers that were registered, by cluster, name and id, with the monotonic seconds of the last time."""
        self.number = next(_numbers)
        """No two are the same in a process."""

    async def ask(self, question: Callable[[Admin], Awaitable[T]]) -> T:
        """Ask in a slot. Raises what the administrator does, and `Busy`."""
        return await self._slots.run(lambda: question(self._admin))

    async def ask_or_error(self, question: Callable[[Admin], Awaitable[T]]) -> T | FerromqError:
        """Ask in a slot, and return the answer or the error."""
        try:
            return await self.ask(question)
        except FerromqError as error:
            return error

    def ends(self) -> float:
        """Return when several questions in a row take too long together, in seconds of the loop."""
        return asyncio.get_running_loop().time() + self._slots.longest

    async def read(self, question: Callable[[Admin], Awaitable[T]], ends: float | None = None) -> T:
        """
        Ask a question that reads messages. Few run at a time, so what they return has no bodies.

        Raises `Busy`, without a question, after *ends*.
        """
        if ends is not None and _is_past(ends):
            raise Busy(_NOT_ASKED)
        return await self._slots.run(lambda: question(self._admin), reads_messages=True)

    async def ask_each(
        self, names: Sequence[str], question: Callable[[Admin, str], Awaitable[T]]
    ) -> list[T | FerromqError]:
        """Ask a question about each name, two at a time, and return an answer or an error for each."""
        turn = asyncio.Semaphore(_AT_ONCE)
        ends = self.ends()

        async def one(name: str) -> T | FerromqError:
            async with turn:
                if _is_past(ends):
                    return Busy(_NOT_ASKED)
                return await self.ask_or_error(lambda admin: question(admin, name))

        return await asyncio.gather(*(one(name) for name in names))

    def close(self) -> None:
        """Begin to close the connections; calls under way end with an error."""
        self._slots.close_later(self._admin)


def _is_past(ends: float) -> bool:
    return asyncio.get_running_loop().time() > ends


_numbers = itertools.count()
