"""Deleting a topic: route, messages and the groups' progress go, and its queue offsets are never given twice."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dispatching import dispatched

import ferromq
from ferromq._ferromq import RemotingClient

DELETE_IN_BROKER, INVALID = 215, 29
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ferromq.Embedded]:
    """Start a broker whose topics have one queue."""
    with ferromq.embedded(tmp_path, default_queues=1) as embedded:
        yield embedded


def send(mq: ferromq.Embedded, topic: str, *bodies: bytes) -> list[ferromq.SendReceipt]:
    """Send messages to the queue of a topic."""
    with mq.producer() as producer:
        return [producer.send(topic, body, keys="k") for body in bodies]


def receive(mq: ferromq.Embedded, topic: str, count: int) -> list[tuple[int, bytes]]:
    """Receive and acknowledge messages as the group `billing`."""
    with mq.consumer("billing", topic) as consumer:
        messages = consumer.receive(count, wait=5)
        consumer.ack(messages)
    return [(message.queue_offset, message.body) for message in messages]


def test_a_deleted_topic_is_gone(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """From the list, the route, the store and the group's progress; other topics do not notice."""
    send(mq, "gone", b"1", b"2")
    send(mq, "stays", b"3")
    dispatched(mq)
    assert len(receive(mq, "gone", 1)) == 1
    with mq.admin() as admin:
        assert len(admin.query_by_key("gone", "k")) == 2
        admin.delete_topic("gone")
        assert "gone" not in admin.topics()
        with pytest.raises(ferromq.TopicNotFound, match="gone"):
            admin.query_by_key("gone", "k")
        with pytest.raises(ferromq.TopicNotFound, match="gone"):
            admin.delete_topic("gone")
        # An illegal name gets no advice to create it.
        with pytest.raises(ferromq.IllegalName, match="' '"):
            admin.delete_topic("a b")
        assert "gone" not in mq.store.queues()
        assert mq.store.committed_offset("billing", "gone", 0) is None
        assert [message.body for message in admin.query_by_key("stays", "k")] == [b"3"]


def test_a_recreated_topic_continues_its_offsets_without_its_old_messages(mq: ferromq.Embedded) -> None:
    """A queue offset is given out once; readers begin at the first new message."""
    send(mq, "orders", b"old 0", b"old 1")
    with mq.admin() as admin:
        admin.delete_topic("orders")
    (receipt,) = send(mq, "orders", b"new")
    assert receipt.queue_offset == 2
    assert receive(mq, "orders", 8) == [(2, b"new")]
    assert mq.store.min_offset("orders", 0) == 2


def test_deleted_messages_stay_deleted_after_a_restart(tmp_path: Path) -> None:
    """Although the commit log still holds them."""
    with ferromq.embedded(tmp_path, default_queues=1) as mq:
        send(mq, "orders", b"old")
        with mq.admin() as admin:
            admin.delete_topic("orders")
    with ferromq.embedded(tmp_path, default_queues=1) as mq:
        assert "orders" not in mq.store.queues()
        assert "orders" not in mq.admin().topics()
        assert send(mq, "orders", b"new")[0].queue_offset == 1
        assert receive(mq, "orders", 8) == [(1, b"new")]


def test_a_topic_of_the_system_is_not_deleted(mq: ferromq.Embedded) -> None:
    """The broker refuses; so it does for an illegal name."""
    client = RemotingClient()
    for topic in ("SELF_TEST_TOPIC", "two words"):
        code, remark, *_ = client.call(mq.remoting, DELETE_IN_BROKER, {"topic": topic})
        assert (code, topic.split()[0] in (remark or "")) == (INVALID, True)
    assert client.call(mq.remoting, DELETE_IN_BROKER, {"topic": "never-there"})[0] == 0
    client.close()


def test_unused_queues_are_cleaned(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Queues without a topic, written around the broker; others stay."""
    send(mq, "orders", b"kept")
    mq.store.append("left-over", 3, b"x")
    assert eventually(lambda: "left-over" in mq.store.queues())
    with mq.admin() as admin:
        admin.clean_unused_queues()
    assert list(mq.store.queues()) == ["orders"]
