"""What a slave replicates from its master, and when; the master here gives configured answers."""

import json
import logging
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import kept_port

import ferromq
from ferromq._ferromq import RemotingClient, Request, Server
from ferromq.broker.cluster.name_servers import Master as Known
from ferromq.broker.controller import BrokerController
from ferromq.broker.metadata.topics import TopicConfig
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.route_types import RegisteredTopics, Registration
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock

TOPICS, OFFSETS, DELAYS, TIMER, METRICS, GROUPS, MODES = 21, 43, 45, 60, 61, 201, 402
ORDER = [TOPICS, OFFSETS, DELAYS, GROUPS, MODES, TIMER, METRICS]
PULL, QUERY_OFFSET, UPDATE_OFFSET, BY_TIME, MAX_OFFSET, MIN_OFFSET, POP = 11, 14, 15, 29, 30, 31, 200_050
CLEAN_UNUSED = 316
SUCCESS, SYSTEM_ERROR, SYSTEM_BUSY, UNKNOWN_CODE, NO_PERMISSION = 0, 1, 2, 3, 16
SEND, SEND_BATCH = 310, 320
START = 1_700_000_000_000
VERSION = {"counter": 41, "stateVersion": 2, "timestamp": START - 5}
TOPIC = {"topicName": "orders", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
Answer = tuple[int, str | None, dict[str, str], bytes]


class Master:
    """Answers a slave from its tables, and records the requests."""

    def __init__(self, clock: Clock, namesrv: NamesrvController, listen: str = "127.0.0.1:0") -> None:
        self.asked: list[int] = []
        self.bodies: dict[int, bytes] = {
            TOPICS: encoded(topicConfigTable={"orders": TOPIC}),
            OFFSETS: encoded(offsetTable={"orders@g": {"0": 12, "2": 7}}),
            DELAYS: encoded(offsetTable={"3": 10}),
            GROUPS: encoded(subscriptionGroupTable={"g": {"groupName": "g", "retryMaxTimes": 4}}),
            MODES: b'{"messageRequestModeMap":{"orders":{"g":{"mode":"POP","popShareQueueNum":2}}}}',
            TIMER: struct.pack(">7q", START, 1, 2, 3, 0, START, 5),
            METRICS: encoded(timingCount={"orders": {"count": 1, "timeStamp": START}}),
        }
        self.server = Server(clock.raw)
        for code in ORDER:
            self.server.register(code, self.answer)
        port = self.server.listen_remoting(listen)
        self.address = f"127.0.0.1:{port}"
        broker = Registration("DefaultCluster", self.address, "broker-a", 0, f"127.0.0.1:{port + 1}")
        namesrv.routes.register(broker, RegisteredTopics(), clock.now_ms(), None)

    def answer(self, request: Request) -> Answer:
        """Answer from `bodies`; other requests are unknown."""
        code = int(request.route)
        self.asked.append(code)
        if code not in self.bodies:
            return UNKNOWN_CODE, "not supported", {}, b""
        return SUCCESS, None, {}, self.bodies[code]

    def heard(self) -> list[int]:
        """Return the requests since the last call."""
        asked, self.asked = self.asked, []
        return asked


def encoded(**fields: Any) -> bytes:
    """Return an answer with a version."""
    return json.dumps({"dataVersion": VERSION, **fields}).encode()


def saved(broker: BrokerController, name: str) -> Any:
    """Return a file of a broker as it lies on disk."""
    return json.loads((Path(broker.config.store) / "config" / name).read_text())


@pytest.fixture
def clock() -> Clock:
    """Return a clock that only the test moves."""
    return Clock.manual(START)


@pytest.fixture
def namesrv(clock: Clock) -> Iterator[NamesrvController]:
    """Run a name server."""
    server = NamesrvController(NameServerConfig(listen="127.0.0.1:0"), clock=clock)
    yield server
    server.close()


@pytest.fixture
def master(clock: Clock, namesrv: NamesrvController) -> Iterator[Master]:
    """Run a master that is registered."""
    with kept_port() as address:
        running = Master(clock, namesrv, address)
        yield running
        running.server.stop()


@pytest.fixture
def start(clock: Clock, namesrv: NamesrvController, tmp_path: Path) -> Iterator[Callable[..., BrokerController]]:
    """Return a function that runs a slave of the broker `broker-a`."""
    started: list[BrokerController] = []

    def run(**options: object) -> BrokerController:
        usual = {"listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0", "commit_log_file_size": "1MiB", "broker_id": 1}
        config = BrokerConfig.from_options(
            {"store": tmp_path / str(len(started)), "namesrv": namesrv.address, **usual, **options}
        )
        started.append(BrokerController(config, clock=clock))
        return started[-1]

    yield run
    for controller in started:
        controller.close()


@pytest.fixture
def slave(master: Master, start: Callable[..., BrokerController]) -> BrokerController:
    """Run a slave that knows its master."""
    return start()


@pytest.mark.usefixtures("slave")
def test_it_asks_after_3_seconds_and_then_every_10(master: Master, clock: Clock) -> None:
    """In RocketMQ's order."""
    clock.advance(milliseconds=2_999)
    assert master.heard() == []
    clock.advance(milliseconds=1)
    assert master.heard() == ORDER
    clock.advance(milliseconds=9_999)
    assert master.heard() == []
    clock.advance(milliseconds=1)
    assert master.heard() == ORDER


def test_the_period_is_an_option(master: Master, start: Callable[..., BrokerController], clock: Clock) -> None:
    """60 seconds, as in RocketMQ 5; the first request comes earlier."""
    start(sync_interval="60s")
    clock.advance(seconds=3)
    assert master.heard() == ORDER
    clock.advance(seconds=59)
    assert master.heard() == []
    clock.advance(seconds=1)
    assert master.heard() == ORDER


def test_topics_become_those_of_the_master(slave: BrokerController, master: Master, clock: Clock) -> None:
    """With their version, in the file, and in the route; topics that the master lacks are gone."""
    clock.advance(seconds=3)
    assert saved(slave, "topics.json")["dataVersion"] == VERSION
    master.bodies[TOPICS] = encoded(topicConfigTable={"clicks": {**TOPIC, "topicName": "clicks"}}).replace(b"41", b"42")
    clock.advance(seconds=10)
    assert slave.topics.get("orders") is None
    found = slave.topics.get("clicks")
    assert found is not None
    assert found.write_queues == 3
    content = saved(slave, "topics.json")
    assert content["dataVersion"]["counter"] == 42
    assert "clicks" in content["topicConfigTable"]
    assert "orders" not in content["topicConfigTable"]


def test_a_table_of_the_same_version_is_left_alone(slave: BrokerController, master: Master, clock: Clock) -> None:
    """Nothing is written for it."""
    clock.advance(seconds=3)
    directory = Path(slave.config.store) / "config"
    before = {path.name: path.stat().st_ino for path in directory.iterdir()}
    master.bodies[TOPICS] = encoded(topicConfigTable={})
    clock.advance(seconds=10)
    assert {path.name: path.stat().st_ino for path in directory.iterdir()} == before
    assert slave.topics.get("orders") is not None


def test_a_large_table_comes_in_pages(slave: BrokerController, master: Master, clock: Clock) -> None:
    """As masters of RocketMQ 5 send it; if it changes in between, it is read from its beginning."""
    tables = [
        (VERSION, {"a": TOPIC, "b": TOPIC}),
        ({**VERSION, "counter": 42}, {"c": TOPIC}),
        ({**VERSION, "counter": 42}, {"x": TOPIC, "y": TOPIC}),
        ({**VERSION, "counter": 42}, {"z": TOPIC}),
    ]
    asked = []

    def page(request: Request) -> Answer:
        asked.append((request.fields["topicSeq"], request.fields["dataVersion"]))
        version, topics = tables.pop(0)
        body = json.dumps({"dataVersion": version, "topicConfigTable": topics}).encode()
        return SUCCESS, None, {"totalTopicNum": "3"}, body

    master.answer = page  # type: ignore[method-assign]
    master.server.register(TOPICS, page)
    clock.advance(seconds=3)
    assert [seq for seq, _ in asked] == ["0", "2", "0", "2"]
    assert (asked[0][1], json.loads(asked[3][1])["counter"]) == ("", 42)
    assert {topic.name for topic in slave.topics.all()} == {"x", "y", "z"}


def test_groups_become_those_of_the_master(slave: BrokerController, clock: Clock) -> None:
    """With their version and forbidden topics."""
    clock.advance(seconds=3)
    group = slave.groups.get("g")
    assert group is not None
    assert group.retries == 4
    assert saved(slave, "subscriptionGroup.json")["dataVersion"] == VERSION


def kept(broker: BrokerController, name: str) -> Any:
    """Return what a slave keeps of its master's log."""
    return json.loads((Path(broker.config.store) / "ferromq" / "master" / name).read_text())


def test_positions_of_a_master_are_kept_apart(slave: BrokerController, master: Master, clock: Clock) -> None:
    """Offsets, delays and timer, with the master's name; none of it counts for the slave's own log."""
    clock.advance(seconds=3)
    from_master = {"master": master.address}
    assert kept(slave, "consumerOffset.json") == from_master | {"offsetTable": {"orders@g": {"0": 12, "2": 7}}}
    assert kept(slave, "delayOffset.json") == from_master | {"dataVersion": VERSION, "offsetTable": {"3": 10}}
    checkpoint = {
        "dataVersion": {"counter": 5, "stateVersion": 0, "timestamp": START},
        "queueOffset": 3,
        "readMs": START,
    }
    assert kept(slave, "timercheck.json") == from_master | checkpoint
    assert kept(slave, "timermetrics.json")["timingCount"] == {"orders": {"count": 1, "timeStamp": START}}
    assert slave.store.committed_offsets() == {}
    assert not any((Path(slave.config.store) / "config" / name).exists() for name in ("timercheck", "timermetrics"))
    master.bodies[OFFSETS] = encoded(offsetTable={"orders@h": {"0": 1}})
    clock.advance(seconds=10)
    assert kept(slave, "consumerOffset.json")["offsetTable"] == {"orders@h": {"0": 1}}


def test_request_modes_are_replicated(slave: BrokerController, clock: Clock) -> None:
    """Request modes do not depend on a log."""
    clock.advance(seconds=3)
    mode = saved(slave, "messageRequestMode.json")["messageRequestModeMap"]["orders"]["g"]
    assert (mode["mode"], mode["popShareQueueNum"]) == ("POP", 2)


def test_a_group_reads_its_unread_messages_once_its_broker_is_master_again(
    start: Callable[..., BrokerController], namesrv: NamesrvController, clock: Clock
) -> None:
    """Whatever its progress on another master, which has another log."""
    broker = start(broker_id=0, default_queues=1)
    with ferromq.Producer(broker.endpoint) as producer, ferromq.Consumer(broker.endpoint, "g", "orders") as consumer:
        for number in range(5):
            producer.send("orders", b"%d" % number)
        consumer.ack(consumer.receive(1, wait=5))
        consumer.flush()
    clock.advance(seconds=10)
    master = Master(clock, namesrv)
    broker.configure(broker_id=1)
    master.bodies[TOPICS] = encoded(topicConfigTable={"orders": TOPIC | {"readQueueNums": 1, "writeQueueNums": 1}})
    master.bodies[OFFSETS] = encoded(offsetTable={"orders@g": {"0": 100}})
    clock.advance(seconds=31)
    assert OFFSETS in master.heard()
    master.server.stop()
    assert RemotingClient().call(broker.address, CLEAN_UNUSED, {})[0] == SYSTEM_ERROR
    broker.configure(broker_id=0)
    with ferromq.Consumer(broker.endpoint, "g", "orders") as consumer:
        assert [message.body for message in consumer.receive(32, wait=5)] == [b"1", b"2", b"3", b"4"]


def test_topics_and_groups_of_its_own_messages_outlive_a_master_that_has_none(
    start: Callable[..., BrokerController], namesrv: NamesrvController, clock: Clock
) -> None:
    """A new master's empty table does not remove them; those without messages go."""
    broker = start(broker_id=0)
    with ferromq.Producer(broker.endpoint) as producer, ferromq.Consumer(broker.endpoint, "g", "mine") as consumer:
        producer.send("mine", b"x", message_group="anna")
        consumer.ack(consumer.receive(1, wait=5))
        consumer.flush()
    broker.topics.ensure("empty", "test")
    broker.groups.ensure("idle", "test")
    clock.advance(seconds=10)
    master = Master(clock, namesrv)
    broker.configure(broker_id=1)
    clock.advance(seconds=5)
    assert TOPICS in master.heard()
    kept_topic = broker.topics.get("mine")
    assert kept_topic is not None
    assert kept_topic.message_type == "FIFO"
    assert broker.topics.get("empty") is None
    assert broker.topics.get("orders") is not None
    assert broker.groups.get("g") is not None
    assert broker.groups.get("idle") is None
    master.server.stop()


def test_a_slave_refuses_consumers_until_it_is_a_master(slave: BrokerController, clock: Clock) -> None:
    """It has no messages, and a client would take its offsets for its master's."""
    clock.advance(seconds=3)
    client = RemotingClient()
    pull = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "12", "maxMsgNums": "32"}
    pull |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
    place = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
    asked = {
        PULL: pull,
        POP: {**place, "maxMsgNums": "1", "invisibleTime": "1000", "pollTime": "0", "bornTime": "0", "initMode": "0"},
        QUERY_OFFSET: place,
        UPDATE_OFFSET: {**place, "commitOffset": "12"},
        MAX_OFFSET: place,
        MIN_OFFSET: place,
        BY_TIME: {**place, "timestamp": "0"},
    }
    for code, fields in asked.items():
        answer, remark, told, _ = client.call(slave.address, code, fields)
        assert (code, answer) == (code, SYSTEM_BUSY)
        assert "slave" in str(remark)
        assert "nextBeginOffset" not in told
    slave.configure(broker_id=0)
    assert client.call(slave.address, MAX_OFFSET, place)[0] == SUCCESS
    assert client.call(slave.address, PULL, pull)[0] not in {SYSTEM_ERROR, SYSTEM_BUSY}
    client.close()


def test_a_slave_announces_no_place_of_its_log(
    start: Callable[..., BrokerController], namesrv: NamesrvController
) -> None:
    """Nor does a master: nothing listens there, and RocketMQ's slaves would retry for ever."""
    start(broker_id=0)
    [live] = namesrv.routes.broker_live_table.values()
    assert live.ha_address == ""


@pytest.mark.parametrize("bad", [b"", b"{}", b"[]", b"\xff", b'{"topicConfigTable":{"../x":{}}}', b"{" * 10_000])
def test_a_bad_answer_harms_nothing_and_stops_nothing(
    bad: bytes, slave: BrokerController, master: Master, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The tables stay, the other parts are replicated, and each part is warned of once."""
    clock.advance(seconds=3)
    of_master = kept(slave, "consumerOffset.json")
    known, groups, offsets = slave.topics.content, slave.groups.content, slave.store.committed_offsets()
    modes = saved(slave, "messageRequestMode.json")
    good = dict(master.bodies)
    for code in set(ORDER) - {DELAYS}:
        master.bodies[code] = bad
    master.bodies[DELAYS] = encoded(offsetTable={"3": 11})
    caplog.set_level(logging.WARNING, "ferromq.broker")
    for _ in range(3):
        clock.advance(seconds=10)
    assert (slave.topics.content, slave.groups.content) == (known, groups)
    assert (slave.store.committed_offsets(), saved(slave, "messageRequestMode.json")) == (offsets, modes)
    assert kept(slave, "consumerOffset.json") == of_master
    assert kept(slave, "delayOffset.json")["offsetTable"] == {"3": 11}
    parts = [record.args[0] for record in caplog.records if "slave sync failed" in record.msg and record.args]  # type: ignore[index]
    assert len(parts) == len(set(parts)) >= 4
    master.bodies = good | {TOPICS: good[TOPICS].replace(b"41", b"43")}
    clock.advance(seconds=10)
    assert slave.topics.content.version.counter == 43


def test_requests_that_a_master_does_not_know_are_skipped(
    slave: BrokerController, master: Master, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """RocketMQ 4 has neither modes nor a timer; all else is replicated without a warning."""
    for code in (MODES, TIMER, METRICS):
        del master.bodies[code]
    caplog.set_level(logging.WARNING, "ferromq.broker")
    clock.advance(seconds=3)
    assert slave.groups.get("g") is not None
    assert caplog.messages == []


def test_a_lost_master_is_warned_of_once_and_asked_again(
    slave: BrokerController,
    master: Master,
    namesrv: NamesrvController,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And once more when it is back."""
    master.server.stop()
    caplog.set_level(logging.WARNING, "ferromq.broker")
    for _ in range(3):
        clock.advance(seconds=10)
    assert len([text for text in caplog.messages if "master does not answer" in text]) == 1
    back = Master(clock, namesrv, master.address)
    clock.advance(seconds=10)
    assert back.heard() == ORDER
    assert len([text for text in caplog.messages if "master is back" in text]) == 1
    assert slave.topics.get("orders") is not None
    back.server.stop()


def test_another_master_is_followed(
    slave: BrokerController, master: Master, namesrv: NamesrvController, clock: Clock
) -> None:
    """Once the name servers name it in the answer to the slave's next registration."""
    clock.advance(seconds=3)
    other = Master(clock, namesrv)
    other.bodies[TOPICS] = other.bodies[TOPICS].replace(b"41", b"50")
    clock.advance(seconds=27)
    master.heard()
    clock.advance(seconds=3)
    assert other.heard() == ORDER
    assert master.heard() == []
    assert slave.topics.content.version.counter == 50
    other.server.stop()


def test_a_change_of_role_ends_it_and_begins_it_anew(slave: BrokerController, master: Master, clock: Clock) -> None:
    """A master asks no broker; a new slave asks after 3 seconds."""
    clock.advance(seconds=3)
    assert master.heard() == ORDER
    slave.configure(broker_id=0)
    clock.advance(seconds=10)
    assert master.heard() == []


def test_a_master_that_becomes_a_slave_begins_to_ask(
    start: Callable[..., BrokerController], namesrv: NamesrvController, clock: Clock
) -> None:
    """As soon as the name servers name another broker of its name as master."""
    broker = start(broker_id=0)
    clock.advance(seconds=10)
    master = Master(clock, namesrv)
    broker.configure(broker_id=1)
    clock.advance(seconds=2)
    assert master.heard() == []
    clock.advance(seconds=1)
    assert master.heard() == ORDER
    assert broker.topics.get("orders") is not None
    master.server.stop()


def test_delayed_messages_of_its_own_log_are_delivered_once_it_is_master_again(
    start: Callable[..., BrokerController],
    namesrv: NamesrvController,
    clock: Clock,
    eventually: Callable[[Callable[[], bool]], bool],
    tmp_path: Path,
) -> None:
    """A master's positions belong to its log: no message of this log is lost or delivered twice."""
    broker, client = start(broker_id=0, store=tmp_path / "own"), RemotingClient()

    def send(body: bytes, name: str, value: int) -> None:
        fields = {"a": "p", "b": "flights", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": str(START), "h": "0"}
        fields["i"] = f"{name}\x01{value}\x02"
        assert client.call(broker.address, SEND, fields, body)[0] == SUCCESS

    send(b"level", "DELAY", 3)
    send(b"time", "TIMER_DELIVER_MS", START + 12_000)
    clock.advance(seconds=12)
    assert eventually(lambda: broker.store.max_offset("flights", 0) == 2)
    send(b"next level", "DELAY", 3)
    send(b"next time", "TIMER_DELIVER_MS", START + 24_000)
    broker.close()
    config = tmp_path / "own" / "config"
    before = {name: (config / name).read_bytes() for name in ("timercheck", "timermetrics")}

    master = Master(clock, namesrv)
    master.bodies[TIMER] = struct.pack(">7q", START + 60_000, 1, 2, 3, 0, START, 5)
    broker = start(store=tmp_path / "own")
    clock.advance(seconds=60)
    assert master.heard()[:7] == ORDER
    assert kept(broker, "delayOffset.json")["offsetTable"] == {"3": 10}
    broker.close()
    assert {name: (config / name).read_bytes() for name in before} == before
    master.server.stop()

    broker = start(broker_id=0, store=tmp_path / "own")
    assert eventually(lambda: broker.store.max_offset("flights", 0) == 4)
    clock.advance(seconds=60)
    broker.close()
    broker = start(broker_id=0, store=tmp_path / "own")
    _, found, _ = broker.store.get("flights", 0, 0)
    assert sorted(message.body for message in found) == [b"level", b"next level", b"next time", b"time"]
    client.close()


def test_a_slave_creates_nothing_by_itself(slave: BrokerController) -> None:
    """Its tables are its master's."""
    assert slave.topics.ensure("new", "peer") is None
    assert slave.groups.ensure("new", "peer") is None
    slave.configure(broker_id=0)
    assert slave.topics.ensure("new", "peer") is not None


@pytest.mark.parametrize("code", [17, 18, 200, 207, 215, 222, 225, 314, 316, 353, 401])
def test_a_slave_refuses_changes_of_replicated_state(
    code: int, slave: BrokerController, master: Master, clock: Clock
) -> None:
    """Topics, groups and offsets belong to its master, which the refusal names; a master obeys, or says why not."""
    clock.advance(seconds=3)
    before = slave.topics.content, slave.groups.content, slave.store.committed_offsets()
    fields = {"topic": "orders", "group": "g", "groupName": "g", "timestamp": "-1", "readable": "false"}
    fields |= {"srcGroup": "g", "destGroup": "h", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    bodies: dict[int, Any] = {
        18: {"topicConfigList": [{"topicName": "new"}]},
        200: {"groupName": "g", "retryMaxTimes": 1},
        225: {"groupConfigList": [{"groupName": "g", "retryMaxTimes": 1}]},
        401: {"topic": "orders", "consumerGroup": "g", "mode": "PULL"},
    }
    body = json.dumps(bodies.get(code, {})).encode()
    client = RemotingClient()
    answer, remark, _, _ = client.call(slave.address, code, fields, body)
    assert (answer, master.address in str(remark)) == (SYSTEM_ERROR, True)
    assert (slave.topics.content, slave.groups.content, slave.store.committed_offsets()) == before
    slave.configure(broker_id=0)
    answer, remark, _, _ = client.call(slave.address, code, fields, body)
    # There are no offsets here that could be cloned.
    assert (answer, str(remark)) == (SUCCESS, "None") or (code == 314 and "slave" not in str(remark))
    client.close()


def test_a_slave_answers_queries_of_permissions(slave: BrokerController, clock: Clock) -> None:
    """Only the change is its master's."""
    clock.advance(seconds=3)
    client = RemotingClient()
    assert client.call(slave.address, 353, {"group": "g", "topic": "orders"})[0] == SUCCESS
    client.close()


def test_a_slave_makes_no_retry_topic_at_a_heartbeat(slave: BrokerController, clock: Clock) -> None:
    """Its master makes it, and the slave takes it over."""
    clock.advance(seconds=3)
    subscribed = {"topic": "orders", "subString": "*", "subVersion": 1}
    consumer = {"groupName": "g", "subscriptionDataSet": [subscribed]}
    body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
    client = RemotingClient()
    assert client.call(slave.address, 34, {}, body)[0] == SUCCESS
    assert slave.topics.get("%RETRY%g") is None
    slave.configure(broker_id=0)
    assert client.call(slave.address, 34, {}, body)[0] == SUCCESS
    assert slave.topics.get("%RETRY%g") is not None
    client.close()


def test_its_own_address_is_never_asked(
    start: Callable[..., BrokerController], namesrv: NamesrvController, clock: Clock
) -> None:
    """Even if a name server names it: it would replicate itself."""
    slave = start()
    own = Registration("DefaultCluster", slave.address, "broker-a", 0)
    namesrv.routes.register(own, RegisteredTopics(), clock.now_ms(), None)
    calls = slave._server.stats()["cold_calls"]
    slave._role.set_master(Known(slave.address, None), slave.identity.generation)
    for _ in range(3):
        clock.advance(seconds=3)
    assert slave._server.stats()["cold_calls"] == calls


def test_the_cluster_shows_a_slave_with_its_id(
    slave: BrokerController, master: Master, namesrv: NamesrvController
) -> None:
    """Beside its master, under one name."""
    [known] = namesrv.routes.cluster_info()["brokerAddrTable"].values()
    assert known["brokerAddrs"] == {"0": master.address, "1": slave.address}


def test_a_slave_takes_no_messages(slave: BrokerController, clock: Clock) -> None:
    """Neither single messages nor batches; once it is a master it takes them."""
    clock.advance(seconds=3)
    client = RemotingClient()
    fields = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(START), "h": "0", "i": ""}
    for code in (SEND, SEND_BATCH):
        answer, remark, _, _ = client.call(slave.address, code, fields, b"body")
        assert answer == NO_PERMISSION
        assert "orders" in str(remark)
        assert "slave" in str(remark)
    slave.configure(broker_id=0)
    assert client.call(slave.address, SEND, fields, b"body")[0] == SUCCESS
    client.close()


def test_it_signs_what_it_asks_a_master_that_checks_signatures(
    start: Callable[..., BrokerController], clock: Clock
) -> None:
    """With its inner credentials; without them the master refuses it."""
    users = {"authentication_enabled": True, "authorization_enabled": True, "initial_user": "root:secret"}
    master = start(broker_id=0, fast_listen="off", **users)
    master.topics.put(TopicConfig("orders", 3, 3), {}, "test")
    slaves = [start(broker_id=1, inner_credentials="root:secret", **users), start(broker_id=2, **users)]
    clock.advance(seconds=3)
    assert [slave.topics.get("orders") is not None for slave in slaves] == [True, False]
