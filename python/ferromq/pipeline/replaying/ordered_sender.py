"""
Sends messages in the order of their ordering key: one key's messages go to one queue, one request at a time.

A replay needs this to keep the order of the source's queues. A message group does the same, but these messages need not
have one. Different keys are sent side by side.
"""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from ferromq.client.client import Client, Options
from ferromq.client.tls import Tls, TlsFile
from ferromq.core import send_plans
from ferromq.core.batching import IN_FLIGHT, Slice, batches
from ferromq.message import Message
from ferromq.spark.write.layouts import FirstLayouts
from ferromq.spark.write.plan import Layout

TIMEOUT = 30.0
"""Seconds for which a broker that does not answer is tried."""
_ATTEMPTS = 3
_OTHERWISE = "replay what is left without a writer, which may store messages twice"
_UNREGISTER_TIMEOUT = 5.0
"""Seconds that unregistering at the end may take."""


class OrderedSender:
    """
    Sends messages to the topics of the broker at *endpoint*; a context manager.

    With *with_groups* each message has a message group named like its ordering key. With *writer* the messages are
    numbered under this name, and each key keeps the queue it had when the writer was first used.
    """

    def __init__(
        self, endpoint: str, *, with_groups: bool = False, writer: str | None = None, tls: bool | TlsFile | Tls = False
    ) -> None:
        self.with_groups = with_groups
        self._client = Client("producer", Options(endpoint, TIMEOUT, _ATTEMPTS, tls))
        self._layouts: FirstLayouts | None = None
        if writer is not None:
            # An incomplete route would map keys to other queues.
            self._client.common.identity.ask_for_whole_routes()
            self._layouts = FirstLayouts(writer, 0, {}, is_placed=with_groups, otherwise=_OTHERWISE)
        self._threads = ThreadPoolExecutor(IN_FLIGHT, "ferromq-replay")

    def send(self, topic: str, messages: Iterable[tuple[str, Message]]) -> None:
        """
        Send *messages*, each with its ordering key, and return once all are stored.

        After a failure no more messages of that key are sent; the first failure is raised once the other keys have
        ended. With a writer, raises `ConfigError` if a queue of its first use no longer exists.
        """
        layout = None if self._layouts is None else self._layouts.of(self._client, topic)
        by_key: dict[str, list[Message]] = {}
        for key, message in messages:
            by_key.setdefault(key, []).append(message)
        running = [self._threads.submit(self._send, topic, key, some, layout) for key, some in by_key.items()]
        errors = [error for future in running if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _send(self, topic: str, key: str, messages: Sequence[Message], layout: Layout | None) -> None:
        to = None if layout is None else layout.of_group(key)
        common = self._client.common

        def send(part: Slice) -> None:
            self._client.run(send_plans.send(common, topic, part.messages, part.numbers, beside=key, to=to))

        for part in batches(messages):
            try:
                send(part)
            except send_plans.MustPartError:
                for each in part.apart():
                    send(each)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()
        self._client.close(time.monotonic() + _UNREGISTER_TIMEOUT)
