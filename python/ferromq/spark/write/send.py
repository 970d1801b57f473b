"""
Sends the rows of one task, with several requests in flight: at least once, or exactly once by numbered rows.

With exactly-once, the rows of a topic are sent in order, one request at a time across all queues: a broker remembers
the highest row of each queue, and in the next attempt a row may belong to another queue.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from ferromq import _ferromq
from ferromq.client.client import Client, Options
from ferromq.core.batching import IN_FLIGHT, MAX_BYTES, MAX_MESSAGES
from ferromq.core.plans import ATTEMPT, Common, Tries
from ferromq.core.requests import Call, Plan, error_of, named
from ferromq.core.routes import Queue
from ferromq.core.send_plans import reserve_ids
from ferromq.errors import FerromqError, OutcomeUnknown
from ferromq.spark.write.layouts import layout_of
from ferromq.spark.write.options import WriteOptions
from ferromq.spark.write.plan import Layout

_OK = 20000


@dataclass(frozen=True, slots=True)
class SendRequest:
    """The rows of one request."""

    rows: _ferromq.Rows
    part: _ferromq.Part
    order: tuple[str, str] | None = None
    """Topic and message group whose requests are sent in order; an empty group means the whole topic."""
    queue: Queue | None = None
    """The target; None: the next queue in turn, or the group's."""


class Batching(Protocol):
    """Divides rows into requests."""

    def requests(self, client: Client, rows: _ferromq.Rows, first: int, count: int) -> Iterable[SendRequest]:
        """Yield the requests for *count* rows, from number *first* of the partition on."""


class AtLeastOnceBatching:
    """Requests for at-least-once: only rows of one message group keep their order."""

    def requests(self, client: Client, rows: _ferromq.Rows, first: int, count: int) -> Iterator[SendRequest]:
        """Yield the requests."""
        del client, first, count
        for part in rows.lanes(MAX_MESSAGES, MAX_BYTES):
            yield SendRequest(rows, part, None if part.group is None else (part.topic, part.group))


class Layouts(Protocol):
    """The queue layouts of topics."""

    def of(self, client: Client, topic: str) -> Layout:
        """Return the layout of a topic."""


class ExactlyOnceBatching:
    """Requests for exactly-once: every attempt at a task has the same *layouts*."""

    def __init__(self, partition: int, layouts: Layouts) -> None:
        self._partition = partition
        self._layouts = layouts

    def requests(self, client: Client, rows: _ferromq.Rows, first: int, count: int) -> list[SendRequest]:
        """Return the requests, sorted by their first row."""
        requests: list[SendRequest] = []
        for number, (topic, _) in enumerate(rows.topics):
            layout = self._layouts.of(client, topic)
            requests += [
                SendRequest(rows, part, (topic, ""), layout.queues[part.queue])
                for part in layout.place(rows, number, self._partition, first, count)
            ]
        return sorted(requests, key=lambda request: request.part.numbers[0])


class Sender:
    """Sends the rows of a task; for use by one thread."""

    def __init__(self, options: WriteOptions, batching: Batching) -> None:
        self._client = _client(options)
        self._batching = batching
        self._threads = ThreadPoolExecutor(IN_FLIGHT, "ferromq-write")
        self._pending: deque[tuple[tuple[str, str] | None, Future[None]]] = deque()

    def send(self, rows: _ferromq.Rows, first: int, count: int) -> None:
        """Send rows; block while too many requests are in flight. Raises the error of a failed request."""
        for request in self._batching.requests(self._client, rows, first, count):
            while len(self._pending) >= IN_FLIGHT:
                self._pending.popleft()[1].result()
            order = request.order
            before = [future for other, future in self._pending if order is not None and order == other]
            self._pending.append((order, self._threads.submit(self._run, before, request)))

    def _run(self, before: Iterable["Future[None]"], request: SendRequest) -> None:
        for future in before:
            future.result()  # raises its failure: a row stored after a gap would make the gap a duplicate
        self._client.run(send_plan(self._client.common, request))

    def finish(self) -> None:
        """Return once all rows are stored."""
        while self._pending:
            self._pending.popleft()[1].result()

    def close(self) -> None:
        """Wait for the requests in flight and close the connections."""
        self._threads.shutdown(cancel_futures=True)
        close(self._client)


def send_plan(common: Common, request: SendRequest) -> Plan[None]:
    """Send a request; every attempt has the same message ids. Errors name its rows."""
    part = request.part
    ids = reserve_ids(common, len(part))
    born = common.wall()
    row_error: FerromqError | None = None

    def once(tries: Tries) -> Plan[None]:
        nonlocal row_error
        queue = request.queue
        if queue is None:
            route = yield from common.route(part.topic, tries)
            avoided = common.routes.failing()
            queue = route.next_writable(tries.endpoints, avoided) if part.group is None else route.of_group(part.group)
            tries.endpoints.add(queue.endpoint)
        yield from common.join(queue.endpoint, part.topic, tries)
        try:
            encoded = request.rows.encode(part, ids, queue.queue_id, born, common.identity.host, common.max_body)
        except FerromqError as error:
            row_error = error  # it names the row
            raise
        try:
            answer = yield Call(queue.endpoint, "SendMessage", encoded, common.limit(tries))
        except OutcomeUnknown as error:
            common.routes.failed(queue.endpoint)
            tries.unknown = error
            raise
        code, text, _, failures, *_ = _ferromq.decode_sent(answer)
        if failures:
            index, code, text = failures[0]
            row_error = error_of(code, f"row {part.numbers[index]} to topic {part.topic}: {text}")
            raise row_error
        if code != _OK:
            raise error_of(code, text)

    try:
        yield from common.attempt(part.topic, once, timeout=common.timeout)
    except FerromqError as error:
        if error is row_error:
            raise
        first, last = part.numbers[0], part.numbers[-1]
        which = f"row {first}" if first == last else f"rows {first} to {last}"
        where = "" if request.queue is None else f", queue {request.queue.queue_id} on {request.queue.broker_name}"
        raise named(error, f"{which} to topic {part.topic}{where}") from error.__cause__


def layouts(options: WriteOptions, topics: Iterable[str]) -> dict[str, Layout]:
    """Query the brokers for the current queues of *topics*."""
    client = _client(options)
    try:
        return {topic: layout_of(client, topic) for topic in topics}
    finally:
        close(client)


def _client(options: WriteOptions) -> Client:
    # Requests are large and brokers may be busy, so an attempt has more time than for a single message.
    attempt = max(ATTEMPT, options.timeout / 3)
    tls = options.tls or False
    client = Client("spark writer", Options(options.endpoint, options.timeout, 3, tls=tls, attempt_timeout=attempt))
    if options.is_once:
        # An incomplete layout would send rows of an earlier attempt to other queues, which would store them again.
        client.common.identity.ask_for_whole_routes()
    return client


def close(client: Client) -> None:
    """Unregister and close, within two seconds."""
    client.close(time.monotonic() + 2.0)
