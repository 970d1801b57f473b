"""Reading with offsets the client keeps: pulls, and where a queue begins, ends, and was at a time."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

import ferromq
from ferromq import Message, aio
from ferromq._proto import messages as pb


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker with a topic of two queues, whose time is moved by hand."""
    with ferromq.embedded(clock=ferromq.Clock.manual(1_700_000_000_000)) as embedded:
        with embedded.admin() as admin:
            admin.create_topic("log", 2)
        yield embedded


def fill(mq: ferromq.Embedded, count: int = 40) -> None:
    """Send messages, and wait until readers see them."""
    with mq.producer() as producer, mq.consumer("watch", "log") as watch:
        producer.send_all("log", [Message(b"%d" % n, properties={"n": str(n)}) for n in range(count)])
        seen = 0
        while seen < count:
            messages = watch.receive(wait=10)
            watch.ack(messages)
            seen += len(messages)


def test_a_reader_that_keeps_its_offsets_reads_everything_again_and_again(mq: ferromq.Embedded) -> None:
    """Nothing is leased and nothing is committed: the next one gets the same."""
    fill(mq)
    for _ in range(2):
        with mq.consumer("reader", "log") as reader:
            bodies: list[bytes] = []
            for queue in reader.queues():
                offset, end = reader.offset_at(queue, "begin"), reader.offset_at(queue, "end")
                while offset < end:
                    messages, offset = reader.pull(queue, offset, 7)
                    assert len(messages) <= 7
                    bodies += [message.body for message in messages]
                assert reader.pull(queue, offset).messages == []
                assert reader.committed_offset(queue) is None
            assert sorted(map(int, bodies)) == list(range(40))


def test_a_pull_skips_messages_outside_its_filter(mq: ferromq.Embedded) -> None:
    """The next offset is past it."""
    fill(mq)
    with mq.consumer("reader", "log", filter=ferromq.Sql("n >= 30")) as reader:
        bodies: list[bytes] = []
        for queue in reader.queues():
            offset = 0
            while offset < reader.offset_at(queue, "end"):
                messages, offset = reader.pull(queue, offset)
                bodies += [message.body for message in messages]
        assert sorted(map(int, bodies)) == list(range(30, 40))


def test_an_offset_is_found_by_time_and_committed_for_the_group(mq: ferromq.Embedded) -> None:
    """A group that goes back to a time receives what was stored since."""
    fill(mq, 10)
    mq.clock.advance(hours=1)
    noon = mq.clock.now_ms()
    fill(mq, 3)
    with mq.consumer("late", "log") as late:
        for queue in late.queues():
            offset = late.offset_at(queue, noon)
            assert offset == late.offset_at(queue, datetime.fromtimestamp(noon / 1000, UTC))
            late.commit_offset(queue, offset)
            assert late.committed_offset(queue) == offset
        seen: list[bytes] = []
        while len(seen) < 3:
            messages = late.receive(wait=10)
            assert messages
            late.ack(messages)
            seen += [message.body for message in messages]
        assert sorted(seen) == [b"0", b"1", b"2"]
        assert late.receive(wait=0) == []


def test_an_offset_that_the_queue_does_not_hold_is_an_error(mq: ferromq.Embedded) -> None:
    """Also in a queue without a message, where RocketMQ answers PULL_OFFSET_MOVED over remoting."""
    with mq.consumer("reader", "log") as reader, mq.reader("log") as other:
        queue = reader.queues()[0]
        assert reader.pull(queue, 0) == ferromq.Pulled([], 0)
        with pytest.raises(ferromq.RequestError, match="the offset 5 is out of range: queue 0 of topic log") as empty:
            reader.pull(queue, 5)
        other.seek({queue: 5})
        with pytest.raises(ferromq.RequestError, match="the offset 5 is out of range"):
            other.read(wait=0)
        fill(mq, 2)
        with pytest.raises(ferromq.RequestError, match="the offset 5 is out of range: queue 0 of topic log") as beyond:
            reader.pull(queue, 5)
        assert empty.value.code == beyond.value.code == pb.Code.ILLEGAL_OFFSET
        end = reader.offset_at(queue, "end")
        assert reader.pull(queue, end) == ferromq.Pulled([], end)


def test_a_pull_waits_for_the_first_message(mq: ferromq.Embedded) -> None:
    """And the asynchronous consumer pulls as well."""

    async def main() -> None:
        async with aio.Producer(mq.endpoint) as producer, aio.Consumer(mq.endpoint, "reader", "log") as reader:
            queue, _ = await reader.queues()
            end = await reader.offset_at(queue, "end")
            pulling = asyncio.create_task(reader.pull(queue, end, wait=20))
            while not pulling.done():
                await producer.send("log", b"x")
                await asyncio.wait({pulling}, timeout=0.1)
            messages, offset = await pulling
            assert messages[0].body == b"x"
            assert offset == end + len(messages)
            await reader.commit_offset(queue, offset)
            assert await reader.committed_offset(queue) == offset

    asyncio.run(main())


def test_wrong_use_is_told(mq: ferromq.Embedded) -> None:
    """A pulled message has no lease; invalid queues and times."""
    fill(mq, 2)
    with mq.consumer("reader", "log") as reader:
        queue, other = reader.queues()
        messages = reader.pull(queue, 0).messages + reader.pull(other, 0).messages
        with pytest.raises(TypeError, match="commit the offset"):
            messages[0].ack()
        with pytest.raises(ferromq.RequestError, match="no queue of log"):
            reader.pull(queue._replace(broker_name="nowhere"), 0)
        with pytest.raises(ValueError, match="aware datetime"):
            reader.offset_at(queue, datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(ValueError, match="0 or more"):
            reader.commit_offset(queue, -1)
