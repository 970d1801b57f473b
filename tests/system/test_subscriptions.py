"""What consumers subscribe to: several topics with filters, and where a new group begins."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Literal

import pytest
from dispatching import dispatched

import ferromq
from ferromq import MessageView, Sql, aio
from ferromq._proto import messages as pb
from ferromq.client.connection import Channels
from ferromq.core.requests import BEGIN, Identity, resource

START = 1_700_000_000_000


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker with two topics of two queues, whose time is moved by hand."""
    with ferromq.embedded(clock=ferromq.Clock.manual(START)) as embedded:
        with embedded.admin() as admin:
            admin.create_topic("orders", 2)
            admin.create_topic("prices", 2)
        yield embedded


def fill(mq: ferromq.Embedded, topic: str, *bodies: str, tag: str | None = None) -> None:
    """Send messages, and wait until readers see them."""
    with mq.producer() as producer, mq.consumer("watch", topic) as watch:
        producer.send_all(topic, [ferromq.Message(body.encode(), tag=tag, properties={"n": body}) for body in bodies])
        take(watch, len(bodies))


def take(consumer: ferromq.Consumer, count: int) -> list[MessageView]:
    """Receive and acknowledge so many messages."""
    taken: list[MessageView] = []
    while len(taken) < count:
        messages = consumer.receive(wait=10)
        assert messages, f"{len(taken)} of {count} came"
        consumer.ack(messages)
        taken += messages
    return taken


def bodies(messages: list[MessageView]) -> list[str]:
    """Return the sorted bodies."""
    return sorted(message.body.decode() for message in messages)


def test_a_consumer_of_several_topics_gets_what_passes_the_filter_of_each(mq: ferromq.Embedded) -> None:
    """Each acknowledgement ends its own message: nothing is redelivered."""
    fill(mq, "orders", "1", "2", tag="paid")
    fill(mq, "orders", "3", tag="new")
    fill(mq, "prices", "4", "5")
    with mq.consumer("billing", {"orders": "paid||shipped", "prices": Sql("n > 4")}, invisible_duration=1) as consumer:
        assert bodies(take(consumer, 3)) == ["1", "2", "5"]
        mq.clock.advance(seconds=5)
        assert consumer.receive(wait=0) == []
        fill(mq, "prices", "6", "7", tag="x")
        for message in consumer.receive(wait=10):
            message.ack()
        assert consumer.flush(10)
        assert [queue.topic for queue in consumer.queues()] == ["orders", "orders", "prices", "prices"]


def test_loops_and_handlers_get_the_messages_of_all_topics(mq: ferromq.Embedded) -> None:
    """Iteration, `run`, and both for asyncio; a sequence has one filter."""
    fill(mq, "orders", "1", "2", "3")
    fill(mq, "prices", "4", "5", "6")
    expected = ["1", "2", "3", "4", "5", "6"]
    with mq.consumer("loop", ["orders", "prices"]) as loop:
        seen = []
        for message in loop:
            message.ack()
            seen.append(message)
            if len(seen) == len(expected):
                break
    assert bodies(seen) == expected
    handled: list[MessageView] = []
    with mq.consumer("run", ("orders", "prices")) as run:

        def handle(message: MessageView) -> None:
            handled.append(message)
            if len(handled) == len(expected):
                run.stop()

        run.run(handle)
    assert bodies(handled) == expected

    async def main() -> list[MessageView]:
        found: list[MessageView] = []
        async with aio.Consumer(mq.endpoint, "aio", ["orders", "prices"]) as consumer:
            async for message in consumer:
                await consumer.ack(message)
                found.append(message)
                if len(found) == len(expected):
                    break
        return found

    assert bodies(asyncio.run(main())) == expected


def test_a_dead_letter_comes_from_its_own_topic(mq: ferromq.Embedded) -> None:
    """The request names the message's topic, whichever is named first."""
    fill(mq, "prices", "1")
    with mq.consumer("billing", ["orders", "prices"]) as consumer:
        (message,) = consumer.receive(wait=10)
        consumer.change_invisible_duration(message, 60)
        consumer.forward_to_dead_letter(message, "bad")
    with mq.consumer("clean", "%DLQ%billing") as letters:
        assert letters.receive(wait=10)[0].properties["DLQ_SOURCE_TOPIC"] == "prices"


def test_order_is_kept_within_each_topic(mq: ferromq.Embedded) -> None:
    """Queues of the same number, and message groups of the same name, of two topics do not wait for each other."""
    with mq.admin() as admin:
        admin.create_group("ordered", fifo=True)
        for topic in ("first", "second"):
            admin.create_topic(topic, 1, message_type="FIFO")
    with mq.producer() as producer:
        for topic in ("first", "second"):
            for number in range(3):
                producer.send(topic, b"%d" % number, message_group="g")
    dispatched(mq)
    seen: dict[str, list[bytes]] = {"first": [], "second": []}
    with mq.consumer("ordered", ["first", "second"]) as consumer:
        for message in consumer.messages(until="end"):
            seen[message.topic].append(message.body)
            if len(seen["first"]) + len(seen["second"]) == 1:
                other = "second" if message.topic == "first" else "first"
                (free,) = consumer.receive(1, wait=10)
                assert free.topic == other
                seen[other].append(free.body)
                consumer.ack(free)
            message.ack()
    assert seen == {"first": [b"0", b"1", b"2"], "second": [b"0", b"1", b"2"]}


def test_offsets_of_several_topics_need_the_topic_of_the_queue(mq: ferromq.Embedded) -> None:
    """The queues of `queues()` have it."""
    fill(mq, "prices", "1")
    with mq.consumer("billing", ["orders", "prices"]) as consumer:
        ends = {queue: consumer.offset_at(queue, "end") for queue in consumer.queues()}
        assert sum(end for queue, end in ends.items() if queue.topic == "prices") == 1
        with pytest.raises(ferromq.RequestError, match="names no topic; subscribed are orders,prices"):
            consumer.pull(next(iter(ends))._replace(topic=""), 0)


@pytest.mark.parametrize(
    ("topics", "error", "text"),
    [
        ([], ferromq.ConfigError, "topics is empty"),
        ({}, ferromq.ConfigError, "topics is empty"),
        (["orders", "a b"], ferromq.IllegalName, "a b"),
        ({"orders": "a|b"}, ferromq.IllegalFilter, "not a tag"),
    ],
)
def test_wrong_topics_are_refused(topics: list[str] | dict[str, str], error: type[Exception], text: str) -> None:
    """Before anything is connected."""
    with pytest.raises(error, match=text):
        ferromq.Consumer("127.0.0.1:1", "billing", topics)
    with pytest.raises(ferromq.ConfigError, match="a filter for each topic"):
        ferromq.Consumer("127.0.0.1:1", "billing", {"orders": "a"}, filter="b")


def test_a_new_group_begins_at_the_first_or_last_message_or_at_a_time(mq: ferromq.Embedded) -> None:
    """Decided at its first receive, in all queues."""
    fill(mq, "orders", "1", "2", "3")
    mq.clock.advance(hours=1)
    noon = datetime.fromtimestamp(mq.clock.now_ms() / 1000, UTC)
    fill(mq, "orders", "4", "5")
    starts: dict[str, Literal["first", "last"] | datetime | int] = {
        "a": "first",
        "b": noon,
        "c": round(noon.timestamp() * 1000),
        "d": "last",
    }
    consumers = {group: mq.consumer(group, "orders", begin=start) for group, start in starts.items()}
    assert bodies(take(consumers["a"], 5)) == ["1", "2", "3", "4", "5"]
    assert bodies(take(consumers["b"], 2)) == bodies(take(consumers["c"], 2)) == ["4", "5"]
    assert consumers["d"].receive(wait=0) == []
    fill(mq, "orders", "6")
    for consumer in consumers.values():
        assert bodies(take(consumer, 1)) == ["6"]


def test_the_first_member_decides_where_the_group_begins(mq: ferromq.Embedded) -> None:
    """A member that starts later skips nothing, and goes back nowhere."""
    fill(mq, "orders", "1")
    with mq.consumer("billing", "orders", begin="last") as first:
        assert first.receive(wait=0) == []
    fill(mq, "orders", "2", "3")
    with mq.consumer("billing", "orders", begin="last") as second:
        assert bodies(take(second, 2)) == ["2", "3"]
    with mq.consumer("billing", "orders", begin="first") as third:
        assert third.receive(wait=0) == []


def test_a_queue_that_is_added_later_begins_at_its_first_message(mq: ferromq.Embedded) -> None:
    """Also for members that begin at the end, and start after its first messages."""
    with mq.consumer("billing", "orders", begin="last") as first:
        assert first.receive(wait=0) == []
    with mq.admin() as admin:
        admin.alter_topic("orders", queues=4)
    with mq.producer() as producer, mq.consumer("watch", "orders") as watch:
        for number in range(8):
            producer.send("orders", b"%d" % number)
        take(watch, 8)
    with mq.consumer("billing", "orders", begin="last") as second:
        messages = take(second, 8)
        assert {message.queue_id for message in messages} == {0, 1, 2, 3}


@pytest.mark.parametrize("begin", ["begin", -1, True, datetime(2026, 1, 1)])  # noqa: DTZ001
def test_a_wrong_start_is_refused(begin: object) -> None:
    """Before anything is connected."""
    with pytest.raises(ValueError, match="aware datetime"):
        ferromq.Consumer("127.0.0.1:1", "billing", "orders", begin=begin)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("group", "start", "code"),
    [("unknown", "last", pb.Code.CONSUMER_GROUP_NOT_FOUND), ("watch", "soon", pb.Code.BAD_REQUEST)],
)
def test_a_broker_refuses_a_wrong_start_or_group(mq: ferromq.Embedded, group: str, start: str, code: int) -> None:
    """And creates nothing."""
    fill(mq, "orders", "1")
    request = pb.GetOffsetRequest(group=resource(group), message_queue=pb.MessageQueue(topic=resource("prices")))
    with closing(Channels(Identity(), None)) as channels:
        answer = channels.call(mq.endpoint, "GetOffset", request.SerializeToString(), 10, ((BEGIN, start),))
    assert pb.GetOffsetResponse.FromString(answer).status.code == code
    assert mq.store.committed_offset(group, "prices", 0) is None
