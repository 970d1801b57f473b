"""Receipts name the broker that stored the message."""

import asyncio
from collections.abc import Iterator

import pytest

import ferromq
import ferromq.aio


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Start a broker with a name."""
    with ferromq.embedded(name="broker-of-receipts") as mq:
        yield mq


def test_each_receipt_names_the_broker(mq: ferromq.Embedded) -> None:
    """The first send looks up the route, a later one goes through the Rust core."""
    with mq.producer() as producer:
        receipts = [producer.send("named", b"1"), producer.send("named", b"2")]
        receipts += [*producer.send_all("named", [b"3", b"4"]), producer.submit("named", b"5").result()]
    assert [receipt.broker_name for receipt in receipts] == ["broker-of-receipts"] * 5


def test_each_awaited_receipt_names_the_broker(mq: ferromq.Embedded) -> None:
    """As those of the synchronous producer."""

    async def run() -> list[ferromq.SendReceipt]:
        async with ferromq.aio.Producer(mq.endpoint) as producer:
            receipts = [await producer.send("named", b"1"), await producer.send("named", b"2")]
            return [*receipts, *await producer.send_all("named", [b"3"]), await (await producer.submit("named", b"4"))]

    assert [receipt.broker_name for receipt in asyncio.run(run())] == ["broker-of-receipts"] * 4
