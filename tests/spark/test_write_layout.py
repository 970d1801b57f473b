"""Rows that are stored once keep to the queues of the first plan, whatever brokers are there when it is made again."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import ferromq
from ferromq._time import Clock
from ferromq.broker.controller import BrokerController
from ferromq.config import BrokerConfig, NameServerConfig
from ferromq.errors import ServerError
from ferromq.namesrv.server import NamesrvController
from ferromq.spark.write_options import WriteOptions
from ferromq.spark.write_send import layouts

FREE = "127.0.0.1:0"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[NamesrvController, BrokerController, BrokerController]]:
    """Run a name server and two brokers, which both have the topic."""
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


def options(broker: BrokerController) -> WriteOptions:
    """Return the options of a write that stores each row once."""
    given = {
        "endpoint": broker.endpoint,
        "topic": "orders",
        "delivery": "exactly-once",
        "writerId": "w",
        "timeout": "5",
    }
    return WriteOptions.parse(given, is_stream=False)


def test_the_layout_is_the_same_while_no_name_server_answers(
    cluster: tuple[NamesrvController, BrokerController, BrokerController],
) -> None:
    """And whichever broker is asked."""
    name_server, a, b = cluster
    first = layouts(options(a), ["orders"])
    assert len(first["orders"].queues) == 8
    assert layouts(options(b), ["orders"]) == first
    name_server.close()
    assert layouts(options(a), ["orders"]) == first


def test_a_plan_without_one_of_the_brokers_is_refused(
    cluster: tuple[NamesrvController, BrokerController, BrokerController],
) -> None:
    """Its blocks would go to other queues, which do not know what an earlier try stored."""
    _, a, b = cluster
    layouts(options(a), ["orders"])
    b.close()
    with pytest.raises(ServerError, match="the broker b has queues of orders and is away"):
        layouts(options(a), ["orders"])
