"""Direct sends to a topic on two brokers of which one does not answer: they go on, to the other one."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import FAULTS, Fault, FaultProxy
from ports import kept_port

import ferromq
from ferromq import aio
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.core import routes, send_plans
from ferromq.namesrv.server import NamesrvController

FREE = "127.0.0.1:0"
PATIENCE = 30.0
Eventually = Callable[[Callable[[], bool]], bool]


class Cluster:
    """Two brokers with a topic of two queues each; clients reach the second one by a proxy."""

    def __init__(self, directory: Path, proxy: FaultProxy, stack: contextlib.ExitStack) -> None:
        self.proxy = proxy
        name_server = stack.enter_context(contextlib.closing(NamesrvController(NameServerConfig(listen=FREE))))

        def start(name: str, **more: str) -> BrokerController:
            options = {"listen": FREE, "grpc_listen": FREE, "fast_listen": "off", "commit_log_file_size": "1MiB"}
            given = {"store": directory / name, "namesrv": name_server.address, "name": name, **options, **more}
            return stack.enter_context(contextlib.closing(BrokerController(BrokerConfig.from_options(given))))

        self.healthy = start("a")
        self.other = start("b", grpc_listen=proxy.target, grpc_advertise=proxy.address)
        with ferromq.Admin(name_server.address) as admin:
            for topic in ("orders", "prices"):
                admin.create_topic(topic, queues=2)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Yield it. A broker that failed is avoided for the whole test."""
    monkeypatch.setattr(routes, "_AVOIDED", 10 * PATIENCE)
    with kept_port() as address, FaultProxy(address) as proxy, contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, proxy, stack)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the topics of the sends that the core did not do alone; the list grows with each."""
    seen: list[str] = []
    whole = send_plans.send

    def send(common: Any, topic: str, *arguments: Any, **options: Any) -> Any:
        seen.append(topic)
        return whole(common, topic, *arguments, **options)

    monkeypatch.setattr(send_plans, "send", send)
    return seen


@pytest.fixture(params=list(FAULTS))
def fault(request: pytest.FixtureRequest) -> Fault:
    """Return each fault."""
    return FAULTS[request.param]


def is_direct(producer: "ferromq.Producer[bytes] | aio.Producer[bytes]", cluster: Cluster, topic: str) -> bool:
    """Return whether the core sends to the topic, at both brokers."""
    client = producer._client if isinstance(producer, ferromq.Producer) else producer._client.base
    sends = client.channels.sends
    both = {cluster.healthy.endpoint, cluster.proxy.address} <= client.channels.framed.keys()
    return both and sends is not None and sends.has_route(topic)


def test_the_core_goes_on_with_the_broker_that_answers(
    cluster: Cluster, fault: Fault, eventually: Eventually, plans: list[str]
) -> None:
    """For all topics, also for one without a failure; and also where the client has left the broker."""
    with ferromq.Producer(cluster.healthy.endpoint, timeout=PATIENCE) as producer:
        for topic in ("orders", "prices"):

            def is_ready(topic: str = topic) -> bool:
                producer.send(topic, b"x")
                return is_direct(producer, cluster, topic)

            assert eventually(is_ready)
        assert {producer.send("orders", b"x").broker_name for _ in range(4)} == {"a", "b"}
        producer._client.common.attempt_timeout = 1.0
        fault(cluster.proxy)
        end = time.monotonic() + PATIENCE
        while not producer._client.common.routes.failing():
            producer.send("orders", b"x")
            assert time.monotonic() < end
        plans.clear()
        for topic in ("orders", "prices"):
            assert {producer.send(topic, b"x").broker_name for _ in range(50)} == {"a"}
        producer._client.channels.forget(cluster.proxy.address)
        for topic in ("orders", "prices"):
            assert {producer.send(topic, b"x").broker_name for _ in range(50)} == {"a"}
        assert plans in ([], ["orders", "prices"]), "a plan puts a route that was dropped, and no other send needs one"


def test_it_is_sent_to_again_once_it_answers(cluster: Cluster, eventually: Eventually, plans: list[str]) -> None:
    """A broker that restarted does not wait for the end of its time."""
    with ferromq.Producer(cluster.healthy.endpoint, timeout=PATIENCE) as producer:

        def is_ready() -> bool:
            producer.send("orders", b"x")
            return is_direct(producer, cluster, "orders")

        assert eventually(is_ready)
        producer._client.common.routes.failed(cluster.proxy.address)
        assert {producer.send("orders", b"x").broker_name for _ in range(8)} == {"a"}
        producer._client.common.routes.answered(cluster.proxy.address)
        plans.clear()
        assert {producer.send("orders", b"x").broker_name for _ in range(8)} == {"a", "b"}
        assert not plans


def test_tasks_go_on_with_the_broker_that_answers(cluster: Cluster, fault: Fault, plans: list[str]) -> None:
    """Without a plan for each."""

    async def program() -> None:
        async with aio.Producer(cluster.healthy.endpoint, timeout=PATIENCE) as producer, asyncio.timeout(2 * PATIENCE):
            while not is_direct(producer, cluster, "orders"):
                await producer.send("orders", b"x")
            producer._client.common.attempt_timeout = 1.0
            fault(cluster.proxy)
            while not producer._client.common.routes.failing():
                await producer.send("orders", b"x")
            await producer.send("orders", b"x")
            plans.clear()
            sent = await asyncio.gather(*(producer.send("orders", b"x") for _ in range(64)))
            assert {receipt.broker_name for receipt in sent} == {"a"}
            assert not plans

    asyncio.run(program())
