"""The administrator describes topics, groups and brokers, tells lags, moves groups, and changes options."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dispatching import dispatched
from fault_proxy import FaultProxy
from ports import kept_port

import ferromq
from ferromq import aio
from ferromq.admin import QueueReset
from ferromq.broker.administration import offsets
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.embedding import SMALL_FILES
from ferromq.namesrv.server import NamesrvController
from ferromq.protocol.codes import RequestCode
from ferromq.protocol.delivery import LEASED_UNTIL
from ferromq.protocol.retry_policy import Customized

FREE = "127.0.0.1:0"
PATIENCE = 15.0
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker, whose clock the tests move."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as embedded:
        yield embedded


@pytest.fixture(params=["name servers", "endpoint"])
def admin(mq: ferromq.Embedded, request: pytest.FixtureRequest) -> Iterator[ferromq.Admin]:
    """Yield an administrator of either kind."""
    by_endpoint = request.param == "endpoint"
    with ferromq.Admin(endpoint=mq.endpoint) if by_endpoint else ferromq.Admin(mq.namesrv) as admin:
        yield admin


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[ferromq.Admin]:
    """Yield the administrator of a broker without a name server, which has a topic and a group."""
    with closing(broker(tmp_path, "lone")) as alone, ferromq.Admin(endpoint=alone.endpoint) as admin:
        admin.create_topic("orders", queues=1)
        admin.create_group("billing")
        with ferromq.Producer(alone.endpoint) as producer:
            for number in range(3):
                producer.send("orders", b"%d" % number)
        while admin.describe_topic("orders").messages < 3:
            pass
        yield admin


def broker(directory: Path, name: str, **options: Any) -> BrokerController:
    """Start a broker with free ports."""
    given = {"store": directory / name, "listen": FREE, "grpc_listen": FREE, "name": name}
    return BrokerController(BrokerConfig.from_options({**given, **SMALL_FILES, "fast_listen": "off", **options}))


def send(mq: ferromq.Embedded, topic: str, count: int) -> None:
    """Send numbered messages to the only queue of a topic, a second after one another, and wait for its entries."""
    with mq.producer() as producer:
        for number in range(count):
            last = producer.send(topic, b"%d" % number).queue_offset
            mq.clock.advance(seconds=1)
    while mq.store.max_offset(topic, 0) <= last:
        pass


def read(mq: ferromq.Embedded, group: str, topic: str, count: int) -> list[bytes]:
    """Return the bodies of the next messages of a group, which are acknowledged."""
    with mq.consumer(group, topic) as consumer:
        found = consumer.receive_many(count, wait=PATIENCE)
        consumer.ack(found)
        return [message.body for message in found]


def moves(found: list[QueueReset]) -> list[tuple[int | None, int, int, int]]:
    """Return from, to, replayed and skipped of each queue."""
    return [(each.from_offset, each.to_offset, each.replayed, each.skipped) for each in found]


def test_a_topic_is_described_with_offsets_times_and_groups(mq: ferromq.Embedded, admin: ferromq.Admin) -> None:
    """Its settings are those of each broker; the times are those of the last messages."""
    admin.create_topic("orders", queues=1, message_type="NORMAL")
    send(mq, "orders", 3)
    last = mq.clock.now_ms() - 1000
    read(mq, "billing", "orders", 1)
    admin.alter_topic("orders", permission="r")
    assert admin.topics(system=False) == ["orders"]
    found = admin.describe_topic("orders")
    assert [(each.write_queues, each.permission, each.message_type) for each in found.brokers] == [(1, "r", "NORMAL")]
    (queue,) = found.queues
    assert (queue.queue_id, queue.min_offset, queue.max_offset, queue.updated) == (0, 0, 3, last)
    assert (found.messages, found.groups, found.unreachable) == (3, ("billing",), ())
    with pytest.raises(ferromq.TopicNotFound, match="nowhere"):
        admin.describe_topic("nowhere")
    with pytest.raises(ValueError, match="permission is 'x'; it may be rw, r, w, none"):
        admin.alter_topic("orders", permission="x")


def test_a_group_is_listed_described_and_deleted(mq: ferromq.Embedded, admin: ferromq.Admin) -> None:
    """With its settings, subscriptions and members; and a deleted one has no offsets."""
    admin.create_topic("orders", queues=1)
    admin.create_group("billing", fifo=True, retries=3, retry_delays=[1, 2])
    assert admin.groups(system=False) == ["billing"]
    assert {"billing", "TOOLS_CONSUMER"} <= set(admin.groups())
    assert admin.members("billing") == []
    with mq.consumer("billing", "orders", filter="new") as consumer:
        consumer.receive(wait=0.1)
        (member,) = admin.members("billing")
        assert (member.language, member.protocol) == ("PYTHON", "grpc")
        found = admin.describe_group("billing")
        assert found.members == (member,)
        assert found.subscriptions == {"orders": "new"}
        assert (found.fifo, found.retries, found.retry_policy) == (True, 3, Customized((1000, 2000)))
    send(mq, "orders", 2)
    with mq.consumer("billing", "orders") as consumer:
        consumer.ack(consumer.receive(wait=PATIENCE))
    assert mq.store.committed_offsets("billing")
    admin.delete_group("billing", keep_offsets=True)
    assert "billing" not in admin.groups()
    assert mq.store.committed_offsets("billing")
    admin.create_group("billing")
    admin.delete_group("billing")
    assert not mq.store.committed_offsets("billing")
    for call in (admin.delete_group, admin.describe_group, admin.lag):
        with pytest.raises(ferromq.GroupNotFound, match="billing"):
            call("billing")


def test_a_lag_is_told_in_messages_and_in_seconds(mq: ferromq.Embedded, admin: ferromq.Admin) -> None:
    """The seconds are the age of the oldest message that was not read, by the broker's clock."""
    admin.create_topic("orders", queues=1)
    send(mq, "orders", 5)
    read(mq, "billing", "orders", 2)
    found = admin.lag("billing")
    assert (found.messages, found.seconds) == (3, 3.0)
    assert [(each.topic, each.messages, each.seconds) for each in found.topics] == [("orders", 3, 3.0)]
    (queue,) = found.queues
    assert (queue.committed_offset, queue.min_offset, queue.max_offset, queue.seconds) == (2, 0, 5, 3.0)
    assert {each.group: each.messages for each in admin.lags()}["billing"] == 3
    read(mq, "billing", "orders", 3)
    found = admin.lag("billing", topic="orders")
    assert (found.messages, found.seconds) == (0, 0.0)
    admin.create_group("idle")
    assert admin.lag("idle").queues == ()
    with pytest.raises(ferromq.TopicNotFound, match="nowhere"):
        admin.lag("billing", topic="nowhere")


def test_a_group_is_moved_as_the_dry_run_told(mq: ferromq.Embedded, admin: ferromq.Admin) -> None:
    """To a time, an end or an offset; the dry run tells from, to, replayed and skipped, and moves nothing."""
    admin.create_topic("orders", queues=1)
    begin = datetime.fromtimestamp(mq.clock.now_ms() / 1000, UTC)
    send(mq, "orders", 6)
    assert read(mq, "billing", "orders", 4) == [b"0", b"1", b"2", b"3"]
    to_time = begin + timedelta(seconds=1.5)
    for options, told in (
        ({"to": to_time}, (4, 2, 2, 0)),
        ({"to": "end"}, (4, 6, 0, 2)),
        ({"to": "begin"}, (4, 0, 4, 0)),
        ({"offset": 3, "queue_id": 0}, (4, 3, 1, 0)),
    ):
        given: dict[str, Any] = options
        assert moves(admin.reset_offsets("billing", "orders", dry_run=True, **given)) == [told]
        assert mq.store.committed_offset("billing", "orders", 0) == 4
        assert moves(admin.reset_offsets("billing", "orders", **given)) == [told]
        assert mq.store.committed_offset("billing", "orders", 0) == told[1]
        admin.reset_offsets("billing", "orders", offset=4, queue_id=0)
    admin.reset_offsets("billing", "orders", to_time)
    assert read(mq, "billing", "orders", 4) == [b"2", b"3", b"4", b"5"]


def test_a_backlog_is_skipped_in_all_topics_that_were_read(mq: ferromq.Embedded, admin: ferromq.Admin) -> None:
    """Or in one."""
    for topic in ("orders", "returns"):
        admin.create_topic(topic, queues=1)
        send(mq, topic, 3)
        read(mq, "billing", topic, 1)
    assert moves(admin.skip_backlog("billing", topic="returns")) == [(1, 3, 0, 2)]
    told = admin.skip_backlog("billing", dry_run=True)
    assert [(each.topic, each.skipped) for each in told] == [("orders", 2), ("returns", 0)]
    assert admin.lag("billing").messages == 2
    admin.skip_backlog("billing")
    assert admin.lag("billing").messages == 0


def test_the_backlog_of_a_queue_that_is_only_written_is_skipped_too(mq: ferromq.Embedded, admin: ferromq.Admin) -> None:
    """So that no lag stays."""
    admin.create_topic("orders", queues=2)
    with mq.producer() as producer:
        while not all(mq.store.max_offset("orders", queue) for queue in range(2)):
            producer.send("orders", b"tea")
    read(mq, "billing", "orders", 1)
    place = {"topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "2", "perm": "6"}
    place |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    admin._calls.ask(mq.remoting, RequestCode.UPDATE_AND_CREATE_TOPIC, place)
    assert {each.queue_id for each in admin.skip_backlog("billing") if each.topic == "orders"} == {0, 1}
    assert admin.lag("billing").messages == 0


def test_wrong_moves_are_refused_before_any_change(mq: ferromq.Embedded, admin: ferromq.Admin) -> None:
    """With what is wrong and what is possible."""
    admin.create_topic("orders", queues=1)
    admin.create_group("billing")
    send(mq, "orders", 1)
    for options, error, text in (
        ({}, ValueError, "give one of to="),
        ({"to": "begin", "offset": 1}, ValueError, "give one of to="),
        ({"offset": 1}, ValueError, "belongs to one queue"),
        ({"to": "middle"}, ValueError, "'begin', 'end' or a time"),
        ({"offset": 2, "queue_id": 0}, ferromq.ConfigError, r"offset is 2; queue 0 of orders on .* has 0 to 1"),
        ({"to": "end", "queue_id": 7}, ferromq.TopicNotFound, "no broker has queue 7 of the topic orders"),
        ({"to": "end", "broker": "gone"}, ferromq.ConfigError, "neither name nor address"),
    ):
        given: dict[str, Any] = options
        with pytest.raises(error, match=text):
            admin.reset_offsets("billing", "orders", **given)
    with pytest.raises(ferromq.GroupNotFound, match="unknown"):
        admin.reset_offsets("unknown", "orders", "end")
    with pytest.raises(ferromq.TopicNotFound, match="nowhere"):
        admin.reset_offsets("billing", "nowhere", "end")


def test_brokers_tell_version_rates_and_disk(mq: ferromq.Embedded, admin: ferromq.Admin) -> None:
    """Each with its role and address."""
    admin.create_topic("orders", queues=1)
    send(mq, "orders", 2)
    (found,) = admin.cluster()
    assert (found.address, found.broker_id, found.error) == (mq.remoting, 0, None)
    assert found.version == "5.5.0"
    assert found.sent_today == 2
    assert found.sent_per_second is not None
    assert found.disk_used is not None
    assert 0 < found.disk_used <= 1


def test_options_of_running_servers_are_told_and_changed(mq: ferromq.Embedded, admin: ferromq.Admin) -> None:
    """All of them or none, by either name."""
    name = mq.broker.config.name
    assert admin.broker_config(name)["transactionCheckMax"] == "15"
    admin.configure_broker(mq.remoting, {"transactionCheckMax": "7"})
    assert admin.broker_config(name)["transaction_check_max"] == "7"
    with pytest.raises(ferromq.RequestError, match="transactionCheckMux"):
        admin.configure_broker(name, {"transactionCheckMux": "8"})
    for wrong in ({}, {"a=b": "c"}, {"a": "b\nc=d"}, {"a": "\\"}, {"": "b"}):
        with pytest.raises(ferromq.ConfigError):
            admin.configure_broker(name, wrong)
    with pytest.raises(ferromq.ConfigError, match=f"neither name nor address of a known one: {name}"):
        admin.broker_config("gone")
    (options,) = admin.name_server_config().values()
    assert "listTopics" not in options
    admin.configure_name_servers({"enableTopicList": "false"})
    assert admin.name_server_config()[mq.namesrv]["enableTopicList"] == "false"


def test_messages_are_found_by_their_place(mq: ferromq.Embedded, admin: ferromq.Admin) -> None:
    """From an offset on, several of a queue."""
    admin.create_topic("orders", queues=1)
    send(mq, "orders", 40)
    assert [each.body for each in admin.query_by_offset("orders", 0, 7)] == [b"7"]
    assert [int(each.body) for each in admin.query_by_offset("orders", 0, 2, 35)] == list(range(2, 37))
    assert admin.query_by_offset("orders", 0, 40) == []
    with pytest.raises(ferromq.TopicNotFound, match="no broker has queue 1 of the topic orders"):
        admin.query_by_offset("orders", 1, 0)


def test_an_old_message_is_found_by_its_id(mq: ferromq.Embedded, admin: ferromq.Admin, eventually: Eventually) -> None:
    """Though the clock of its producer told another time."""
    with mq.producer() as producer:
        receipt = producer.send("orders", b"tea")  # the broker's manual clock is not the producer's
    assert eventually(lambda: admin.query_by_id("orders", receipt.message_id) is not None)


def test_a_broker_without_name_servers_has_the_same_verbs(lone: ferromq.Admin) -> None:
    """Except the options of name servers."""
    assert lone.describe_topic("orders").messages == 3
    assert "billing" in lone.groups()
    assert lone.describe_group("billing").members == ()
    assert moves(lone.reset_offsets("billing", "orders", "end")) == [(None, 3, 0, 3)]
    assert lone.lag("billing").messages == 0
    assert [each.name for each in lone.cluster()] == ["lone"]
    assert [each.body for each in lone.query_by_offset("orders", 0, 1)] == [b"1"]
    lone.configure_broker("lone", {"transaction_check_max": "7"})
    assert lone.broker_config("lone")["transactionCheckMax"] == "7"
    with pytest.raises(ferromq.ConfigError, match="registers with no name server"):
        lone.name_server_config()
    lone.delete_group("billing")
    assert "billing" not in lone.groups()


def test_names_are_told_without_their_namespace(mq: ferromq.Embedded) -> None:
    """As all other calls take them; groups of others are not listed."""
    with ferromq.Admin(mq.namesrv, namespace="shop") as admin, ferromq.Admin(mq.namesrv) as all_of_them:
        admin.create_topic("orders", queues=1)
        admin.create_group("billing")
        all_of_them.create_group("others")
        send(mq, "shop%orders", 2)
        assert admin.groups() == ["billing"]
        assert [each.group for each in admin.lags()] == ["billing"]
        assert admin.describe_topic("orders").name == "orders"
        (moved,) = admin.reset_offsets("billing", "orders", "end")
        assert (moved.topic, moved.skipped) == ("orders", 2)
        assert [each.topic for each in admin.lag("billing").topics] == ["orders"]
        assert mq.store.committed_offset("shop%billing", "shop%orders", 0) == 2


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[str, BrokerController, FaultProxy]]:
    """Yield a name server, a broker, and the proxy in front of another one; both have a topic and a group."""
    with ExitStack() as stack:
        name_server = stack.enter_context(closing(NamesrvController(NameServerConfig(listen=FREE))))
        listen = stack.enter_context(kept_port())
        proxy = stack.enter_context(FaultProxy(listen))
        namesrv = name_server.address
        first = stack.enter_context(closing(broker(tmp_path, "a", namesrv=namesrv)))
        stack.enter_context(closing(broker(tmp_path, "b", namesrv=namesrv, listen=listen, advertise=proxy.address)))
        with ferromq.Admin(namesrv) as admin:
            admin.create_topic("orders", queues=1)
            admin.create_group("billing")
            with ferromq.Producer(first.endpoint) as producer:
                while admin.describe_topic("orders").queues[0].messages == 0:
                    producer.send("orders", b"tea")
            admin.reset_offsets("billing", "orders", "begin")
        yield namesrv, first, proxy


@pytest.mark.parametrize("fault", ["hang", "refuse"])
def test_the_part_of_a_broker_that_is_away_is_told_to_be_missing(
    pair: tuple[str, BrokerController, FaultProxy], fault: str
) -> None:
    """Reads give the others' part; changes are made nowhere. All wait at once for the broker that hangs."""
    namesrv, first, proxy = pair
    getattr(proxy, fault)()
    with ferromq.Admin(namesrv, timeout=4.0) as admin, ThreadPoolExecutor(10) as threads:
        lag, topic = threads.submit(admin.lag, "billing"), threads.submit(admin.describe_topic, "orders")
        group, brokers = threads.submit(admin.describe_group, "billing"), threads.submit(admin.cluster)
        topics = threads.submit(admin.topics, system=False)
        refused: list[Future[Any]] = [
            threads.submit(admin.reset_offsets, "billing", "orders", "end"),
            threads.submit(admin.members, "billing"),
            threads.submit(admin.describe_group, "unknown"),
            threads.submit(admin.delete_group, "unknown"),
            threads.submit(admin.groups),
        ]
        for found in (lag.result(), topic.result(), group.result()):
            assert [each.address for each in found.unreachable] == [proxy.address]
        assert lag.result().messages > 0
        assert [(each.name, each.error is None) for each in brokers.result()] == [("a", True), ("b", False)]
        for call in refused:
            with pytest.raises(ferromq.OutcomeUnknown):
                call.result()
        assert first.store.committed_offset("billing", "orders", 0) == 0
        assert topics.result() == ["orders"]


def test_a_queue_that_several_brokers_have_needs_a_broker(pair: tuple[str, BrokerController, FaultProxy]) -> None:
    """The error names them."""
    namesrv, first, proxy = pair
    with ferromq.Admin(namesrv) as admin:
        with pytest.raises(ferromq.ConfigError, match=f"several brokers have queue 0 of orders: .*{proxy.address}"):
            admin.query_by_offset("orders", 0, 0)
        with pytest.raises(ferromq.ConfigError, match="several brokers have queue 0 of orders: a, b"):
            admin.reset_offsets("billing", "orders", offset=0, queue_id=0)
        assert [each.body for each in admin.query_by_offset("orders", 0, 0, broker="a")] == [b"tea"]
        (moved,) = admin.reset_offsets("billing", "orders", "end", queue_id=0, broker=first.address)
        assert (moved.broker, moved.skipped > 0) == ("a", True)


def test_the_same_verbs_are_there_for_asyncio(mq: ferromq.Embedded) -> None:
    """With the same results."""

    async def use() -> None:
        async with aio.Admin(mq.namesrv) as admin:
            await admin.create_topic("orders", queues=1)
            await admin.create_group("billing")
            assert (await admin.lag("billing")).messages == 0
            assert (await admin.describe_topic("orders")).messages == 0
            assert moves(await admin.reset_offsets("billing", "orders", "end")) == [(None, 0, 0, 0)]

    asyncio.run(use())


def test_a_message_is_explained_in_each_group(
    mq: ferromq.Embedded, admin: ferromq.Admin, eventually: Eventually
) -> None:
    """Dead, behind or ready, with what the broker still knows."""
    admin.create_topic("orders", queues=1)
    with mq.producer() as producer:
        first, second = (producer.send("orders", body) for body in (b"1", b"2"))
    with mq.consumer("billing", "orders") as consumer:
        (message,) = consumer.receive(1, wait=PATIENCE)
        consumer.forward_to_dead_letter(message, "no customer")
    read(mq, "shipping", "orders", 1)
    with mq.consumer("new", "orders") as consumer:
        assert consumer.receive(1, wait=PATIENCE)

        def states(receipt: ferromq.SendReceipt) -> dict[str, str]:
            found = admin.explain("orders", receipt.message_id)
            return {} if found is None else {each.group: each.state for each in found.groups}

        assert eventually(lambda: states(first).get("billing") == "dead")
        assert states(first) == {"billing": "dead", "new": "leased", "shipping": "behind"}
        assert states(second) == {"billing": "ready", "new": "ready", "shipping": "ready"}
    found = admin.explain("orders", first.message_id)
    assert found is not None
    assert (found.broker, found.message.body, found.groups[0].reason) == (mq.remoting, b"1", "no customer")
    by_place = admin.explain("orders", found.message.offset_message_id)
    assert by_place is not None
    assert (by_place.broker, [each.state for each in by_place.groups]) == (
        found.broker,
        [each.state for each in found.groups],
    )
    assert admin.explain("orders", "unknown") is None
    mq.clock.advance(seconds=1)
    assert [each.error for each in admin.resend_dead_letters(admin.dead_letters("billing"))] == [None]

    def again() -> dict[str, str]:
        found = admin.explain("orders", first.message_id)
        assert found is not None
        return {each.group: each.state for each in found.groups} if found.message.queue_offset == 2 else {}

    assert eventually(lambda: again().get("billing") == "ready"), "the letter is that of the first copy"
    found = admin.explain("orders", first.message_id)
    assert found is not None
    letter = found.groups[0].dead_letter
    assert letter is not None
    assert (letter.group, letter.broker, letter.reason) == ("billing", mq.remoting, "no customer")
    assert [each.dead_letter for each in found.groups[1:]] == [None, None]
    read(mq, "billing", "orders", 2)
    assert again()["billing"] == "behind"


def test_leases_and_acknowledgements_out_of_order_are_explained(
    mq: ferromq.Embedded, admin: ferromq.Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the broker tells them; an older broker, and RocketMQ, tell the committed offset alone."""
    admin.create_topic("orders", queues=1)
    with mq.producer() as producer:
        sent = [producer.send("orders", body) for body in (b"1", b"2", b"3")]
    dispatched(mq)

    def explained() -> list[tuple[str, int | None, int | None]]:
        found = [admin.explain("orders", receipt.message_id) for receipt in sent]
        states = [group for each in found if each is not None for group in each.groups]
        return [(each.state, each.attempts, each.leased_until) for each in states]

    with mq.consumer("billing", "orders") as consumer:
        messages = consumer.receive_many(2, wait=PATIENCE, invisible_duration=60)
        consumer.ack(messages[1])
        until = mq.clock.now_ms() + 60_000
        assert explained() == [("leased", 1, until), ("acknowledged", None, None), ("ready", None, None)]
        with monkeypatch.context() as older:
            older.setattr(offsets, "DELIVERY_OF", "unknown")
            assert explained() == [("pending", None, None)] * 3
        with monkeypatch.context() as broken:
            broken.setattr(offsets, "_delivery", lambda *_: {"offset": "0", LEASED_UNTIL: "soon"})
            with pytest.raises(ferromq.ServerError, match=r"the progress of a group at .* malformed"):
                admin.explain("orders", sent[0].message_id)
        mq.clock.advance(seconds=60)
        assert explained()[0] == ("ready", 1, None)
        consumer.ack(consumer.receive_many(1, wait=PATIENCE))
        assert [state for state, *_ in explained()] == ["behind", "behind", "ready"]


def test_a_message_that_waits_for_its_retry_is_explained(
    mq: ferromq.Embedded, admin: ferromq.Admin, eventually: Eventually
) -> None:
    """While its copy is delayed, and while it lies in the retries; and it is behind once that is consumed."""
    admin.create_topic("orders", queues=1)
    admin.create_group("billing")
    with mq.producer() as producer:
        receipt = producer.send("orders", b"tea")
    assert receipt.offset_message_id is not None
    read(mq, "billing", "orders", 1)
    place = int(receipt.offset_message_id[-16:], 16)
    back = {"offset": str(place), "group": "billing", "delayLevel": "3", "originMsgId": receipt.message_id}
    more = {"originTopic": "orders", "unitMode": "false", "maxReconsumeTimes": "16"}
    admin._calls.ask(mq.remoting, RequestCode.CONSUMER_SEND_MSG_BACK, back | more)

    def state() -> tuple[str, int | None] | None:
        found = admin.explain("orders", receipt.message_id)
        return None if found is None or not found.groups else (found.groups[0].state, found.groups[0].attempts)

    assert eventually(lambda: state() == ("retrying", 1))
    mq.clock.advance(seconds=30)
    assert eventually(lambda: mq.store.max_offset("%RETRY%billing", 0) == 1)
    assert eventually(lambda: state() == ("retrying", 1))
    assert read(mq, "billing", "%RETRY%billing", 1) == [b"tea"]
    assert eventually(lambda: state() == ("behind", 2))


def test_all_name_servers_change_or_none(mq: ferromq.Embedded) -> None:
    """One that refuses, or does not answer, leaves the others as they were."""
    protected = NameServerConfig.from_options({"listen": FREE, "protected_keys": ("enableTopicList",)})
    with (
        closing(NamesrvController(protected)) as second,
        FaultProxy(second.address) as proxy,
        ferromq.Admin(f"{mq.namesrv};{proxy.address}", timeout=PATIENCE) as admin,
    ):
        admin.configure_name_servers({"enableAllTopicList": "false"})
        before = admin.name_server_config()
        assert [options["enableAllTopicList"] for options in before.values()] == ["false", "false"]
        with pytest.raises(ferromq.RequestError, match="enableTopicList"):
            admin.configure_name_servers({"enableTopicList": "false", "enableAllTopicList": "true"})
        assert admin.name_server_config() == before
        proxy.refuse()
        with pytest.raises(ferromq.OutcomeUnknown):
            admin.configure_name_servers({"enableAllTopicList": "true"})
        proxy.resume()
        assert admin.name_server_config() == before
