"""A closed client raises an error of its own, which no retry loop takes for a lost connection."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consumer_shells import PATIENCE, SHELLS, Shell
from contract import EACH_WAY
from grpc_proxy import GrpcProxy

import ferromq
from ferromq import aio


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker with two messages of the topic `orders`."""
    with ferromq.embedded() as embedded:
        with embedded.producer() as producer:
            producer.send_all("orders", [b"x", b"y"])
        yield embedded


def is_told(call: Callable[[], object]) -> None:
    """Check the error of a call."""
    with pytest.raises(ferromq.ClientClosed, match="closed") as caught:
        call()
    assert not isinstance(caught.value, ferromq.OutcomeUnknown | ConnectionError)


@EACH_WAY
def test_a_closed_consumer(mq: ferromq.Embedded, shell: Shell) -> None:
    """By every call; closing it again is no error."""
    with shell(mq, "billing", "orders") as consumer:
        messages: list[ferromq.MessageView] = []
        while len(messages) < 2:
            messages += consumer.receive(2, wait=PATIENCE)
        acked, open_one = messages
        consumer.ack(acked)
        consumer.close()
        consumer.close()
        for call in (
            consumer.receive,
            consumer.flush,
            lambda: consumer.ack(open_one),
            lambda: consumer.ack_later(open_one),
            lambda: consumer.forward(open_one),
            lambda: consumer.change(open_one, 1),
            lambda: consumer.run(print),
            lambda: consumer.iterate(bool),
        ):
            is_told(call)


@EACH_WAY
def test_a_closed_producer(mq: ferromq.Embedded, shell: Shell) -> None:
    """The same."""
    with shell.producer(mq) as producer:
        producer.send("orders", b"x")
        producer.close()
        producer.close()
        for call in (
            lambda: producer.send("orders", b"x"),
            lambda: producer.submit("orders", b"x"),
            lambda: producer.send_all("orders", [b"x"]),
        ):
            is_told(call)


def test_what_is_submitted_while_a_producer_of_asyncio_closes_ends(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its future would be pending for ever: no task would send it."""

    async def program() -> None:
        producer = aio.Producer(mq.endpoint, linger=3600)
        await producer.send("orders", b"x")
        flush, late = producer._submitted.flush, list[asyncio.Future[ferromq.SendReceipt]]()

        async def flush_and_submit(until: float) -> bool:
            is_all = await flush(until)
            late.append(await producer.submit("orders", b"late"))
            return is_all

        monkeypatch.setattr(producer._submitted, "flush", flush_and_submit)
        await producer.close()
        with pytest.raises(ferromq.ClientClosed):
            await asyncio.wait_for(late[0], PATIENCE)

    asyncio.run(program())


def test_a_closed_administrator(mq: ferromq.Embedded) -> None:
    """The synchronous one."""
    admin = mq.admin()
    admin.close()
    calls: list[Callable[[], Any]] = [admin.topics, lambda: admin.create_group("g")]
    for call in calls:
        is_told(call)


def test_a_broker_that_is_not_there_is_named(mq: ferromq.Embedded) -> None:
    """With the reason, not in the transport's words."""
    mq.close()
    with (
        ferromq.Producer(mq.endpoint, timeout=30, attempts=1) as producer,
        pytest.raises(ferromq.ConnectionFailed) as caught,
    ):
        producer.send("orders", b"x")
    assert str(caught.value) == f"cannot reach broker {mq.endpoint} (connection refused)"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
def test_a_lost_connection_and_its_return_are_logged(
    mq: ferromq.Embedded,
    shell: Shell,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[[Callable[[], bool]], bool],
) -> None:
    """Once each, with the broker's name."""
    caplog.set_level(logging.WARNING)

    def is_logged(text: str) -> bool:
        return sum(text in record.getMessage() for record in list(caplog.records)) == 1

    with GrpcProxy(mq.endpoint) as proxy, shell(proxy, "billing", "orders") as consumer:
        assert consumer.receive(wait=PATIENCE)
        proxy.drop_streams()
        assert eventually(lambda: is_logged(f"lost connection to broker {proxy.endpoint}, reconnecting"))
        assert eventually(lambda: is_logged(f"connected to broker {proxy.endpoint} again"))
