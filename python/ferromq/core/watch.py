"""Tells a client's `Telemetry` of its operations, and measures them. Without one, nothing is measured or allocated."""

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, Protocol, TypeVar

from ferromq._ferromq import Message, MessageView
from ferromq.core.batching import Sendable, with_properties
from ferromq.core.requests import Plan, T
from ferromq.message import SendReceipt
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol import naming
from ferromq.telemetry import Operation, Telemetry

_log = logging.getLogger("ferromq.client")

R = TypeVar("R")
V = TypeVar("V")


class Sent(Protocol):
    """A future of a receipt."""

    def cancelled(self) -> bool:
        """Whether it was cancelled."""

    def exception(self) -> BaseException | None:
        """Return what the send failed with."""

    def result(self) -> SendReceipt:
        """Return the receipt."""


def check_telemetry(telemetry: object) -> None:
    """Raise `TypeError` unless it is a `Telemetry`, or None."""
    if not isinstance(telemetry, Telemetry | None):
        raise TypeError(f"telemetry must be a ferromq.telemetry.Telemetry, not {telemetry!r}")


class Watch:
    """What a client tells; thread-safe."""

    def __init__(self, telemetry: Telemetry, endpoint: str, group: str | None = None, namespace: str = "") -> None:
        check_telemetry(telemetry)
        self._telemetry = telemetry
        self._endpoint = endpoint
        self._group = group
        self._namespace = namespace
        self._seldom = LimitedLog(_log)

    def begin(
        self, name: str, topic: str, messages: Sequence[Message | MessageView] = (), waited: float = 0.0
    ) -> Operation:
        """Tell of a beginning, *waited* seconds ago."""
        topic = naming.without_namespace(self._namespace, topic)
        operation = Operation(name, topic, self._endpoint, self._group, messages, len(messages))
        operation.started_ns -= int(waited * 1e9)
        operation.began -= waited
        if len(messages) == 1 and isinstance(messages[0], MessageView):
            operation.message_id = messages[0].message_id
        self._tell(self._telemetry.begin, operation)
        return operation

    def end(self, operation: Operation, error: BaseException | None = None) -> None:
        """Tell of the end."""
        operation.error = operation.error or error
        operation.seconds = time.perf_counter() - operation.began
        self._tell(self._telemetry.end, operation)

    def _tell(self, method: Callable[[Operation], None], operation: Operation) -> None:
        try:
            method(operation)
        except Exception as error:  # noqa: BLE001 (the operation goes on)
            self._seldom.log(logging.WARNING, "telemetry failed operation=%s: %r", operation.name, error)

    @contextmanager
    def over(self, name: str, topic: str, messages: Sequence[Message | MessageView] = ()) -> Iterator[Operation]:
        """Tell of the beginning and the end of a block."""
        operation = self.begin(name, topic, messages)
        try:
            yield operation
        except BaseException as error:
            self.end(operation, error)
            raise
        self.end(operation)

    def end_with(self, operation: Operation, future: Sent) -> None:
        """Tell of the end of a send in the background."""
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            stored(operation, future.result())
        self.end(operation, error)


def over(watch: Watch | None, name: str, topic: str, message: Message | None = None) -> Any:
    """Return the context of an operation; its value is None without telemetry."""
    if watch is None:
        return nullcontext()
    return watch.over(name, topic, () if message is None else (message,))


@contextmanager
def receiving(watch: Watch | None, topic: str) -> Iterator[list[MessageView]]:
    """Tell of a receive that has failed, or has brought the messages that the block adds to the list."""
    messages: list[MessageView] = []
    begun = time.perf_counter()
    try:
        yield messages
    except (StopIteration, StopAsyncIteration):
        raise
    except Exception as error:
        if watch is not None:
            watch.end(watch.begin("receive", topic, messages, time.perf_counter() - begun), error)
        raise
    if watch is not None and messages:
        watch.end(watch.begin("receive", topic, messages, time.perf_counter() - begun))


def carry(operation: Operation | None, message: Message) -> Message:
    """Return a message that is sent, with the properties of its operation; one with a context of its own keeps that."""
    added = None if operation is None else operation.properties
    if not added or not added.keys().isdisjoint(message.properties):
        return message
    return with_properties(message, added)


def carrier(operation: Operation | None, sendable: Callable[[V], Sendable]) -> Callable[[V], Sendable]:
    """Return a function for each message of many, which also counts them."""
    if operation is None:
        return sendable

    def carried(value: V) -> Sendable:
        operation.count += 1
        message = sendable(value)
        if isinstance(message, Message):
            return carry(operation, message)
        # What is no message is refused with its number by the batches.
        is_body = isinstance(message, bytes) and operation.properties
        return with_properties(message, operation.properties) if is_body else message

    return carried


def stored(operation: Operation | None, receipt: SendReceipt) -> SendReceipt:
    """Note the receipt of a message, and return it."""
    if operation is not None:
        operation.message_id = receipt.message_id
    return receipt


def watched(watch: Watch | None, name: str, messages: Sequence[MessageView], plan: Plan[T]) -> Plan[T]:
    """Return *plan*, which reports its operation to *watch* if there are a watch and messages."""
    return plan if watch is None or not messages else _watched(watch, name, messages, plan)


def _watched(watch: Watch, name: str, messages: Sequence[MessageView], plan: Plan[T]) -> Plan[T]:
    with watch.over(name, messages[0].topic, messages) as operation:
        result = yield from plan
        if isinstance(result, list) and result:  # what was refused, and why
            operation.error = result[0][1]
        return result


def handled(handler: Callable[[Any], R], watch: Watch | None) -> Callable[[Any], R]:
    """Return *handler*, of messages or batches, with each call reported to *watch*; a coroutine's call ends with it."""
    if watch is None:
        return handler

    @wraps(handler)
    def told(given: MessageView | list[MessageView]) -> Any:
        messages = given if isinstance(given, list) else [given]
        operation = watch.begin("process", messages[0].topic, messages)
        try:
            result = handler(given)
        except BaseException as error:
            watch.end(operation, error)
            raise
        if inspect.isawaitable(result):
            return _awaited(watch, operation, result)
        watch.end(operation)
        return result

    return told


async def _awaited(watch: Watch, operation: Operation, result: Awaitable[R]) -> R:
    try:
        value = await result
    except BaseException as error:
        watch.end(operation, error)
        raise
    watch.end(operation)
    return value
