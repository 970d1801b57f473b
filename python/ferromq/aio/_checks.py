"""Answers check-backs with a checker that runs on an event loop; the synchronous twin is in `client.transactions`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future, wait
from functools import partial

from ferromq.aio._connection import AsyncClient
from ferromq.client.transactions import Checks as BlockingChecks
from ferromq.client.transactions import Decisions
from ferromq.message import MessageView, Resolution

_log = logging.getLogger("ferromq.client")

_LOOK_AT_LOOP = 1.0
"""Seconds between checks whether the event loop of a checker was closed: a closed loop sends no notice."""


class Checks:
    """Answers check-backs from the first use of the client on, whose loop the checker runs on."""

    def __init__(
        self,
        client: AsyncClient,
        decisions: Decisions,
        checker: Callable[[MessageView], Awaitable[Resolution | None] | Resolution | None],
        topics: tuple[str, ...],
    ) -> None:
        self._checker = checker
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answers: set[Future[Resolution | None]] = set()
        self._checking: set[asyncio.Task[Resolution | None]] = set()
        self._checks: BlockingChecks | None = None

        def begin() -> None:
            self._loop = asyncio.get_running_loop()
            self._checks = BlockingChecks(client.base, decisions, self._ask, topics)

        client.on_first_use = begin

    def close(self) -> None:
        """End; what waits is asked again by the broker."""
        if self._checks is not None:
            self._checks.close()
        for answer in list(self._answers):
            answer.cancel()
        for checking in list(self._checking):
            checking.cancel()

    def _ask(self, message: MessageView) -> Resolution | None:
        loop = self._loop
        assert loop is not None
        answer: Future[Resolution | None] = Future()
        self._answers.add(answer)
        try:
            # The coroutine is made on the loop: one that ends meanwhile would never await it.
            loop.call_soon_threadsafe(self._begin_check, message, answer)
            while not wait({answer}, _LOOK_AT_LOOP).done:
                if loop.is_closed():
                    return None
            return answer.result()
        except (CancelledError, RuntimeError) as error:
            if not answer.cancelled() and not loop.is_closed():
                raise
            _log.debug("check-back not answered, the broker asks again message_id=%s: %r", message.message_id, error)
        finally:
            self._answers.discard(answer)
        return None

    def _begin_check(self, message: MessageView, answer: "Future[Resolution | None]") -> None:
        if not answer.set_running_or_notify_cancel():
            return
        task = asyncio.ensure_future(self._call_checker(message))
        self._checking.add(task)
        task.add_done_callback(partial(self._end_check, answer))

    def _end_check(self, answer: "Future[Resolution | None]", task: "asyncio.Task[Resolution | None]") -> None:
        self._checking.discard(task)
        if task.cancelled():
            answer.set_result(None)
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    async def _call_checker(self, message: MessageView) -> Resolution | None:
        answer = self._checker(message)
        return await answer if isinstance(answer, Awaitable) else answer
