"""How many one-KiB messages a second does the Python producer send? The broker embedded."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import ferromq

BODY = b"x" * 1024
MANY = 100_000
FLOOR = 520_000
"""grpcio carrying pre-encoded bytes to a server that only counts, 256 messages a call (docs/decisions/005)."""


@pytest.fixture
def producer() -> Iterator[ferromq.Producer]:
    """Yield a producer that is connected."""
    with ferromq.embedded() as mq, mq.producer() as producer:
        producer.send("bench", BODY)
        yield producer


def told(benchmark: Any, what: str, count: int) -> None:
    """Print messages a second beside the floor."""
    rate = count / benchmark.stats.stats.median
    print(f"\n{what}: {rate:,.0f} messages/s (floor of the channel: {FLOOR:,}/s)")


def test_send_all(benchmark: Any, producer: ferromq.Producer) -> None:
    """Bare bodies, batches of 256."""
    bodies = [BODY] * MANY
    benchmark.pedantic(lambda: producer.send_all("bench", bodies), rounds=5, warmup_rounds=1)
    told(benchmark, "send_all, bytes", MANY)


def test_send_all_with_headers(benchmark: Any, producer: ferromq.Producer) -> None:
    """Messages with key, tag and one property, made anew each round."""

    def send() -> None:
        messages = (ferromq.Message(BODY, keys=f"k-{n}", tag="new", properties={"n": str(n)}) for n in range(MANY))
        producer.send_all("bench", messages)

    benchmark.pedantic(send, rounds=5, warmup_rounds=1)
    told(benchmark, "send_all, messages with headers", MANY)


def test_submit(benchmark: Any, producer: ferromq.Producer) -> None:
    """One call a message, gathered in the background, a future each."""

    def send() -> None:
        futures = [producer.submit("bench", BODY) for _ in range(20_000)]
        producer.flush(timedelta(seconds=30))
        assert all(future.done() for future in futures)

    benchmark.pedantic(send, rounds=5, warmup_rounds=1)
    told(benchmark, "submit", 20_000)


def test_send(benchmark: Any, producer: ferromq.Producer) -> None:
    """One request a message, one after the other: the latency of a send."""
    benchmark.pedantic(lambda: producer.send("bench", BODY), rounds=2000, warmup_rounds=100)
    told(benchmark, "send, one by one", 1)
