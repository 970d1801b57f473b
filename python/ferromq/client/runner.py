"""The synchronous way to run a plan: its steps are taken in the calling thread."""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Protocol

from ferromq.client.connection import LOOK_UP, Cancel, Channels, end_of, remaining
from ferromq.core.requests import Arrive, Await, Begin, Call, End, Join, Pause, Plan, Step, Stream, T
from ferromq.errors import ClientClosed, FerromqError, RequestTimeout


class Remoting(Protocol):
    """Answers calls of brokers behind name servers with plans of their own."""

    def answer(self, step: Call | Stream | Join) -> Plan[Any]:
        """Return the plan that answers a call, or makes the client known at a broker."""


class Runner:
    """Runs plans in the calling thread."""

    def __init__(
        self, channels: Channels, join: Callable[[str, float, str | None], None], remoting: "Remoting | None" = None
    ) -> None:
        """*remoting* answers calls in place of *channels*."""
        self._channels = channels
        self._join = join
        self._remoting = remoting
        self._closed = threading.Event()

    def run(self, plan: Plan[T], cancel: Cancel | None = None) -> T:
        """Take the plan's steps and return its result. Raises `Cancelled`."""
        try:
            step = next(plan)
            while True:
                try:
                    answer = self._take(step, cancel)
                except FerromqError as error:
                    if cancel is not None:
                        cancel.check()
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def _take(self, step: Step, cancel: Cancel | None) -> Any:
        match step:
            case Call() | Stream() | Join() | End(begun=None):
                return self._call(step.stream if isinstance(step, End) else step, cancel)
            case Begin(stream):
                return None if self._remoting is not None else self._channels.begin(stream)
            case End(stream, begun):
                return self._channels.end(stream, begun, cancel)
            case Arrive(watched, timeout):
                return self._channels.arrive(watched, timeout, cancel)
            case Await(future, timeout):
                return _result(future, end_of(timeout), cancel)
            case Pause(duration):
                if self._closed.wait(duration):
                    raise ClientClosed("the client was closed meanwhile; make a new one")
        return None

    def _call(self, step: Call | Stream | Join, cancel: Cancel | None) -> Any:
        if self._remoting is not None:
            return self.run(self._remoting.answer(step), cancel)
        match step:
            case Call(endpoint, method, request, timeout, metadata):
                return self._channels.call(endpoint, method, request, timeout, metadata)
            case Stream(endpoint, method, request, timeout):
                return self._channels.stream(endpoint, method, request, timeout, cancel)
            case Join(endpoint, timeout, topic):
                return self._join(endpoint, timeout, topic)

    def close(self) -> None:
        """End pauses and calls under way."""
        self._closed.set()
        self._channels.close()


def _result(future: "Future[T]", until: float, cancel: Cancel | None) -> T:
    if cancel is not None:
        cancel.check()
        cancel.watch(future)
    while True:
        left = remaining(until)
        try:
            return future.result(min(left, LOOK_UP))
        except CancelledError:
            if cancel is not None:
                cancel.check()
            raise ClientClosed("the client was closed meanwhile; make a new one") from None
        except FutureTimeout:
            if future.done() and not future.cancelled():  # since then, or with a timeout of its own
                return future.result()
            if left <= LOOK_UP:
                raise RequestTimeout("no answer in time") from None
