"""Exactly-once rows keep to the queues of the first attempt, whatever brokers and queues exist later."""

import contextlib
import pickle
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType
from waiting import eventually

import ferromq
from ferromq.broker.cluster import route_cache
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import ConfigError, ServerError
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock
from ferromq.spark.options import ClusterAddress
from ferromq.spark.stream.queue_monitor import registered_brokers
from ferromq.spark.write.options import WriteOptions
from ferromq.spark.write.plan import BLOCK
from ferromq.spark.write.send import layouts
from ferromq.spark.write.writer import BatchWriter

FREE = "127.0.0.1:0"
Cluster = tuple[NamesrvController, BrokerController, BrokerController]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Run a name server and two brokers, which both have the topic and wait long for the current route."""
    monkeypatch.setattr(route_cache, "_RENEWAL_SECONDS", 30.0)
    clock = Clock.manual(1_700_000_000_000)
    options = {"listen": FREE, "grpc_listen": FREE, "fast_listen": "off", "commit_log_file_size": "1MiB"}
    with contextlib.ExitStack() as stack:
        name_server = stack.enter_context(
            contextlib.closing(NamesrvController(NameServerConfig(listen=FREE), clock=clock))
        )
        brokers = []
        for name in "ab":
            given = {"store": tmp_path / name, "namesrv": name_server.address, "name": name, **options}
            broker = BrokerController(BrokerConfig.from_options(given), clock=clock)
            brokers.append(stack.enter_context(contextlib.closing(broker)))
        stack.enter_context(contextlib.closing(ferromq.Admin(name_server.address))).create_topic("orders", queues=4)
        yield name_server, brokers[0], brokers[1]


def options(broker: BrokerController, topic: str | None = "orders") -> WriteOptions:
    """Return the options of an exactly-once write."""
    given = {"endpoint": broker.endpoint, "delivery": "exactly-once", "writerId": "w", "timeout": "5"}
    return WriteOptions.parse(given if topic is None else {**given, "topic": topic}, is_stream=False)


def test_the_layout_is_the_same_while_no_name_server_answers(cluster: Cluster) -> None:
    """Whichever broker is queried."""
    name_server, a, b = cluster
    first = layouts(options(a), ["orders"])
    assert len(first["orders"].queues) == 8
    assert layouts(options(b), ["orders"]) == first
    name_server.close()
    assert layouts(options(a), ["orders"]) == first


def test_a_plan_without_one_of_the_brokers_is_rejected(cluster: Cluster) -> None:
    """Its blocks would go to other queues, which do not know the rows of an earlier attempt."""
    name_server, a, b = cluster
    layouts(options(a), ["orders"])
    b.close()
    assert eventually(lambda: registered_brokers(ClusterAddress(namesrv=name_server.address)) == {"a"})
    with pytest.raises(ServerError, match="the broker b has queues of orders and is away"):
        layouts(options(a), ["orders"])


ROWS = 20 * BLOCK


class Killed(Exception):  # noqa: N818 (what becomes of a task)
    """The task was killed."""


def frames(columns: tuple[str, ...], count: int, killed_after: int | None) -> Iterator[pa.RecordBatch]:
    """Yield *count* rows in blocks, and stop like a killed task after the given number of rows."""
    for first in range(0, count, BLOCK):
        if killed_after is not None and first >= killed_after:
            raise Killed
        numbers = [str(row) for row in range(first, first + BLOCK)]
        rows = {
            "body": numbers,
            "topic": ["orders"] * BLOCK,
            "message_group": [f"g{int(row) // 128 % 10}" for row in numbers],
        }
        yield pa.record_batch({name: rows[name] for name in columns})


def write(
    broker: BrokerController,
    *columns: str,
    killed_after: int | None = None,
    epoch: int = 0,
    planned: bytes | None = None,
    begun: Any = None,
) -> bytes:
    """Run an attempt at the only task of a write; return its plan, for another attempt by the same driver."""
    names = ("body", *columns)
    if planned is None:
        schema = StructType([StructField(name, StringType()) for name in names])
        topic = None if "topic" in columns else "orders"
        planned = pickle.dumps(BatchWriter(options(broker, topic), schema))
    task = pickle.loads(planned)
    batches = frames(names, ROWS, killed_after)
    if begun is not None:
        batches = begun(batches)
    with contextlib.suppress(Killed):
        task._write(batches, SimpleNamespace(partitionId=lambda: 3), epoch, "w")
    return planned


def stored(*brokers: BrokerController) -> Counter[int]:
    """Return how often each row is stored, once all messages are dispatched."""
    found: Counter[int] = Counter()
    for broker in brokers:
        while broker.store.stats()["dispatched_offset"] < broker.store.stats()["max_physical_offset"]:
            time.sleep(0.001)
        for queue in range(16):
            offset, end = 0, broker.store.max_offset("orders", queue)
            while offset < end:
                _, messages, offset = broker.store.get("orders", queue, offset, 1000)
                found.update(int(message.body) for message in messages)
    return found


ONCE = dict.fromkeys(range(ROWS), 1)


def alter(name_server: NamesrvController, queues: int) -> None:
    """Set the number of queues of the topic on both brokers, as an operator does."""
    with ferromq.Admin(name_server.address) as admin:
        admin.alter_topic("orders", queues=queues)


@pytest.mark.parametrize("columns", [(), ("topic",)], ids=["option", "column"])
@pytest.mark.parametrize("driver", ["same", "restarted"])
def test_rows_are_stored_once_if_queues_are_added_between_two_attempts(
    cluster: Cluster, columns: tuple[str, ...], driver: str
) -> None:
    """By the same plan or a new one, to the topic of the option or of a column; the next epoch uses all queues."""
    name_server, a, b = cluster
    planned = write(a, *columns, killed_after=ROWS // 2)
    alter(name_server, 8)
    write(a if driver == "same" else b, *columns, planned=planned if driver == "same" else None)
    assert stored(a, b) == ONCE
    assert all(broker.store.max_offset("orders", queue) == 0 for broker in (a, b) for queue in range(4, 8))
    write(b, *columns, epoch=1)
    assert set(stored(a, b).values()) == {2}
    assert any(broker.store.max_offset("orders", queue) for broker in (a, b) for queue in range(4, 8))


def test_concurrent_attempts_store_rows_once_if_queues_are_added_between_their_starts(cluster: Cluster) -> None:
    """Each looks up the topic of the column: the second finds more queues, and uses those of the first."""
    name_server, a, b = cluster

    def overtaken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == ROWS // BLOCK // 2:
                alter(name_server, 8)
                write(b, "topic")
            yield batch

    write(a, "topic", begun=overtaken)
    assert stored(a, b) == ONCE


def test_an_attempt_without_a_queue_of_the_first_one_is_rejected_until_it_is_back(cluster: Cluster) -> None:
    """The error has the topic, both layouts and what to do; a rejected attempt stores nothing."""
    name_server, a, b = cluster
    write(a, killed_after=ROWS // 2)
    before = stored(a, b)
    alter(name_server, 3)
    text = "topic 'orders' had other queues when this batch was first tried: a:0-3;b:0-3; now a:0-2;b:0-2."
    with pytest.raises(ConfigError, match=re.escape(text) + ".*Restore the queues.*'at-least-once'"):
        write(a)
    assert stored(a, b) == before
    alter(name_server, 4)
    a.set_queue_access("orders", 2, "read_only")
    with pytest.raises(ConfigError, match=re.escape("now a:0-1,3;b:0-3.")):
        write(a)
    a.set_queue_access("orders", 2, "open")
    write(a)
    assert stored(a, b) == ONCE


def test_rows_with_message_groups_need_all_queues_of_a_broker_as_they_were(cluster: Cluster) -> None:
    """The broker chooses among all its queues: with more of them groups would move."""
    name_server, a, b = cluster
    write(a, "message_group", killed_after=ROWS // 2)
    alter(name_server, 8)
    with pytest.raises(ConfigError, match="message groups or priorities need all queues"):
        write(a, "message_group")
    alter(name_server, 4)
    write(a, "message_group")
    assert stored(a, b) == ONCE


def test_a_layout_is_kept_over_a_restart_of_its_brokers_and_forgotten_with_its_topic(cluster: Cluster) -> None:
    """A recreated topic holds no row of the first attempt, so all its queues may be used."""
    name_server, a, b = cluster
    write(a, killed_after=ROWS // 2)
    for broker in (a, b):
        broker.close()
    again = [BrokerController(broker.config, clock=broker._clock) for broker in (a, b)]
    with contextlib.closing(again[0]), contextlib.closing(again[1]):
        alter(name_server, 8)
        write(again[1])
        assert stored(*again) == ONCE
        with ferromq.Admin(name_server.address) as admin:
            admin.delete_topic("orders")
            admin.create_topic("orders", queues=2)
        write(again[0])
        assert {len(ONCE)} == {sum(stored(*again).values())}
