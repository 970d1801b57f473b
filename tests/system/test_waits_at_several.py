"""A receive of several topics waits at its brokers at once: what ends such a wait early, and what must not delay it."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from machine import in_load
from ports import kept_port
from tls_files import SHOWN

import ferromq
from ferromq import aio
from ferromq.testing.fault_proxy import FaultProxy

_WAIT = 15.0
_SOON = 5.0


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker with two topics."""
    with ferromq.embedded(**SHOWN) as embedded:
        with embedded.admin() as admin:
            admin.create_topic("orders", 2)
            admin.create_topic("prices", 2)
        yield embedded


def send(mq: ferromq.Embedded, *bodies: bytes) -> None:
    """Send messages to one of the topics."""
    with mq.producer() as producer:
        producer.send_all("orders", list(bodies))


def test_a_wait_whose_connection_breaks_is_repeated(tls: bool | Path) -> None:
    """What comes next is received soon, not once the wait is over."""
    with (
        kept_port() as address,
        FaultProxy(address) as proxy,
        ferromq.embedded(grpc_listen=address, grpc_advertise=proxy.address, **SHOWN) as mq,
    ):
        break_the_wait(mq, proxy, tls)


def break_the_wait(mq: ferromq.Embedded, proxy: FaultProxy, tls: bool | Path) -> None:
    """Send a message after the connection of a receive broke."""
    with mq.admin() as admin:
        admin.create_topic("orders", 2)
        admin.create_topic("prices", 2)
    with (
        ferromq.Consumer(proxy.address, "billing", ["orders", "prices"], tls=tls) as consumer,
        ThreadPoolExecutor() as pool,
    ):
        assert consumer.receive(wait=0.5) == []
        receiving = pool.submit(consumer.receive, wait=_WAIT)
        time.sleep(1.0)
        proxy.drop()
        time.sleep(0.5)
        begin = time.monotonic()
        send(mq, b"1")
        assert [message.body for message in receiving.result()] == [b"1"]
        assert time.monotonic() - begin < in_load(_SOON)


def test_threads_that_wait_together_each_get_a_message_soon(mq: ferromq.Embedded, tls: bool | Path) -> None:
    """The broker answers one wait for all of them."""
    with mq.consumer("billing", ["orders", "prices"], tls=tls) as consumer, ThreadPoolExecutor() as pool:
        receiving = [pool.submit(consumer.receive, 1, wait=_WAIT) for _ in range(3)]
        time.sleep(1.0)
        begin = time.monotonic()
        send(mq, b"1", b"2", b"3")
        assert sorted(each.result()[0].body for each in receiving) == [b"1", b"2", b"3"]
        assert time.monotonic() - begin < in_load(_SOON)


def test_tasks_that_wait_together_each_get_a_message_soon(mq: ferromq.Embedded, tls: bool | Path) -> None:
    """As threads."""

    async def receive() -> float:
        async with aio.Consumer(mq.endpoint, "billing", ["orders", "prices"], tls=tls) as consumer:
            receiving = [asyncio.create_task(consumer.receive(1, wait=_WAIT)) for _ in range(3)]
            await asyncio.sleep(1.0)
            begin = time.monotonic()
            await asyncio.to_thread(send, mq, b"1", b"2", b"3")
            received = await asyncio.gather(*receiving)
            assert sorted(messages[0].body for messages in received) == [b"1", b"2", b"3"]
            return time.monotonic() - begin

    assert asyncio.run(receive()) < in_load(_SOON)
