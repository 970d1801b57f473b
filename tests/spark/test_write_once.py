"""Concurrent attempts at a task, as with speculation: each row is stored once."""

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ferromq
from ferromq.client.client import Client, Options
from ferromq.errors import ConfigError
from ferromq.spark.write import plan
from ferromq.spark.write.layouts import FirstLayouts, layout_of
from ferromq.spark.write.rows import read_rows
from ferromq.spark.write.send import ExactlyOnceBatching, SendRequest, close, send_plan

ROWS = 24
PARTITION = 3


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Serve one broker for all examples."""
    with ferromq.embedded(mixed_topics=True) as mq:
        yield mq


@pytest.fixture(scope="module")
def client(mq: ferromq.Embedded) -> Iterator[Client]:
    """Connect once; the broker does not distinguish senders."""
    client = Client("test", Options(mq.endpoint, 30, attempts=3))
    yield client
    close(client)


class Attempt:
    """An attempt at a task: its requests, and which were answered."""

    def __init__(
        self,
        client: Client,
        topic: str,
        kinds: list[str],
        queues: frozenset[int] | None = None,
        *,
        is_placed: bool = True,
    ) -> None:
        self._client = client
        layout = layout_of(client, topic)
        if queues is not None:
            layout = replace(
                layout,
                queues=tuple(queue for queue in layout.queues if queue.queue_id in queues),
                in_order=tuple(queue for queue in layout.in_order if queue.queue_id in queues),
            )
        batching = ExactlyOnceBatching(PARTITION, FirstLayouts(topic, 0, {topic: layout}, is_placed=is_placed))
        self.requests: list[SendRequest] = []
        half = ROWS // 2
        for first in (0, half):
            some = kinds[first : first + half]
            batch = pa.record_batch(
                {
                    "body": [str(first + index) for index in range(half)],
                    "message_group": pa.array([kind if kind.startswith("g") else None for kind in some], pa.string()),
                    "priority": pa.array([1 if kind == "priority" else None for kind in some], pa.int32()),
                }
            )
            rows = read_rows(batch, first, topic, f"{topic}/{PARTITION}/0")
            self.requests += batching.requests(client, rows, first, half)
        self.left = list(range(len(self.requests)))

    def ready(self) -> list[int]:
        """Return the requests that may be in flight now."""

        def waits(at: int) -> bool:
            order = self.requests[at].order
            assert order is not None
            return any(order == self.requests[before].order for before in self.left if before < at)

        return [at for at in self.left if not waits(at)]

    def send(self, at: int) -> None:
        """Deliver a request to the broker; its answer may be lost."""
        self._client.run(send_plan(self._client.common, self.requests[at]))


def stored(mq: ferromq.Embedded, topic: str) -> list[list[int]]:
    """Return the rows in each queue, in order, once all messages are dispatched."""
    while mq.store.stats()["dispatched_offset"] < mq.store.stats()["max_physical_offset"]:
        time.sleep(0.001)
    found = []
    with mq.consumer("checker", topic) as consumer:
        for queue in consumer.queues():
            offset, end = 0, consumer.offset_at(queue, "end")
            rows: list[int] = []
            while offset < end:
                messages, offset = consumer.pull(queue, offset, 1000)
                assert all("FERROMQ_SEQUENCE" not in message.properties for message in messages)
                rows += [int(message.body) for message in messages]
            found.append(rows)
    return found


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(["plain"] * 6 + ["g1", "g2", "priority"]), min_size=ROWS, max_size=ROWS)
    | st.just(["plain"] * ROWS),
    data=st.data(),
)
def test_concurrent_attempts_store_each_row_once(
    mq: ferromq.Embedded, client: Client, kinds: list[str], data: st.DataObject
) -> None:
    """Two attempts interleave at random; answers are lost, requests arrive late, and attempts restart."""
    topic = f"t{uuid.uuid4().hex}"
    with mq.admin() as admin:
        admin.create_topic(topic, message_type="MIXED")
    with mock.patch.multiple(plan, BLOCK=2, MAX_ROWS=3):
        attempts = [Attempt(client, topic, kinds) for _ in range(2)]
        late: list[tuple[Attempt, int]] = []
        for _ in range(data.draw(st.integers(0, 30), "steps")):
            number = data.draw(st.sampled_from([0, 1]), "attempt")
            attempt = attempts[number]
            ready = attempt.ready()
            if not ready:
                continue
            at = data.draw(st.sampled_from(ready), "request")
            match data.draw(st.sampled_from(["answered", "lost", "late", "killed"]), "fate"):
                case "answered":
                    attempt.send(at)
                    attempt.left.remove(at)
                case "lost":
                    attempt.send(at)
                case "late":
                    late.append((attempt, at))
                case "killed":
                    attempt.send(at)
                    attempts[number] = Attempt(client, topic, kinds)
            if late and data.draw(st.booleans(), "a late request"):
                before, at = late.pop(data.draw(st.integers(0, len(late) - 1)))
                before.send(at)
        last = attempts[data.draw(st.sampled_from([0, 1]), "who ends")]
        while ready := last.ready():
            at = data.draw(st.sampled_from(ready), "request")
            last.send(at)
            last.left.remove(at)
        for before, at in late:
            before.send(at)
    found = stored(mq, topic)
    assert Counter(row for rows in found for row in rows) == dict.fromkeys(range(ROWS), 1)
    assert all(rows == sorted(rows) for rows in found)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.frozensets(st.integers(0, 3), min_size=1),
    after=st.frozensets(st.integers(0, 3), min_size=1),
    data=st.data(),
)
def test_rows_are_stored_once_or_rejected_if_queues_change_between_two_attempts(
    mq: ferromq.Embedded, client: Client, before: frozenset[int], after: frozenset[int], data: st.DataObject
) -> None:
    """If the second attempt finds all queues of the first it uses those; otherwise it sends nothing."""
    topic = f"t{uuid.uuid4().hex}"
    with mq.admin() as admin:
        admin.create_topic(topic, 4)
    kinds = ["plain"] * ROWS
    with mock.patch.multiple(plan, BLOCK=2, MAX_ROWS=3):
        killed = Attempt(client, topic, kinds, before, is_placed=False)
        for _ in range(data.draw(st.integers(0, len(killed.requests)), "answered before the kill")):
            at = data.draw(st.sampled_from(killed.ready()), "request")
            killed.send(at)
            killed.left.remove(at)
        if not before <= after:
            with pytest.raises(ConfigError, match="had other queues when this batch was first tried"):
                Attempt(client, topic, kinds, after, is_placed=False)
            after = before
        again = Attempt(client, topic, kinds, after, is_placed=False)
        for at in again.left:
            again.send(at)
    found = stored(mq, topic)
    assert Counter(row for rows in found for row in rows) == dict.fromkeys(range(ROWS), 1)
    assert {queue for queue, rows in enumerate(found) if rows} <= before
