"""How many one-KiB messages a second does the Python consumer receive and acknowledge? The broker embedded."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import ferromq

BODY = b"x" * 1024
MANY = 100_000
GROUPS = (f"group-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Yield a broker with a backlog; each round reads it in a group of its own."""
    with ferromq.embedded() as mq:
        with mq.producer() as producer:
            producer.send_all("bench", [BODY] * MANY)
        yield mq


def told(benchmark: Any, what: str, count: int) -> None:
    """Print messages a second."""
    print(f"\n{what}: {count / benchmark.stats.stats.median:,.0f} messages/s")


def test_iterate_and_ack(benchmark: Any, mq: ferromq.Embedded) -> None:
    """A loop over the consumer, each message acknowledged in the background."""

    def consume() -> None:
        with mq.consumer(next(GROUPS), "bench") as consumer:
            for message in itertools.islice(consumer, MANY):
                message.ack()

    benchmark.pedantic(consume, rounds=5, warmup_rounds=1)
    told(benchmark, "iterate, ack", MANY)


@pytest.mark.parametrize(("size", "count"), [(1000, MANY), (32, MANY // 10)])
def test_receive_and_ack(benchmark: Any, mq: ferromq.Embedded, size: int, count: int) -> None:
    """Calls of `receive` and `ack`, one after the other."""

    def consume() -> None:
        with mq.consumer(next(GROUPS), "bench") as consumer:
            left = count
            while left > 0:
                messages = consumer.receive(size)
                consumer.ack(messages)
                left -= len(messages)

    benchmark.pedantic(consume, rounds=5, warmup_rounds=1)
    told(benchmark, f"receive({size}), ack", count)


def test_wake_up(benchmark: Any, mq: ferromq.Embedded) -> None:
    """From a send to the end of a receive that waited for it, and its acknowledgement."""
    with mq.producer() as producer, mq.consumer("wake", "wake") as consumer:

        def once() -> None:
            producer.send("wake", BODY)
            consumer.ack(consumer.receive(1))

        benchmark.pedantic(once, rounds=500, warmup_rounds=20)
    told(benchmark, "send, receive, ack", 1)
