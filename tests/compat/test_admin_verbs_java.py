"""The administrator and the command line on RocketMQ's own broker behind its name server."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from compat_peer import Clients
from java_processes import JavaServers

import ferromq
from ferromq.admin import QueueReset
from ferromq.cli import main as cli
from ferromq.protocol.codes import RequestCode

PATIENCE = 60.0


@pytest.fixture
def admin(servers: JavaServers) -> Iterator[ferromq.Admin]:
    """Yield an administrator."""
    with ferromq.Admin(servers.namesrv, timeout=PATIENCE) as admin:
        yield admin


def moves(found: list[QueueReset]) -> list[tuple[int | None, int, int, int]]:
    """Return from, to, replayed and skipped of each queue."""
    return [(each.from_offset, each.to_offset, each.replayed, each.skipped) for each in found]


def until(condition: Callable[[], Any], told: Any) -> None:
    """Ask until the answer is as told; a test's time limit ends it."""
    while condition() != told:
        pass


def test_groups_are_described_behind_moved_and_deleted(servers: JavaServers, admin: ferromq.Admin) -> None:
    """As on a broker of ferromq."""
    admin.create_topic("verbs", queues=1)
    admin.create_group("verbs", retries=5)
    with ferromq.connect(namesrv=servers.namesrv, timeout=PATIENCE) as mq:
        with mq.producer() as producer:
            for number in range(6):
                receipt = producer.send("verbs", b"%d" % number, keys="k")
        with mq.consumer("verbs", "verbs") as consumer:
            consumer.ack(consumer.receive_many(2, wait=PATIENCE, invisible_duration=2 * PATIENCE))
            until(lambda: [each.protocol for each in admin.members("verbs")], [None])
            assert admin.describe_group("verbs").subscriptions["verbs"] == "*"
            until(lambda: admin.lag("verbs", topic="verbs").messages, 4)
    found = admin.lag("verbs", topic="verbs")
    assert found.seconds is not None
    assert 0 < found.seconds < 2 * PATIENCE
    assert {each.group: each.messages for each in admin.lags()}["verbs"] >= 4
    assert moves(admin.reset_offsets("verbs", "verbs", "begin", dry_run=True)) == [(2, 0, 2, 0)]
    assert moves(admin.reset_offsets("verbs", "verbs", offset=5, queue_id=0)) == [(2, 5, 0, 3)]
    until(lambda: admin.lag("verbs", topic="verbs").messages, 1)
    assert moves(admin.reset_offsets("verbs", "verbs", "begin")) == [(5, 0, 5, 0)]
    skipped = admin.skip_backlog("verbs", topic="verbs")
    assert moves(skipped) == [(0, 6, 0, 6)]
    shrink = {"topic": "verbs", "readQueueNums": "1", "writeQueueNums": "2", "perm": "6", "defaultTopic": "TBW102"}
    shrink |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    admin._calls.ask(servers.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, shrink)
    assert [each.queue_id for each in admin.reset_offsets("verbs", "verbs", "end")] == [0, 1]
    described = admin.describe_topic("verbs")
    assert (described.messages, described.brokers[0].permission) == (6, "rw")
    assert "verbs" in described.groups
    assert admin.describe_group("verbs").retries == 5
    assert [each.body for each in admin.query_by_offset("verbs", 0, 2, 2)] == [b"2", b"3"]
    until(lambda: admin.query_by_id("verbs", receipt.message_id) is not None, told=True)
    admin.delete_group("verbs")
    assert "verbs" not in admin.groups()
    with pytest.raises(ferromq.GroupNotFound, match="verbs"):
        admin.describe_group("verbs")


def test_a_java_consumer_is_a_member(servers: JavaServers, admin: ferromq.Admin, clients: Clients) -> None:
    """With the version that its number means."""
    admin.create_topic("javas", queues=1)
    admin.create_group("javas")
    clients.start("replier", "member", servers.namesrv, "javas", "javas")
    try:
        until(lambda: [each.language for each in admin.members("javas")], ["JAVA"])
        (member,) = admin.members("javas")
        assert member.version.startswith("5.")
    finally:
        clients.ask("close", "member")


def test_brokers_and_options_are_told_and_changed(servers: JavaServers, admin: ferromq.Admin) -> None:
    """Of brokers and name servers."""
    # In its first second RocketMQ's broker fails to compute its rates.
    until(lambda: [each.error for each in admin.cluster()], [None])
    (broker,) = admin.cluster()
    assert broker.address == servers.broker
    assert broker.version is not None
    assert broker.version.startswith("5.")
    assert broker.disk_used is not None
    admin.configure_broker(broker.name, {"transactionCheckMax": "7"})
    assert admin.broker_config(broker.name)["transactionCheckMax"] == "7"
    admin.configure_name_servers({"returnOrderTopicConfigToBroker": "false"})
    assert admin.name_server_config()[servers.namesrv]["returnOrderTopicConfigToBroker"] == "false"


def test_the_commands_work_there(servers: JavaServers, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the same parser as on a broker of ferromq."""

    def ran(*words: str) -> str:
        assert cli.main([*words, "--namesrv", servers.namesrv, "--timeout", str(PATIENCE)]) == 0, capsys.readouterr()
        return capsys.readouterr().out

    ran("topic", "create", "commands", "--queues", "1")
    assert "commands" in ran("topic", "list")
    ran("group", "create", "commands")
    assert json.loads(ran("send", "commands", "two teas", "--key", "o-1", "--json"))["queue_offset"] == 0
    for command in ("send", "receive"):
        assert json.loads(ran("bench", command, "--count", "40", "--size", "10", "--json"))["bytes"] == 400
    assert "ferromq-bench" not in ran("topic", "list")
    found = ran("tail", "commands", "--from", "begin", "--follow", "--count", "1", "--json")
    assert json.loads(found)["body"] == "two teas"
    assert json.loads(ran("group", "reset", "commands", "commands", "--to", "end", "--yes", "--json"))["skipped"] == 1
    assert json.loads(ran("lag", "commands", "--topic", "commands", "--json"))["messages"] == 0
    assert "master" in ran("cluster", "list")
    ran("group", "delete", "commands", "--yes")
    ran("topic", "delete", "commands", "--yes")
    assert "commands" not in ran("topic", "list").split()


def test_a_trace_goes_on_before_a_second_that_has_more_than_one_answer(
    servers: JavaServers, admin: ferromq.Admin
) -> None:
    """As its index has no finer times; what is older is found all the same."""
    admin.create_topic("traces", queues=1)

    def write(first: int, count: int) -> None:
        for number in range(first, first + count):
            fields = ("SubBefore", f"{number}", "r", "g", f"req-{number}", "many", "0", "k")
            producer.send("traces", "\x01".join(fields).encode(), keys="many")

    with ferromq.connect(namesrv=servers.namesrv, timeout=PATIENCE) as mq, mq.producer() as producer:
        write(0, 40)
        until(lambda: len(admin.trace("many", topic="traces").consumptions), 40)
        threading.Event().wait(1.5)  # the broker's clock passes a second, the finest time of its index
        write(40, 200)

    def newest() -> int:
        return max(one.began or 0 for one in admin.trace("many", topic="traces").consumptions)

    until(newest, 239)
    found = admin.trace("many", topic="traces")
    assert {one.began for one in found.consumptions} >= set(range(40))
    assert found.is_complete == (len(found.consumptions) == 240)
