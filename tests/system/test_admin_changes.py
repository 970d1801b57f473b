"""The administrator changes only what it was asked to change: create, alter and delete, in one cluster or two."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.admin.calls import Calls
from ferromq.broker.controller import BrokerController
from ferromq.broker.metadata.topics import TopicConfig
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.embedding import SMALL_FILES
from ferromq.namesrv.server import NamesrvController
from ferromq.protocol import java_json

FREE = "127.0.0.1:0"
UPDATE_CONFIG, PUT_TOPIC, PUT_GROUP, DELETE_ROUTE = 25, 17, 200, 216


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker."""
    with ferromq.embedded() as embedded:
        yield embedded


def topic_of(broker: BrokerController, name: str) -> TopicConfig:
    """Return an existing topic."""
    found = broker.topics.get(name)
    assert found is not None
    return found


def call(address: str, code: int, fields: Mapping[str, str], body: bytes = b"") -> int:
    """Send a request and return the code of the answer."""
    client = RemotingClient()
    try:
        return client.call(address, code, dict(fields), body)[0]
    finally:
        client.close()


def test_a_topic_that_exists_is_not_changed_by_creating_it(mq: ferromq.Embedded) -> None:
    """Only given values are compared; a difference is an error with both values, and `alter_topic` changes it."""
    with mq.admin() as admin:
        admin.create_topic("wide", queues=16, message_type="FIFO")
        before = topic_of(mq.broker, "wide")
        admin.create_topic("wide")
        admin.create_topic("wide", 16)
        admin.create_topic("wide", message_type="FIFO")
        with pytest.raises(ferromq.AlreadyExists, match=r"wide exists on .*queues is 16, not 8; alter_topic"):
            admin.create_topic("wide", queues=8)
        with pytest.raises(ferromq.AlreadyExists, match="message_type is FIFO, not DELAY"):
            admin.create_topic("wide", message_type="DELAY")
        assert topic_of(mq.broker, "wide") == before
        admin.alter_topic("wide", queues=8)
        assert topic_of(mq.broker, "wide").write_queues == topic_of(mq.broker, "wide").read_queues == 8
        assert topic_of(mq.broker, "wide").message_type == "FIFO"
        admin.alter_topic("wide", message_type="DELAY")
        assert (topic_of(mq.broker, "wide").write_queues, topic_of(mq.broker, "wide").message_type) == (8, "DELAY")


def test_altering_a_topic_keeps_what_is_not_given(mq: ferromq.Embedded) -> None:
    """Permission and order are an administrator's, too."""
    fields = {"topic": "ordered", "readQueueNums": "4", "writeQueueNums": "4", "perm": "4", "order": "true"}
    assert call(mq.broker.address, PUT_TOPIC, fields) == 0
    with mq.admin() as admin:
        admin.alter_topic("ordered", queues=6)
        changed = topic_of(mq.broker, "ordered")
        assert (changed.write_queues, changed.order, int(changed.permission)) == (6, True, 4)
        with pytest.raises(ferromq.TopicNotFound, match=r"create_topic\('absent'\)"):
            admin.alter_topic("absent", queues=2)
        with pytest.raises(ValueError, match="nothing to alter"):
            admin.alter_topic("ordered")


def test_fields_a_request_leaves_out_stay(mq: ferromq.Embedded) -> None:
    """A default is for what is new."""
    full = {"topic": "sparse", "readQueueNums": "3", "writeQueueNums": "3", "perm": "4", "order": "true"}
    assert call(mq.broker.address, PUT_TOPIC, full) == 0
    assert call(mq.broker.address, PUT_TOPIC, {"topic": "sparse", "writeQueueNums": "2"}) == 0
    kept = topic_of(mq.broker, "sparse")
    assert (kept.read_queues, kept.write_queues, int(kept.permission), kept.order) == (3, 2, 4, True)
    assert call(mq.broker.address, PUT_GROUP, {}, b'{"groupName":"sparse","consumeMessageOrderly":true}') == 0
    assert call(mq.broker.address, PUT_GROUP, {}, b'{"groupName":"sparse","retryMaxTimes":3}') == 0
    group = mq.broker.groups.get("sparse")
    assert group is not None
    assert (group.fifo, group.retries) == (True, 3)


def test_a_group_that_exists_is_not_changed_by_creating_it(mq: ferromq.Embedded) -> None:
    """The idempotent line at a program's start takes nothing back."""
    with mq.admin() as admin:
        admin.create_group("walker", fifo=True, retries=3, retry_delays=[0.5, 2])
        before = mq.broker.groups.get("walker")
        admin.create_group("walker")
        admin.create_group("walker", fifo=True, retries=3, retry_delays=[0.5, 2])
        with pytest.raises(ferromq.AlreadyExists, match="retries is 3, not 16; alter_group"):
            admin.create_group("walker", retries=16)
        with pytest.raises(ferromq.AlreadyExists, match="fifo is True, not False"):
            admin.create_group("walker", fifo=False)
        with pytest.raises(ferromq.AlreadyExists, match=r"retry_delays is \[0.5, 2.0\], not \[1.0\]"):
            admin.create_group("walker", retry_delays=[1])
        assert mq.broker.groups.get("walker") == before
        admin.alter_group("walker", retries=5)
        changed = mq.broker.groups.get("walker")
        assert before is not None
        assert changed is not None
        assert (changed.fifo, changed.retries, changed.retry) == (True, 5, before.retry)
        with pytest.raises(ferromq.GroupNotFound, match=r"create_group\('absent'\)"):
            admin.alter_group("absent", retries=1)
        with pytest.raises(ValueError, match="nothing to alter"):
            admin.alter_group("walker")


def test_a_message_type_may_be_in_lower_case(mq: ferromq.Embedded) -> None:
    """Another word is refused with the list."""
    with mq.admin() as admin:
        admin.create_topic("small", message_type="fifo")  # type: ignore[arg-type] # what a user may write
        assert topic_of(mq.broker, "small").message_type == "FIFO"
        with pytest.raises(ValueError, match="'letter'; it may be NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, MIXED"):
            admin.create_topic("smaller", message_type="letter")  # type: ignore[arg-type]
        with pytest.raises(ferromq.IllegalName, match="TBW102"):
            admin.create_topic("TBW102")


def test_a_changed_option_has_an_effect_or_is_refused(mq: ferromq.Embedded) -> None:
    """A request for a flush policy has an effect, or is refused."""
    mq.configure(flush="interval")
    assert call(mq.broker.address, UPDATE_CONFIG, {}, b"flushDiskType=SYNC_FLUSH\n") == 0
    assert mq.store.options()["flush"] == "group"
    mq.configure(flush="interval", retention_disk_usage=None)
    assert call(mq.broker.address, UPDATE_CONFIG, {}, b"flush=group\nretention_disk_usage=60,70,80\n") == 0
    assert mq.store.options()["flush"] == "group"
    assert mq.store.options()["retention_disk_usage"] == (60, 70, 80)
    assert call(mq.broker.address, UPDATE_CONFIG, {}, b"retention_disk_usage=none\n") == 0
    assert mq.store.options()["retention_disk_usage"] is None


def broker(directory: Path, namesrv: str, name: str, **options: Any) -> BrokerController:
    """Start a broker with a free port."""
    given = {"store": directory / name, "namesrv": namesrv, "listen": FREE, "grpc_listen": FREE, "name": name}
    return BrokerController(BrokerConfig.from_options({**given, **SMALL_FILES, "fast_listen": "off", **options}))


def test_two_clusters_are_never_changed_by_one_call(tmp_path: Path) -> None:
    """If a name server knows two, the call must name the cluster, and the other one stays unchanged."""
    with closing(NamesrvController(NameServerConfig(listen=FREE))) as name_server:
        prod = broker(tmp_path, name_server.address, "b1", cluster="prod")
        test = broker(tmp_path, name_server.address, "b2", cluster="test")
        with closing(prod), closing(test), ferromq.Admin(name_server.address) as admin:
            for change in (admin.create_topic, admin.delete_topic, admin.create_group):
                with pytest.raises(ferromq.ConfigError, match="several clusters: prod, test"):
                    change("x")
            with pytest.raises(ferromq.ConfigError, match=r"'live'.* known are prod, test"):
                admin.create_topic("x", cluster="live")
            admin.create_topic("x", cluster="prod")
            assert test.topics.get("x") is None
            admin.create_topic("x", cluster="test")
            admin.delete_topic("x", cluster="prod")
            assert prod.topics.get("x") is None
            assert test.topics.get("x") is not None
            found = name_server.routes.lookup("x")
            assert found is not None
            assert [queue.broker_name for queue in found.queues] == ["b2"]
            with pytest.raises(ferromq.TopicNotFound, match="no topic x in prod"):
                admin.delete_topic("x", cluster="prod")


class Interrupted:
    """Loses one name server at the end of a deletion, in place of `Calls.exchange`."""

    lost = ""

    def __init__(self, calls: Calls) -> None:
        self._exchange = calls.exchange

    def exchange(self, address: str, code: int, *rest: Any, **options: Any) -> tuple[int, Mapping[str, str], bytes]:
        """Fail for the lost name server."""
        if address == self.lost and code == DELETE_ROUTE:
            raise ferromq.ConnectionFailed("away for a moment")
        return self._exchange(address, code, *rest, **options)  # type: ignore[arg-type]


def test_a_broker_that_is_registered_anywhere_is_not_removed(tmp_path: Path) -> None:
    """The error comes before a change."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(closing(NamesrvController(NameServerConfig(listen=FREE)))) for _ in range(2))
        config = {"store": tmp_path / "a", "namesrv": other.address, "name": "a", "listen": FREE}
        files = {"commit_log_file_size": "1MiB", "grpc_listen": FREE, "fast_listen": "off"}
        one.kv_config.put("FERROMQ_GRPC", "a", "127.0.0.1:1")
        stack.enter_context(closing(BrokerController(BrokerConfig.from_options({**config, **files}))))
        admin = stack.enter_context(closing(ferromq.Admin(f"{one.address};{other.address}")))
        with pytest.raises(ferromq.RequestError, match="the broker a is registered"):
            admin.take_out_broker("a")
        assert one.kv_config.get("FERROMQ_GRPC", "a") == "127.0.0.1:1"


def test_a_deletion_that_failed_halfway_is_finished_by_asking_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that still has the route is enough to go on."""
    options = NameServerConfig(listen=FREE)
    with closing(NamesrvController(options)) as first, closing(NamesrvController(options)) as second:
        both = f"{first.address};{second.address}"
        with closing(broker(tmp_path, both, "b1")), ferromq.Admin(both) as admin:
            calls = Interrupted(admin._calls)
            monkeypatch.setattr(admin._calls, "exchange", calls.exchange)
            admin.create_topic("orders", queues=1)
            calls.lost = second.address
            with pytest.raises(ferromq.ConnectionFailed):
                admin.delete_topic("orders")
            assert second.routes.lookup("orders") is not None
            calls.lost = ""
            admin.delete_topic("orders")
            assert second.routes.lookup("orders") is None
            with pytest.raises(ferromq.TopicNotFound, match="orders"):
                admin.delete_topic("orders")


def test_a_creation_that_failed_halfway_is_finished_by_asking_again(tmp_path: Path) -> None:
    """A broker that already has it is no obstacle; a broker with a different one is found before any change."""
    with closing(NamesrvController(NameServerConfig(listen=FREE))) as name_server:
        one, two = (broker(tmp_path, name_server.address, name) for name in ("b1", "b2"))
        with closing(one), closing(two), ferromq.Admin(name_server.address) as admin:
            one.topics.create(TopicConfig("half", 3, 3), "test")
            admin.create_topic("half", queues=3)
            assert topic_of(two, "half").write_queues == 3
            two.topics.create(TopicConfig("other", 5, 5), "test")
            with pytest.raises(ferromq.AlreadyExists, match=f"{two.address}: queues is 5, not 3"):
                admin.create_topic("other", queues=3)
            assert one.topics.get("other") is None


def test_a_new_broker_gets_a_topic_as_the_others_have_it(tmp_path: Path) -> None:
    """Missing values come from the other brokers, not from the defaults."""
    with closing(NamesrvController(NameServerConfig(listen=FREE))) as name_server:
        one, two = (broker(tmp_path, name_server.address, name) for name in ("b1", "b2"))
        with closing(one), closing(two), ferromq.Admin(name_server.address) as admin:
            one.topics.put(TopicConfig("wide", 16, 16), {"message.type": "FIFO"}, "test")
            admin.create_topic("wide")
            assert topic_of(two, "wide") == topic_of(one, "wide")


def test_a_new_broker_gets_a_group_as_the_others_have_it(tmp_path: Path) -> None:
    """The same group may not keep order on one broker and lose it on another."""
    with closing(NamesrvController(NameServerConfig(listen=FREE))) as name_server:
        one, two = (broker(tmp_path, name_server.address, name) for name in ("b1", "b2"))
        with closing(one), closing(two), ferromq.Admin(name_server.address) as admin:
            fields = {"groupName": "walker", "consumeMessageOrderly": True, "retryMaxTimes": 3, "consumeEnable": False}
            fields["groupRetryPolicy"] = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [500, 2000]}}
            assert call(one.address, PUT_GROUP, {}, java_json.dumps(fields)) == 0
            admin.create_group("walker")
            there = one.groups.get("walker")
            also = two.groups.get("walker")
            assert there is not None
            assert also is not None
            assert (there.enabled, there.fifo, there.retries) == (False, True, 3)
            assert replace(also, others={}) == replace(there, others={})
            with pytest.raises(ferromq.AlreadyExists, match="fifo is True, not False"):
                admin.create_group("walker", fifo=False)
