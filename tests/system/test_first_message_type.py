"""A topic without a type takes any kind of message; its first one decides, and only a given type refuses."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from dispatching import dispatched

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq._proto import messages as pb
from ferromq.broker.controller import BrokerController

SEND = 10
SENDS: dict[str, dict[str, Any]] = {
    "NORMAL": {},
    "FIFO": {"message_group": "anna"},
    "DELAY": {"delay": 3600},
    "PRIORITY": {"priority": 3},
}


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ferromq.Embedded]:
    """Start a broker."""
    with ferromq.embedded(tmp_path) as embedded:
        yield embedded


def type_of(broker: BrokerController, topic: str) -> str | None:
    """Return the type a topic was given, if any."""
    found = broker.topics.get(topic)
    return None if found is None else found.attributes.get("message.type")


def accepted(mq: ferromq.Embedded, topic: str) -> list[int]:
    """Return the kinds of messages a route offers."""
    with grpc.insecure_channel(mq.endpoint) as channel:
        call = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/QueryRoute",
            request_serializer=pb.QueryRouteRequest.SerializeToString,
            response_deserializer=pb.QueryRouteResponse.FromString,
        )
        answer = call(pb.QueryRouteRequest(topic=pb.Resource(name=topic)), metadata=[("x-mq-client-id", "c")])
        return list(answer.message_queues[0].accept_message_types)


@pytest.mark.parametrize("kind", SENDS)
def test_the_first_message_decides_and_the_decision_is_kept(tmp_path: Path, kind: str) -> None:
    """After a restart, too; another kind is refused with the way out, and the way out works."""
    other = "NORMAL" if kind == "FIFO" else "FIFO"
    with ferromq.embedded(tmp_path) as mq, mq.producer() as producer:
        producer.send("fresh", b"1", **SENDS[kind])
        assert type_of(mq.broker, "fresh") == kind
    with ferromq.embedded(tmp_path) as mq, mq.producer() as producer, mq.admin() as admin:
        producer.send("fresh", b"2", **SENDS[kind])
        wanted = (
            rf"fresh takes {kind} messages, this one is {other}.*alter_topic\(\"fresh\", message_type=\"{other}\"\)"
        )
        with pytest.raises(ferromq.RequestError, match=wanted):
            producer.send("fresh", b"3", **SENDS[other])
        admin.alter_topic("fresh", message_type=other)  # type: ignore[arg-type] # one of the types
        producer.send("fresh", b"3", **SENDS[other])


def test_a_transaction_decides_too(mq: ferromq.Embedded) -> None:
    """Before its half message is stored."""
    with mq.producer("paid", checker=lambda _: ferromq.Resolution.COMMIT) as producer, producer.transaction() as tx:
        tx.send("paid", b"1")
    assert type_of(mq.broker, "paid") == "TRANSACTION"


def test_a_route_query_or_a_consumer_decides_nothing(mq: ferromq.Embedded) -> None:
    """The route offers RocketMQ's kinds of a MIXED topic until there is a message."""
    every = [pb.MessageType.NORMAL, pb.MessageType.FIFO, pb.MessageType.DELAY, pb.MessageType.TRANSACTION]
    assert accepted(mq, "asked") == every
    with mq.consumer("g", "asked") as consumer:
        assert consumer.receive(wait=0.1) == []
    assert type_of(mq.broker, "asked") is None
    with mq.producer() as producer:
        producer.send("asked", b"1", message_group="anna")
    assert accepted(mq, "asked") == [pb.MessageType.FIFO]


def test_an_administrator_who_gives_no_type_leaves_it_open_and_one_who_does_decides(mq: ferromq.Embedded) -> None:
    """A type given refuses from the first message on."""
    with mq.admin() as admin, mq.producer() as producer:
        admin.create_topic("open", queues=2)
        producer.send("open", b"1", delay=3600)
        assert type_of(mq.broker, "open") == "DELAY"
        admin.create_topic("given", message_type="NORMAL")
        with pytest.raises(ferromq.RequestError, match="given takes NORMAL messages, this one is FIFO"):
            producer.send("given", b"1", message_group="anna")


def test_a_topic_that_was_deleted_begins_anew(mq: ferromq.Embedded) -> None:
    """Its queue offsets go on, its type does not."""
    with mq.admin() as admin, mq.producer() as producer:
        producer.send("again", b"1")
        admin.delete_topic("again")
        producer.send("again", b"2", message_group="anna")
        assert type_of(mq.broker, "again") == "FIFO"


def test_a_refused_message_decides_nothing(mq: ferromq.Embedded) -> None:
    """It is checked first."""
    with mq.producer() as producer:
        with pytest.raises(ferromq.RequestError, match="group"):
            producer.send("strict", b"1", message_group="g" * 70)
        assert type_of(mq.broker, "strict") is None


def test_one_of_two_kinds_that_come_at_once_wins(mq: ferromq.Embedded) -> None:
    """The other one gets the error, and nothing of it is stored."""
    with mq.producer() as producer:
        for number in range(20):
            topic, start, results = f"race-{number}", threading.Barrier(2), dict[str, bool]()

            def send(kind: str, topic: str = topic, start: Any = start, results: Any = results) -> None:
                start.wait()
                try:
                    producer.send(topic, kind.encode(), **SENDS[kind])
                except ferromq.RequestError as error:
                    results[kind] = "this one is" not in str(error)
                else:
                    results[kind] = True

            threads = [threading.Thread(target=send, args=(kind,)) for kind in ("NORMAL", "FIFO")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(results.values()) == [False, True]
            assert results[type_of(mq.broker, topic) or ""]


def remoting_send(mq: ferromq.Embedded, topic: str, properties: str) -> tuple[int, str | None]:
    """Send a message over remoting."""
    fields = {
        "producerGroup": "p",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
        "properties": properties,
        "reconsumeTimes": "0",
        "unitMode": "false",
    }
    client = RemotingClient()
    try:
        code, remark, _, _ = client.call(mq.remoting, SEND, fields, b"x")
        return code, remark
    finally:
        client.close()


def test_a_message_over_remoting_decides_where_its_kind_is_checked(tmp_path: Path) -> None:
    """Elsewhere a topic that holds messages and has no type is NORMAL, as in RocketMQ."""
    fifo = "__SHARDINGKEY\x01k\x02"
    with ferromq.embedded(tmp_path / "grpc") as mq, mq.producer() as producer:
        assert remoting_send(mq, "java", fifo)[0] == 0
        dispatched(mq)
        assert type_of(mq.broker, "java") is None
        with pytest.raises(ferromq.RequestError, match="java takes NORMAL messages"):
            producer.send("java", b"1", message_group="anna")
        producer.send("java", b"1")
    with ferromq.embedded(tmp_path / "all", check_types="all") as mq:
        assert remoting_send(mq, "java", fifo)[0] == 0
        assert type_of(mq.broker, "java") == "FIFO"
        code, remark = remoting_send(mq, "java", "")
        assert code != 0
        assert "takes FIFO messages, this one is NORMAL" in (remark or "")
