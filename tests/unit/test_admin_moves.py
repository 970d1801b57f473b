"""What an administrator does with a part of a cluster that is away, and in which order it moves groups."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import ferromq
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode, ResponseCode

LOST = "c:1"
"""The address of a slave without a master."""


class Servers:
    """Stands for the client of an administrator: brokers a and b with a topic t and u each; they note resets."""

    def __init__(self) -> None:
        self.brokers = {"a": {"0": "a:1"}, "b": {"0": "b:1"}}
        self.groups: dict[str, Any] = {"g": {}}
        self.topics = ["t", "u"]
        self.read_queues, self.queues = 1, 1
        self.version = "V5_5_0"
        self.members: dict[str, str] = {}
        """Topic → client id."""
        self.fails: set[tuple[str, RequestCode, str | None]] = set()
        """Address, request and topic."""
        self.moved: list[tuple[str, str, int]] = []
        """Address, topic and queue."""
        self.changed: list[str] = []
        self.asked: set[str] = set()

    def call(
        self, address: str, number: int, fields: Mapping[str, str], _body: bytes, *, timeout: float
    ) -> tuple[int, str | None, Mapping[str, str], bytes]:
        """Answer as RocketMQ does."""
        assert timeout > 0
        self.asked.add(address)
        code = RequestCode(number)
        if (address, code, fields.get("topic")) in self.fails:
            raise ferromq.ConnectionFailed(f"{address} is gone")
        header: dict[str, str] = {"offset": "2"}
        answer = getattr(self, code.name.lower())(address, fields)
        if isinstance(answer, ResponseCode):
            return answer, "nothing", {}, b""
        return 0, None, header, answer if isinstance(answer, bytes) else java_json.dumps(answer)

    def get_broker_cluster_info(self, _address: str, _fields: Mapping[str, str]) -> Any:
        """Tell the brokers."""
        table = {
            name: {"brokerName": name, "cluster": "c", "brokerAddrs": addresses}
            for name, addresses in self.brokers.items()
        }
        return {"brokerAddrTable": table, "clusterAddrTable": {"c": list(table)}}

    def get_routeinfo_by_topic(self, _address: str, _fields: Mapping[str, str]) -> Any:
        """Tell that the topic is on the broker a."""
        queues = {"brokerName": "a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}
        return {
            "queueDatas": [queues],
            "brokerDatas": [{"brokerName": "a", "cluster": "c", "brokerAddrs": self.brokers["a"]}],
        }

    def get_all_subscriptiongroup_config(self, _address: str, _fields: Mapping[str, str]) -> Any:
        """Tell the groups."""
        return {"subscriptionGroupTable": self.groups}

    def get_consume_stats(self, address: str, fields: Mapping[str, str]) -> bytes:
        """Tell a lag of 1 in each queue."""
        return self._table(address, fields.get("topic", "t"), {"consumerOffset": 2, "brokerOffset": 3})

    def get_broker_consume_stats(self, _address: str, _fields: Mapping[str, str]) -> Any:
        """Tell no group."""
        return {"consumeStatsList": []}

    def query_consume_time_span(self, _address: str, _fields: Mapping[str, str]) -> Any:
        """Tell no time."""
        return {}

    def get_topic_stats_info(self, address: str, fields: Mapping[str, str]) -> bytes | ResponseCode:
        """Tell three messages of each queue."""
        if fields["topic"] == "gone":
            return ResponseCode.TOPIC_NOT_EXIST
        return self._table(address, fields["topic"], {"minOffset": 0, "maxOffset": 3, "lastUpdateTimestamp": 1})

    def query_topics_by_consumer(self, _address: str, _fields: Mapping[str, str]) -> Any:
        """Tell the topics of the group."""
        return {"topicList": self.topics}

    def query_consumer_offset(self, _address: str, _fields: Mapping[str, str]) -> Any:
        """Tell the offset in the header."""
        return {}

    def get_consumer_connection_list(self, _address: str, _fields: Mapping[str, str]) -> Any:
        """Tell the members."""
        if not self.members:
            return ResponseCode.CONSUMER_NOT_ONLINE
        return {
            "connectionSet": [{"clientId": name} for name in self.members.values()],
            "subscriptionTable": {topic: {"subString": "*"} for topic in self.members},
        }

    def get_broker_runtime_info(self, address: str, _fields: Mapping[str, str]) -> Any:
        """Tell the version, of the broker b another one."""
        return {"table": {"brokerVersionDesc": self.version if address == "b:1" else "V5_5_0"}}

    def invoke_broker_to_reset_offset(self, address: str, fields: Mapping[str, str]) -> bytes:
        """Move one queue, or those that may be read."""
        one = int(fields["queueId"])
        queues = range(self.read_queues) if one < 0 else [one]
        self.moved += [(address, fields["topic"], queue) for queue in queues]
        rows = [f"{self._queue(address, fields['topic'], queue)}:3" for queue in queues]
        return f'{{"offsetTable":{{{",".join(rows)}}}}}'.encode()

    def update_consumer_offset(self, address: str, fields: Mapping[str, str]) -> bytes:
        """Move a queue that request 222 left out."""
        self.moved.append((address, fields["topic"], int(fields["queueId"])))
        return b""

    def change(self, address: str, _fields: Mapping[str, str]) -> bytes:
        """Take a change of a group, a topic or files."""
        self.changed.append(address)
        return b""

    update_and_create_subscriptiongroup = delete_subscriptiongroup = change
    update_and_create_topic = delete_topic_in_broker = change
    delete_expired_commitlog = clean_unused_topic = change

    def get_topic_config(self, _address: str, fields: Mapping[str, str]) -> Any:
        """Tell the settings of a topic."""
        if fields["topic"] not in self.topics:
            return ResponseCode.TOPIC_NOT_EXIST
        return {"topicName": fields["topic"], "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}

    def delete_topic_in_namesrv(self, _address: str, _fields: Mapping[str, str]) -> bytes:
        """Forget a route."""
        return b""

    def get_kvlist_by_namespace(self, _address: str, _fields: Mapping[str, str]) -> Any:
        """Tell no order configuration."""
        return {"table": {}}

    def get_kv_config(self, _address: str, _fields: Mapping[str, str]) -> ResponseCode:
        """Tell no order configuration."""
        return ResponseCode.QUERY_NOT_FOUND

    def _table(self, address: str, topic: str, row: Mapping[str, int]) -> bytes:
        rows = [f"{self._queue(address, topic, queue)}:{json.dumps(row)}" for queue in range(self.queues)]
        return f'{{"offsetTable":{{{",".join(rows)}}}}}'.encode()

    def _queue(self, address: str, topic: str, queue: int) -> str:
        return f'{{"brokerName":"{address[0]}","queueId":{queue},"topic":"{topic}"}}'

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def servers() -> Servers:
    """Return two brokers."""
    return Servers()


@pytest.fixture
def admin(servers: Servers) -> ferromq.Admin:
    """Return their administrator."""
    admin = ferromq.Admin("n:1")
    client: Any = servers
    admin._calls._client = client
    return admin


def test_a_broker_without_a_master_is_told(servers: Servers, admin: ferromq.Admin) -> None:
    """Its part of a lag is missing, and a group is moved on no broker, unless one is named."""
    servers.brokers["c"] = {"1": LOST}
    found = admin.lag("g", topic="t")
    assert (found.messages, [each.address for each in found.unreachable]) == (2, [LOST])
    assert "n:1 knows no master of the broker c, only a slave at c:1" in str(found.unreachable[0].error)
    for move in (lambda: admin.reset_offsets("g", "t", "end"), lambda: admin.skip_backlog("g", dry_run=True)):
        with pytest.raises(ferromq.ConnectionFailed, match="no master of the broker c"):
            move()
    assert servers.moved == []
    assert [each.broker for each in admin.reset_offsets("g", "t", "end", broker="b")] == ["b"]


@pytest.mark.parametrize(
    "change",
    [
        lambda admin: admin.create_group("new"),
        lambda admin: admin.alter_group("g", retries=3),
        lambda admin: admin.delete_group("g"),
        lambda admin: admin.create_topic("new"),
        lambda admin: admin.alter_topic("t", queues=2),
        lambda admin: admin.delete_topic("t"),
        lambda admin: admin.clean(),
        lambda admin: admin.clean_unused_queues(),
    ],
)
def test_a_change_tells_of_which_broker_it_is_missing(
    servers: Servers, admin: ferromq.Admin, change: Callable[[ferromq.Admin], None]
) -> None:
    """It is made at the masters; so is a description."""
    servers.brokers["c"] = {"1": LOST}
    servers.groups = {"g": {"groupName": "g"}}
    with pytest.raises(ferromq.ConnectionFailed, match="no master of the broker c") as caught:
        change(admin)
    assert "the other brokers are changed" in caught.value.__notes__[0]
    assert servers.changed == ["a:1", "b:1"]
    assert [each.address for each in admin.describe_group("g").unreachable] == [LOST]


def test_the_lag_of_no_group_is_not_told_without_a_broker(servers: Servers, admin: ferromq.Admin) -> None:
    """An empty list would say that there is no group."""
    assert admin.lags() == []
    servers.fails = {("b:1", RequestCode.GET_BROKER_CONSUME_STATS, None)}
    with pytest.raises(ferromq.ConnectionFailed, match="b:1 is gone"):
        admin.lags()


def test_a_backlog_is_skipped_once_every_topic_is_planned(servers: Servers, admin: ferromq.Admin) -> None:
    """A broker that does not tell its part of the last topic leaves the group where it is in all of them."""
    servers.fails = {("b:1", RequestCode.GET_TOPIC_STATS_INFO, "u")}
    with pytest.raises(ferromq.ConnectionFailed):
        admin.skip_backlog("g")
    assert servers.moved == []


def test_a_topic_that_was_deleted_has_no_backlog(servers: Servers, admin: ferromq.Admin) -> None:
    """The group may still have offsets there; they do not keep it from skipping the others."""
    servers.topics = ["gone", "t"]
    assert [each.topic for each in admin.skip_backlog("g")] == ["t", "t"]
    with pytest.raises(ferromq.TopicNotFound):
        admin.skip_backlog("g", topic="gone")


def test_a_move_that_fails_halfway_says_what_was_done(servers: Servers, admin: ferromq.Admin) -> None:
    """And is finished by the same call."""
    servers.fails = {("b:1", RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, "u")}
    with pytest.raises(ferromq.ConnectionFailed) as failed:
        admin.skip_backlog("g")
    assert failed.value.__notes__ == [
        "the group was moved before in t at a:1, t at b:1, u at a:1; call it again to finish"
    ]
    servers.fails, servers.moved = set(), []
    admin.skip_backlog("g")
    assert servers.moved == [("a:1", "t", 0), ("b:1", "t", 0), ("a:1", "u", 0), ("b:1", "u", 0)]


def test_an_old_broker_is_found_before_the_first_one_resets_a_queue(servers: Servers, admin: ferromq.Admin) -> None:
    """RocketMQ 4 would reset all queues."""
    servers.version = "V4_9_8"
    with pytest.raises(ferromq.Unsupported, match="V4_9_8"):
        admin.reset_offsets("g", "t", "end", queue_id=0)
    assert servers.moved == []


def test_queues_that_are_only_written_are_moved_too(servers: Servers, admin: ferromq.Admin) -> None:
    """Request 222 leaves them out."""
    servers.queues = 3
    found = admin.reset_offsets("g", "t", "end", broker="a")
    assert servers.moved == [("a:1", "t", queue) for queue in range(3)]
    assert [each.to_offset for each in found] == [3, 3, 3]


def test_a_backlog_is_skipped_under_consumers_only_by_force(servers: Servers, admin: ferromq.Admin) -> None:
    """Consumers of another topic are no hindrance, and a dry run needs no force."""
    servers.members = {"t": "me@here"}
    assert admin.skip_backlog("g", topic="u")
    assert admin.skip_backlog("g", dry_run=True)
    servers.moved = []
    with pytest.raises(ferromq.RequestError, match=r"a connected consumer \(me@here\).*force=True \(--force\)"):
        admin.skip_backlog("g")
    assert servers.moved == []
    assert admin.skip_backlog("g", force=True)


@pytest.mark.parametrize(
    ("host", "id_host"), [("127.0.0.1", "7F000001"), ("localhost", "7F000001"), ("[::1]", "0" * 31 + "1")]
)
def test_only_registered_brokers_are_asked_for_an_id(
    servers: Servers, admin: ferromq.Admin, host: str, id_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the address that is registered, which may have a name; an address in a stranger's id is not connected."""
    servers.brokers = {"a": {"0": f"{host}:10911"}}
    asked: list[str] = []
    monkeypatch.setattr(servers, "query_message", lambda *_: b"", raising=False)
    monkeypatch.setattr(servers, "view_message_by_id", lambda address, _: asked.append(address) or b"", raising=False)
    assert admin.query_by_id("t", f"{id_host}{10911:08X}{0:016X}") is None
    assert asked == [f"{host}:10911"]
    for strange in (f"{id_host}{10912:08X}", f"0A000009{10911:08X}"):
        with pytest.raises(ferromq.ConnectionFailed, match=r"names the broker at .* which n:1 does not know"):
            admin.query_by_id("t", f"{strange}{0:016X}")
    assert servers.asked == {"n:1", f"{host}:10911"}
