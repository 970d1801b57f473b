"""The pages of the dashboard on RocketMQ's own name server and broker."""

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from dashboards import Visitor, served
from java_processes import JavaServers
from waiting import eventually

import ferromq

PATIENCE = 60.0


@pytest.fixture(scope="module")
def namesrv(servers: JavaServers) -> str:
    """Return the address of RocketMQ's name server, with a topic and a group at its broker."""
    with ferromq.Admin(servers.namesrv, timeout=PATIENCE) as admin:
        admin.create_topic("orders", 1)
        admin.create_group("billing")
    return servers.namesrv


@pytest.fixture(scope="module")
def visitor(namesrv: str) -> Iterator[Visitor]:
    """Yield a visitor of a dashboard that takes changes."""
    with served(namesrv, timeout=PATIENCE, allow_changes=True) as dashboard, Visitor(dashboard) as visitor:
        yield visitor


def test_pages_show_a_cluster_of_rocketmq(namesrv: str, visitor: Visitor) -> None:
    """Brokers with their version, topics, groups with members and lag, clients, options."""
    with ferromq.connect(namesrv=namesrv, timeout=PATIENCE) as mq:
        with mq.producer() as producer, mq.consumer("billing", "orders") as consumer:
            for number in range(3):
                receipt = producer.send("orders", b'{"number": %d}' % number, keys=f"key-{number}")
            consumer.ack(consumer.receive_many(1, wait=PATIENCE, invisible_duration=2 * PATIENCE))
            assert eventually(lambda: "No member is connected." not in visitor.page("/group", name="billing"))
            with ferromq.Admin(namesrv, timeout=PATIENCE) as admin:
                (member,) = admin.members("billing")
            assert member.client_id in visitor.page("/group", name="billing")
            assert member.client_id in visitor.page("/clients")
        assert "5.5.0" in visitor.page("/")
        assert 'href="/topic?name=orders"' in visitor.page("/topics")
        assert ">3<" in visitor.page("/topic", name="orders")
        assert 'href="/group?name=billing"' in visitor.page("/groups")
        found = visitor.page("/messages", topic="orders", key="key-1")
        assert re.findall(r"key-\d", found.partition("<tbody>")[2]) == ["key-1"]
        assert "&#34;number&#34;: 2" in visitor.page("/message", topic="orders", id=receipt.message_id)
        plan = visitor.page("/group/reset", name="billing", topic="orders", to="begin")
        assert ">Move the group<" in plan
        assert "moved group billing" in visitor.done("/group/reset", name="billing", topic="orders", to="begin")
        next(samples := visitor.samples("/"))
        samples.close()


def test_pages_show_what_waits_at_a_broker_of_rocketmq(namesrv: str, visitor: Visitor) -> None:
    """Half messages, and messages with a delivery time or a delay level."""
    with ferromq.Admin(namesrv, timeout=PATIENCE) as admin:
        admin.create_topic("payments", 1, message_type="TRANSACTION")
        admin.create_topic("reminders", 1, message_type="DELAY")
    with ferromq.connect(namesrv=namesrv, timeout=PATIENCE) as mq:

        def unknown(_message: object) -> ferromq.Resolution:
            return ferromq.Resolution.UNKNOWN

        with mq.producer("payments", checker=unknown) as payments, mq.producer() as producer:
            transaction = payments.transaction()
            transaction.send("payments", b"half-paid")
            assert eventually(lambda: "half-paid" in visitor.page("/transactions"))
            transaction.commit()
            assert eventually(lambda: "half-paid" not in visitor.page("/transactions"))
            kept = producer.send("reminders", b"in an hour", delay=timedelta(hours=1))
        assert eventually(lambda: kept.message_id in visitor.page("/delayed"))


def test_topics_and_groups_are_changed_on_a_broker_of_rocketmq(namesrv: str, visitor: Visitor) -> None:
    """By the same forms."""
    assert "created topic made" in visitor.done("/topic/new", name="made", queues="2")
    visitor.done("/topic/alter", name="made", permission="r")
    with ferromq.Admin(namesrv, timeout=PATIENCE) as admin:
        assert admin.describe_topic("made").brokers[0].permission == "r"
        (broker,) = admin.cluster()
    assert "deleted topic made" in visitor.done("/topic/delete", name="made", confirm="made")
    visitor.done("/group/new", name="makers", retries="2")
    visitor.done("/group/delete", name="makers", confirm="makers")
    change = {"server": broker.address, "option": "fileReservedTime"}
    assert "Change fileReservedTime" in visitor.page("/configuration/change", **change)
    visitor.done("/configuration/change", **change, value="48")
    assert ">48<" in visitor.page("/configuration", server=broker.address, filter="fileReservedTime")
