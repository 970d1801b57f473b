"""
Sends the messages of one task: at least once through the producer, or once by the numbers the brokers know.

What is stored once is sent one request after the other: nothing may overtake a row that was not answered.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Protocol

from ferromq import _ferromq
from ferromq.client._batching import MAX_BYTES, size
from ferromq.client._client import Client, Options
from ferromq.client._plans import Tries
from ferromq.client._protocol import Call, Join, Plan, error_of
from ferromq.client._routes import Queue
from ferromq.client._send_plans import reserve_ids
from ferromq.client.producer import Producer
from ferromq.errors import FerromqError
from ferromq.spark.write_options import WriteOptions
from ferromq.spark.write_plan import Layout
from ferromq.spark.write_rows import Outgoing, RowError

_OK = 20000
_NAMED = re.compile(r"(?:message|messages) (\d+)(?: to (\d+))?")


class Sender(Protocol):
    """What a task sends with."""

    def send(self, rows: list[Outgoing]) -> None:
        """Send rows in order and return once they are stored. Raises for the first that is not."""

    def close(self) -> None:
        """End the connections."""


class EachSender:
    """Stores every row at least once."""

    def __init__(self, options: WriteOptions) -> None:
        self._producer = Producer(options.endpoint, timeout=options.timeout)

    def send(self, rows: list[Outgoing]) -> None:
        """Send rows; those of one topic and group stay in order."""
        by_topic: dict[str, list[Outgoing]] = {}
        for row in rows:
            by_topic.setdefault(row.topic, []).append(row)
        for topic, some in by_topic.items():
            try:
                self._producer.send_all(topic, [row.message for row in some])
            except (FerromqError, ValueError) as error:
                raise _of_rows(error, topic, some) from error

    def close(self) -> None:
        """End the connections."""
        self._producer.close()


def _of_rows(error: Exception, topic: str, rows: list[Outgoing]) -> Exception:
    """Return an error that names rows where the producer's names messages."""
    found = _NAMED.match(str(error))
    if found is None:
        return RowError(f"rows {rows[0].row} to {rows[-1].row} to topic {topic}: {error}")
    first, last = int(found[1]), int(found[2] or found[1])
    which = f"row {rows[first].row}" if first == last else f"rows {rows[first].row} to {rows[last].row}"
    column = "column 'body'" if "body" in str(error) else f"topic {topic}"
    return RowError(f"{which}, {column}: {str(error)[found.end() :].lstrip(': ')}")


class OnceSender:
    """Stores every row once; *layouts* are the queues when the write was planned."""

    def __init__(self, options: WriteOptions, partition: int, layouts: Mapping[str, Layout]) -> None:
        self._client = Client("spark writer", Options(options.endpoint, options.timeout, attempts=3))
        self._partition = partition
        self._layouts = dict(layouts)

    def send(self, rows: list[Outgoing]) -> None:
        """Send rows one request after the other."""
        for queue, some in self._requests(rows):
            self._client.run(self._sent(queue, some))

    def _requests(self, rows: list[Outgoing]) -> Iterator[tuple[Queue, list[Outgoing]]]:
        """Cut rows into requests: of one topic, queue and group, and not larger than one may be."""
        for (queue, _, _, alone), some in groupby(rows, self._place):
            request: list[Outgoing] = []
            length = 0
            for row in some:
                more = size(row.message)
                if request and (alone is not None or length + more > MAX_BYTES):
                    yield queue, request
                    request, length = [], 0
                request.append(row)
                length += more
            yield queue, request

    def _place(self, row: Outgoing) -> tuple[Queue, str, str | None, int | None]:
        layout = self._layouts.get(row.topic)
        if layout is None:
            layout = self._layouts[row.topic] = layout_of(self._client, row.topic)
        grouped = row.group is not None
        queue = layout.of_group(str(row.group)) if grouped else layout.queue_of(self._partition, row.row)
        return queue, row.topic, row.group, row.row if row.is_alone else None

    def _sent(self, queue: Queue, rows: list[Outgoing]) -> Plan[None]:
        common = self._client.common
        topic, messages = rows[0].topic, [row.message for row in rows]
        ids = reserve_ids(common, len(messages))
        born = common.wall()

        def once(_tries: Tries) -> Plan[None]:
            yield Join(queue.endpoint, common.timeout, topic)
            for row in rows:
                if (length := size(row.message)) > common.max_body:
                    raise RowError(f"row {row.row}: column 'body' has {length} bytes; the limit is {common.max_body}")
            request = _ferromq.encode_send(
                topic, messages, ids, queue.queue_id, born, common.identity.host, common.max_body, None
            )
            answer = yield Call(queue.endpoint, "SendMessage", request, common.timeout)
            code, text, _, failures, _ = _ferromq.decode_sent(answer)
            if failures:
                index, code, text = failures[0]
                raise error_of(code, f"row {rows[index].row}, topic {topic}: {text}")
            if code != _OK:
                which = f"row {rows[0].row}" if len(rows) == 1 else f"rows {rows[0].row} to {rows[-1].row}"
                raise error_of(code, f"{which} to queue {queue.queue_id} of {topic} on {queue.broker_name}: {text}")

        yield from common.attempt(topic, once)

    def close(self) -> None:
        """End the connections."""
        close(self._client)


def layout_of(client: Client, topic: str) -> Layout:
    """Ask the brokers for the queues of a topic."""
    return Layout.of(client.run(client.common.route(topic)))


def layouts(options: WriteOptions, topics: Iterable[str]) -> dict[str, Layout]:
    """Ask the brokers for the queues of *topics* as they are now."""
    client = Client("spark writer", Options(options.endpoint, options.timeout, attempts=3))
    try:
        return {topic: layout_of(client, topic) for topic in topics}
    finally:
        close(client)


def close(client: Client) -> None:
    """Say good-bye within two seconds."""
    client.close(time.monotonic() + 2.0)
