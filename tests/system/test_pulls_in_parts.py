"""Pulls of many messages over a connection: they are read in parts, the next of which is under way meanwhile."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from dispatching import dispatched
from fault_proxy import FaultProxy

import ferromq
from ferromq import Message, aio
from ferromq.client import connection

Eventually = Callable[[Callable[[], bool]], bool]
PATIENCE = 20.0
COUNT = 4000
PART = 512
"""Messages of a first part."""


@pytest.fixture
def mq(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[ferromq.Embedded]:
    """Yield a broker that clients reach by the proxy alone, with messages in one queue."""
    monkeypatch.setattr(connection, "PROBE", PATIENCE)  # calls go in frames, however busy the machine is
    with ferromq.embedded(grpc_listen=proxy.target, grpc_advertise=proxy.address, default_queues=1) as mq:
        with ferromq.Producer(mq.endpoint) as producer:
            producer.send_all("orders", [Message(b"%d" % n, tag="odd" if n % 2 else "even") for n in range(COUNT)])
        dispatched(mq)
        yield mq


@pytest.fixture
def consumer(mq: ferromq.Embedded, eventually: Eventually) -> Iterator[ferromq.Consumer]:
    """Yield a consumer whose calls go in frames."""
    with ferromq.Consumer(mq.endpoint, "billing", "orders") as consumer:
        consumer.pull(consumer.queues()[0], 0, 1)
        assert eventually(lambda: mq.endpoint in consumer._client.channels.framed)
        yield consumer


def stored(mq: ferromq.Embedded) -> list[bytes]:
    """Return the bodies in the order of the queue, from pulls in one part each."""
    with ferromq.Consumer(mq.endpoint, "auditors", "orders") as consumer:
        (queue,) = consumer.queues()
        bodies: list[bytes] = []
        while messages := consumer.pull(queue, len(bodies), 500).messages:
            bodies += [message.body for message in messages]
    return bodies


def requests(mq: ferromq.Embedded) -> int:
    """Return how many requests came in frames to the broker."""
    return mq.broker._server.stats()["remoting_requests"]


@pytest.mark.parametrize("wanted", [PART, PART + 1, 3999, COUNT, 10_000])
def test_a_pull_brings_as_many_messages_as_it_is_asked_for(
    mq: ferromq.Embedded, consumer: ferromq.Consumer, wanted: int
) -> None:
    """In their order, whatever the parts; the broker is asked for no message behind them."""
    pytest.importorskip("pyarrow")
    (queue,) = consumer.queues()
    count, bodies = min(wanted, COUNT), stored(mq)
    before = requests(mq)
    pulled = consumer.pull_arrow(queue, 0, wanted)
    assert (requests(mq) - before > 1) == (wanted > PART)
    assert (pulled.table.column("body").to_pylist(), pulled.next_offset) == (bodies[:count], count)
    assert pulled.table.schema == ferromq.to_arrow([]).schema
    read = mq.broker._server.stats()["pulled"]
    messages, next_offset = consumer.pull(queue, 0, wanted)
    assert ([message.body for message in messages], next_offset) == (bodies[:count], count)
    assert mq.broker._server.stats()["pulled"] - read == count


def test_parts_go_on_behind_what_a_filter_passes_over(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Repeated pulls bring each message of the filter once."""
    with ferromq.Consumer(mq.endpoint, "others", "orders", filter="odd") as consumer:
        (queue,) = consumer.queues()
        consumer.pull(queue, 0, 1)
        assert eventually(lambda: mq.endpoint in consumer._client.channels.framed)
        bodies: list[bytes] = []
        offset = 0
        while offset < COUNT:
            messages, offset = consumer.pull(queue, offset, 1500)
            assert len(messages) <= 1500
            bodies += [message.body for message in messages]
        assert bodies == [body for body in stored(mq) if int(body) % 2]


def test_a_table_of_parts_makes_the_messages_of_all(mq: ferromq.Embedded) -> None:
    """In the order of its rows, and the reader goes on behind them; an answer has about 4 MiB at most."""
    pytest.importorskip("pyarrow")
    with ferromq.Producer(mq.endpoint) as producer:
        producer.send_all("orders", [b"x" * 3000] * 2000)
    dispatched(mq)
    with ferromq.Reader(mq.endpoint, "orders") as reader:
        rows: list[bytes] = []
        while table := reader.read_arrow(6000, wait=0):
            assert [message.body for message in table.messages] == table.table.column("body").to_pylist()
            assert table.table.nbytes < 6 << 20
            rows += table.table.column("body").to_pylist()
        assert rows == stored(mq)


def test_a_connection_that_breaks_between_parts_loses_no_message(
    mq: ferromq.Embedded, consumer: ferromq.Consumer, proxy: FaultProxy
) -> None:
    """A pull brings what came before, and the next one goes on there."""
    (queue,) = consumer.queues()
    with ferromq.Producer(mq.endpoint) as producer:
        producer.send_all("orders", [b"x" * 1000] * 3000)
    dispatched(mq)
    proxy.cut(900_000)
    messages, offset = consumer.pull(queue, COUNT, 3000)
    assert (len(messages), offset) == (PART, COUNT + PART)
    proxy.resume()
    rest, offset = consumer.pull(queue, offset, 3000)
    assert [message.queue_offset for message in (*messages, *rest)] == list(range(COUNT, COUNT + 3000))


def test_parts_come_on_an_event_loop(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """As on threads, also where the connection is closed in the middle."""
    pytest.importorskip("pyarrow")

    bodies = stored(mq)

    async def program() -> None:
        async with aio.Consumer(mq.endpoint, "billing", "orders") as consumer:
            (queue,) = await consumer.queues()
            await consumer.pull(queue, 0, 1)
            await asyncio.to_thread(eventually, lambda: mq.endpoint in consumer._client.base.channels.framed)
            pulled = await consumer.pull_arrow(queue, 0, COUNT)
            assert pulled.table.column("body").to_pylist() == bodies
            messages, offset = await consumer.pull(queue, 0, 3000)
            assert ([message.body for message in messages], offset) == (bodies[:3000], 3000)
            pulls = [asyncio.create_task(consumer.pull(queue, 0, COUNT)) for _ in range(3)]
            await asyncio.sleep(0.005)
        for each in await asyncio.gather(*pulls, return_exceptions=True):
            if isinstance(each, BaseException):
                assert isinstance(each, ferromq.FerromqError)
            else:
                assert [message.body for message in each.messages] == bodies[: each.next_offset]

    asyncio.run(program())
