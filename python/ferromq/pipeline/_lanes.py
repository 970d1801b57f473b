"""
Sending in lanes: the messages of a lane go to one queue, one request after the other; lanes go side by side.

As a message group does, but for messages that are of none: what a replay needs to keep the order of queues.
"""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from ferromq.client.client import Client, Options
from ferromq.core import send_plans
from ferromq.core.batching import IN_FLIGHT, batches
from ferromq.message import Message
from ferromq.spark.write.layouts import FirstLayouts
from ferromq.spark.write.plan import Layout

TIMEOUT = 30.0
"""Seconds for which a broker that does not answer is tried."""
_ATTEMPTS = 3
_OTHERWISE = "replay what is left without a writer, which may store messages twice"
_GOODBYE = 5.0
"""Seconds that saying good-bye may take."""


class LaneSender:
    """
    Sends messages to the topics of the broker at *endpoint*; a context manager.

    *with_groups* says that the messages bring a message group named as their lane is. *writer* says that they are
    numbered under this name: each lane goes to the queue that it went to when the writer was first used.
    """

    def __init__(self, endpoint: str, *, with_groups: bool = False, writer: str | None = None) -> None:
        self.with_groups = with_groups
        self._client = Client("producer", Options(endpoint, TIMEOUT, _ATTEMPTS))
        self._layouts: FirstLayouts | None = None
        if writer is not None:
            # A part of the queues would send lanes elsewhere.
            self._client.common.identity.ask_for_whole_routes()
            self._layouts = FirstLayouts(writer, 0, {}, is_placed=with_groups, otherwise=_OTHERWISE)
        self._threads = ThreadPoolExecutor(IN_FLIGHT, "ferromq-lanes")

    def send(self, topic: str, messages: Iterable[tuple[str, Message]]) -> None:
        """
        Send *messages*, each with its lane, and return once all are stored.

        Of a lane nothing is sent after a failure; the first one is raised once the other lanes have ended. With a
        writer, raises `ConfigError` where a queue of its first use is not there any more.
        """
        layout = None if self._layouts is None else self._layouts.of(self._client, topic)
        lanes: dict[str, list[Message]] = {}
        for lane, message in messages:
            lanes.setdefault(lane, []).append(message)
        running = [self._threads.submit(self._send, topic, lane, some, layout) for lane, some in lanes.items()]
        errors = [error for future in running if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _send(self, topic: str, lane: str, messages: Sequence[Message], layout: Layout | None) -> None:
        to = None if layout is None else layout.of_group(lane)
        common = self._client.common
        for part in batches(messages):
            self._client.run(send_plans.send(common, topic, part.messages, part.numbers, beside=lane, to=to))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()
        self._client.close(time.monotonic() + _GOODBYE)
