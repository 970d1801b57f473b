"""A broker that retires: senders leave, consumers empty it, message groups move, and it leaves the name servers."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fault_proxy import FaultProxy
from two_brokers import TwoBrokers

import ferromq
from ferromq.admin import retiring
from ferromq.admin.asking import Ask
from ferromq.admin.calls import Calls
from ferromq.admin.progress import runtime
from ferromq.cli.main import main
from ferromq.protocol.broker_removal import GONE
from ferromq.protocol.namespaces import GRPC_NAMESPACE

Eventually = Callable[[Callable[[], bool]], bool]


class Cluster(TwoBrokers):
    """Two brokers, of which one retires."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        super().__init__(directory, stack, datetime.now(UTC))

    def registered(self) -> set[str]:
        """Return the names of the brokers that name servers know."""
        return {broker.name for broker in self.admin.cluster()}

    def send(self, topic: str, count: int) -> None:
        """Send messages of several groups to a topic, on both brokers, and return when its queues have them."""
        before = self.admin.describe_topic(topic).messages
        with ferromq.Producer(self.b.endpoint) as producer:
            for number in range(count):
                producer.send(topic, b"x", message_group=str(number) if topic == "accounts" else None)
        while self.admin.describe_topic(topic).messages < before + count:
            pass

    def read(self, topic: str) -> None:
        """Receive and acknowledge all messages of a topic as the group `billing`."""
        with ferromq.Consumer(self.b.endpoint, "billing", topic) as consumer:
            while batch := consumer.receive_many(32, wait=0.5):
                consumer.ack(batch)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Run a name server and two brokers."""
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def test_it_leaves_when_nothing_is_left(cluster: Cluster, eventually: Eventually) -> None:
    """What is left is told by topic and group; the order configuration changes only when all is read."""
    cluster.send("orders", 8)
    cluster.send("accounts", 16)
    with ferromq.Consumer(cluster.b.endpoint, "billing", "accounts") as consumer:
        consumer.ack(consumer.receive_many(1, wait=5))  # a group that has read elsewhere is known, too
    first = cluster.admin.retire_broker("a")
    assert [(each.topic, each.group) for each in first.unread] == [("accounts", "billing")]
    assert first.without_readers == {"orders": 4}
    assert (first.ordered, first.is_retired, first.is_empty) == (("accounts",), False, False)
    assert cluster.admin.order_configurations() == {"accounts": {"a": 2, "b": 2}}
    cluster.clock.advance(seconds=60)
    cluster.read("accounts")
    assert eventually(lambda: cluster.admin.retire_broker("a").unread == ())
    assert eventually(lambda: cluster.admin.order_configurations() == {"accounts": {"b": 2}})
    third = cluster.admin.retire_broker("a")
    assert (third.is_empty, third.quiet_seconds, third.is_retired) == (True, 0.0, False)
    cluster.clock.advance(seconds=31)
    assert cluster.admin.retire_broker("a").is_retired
    assert (cluster.registered(), cluster.a.state, cluster.stopped) == ({"b"}, "retired", [])
    with ferromq.Producer(cluster.b.endpoint) as producer:
        assert {producer.send("accounts", b"x", message_group=str(each)).broker_name for each in range(16)} == {"b"}


def test_it_stops_if_that_is_wanted(cluster: Cluster, eventually: Eventually) -> None:
    """The name servers keep the mark, also when it is asked for again."""
    assert not cluster.admin.retire_broker("a", quiet=0, stop=True).is_retired  # message groups have yet to leave
    assert eventually(lambda: cluster.admin.retire_broker("a", quiet=0, stop=True).is_retired)
    assert cluster.stopped == ["a"]
    assert cluster.admin.retire_broker("a").is_retired
    cluster.clock.advance(seconds=60)
    assert cluster.registered() == {"b"}


def test_it_leaves_name_servers_that_lost_their_tables(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """They get the mark all the same."""
    cluster.admin.delete_topic("accounts")
    table, change = cluster.name_server.kv_config, retiring._change

    def changed(calls: Calls, address: str, state: str, topics: Sequence[str] = ()) -> tuple[str, int]:
        found = change(calls, address, state, topics)
        if state == "retired":
            table.delete(GRPC_NAMESPACE, "a")
        return found

    monkeypatch.setattr(retiring, "_change", changed)
    assert cluster.admin.retire_broker("a", quiet=0).is_retired
    assert table.get(GRPC_NAMESPACE, "a") == GONE


def test_retries_and_delays_are_left(cluster: Cluster, eventually: Eventually) -> None:
    """They are consumers' business, too."""
    cluster.admin.delete_topic("accounts")
    cluster.admin.create_topic("later", message_type="DELAY", queues=1)
    with ferromq.Producer(cluster.b.endpoint) as producer:
        for _ in range(4):
            producer.send("later", b"x", delay=600)
    assert eventually(lambda: cluster.admin.delayed_messages().topics == {"later": 4})
    assert cluster.admin.retire_broker("a", quiet=0).delayed == 2


@pytest.mark.parametrize("figure", ["dispatchBehindBytes", "timerOffsetBehind"])
def test_messages_on_their_way_into_queues_are_left(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, figure: str
) -> None:
    """What is stored, and neither in a queue nor counted as delayed."""
    cluster.admin.delete_topic("accounts")
    answers = [{figure: "730"}, {}, {}, {}]

    def behind(ask: Ask) -> dict[str, str]:
        return runtime(ask) | {"dispatchBehindBytes": "0", "timerOffsetBehind": "0"} | answers.pop(0)

    monkeypatch.setattr(retiring.progress, "runtime", behind)
    found = cluster.admin.retire_broker("a", quiet=0, force=True)
    assert (found.is_retired, found.undispatched + found.delayed) == (False, 730)
    assert cluster.admin.retire_broker("a", quiet=0, force=True).is_retired


def test_the_last_broker_of_a_topic_stays_unless_forced(cluster: Cluster) -> None:
    """A broker that retires itself is no other one."""
    assert not cluster.admin.retire_broker("b").is_retired
    with pytest.raises(ferromq.RequestError, match="no other broker takes messages of accounts, orders"):
        cluster.admin.retire_broker("a")
    assert cluster.a.state == "serving"
    assert not cluster.admin.retire_broker("a", force=True).is_retired
    assert cluster.a.state == "retiring"


def test_senders_can_come_back(cluster: Cluster, eventually: Eventually) -> None:
    """Also to the order configurations, until the broker has left."""
    cluster.admin.retire_broker("a")
    assert eventually(lambda: cluster.admin.order_configurations() == {"accounts": {"b": 2}})
    cluster.admin.resume_broker("a")
    assert eventually(lambda: cluster.admin.order_configurations() == {"accounts": {"a": 2, "b": 2}})
    cluster.admin.retire_broker("a", quiet=0)
    assert eventually(lambda: cluster.admin.retire_broker("a", quiet=0).is_retired)
    for state in ("serving", "draining"):
        with pytest.raises(ferromq.ConfigError, match="neither name nor address"):
            {"serving": cluster.admin.resume_broker, "draining": cluster.admin.drain_broker}[state]("a")


def test_a_restarted_broker_takes_messages_until_the_next_call(cluster: Cluster, eventually: Eventually) -> None:
    """The drain is not kept; the next call begins anew."""
    cluster.admin.retire_broker("a")
    assert eventually(lambda: cluster.admin.order_configurations() == {"accounts": {"b": 2}})
    cluster.a.close()
    with pytest.raises(ferromq.RequestError, match="the broker a is away, and its messages with it"):
        cluster.admin.retire_broker("a")
    cluster.a = cluster.start("a")
    assert cluster.a.state == "serving"
    assert eventually(lambda: cluster.admin.order_configurations() == {"accounts": {"a": 2, "b": 2}})
    cluster.admin.retire_broker("a", quiet=0)
    assert eventually(lambda: cluster.admin.retire_broker("a", quiet=0).is_retired)


def test_a_name_server_that_is_gone_is_told_and_the_rest_follows(cluster: Cluster, eventually: Eventually) -> None:
    """The first answering one has the mark by then."""
    proxy = cluster.stack.enter_context(FaultProxy(cluster.name_server.address))
    with ferromq.Admin(f"{cluster.name_server.address};{proxy.address}", timeout=5) as admin:
        admin.retire_broker("a", quiet=0)
        assert eventually(lambda: admin.order_configurations() == {"accounts": {"b": 2}})
        proxy.refuse()
        with pytest.raises(ferromq.ConnectionFailed) as failed:
            admin.retire_broker("a", quiet=0)
        assert "has nothing left and has left" in str(failed.value.__notes__)
        proxy.resume()
        assert admin.retire_broker("a").is_retired


def test_only_a_broker_that_retires_leaves(cluster: Cluster) -> None:
    """A wrong order of requests, or a wrong body, changes nothing."""
    from ferromq._ferromq import RemotingClient  # noqa: PLC0415 (this test alone)
    from ferromq.protocol.codes import RequestCode, ResponseCode  # noqa: PLC0415 (this test alone)

    with contextlib.closing(RemotingClient()) as client:
        for fields, body in (({"state": "retired"}, b""), ({"state": "retiring"}, b'{"topics": 1}')):
            code, remark, _, _ = client.call(cluster.a.address, RequestCode.CHANGE_BROKER_STATE, fields, body)
            assert (code, bool(remark)) == (ResponseCode.INVALID_PARAMETER, True)
    assert cluster.a.state == "serving"


def test_the_command_ends_with_1_until_it_is_done(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints what is left, and JSON for programs."""
    words = ["cluster", "retire", "a", "--yes", "--quiet", "0s", "--namesrv", cluster.name_server.address]
    cluster.send("orders", 8)
    assert main(words) == 1
    out = capsys.readouterr()
    assert "4 messages without a group of orders go with the broker" in out.out
    assert "message groups of accounts belong to a" in out.out
    assert "repeat the command" in out.err
    assert main([*words, "--json", "--within", "60s"]) == 0
    assert json.loads(capsys.readouterr().out)["is_retired"] is True


def test_half_messages_are_left(cluster: Cluster, eventually: Eventually) -> None:
    """Their producer still decides."""
    cluster.admin.create_topic("paid", message_type="TRANSACTION", queues=1)
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(ferromq.Producer(cluster.b.endpoint, "paid", checker=lambda _message: None))
        brokers = [stack.enter_context(producer.transaction()).send("paid", b"x").broker_name for _ in range(8)]
        assert set(brokers) == {"a", "b"}
        assert eventually(lambda: cluster.admin.retire_broker("a").half == brokers.count("a"))
    assert eventually(lambda: cluster.admin.retire_broker("a").half == 0)
