"""Closing a queue: for writing, so that it drains, or for both; and opening it again."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from dispatching import dispatched

import ferromq

GROUPS = itertools.count()


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ferromq.Embedded]:
    """Start a broker with a topic of two queues."""
    with ferromq.embedded(tmp_path, default_queues=2) as embedded:
        with embedded.producer() as producer:
            for number in range(4):
                producer.send("orders", b"%d" % number)
        yield embedded


def queues_used(mq: ferromq.Embedded, producer: ferromq.Producer | None = None) -> set[int]:
    """Send some messages and return the queues they went to."""
    with producer or mq.producer() as sender:
        return {sender.send("orders", b"more").queue_id for _ in range(6)}


def queues_read(mq: ferromq.Embedded) -> set[int]:
    """Receive what a new group gets and return the queues it came from."""
    dispatched(mq)
    with mq.consumer(f"readers-{next(GROUPS)}", "orders") as consumer:
        found = set()
        while batch := consumer.receive(32, wait=0.2):
            found |= {message.queue_id for message in batch}
            consumer.ack(batch)
    return found


def test_a_queue_closed_for_writing_drains(mq: ferromq.Embedded) -> None:
    """Producers use the others, also those that had the old route; consumers still get what it holds."""
    with mq.producer() as producer:
        assert {producer.send("orders", b"warm").queue_id for _ in range(6)} == {0, 1}
        mq.broker.set_queue_access("orders", 1, "read_only")
        assert {producer.send("orders", b"more").queue_id for _ in range(6)} == {0}
    assert queues_used(mq) == {0}
    assert queues_read(mq) == {0, 1}
    mq.broker.set_queue_access("orders", 1, "open")
    assert queues_used(mq) == {0, 1}


def test_a_closed_queue_is_neither_written_nor_read(mq: ferromq.Embedded) -> None:
    """Opened again, it has kept its messages."""
    mq.broker.set_queue_access("orders", 0, "closed")
    assert queues_used(mq) == {1}
    assert queues_read(mq) == {1}
    mq.broker.set_queue_access("orders", 0, "open")
    assert queues_read(mq) == {0, 1}


def test_with_every_queue_closed_the_refusal_says_so(mq: ferromq.Embedded) -> None:
    """A send is `Forbidden`; nothing is stored."""
    before = mq.store.stats()["appended"]
    for queue_id in (0, 1):
        mq.broker.set_queue_access("orders", queue_id, "read_only")
    with mq.producer() as producer, pytest.raises(ferromq.Forbidden) as refused:
        producer.send("orders", b"x")
    assert "the queues 0, 1" in str(refused.value)
    assert "set_queue_access('orders', 0, \"open\")" in str(refused.value)
    assert "end the drain of a broker with resume_broker(BROKER)" in str(refused.value)
    with pytest.raises(ferromq.Forbidden, match="closed"):
        mq.store.append("orders", 1, b"x")
    assert mq.store.stats()["appended"] == before


def test_a_closed_queue_stays_closed_across_a_restart(tmp_path: Path) -> None:
    """Until it is opened."""
    with ferromq.embedded(tmp_path, default_queues=2) as mq:
        queues_used(mq)
        mq.broker.set_queue_access("orders", 1, "read_only")
    with ferromq.embedded(tmp_path, default_queues=2) as mq:
        assert queues_used(mq) == {0}
        assert [mq.store.queue_access("orders", queue_id) for queue_id in (0, 1)] == ["open", "read_only"]


def test_what_cannot_be_closed_is_named(mq: ferromq.Embedded) -> None:
    """A missing queue, and an unknown word."""
    with pytest.raises(ferromq.TopicNotFound, match="queue 2 of the topic orders"):
        mq.broker.set_queue_access("orders", 2, "closed")
    with pytest.raises(ferromq.ConfigError, match="ajar"):
        mq.broker.set_queue_access("orders", 1, "ajar")
    with pytest.raises(ferromq.ConfigError, match="queue_id is '0'"):
        mq.broker.set_queue_access("orders", "0", "closed")  # type: ignore[arg-type] # what is tested
