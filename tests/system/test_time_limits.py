"""A producer's `timeout` bounds a whole call, and `close` ends in its time, whatever hangs."""

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest
from machine import in_load

import ferromq
import ferromq.aio
from ferromq.errors import FerromqError, OutcomeUnknown

pytestmark = pytest.mark.alone
LATE = 0.2


@pytest.fixture
def hung() -> Iterator[str]:
    """Return the endpoint of a broker that takes connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_send_ends_in_its_time(hung: str) -> None:
    """That of the call, or the producer's; looking up the route counts."""
    with ferromq.Producer(f"{hung};{hung}", timeout=0.8) as producer:
        for given in (None, 0.4):
            begin = time.monotonic()
            with pytest.raises(OutcomeUnknown):
                producer.send("orders", b"x", timeout=given)
            assert time.monotonic() - begin < (given or 0.8) + in_load(LATE)


def test_an_awaited_send_ends_in_its_time(hung: str) -> None:
    """So it does without threads."""

    async def send() -> float:
        async with ferromq.aio.Producer(hung) as producer:
            begin = time.monotonic()
            with pytest.raises(OutcomeUnknown):
                await producer.send("orders", b"x", timeout=0.4)
            return time.monotonic() - begin

    assert asyncio.run(send()) < 0.4 + in_load(LATE)


def test_a_producer_is_closed_in_its_time(hung: str) -> None:
    """Its unsent messages are reported as failed."""
    producer = ferromq.Producer(hung)
    future = producer.submit("orders", b"x")
    begin = time.monotonic()
    producer.close(timeout=0.5)
    assert time.monotonic() - begin < 0.5 + in_load(LATE)
    with pytest.raises(FerromqError):
        future.result(timeout=5)


def test_a_time_below_zero_is_refused(hung: str) -> None:
    """At the call."""
    with ferromq.Producer(hung) as producer, pytest.raises(ValueError, match="cannot be negative"):
        producer.send("orders", b"x", timeout=-1)
