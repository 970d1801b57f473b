"""The promises to RocketMQ's remoting producers, over sockets: stored, found by others, refused with a reason."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from remoting_peer import Frame, Peer

import ferromq
from ferromq._ferromq import StoredMessage
from ferromq.process.clock import Clock

SUCCESS, ILLEGAL, FORBIDDEN, NO_TOPIC, NO_GROUP, INVALID = 0, 13, 16, 17, 26, 29
SEND, SEND_BATCH, GIVE_BACK, PULL, MAX_OFFSET = 310, 320, 36, 11, 30
LOCK, UNLOCK, QUERY = 41, 42, 12
BORN = 1_700_000_000_000
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Run an embedded broker whose time is moved by hand."""
    with ferromq.embedded(clock=Clock.manual()) as embedded:
        yield embedded


@pytest.fixture
def peer(mq: ferromq.Embedded) -> Iterator[Peer]:
    """Connect a remoting client."""
    with Peer(mq.remoting) as peer:
        yield peer


def text(**properties: str) -> str:
    """Return properties as RocketMQ writes them."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def fields(topic: str, queue: int = 0, properties: str = "", **more: str) -> dict[str, str]:
    """Return the header of a send request."""
    named = {"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": str(BORN), "h": "0"}
    return {**named, "i": properties, "j": "0", "k": "false", "m": "false", **more}


def send(peer: Peer, topic: str, body: bytes, queue: int = 0, **properties: str) -> Frame:
    """Send a message and return the answer."""
    return peer.call(SEND, fields(topic, queue, text(**properties)), body)


def batch(*bodies: bytes) -> bytes:
    """Return the body of a batch."""
    parts = (struct.pack(">iiiii", 22 + len(body), 0, 0, 0, len(body)) + body + b"\0\0" for body in bodies)
    return b"".join(parts)


def test_a_message_sent_over_remoting_is_received_over_grpc(mq: ferromq.Embedded, peer: Peer) -> None:
    """A remoting producer and a gRPC consumer meet in the same topic; tag, keys and properties arrive."""
    answer = send(peer, "orders", b"tea", TAGS="hot", KEYS="k1 k2", UNIQ_KEY="7F01", mine="yes")
    assert answer.code == SUCCESS, answer.remark
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("0", "0")
    assert answer.fields["transactionId"] == "7F01"
    with mq.consumer("readers", "orders") as consumer:
        (message,) = consumer.receive(wait=10)
    assert (message.body, message.tag, message.keys) == (b"tea", "hot", ("k1", "k2"))
    assert message.properties["mine"] == "yes"
    assert message.message_id == "7F01"


def test_a_message_sent_over_grpc_is_pulled_over_remoting(
    mq: ferromq.Embedded, peer: Peer, eventually: Eventually
) -> None:
    """A gRPC producer's message is the record a remoting consumer pulls."""
    with mq.producer() as producer:
        producer.send("orders", b"from grpc")
    topic = mq.broker.topics.get("orders")
    assert topic is not None
    queues = range(topic.read_queues)
    assert eventually(lambda: any(mq.store.max_offset("orders", queue) for queue in queues))
    (queue,) = (queue for queue in queues if mq.store.max_offset("orders", queue))
    asked = {"consumerGroup": "readers", "topic": "orders", "queueId": str(queue), "queueOffset": "0"}
    more = {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}
    answer = peer.call(PULL, {**asked, **more, "subscription": "*"})
    assert answer.code == SUCCESS, answer.remark
    assert b"from grpc" in answer.body
    # Without its region a remoting consumer traces nothing of it.
    (message,) = mq.store.get("orders", queue, 0)[1]
    stamp = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": mq.broker.config.cluster}
    assert message.properties.items() >= stamp.items()


def test_a_topic_is_made_after_the_default_topic_with_as_many_queues_as_the_producer_wants(
    mq: ferromq.Embedded, peer: Peer
) -> None:
    """RocketMQ's rule: the default topic's queues, but at most the producer's number."""
    assert peer.call(SEND, fields("small", d="2"), b"x").code == SUCCESS
    assert peer.call(SEND, fields("large", d="64"), b"x").code == SUCCESS
    small, large, default = (mq.broker.topics.find(name) for name in ("small", "large", "TBW102"))
    assert small is not None
    assert large is not None
    assert default is not None
    assert (small.read_queues, small.write_queues, int(small.permission)) == (2, 2, 6)
    assert large.write_queues == default.write_queues
    answer = peer.call(SEND, fields("other", c="nothing-of-the-kind"), b"x")
    assert (answer.code, mq.broker.topics.find("other")) == (NO_TOPIC, None)
    assert "other" in (answer.remark or "")


def test_traces_of_a_client_are_kept_and_found_by_the_key_of_the_message(
    mq: ferromq.Embedded, peer: Peer, eventually: Eventually
) -> None:
    """RocketMQ's clients write them to a system topic, which their first use makes, and its tools ask by key."""
    topic = "RMQ_SYS_TRACE_TOPIC"
    answer = send(peer, topic, b"Pub\x011700000000000\x01", UNIQ_KEY="7F02", KEYS="7F01 order-1")
    assert answer.code == SUCCESS, answer.remark
    made = mq.broker.topics.find(topic)
    assert made is not None
    assert (made.read_queues, made.write_queues, int(made.permission)) == (4, 4, 6)
    asked = {"topic": topic, "key": "7F01", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    assert eventually(lambda: b"Pub" in (peer.call(QUERY, asked).body or b""))
    # Its answer is the same for the next, which finds the topic there, and other names stay closed.
    assert send(peer, topic, b"more").code == SUCCESS
    refused = send(peer, "rmq_sys_REVIVE_LOG_other", b"no")
    assert (refused.code, mq.broker.topics.find("rmq_sys_REVIVE_LOG_other")) == (NO_TOPIC, None)


def test_a_topic_of_traces_under_a_name_of_the_system_is_written(tmp_path: Path) -> None:
    """The broker makes it at start, for clients."""
    with ferromq.embedded(tmp_path, trace_topic="rmq_sys_TRACE_DATA_eu") as mq, Peer(mq.remoting) as peer:
        assert send(peer, "rmq_sys_TRACE_DATA_eu", b"trace").code == SUCCESS


def test_no_topic_is_made_where_that_is_off() -> None:
    """Off means off, whatever default topic the producer names."""
    with ferromq.embedded(auto_create_topics=False) as mq, Peer(mq.remoting) as peer:
        for default in ("TBW102", mq.broker.config.cluster, mq.broker.config.name):
            assert peer.call(SEND, fields("orders", c=default), b"x").code == NO_TOPIC
        assert mq.broker.topics.find("orders") is None


def test_a_batch_is_stored_in_order_and_its_ids_are_answered(mq: ferromq.Embedded, peer: Peer) -> None:
    """The ids of a batch are those of its records, in the order of its messages."""
    bodies = [b"one", b"two", b"three"]
    answer = peer.call(SEND_BATCH, fields("orders", 1, m="true"), batch(*bodies))
    assert answer.code == SUCCESS, answer.remark
    places = [int(each[16:], 16) for each in answer.fields["msgId"].split(",")]
    records = [mq.store.message_at(place) for place in places]
    assert [record and (record.body, record.queue_id) for record in records] == [(body, 1) for body in bodies]


def test_a_delayed_message_arrives_when_its_level_is_over_and_not_before(
    mq: ferromq.Embedded, peer: Peer, eventually: Eventually
) -> None:
    """Level 3 is ten seconds; the topic is the producer's again, and consumers read the level."""
    given = {"DELAY": "3", "UNIQ_KEY": "7F02", "TIMER_DELAY_SEC": "7"}
    assert send(peer, "orders", b"later", 1, **given).code == SUCCESS
    assert eventually(lambda: mq.store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1)
    mq.clock.advance(seconds=9)
    assert mq.store.max_offset("orders", 1) == 0
    mq.clock.advance(seconds=2)
    assert eventually(lambda: mq.store.max_offset("orders", 1) == 1)
    _, (message,), _ = mq.store.get("orders", 1, 0)
    assert (message.body, message.message_id) == (b"later", "7F02")
    level, place = {"DELAY": "3"}, {"REAL_TOPIC": "orders", "REAL_QID": "1"}
    assert message.properties.items() >= {**level, **place}.items()
    assert "TIMER_DELAY_SEC" not in message.properties


def test_a_message_given_back_comes_again_for_its_group(
    mq: ferromq.Embedded, peer: Peer, eventually: Eventually
) -> None:
    """Request 36 without a level: ten seconds later the message is in the group's own retry topic."""
    answer = send(peer, "orders", b"again", UNIQ_KEY="7F03")
    place = int(answer.fields["msgId"][16:], 16)
    back = {"offset": str(place), "group": "readers", "delayLevel": "0", "originTopic": "orders"}
    given = peer.call(GIVE_BACK, back)
    assert given.code == SUCCESS, given.remark
    assert eventually(lambda: mq.store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1)
    mq.clock.advance(seconds=11)
    assert eventually(lambda: mq.store.max_offset("%RETRY%readers", 0) == 1)
    _, (message,), _ = mq.store.get("%RETRY%readers", 0, 0)
    assert (message.body, message.reconsume_times) == (b"again", 1)
    assert message.properties["RETRY_TOPIC"] == "orders"
    assert message.properties["ORIGIN_MESSAGE_ID"] == answer.fields["msgId"]
    topic = mq.broker.topics.find("%RETRY%readers")
    assert topic is not None
    assert (topic.write_queues, int(topic.permission)) == (1, 6)


def test_a_message_has_the_level_of_its_last_wait_and_waits_no_more_for_it(
    tmp_path: Path, eventually: Eventually
) -> None:
    """Delivered, retried, dead, as in RocketMQ; also after a restart."""
    clock = Clock.manual()

    def seen(mq: ferromq.Embedded, topic: str) -> StoredMessage:
        assert eventually(lambda: mq.store.max_offset(topic, 0) == 1), topic
        _, (message,), _ = mq.store.get(topic, 0, 0)
        return message

    def give_back(peer: Peer, message: StoredMessage, level: int) -> None:
        back = {"offset": str(message.physical_offset), "group": "readers", "delayLevel": str(level)}
        assert peer.call(GIVE_BACK, back).code == SUCCESS

    with ferromq.embedded(tmp_path, clock=clock) as mq, Peer(mq.remoting) as peer:
        assert send(peer, "orders", b"later", 0, DELAY="2", WAIT="true").code == SUCCESS
        assert eventually(lambda: mq.store.max_offset("SCHEDULE_TOPIC_XXXX", 1) == 1)
        clock.advance(seconds=6)
        delivered = seen(mq, "orders")
        assert (delivered.properties["DELAY"], delivered.properties["WAIT"]) == ("2", "true")
        give_back(peer, delivered, 1)
        assert eventually(lambda: mq.store.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 1)
        clock.advance(seconds=2)
        retried = seen(mq, "%RETRY%readers")
        assert (retried.properties["DELAY"], retried.properties["WAIT"]) == ("1", "false")
        assert retried.properties["REAL_TOPIC"] == "%RETRY%readers"
        give_back(peer, retried, -1)
        dead = seen(mq, "%DLQ%readers")
        assert (dead.properties["DELAY"], dead.properties["WAIT"]) == ("0", "false")
    with ferromq.embedded(tmp_path, clock=clock) as mq:
        clock.advance(minutes=1)
        for topic in ("orders", "%RETRY%readers", "%DLQ%readers"):
            seen(mq, topic)
        assert [mq.store.max_offset("SCHEDULE_TOPIC_XXXX", queue) for queue in range(3)] == [1, 1, 0]


def test_a_message_that_shall_not_come_again_is_kept_in_the_groups_dead_letter_topic(
    mq: ferromq.Embedded, peer: Peer, eventually: Eventually
) -> None:
    """A negative level means that; the topic has one queue."""
    answer = send(peer, "orders", b"dead")
    place = int(answer.fields["msgId"][16:], 16)
    given = peer.call(GIVE_BACK, {"offset": str(place), "group": "readers", "delayLevel": "-1"})
    assert given.code == SUCCESS, given.remark
    assert eventually(lambda: mq.store.max_offset("%DLQ%readers", 0) == 1)
    topic = mq.broker.topics.find("%DLQ%readers")
    assert topic is not None
    assert topic.write_queues == 1


def test_what_a_member_that_consumes_in_order_gives_up_is_dead_at_once(
    mq: ferromq.Embedded, peer: Peer, eventually: Eventually
) -> None:
    """Orderly consumers send it to the retry topic at their maximum; while their group locks queues, it ends there."""
    peer.heartbeat(consumes={"readers": {"orders": "*"}})
    queue = {"topic": "orders", "brokerName": "broker-a", "queueId": 0}
    locked = {"consumerGroup": "readers", "clientId": peer.client_id, "mqSet": [queue]}

    def give_up(body: bytes) -> None:
        delayed = text(DELAY="3", RETRY_TOPIC="orders")
        answer = peer.call(SEND, fields("%RETRY%readers", -1, delayed, j="16", l="16"), body)
        assert answer.code == SUCCESS, answer.remark

    def dead() -> list[bytes]:
        return [message.body for message in mq.store.get("%DLQ%readers", 0, 0, 10)[1]]

    assert peer.call(LOCK, body=locked).json() == {"lockOKMQSet": [queue]}
    give_up(b"in order")
    assert eventually(lambda: dead() == [b"in order"])
    assert peer.call(UNLOCK, body=locked).code == SUCCESS
    give_up(b"comes again")
    assert eventually(lambda: mq.store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1)
    assert dead() == [b"in order"]


def test_a_refusal_has_its_reason(mq: ferromq.Embedded, peer: Peer) -> None:
    """RocketMQ's codes, with the name, the limit or the rule in the remark."""
    assert send(peer, "orders", b"x").code == SUCCESS
    queues = mq.broker.topics.get("orders")
    assert queues is not None
    for asked, code, reason in [
        (fields("orders", queues.write_queues), INVALID, f"0 to {queues.write_queues - 1}"),
        (fields("SCHEDULE_TOPIC_XXXX"), FORBIDDEN, "SCHEDULE_TOPIC_XXXX"),
        (fields("or/ders"), INVALID, "letters"),
        (fields("orders", properties=text(KEYS="k" * 40_000)), ILLEGAL, "32767"),
        (fields("orders", properties=text(TIMER_DELAY_SEC="999999")), 13, "timer_max_delay"),
    ]:
        answer = peer.call(SEND, asked, b"x")
        assert (answer.code, reason in (answer.remark or "")) == (code, True), answer.remark
    limit = mq.store.options()["max_message_size"]
    answer = send(peer, "orders", b"x" * (limit + 1))
    assert (answer.code, str(limit) in (answer.remark or "")) == (ILLEGAL, True)
    answer = peer.call(SEND_BATCH, fields("orders", m="true"), batch(b"one") + b"\0")
    assert answer.code == ILLEGAL
    assert mq.store.stats()["appended"] == 1


def test_no_consumer_sees_a_half_message(mq: ferromq.Embedded, peer: Peer, eventually: Eventually) -> None:
    """It waits in RocketMQ's half topic until its producer ends the transaction."""
    answer = send(peer, "orders", b"half", 2, TRAN_MSG="true", PGROUP="PG", UNIQ_KEY="7F04")
    assert (answer.code, answer.fields["queueId"]) == (SUCCESS, "2")
    assert eventually(lambda: mq.store.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0) == 1)
    _, (half,), _ = mq.store.get("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0)
    assert (half.properties["REAL_TOPIC"], half.properties["REAL_QID"]) == ("orders", "2")
    assert mq.store.max_offset("orders", 2) == 0
