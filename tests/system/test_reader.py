"""A reader gets every message and leaves nothing behind on the broker."""

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import ferromq
from ferromq import MessageView, Sql, aio
from ferromq._ferromq import RemotingClient

Eventually = Callable[[Callable[[], bool]], bool]
START = 1_700_000_000_000


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker with two topics of two queues, whose time is moved by hand."""
    with ferromq.embedded(clock=ferromq.Clock.manual(START)) as embedded:
        with embedded.admin() as admin:
            admin.create_topic("orders", 2)
            admin.create_topic("prices", 2)
        yield embedded


def fill(mq: ferromq.Embedded, topic: str, *bodies: str, eventually: Eventually) -> None:
    """Send messages to the queues in turn, and wait until readers see them."""

    def stored() -> int:
        return sum(mq.store.max_offset(topic, queue_id) for queue_id in range(8))

    before = stored()
    with mq.producer() as producer:
        for body in bodies:
            producer.send(topic, body.encode(), properties={"n": body})
    assert eventually(lambda: stored() == before + len(bodies))


def bodies(messages: list[MessageView]) -> list[str]:
    """Return the sorted bodies."""
    return sorted(message.body.decode() for message in messages)


ALL_TOPICS, ALL_GROUPS = 21, 201


def known_to(mq: ferromq.Embedded) -> list[object]:
    """Return what administrators are told of topics and groups, the committed offsets, and members without a group."""
    client = RemotingClient()
    try:
        tables = [client.call(mq.remoting, code, {}, timeout=10)[3] for code in (ALL_TOPICS, ALL_GROUPS)]
    finally:
        client.close()
    members = mq.broker._components.clients.table.members("")
    return [*tables, mq.store.committed_offsets(), members]


def test_every_reader_gets_every_message_and_leaves_nothing_behind(
    mq: ferromq.Embedded, eventually: Eventually
) -> None:
    """While it reads and afterwards: no group, no topic of a group, no offset, no client."""
    fill(mq, "orders", "1", "2", "3", eventually=eventually)
    before = known_to(mq)
    with mq.reader("orders") as one, mq.reader("orders") as two:
        assert bodies(list(one.messages(until="end"))) == bodies(list(two.messages(until="end"))) == ["1", "2", "3"]
        assert one.positions == two.positions
        assert {queue.topic for queue in one.positions} == {"orders"}
        fill(mq, "orders", "4", eventually=eventually)
        assert bodies(one.read(wait=10)) == bodies(two.read(wait=10)) == ["4"]
        assert one.read(wait=0) == []
        assert known_to(mq) == before
    assert known_to(mq) == before


def test_a_reader_of_several_topics_reads_what_passes_the_filters(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """A loop to the end ends behind messages that the filter skips."""
    fill(mq, "orders", "1", "2", eventually=eventually)
    fill(mq, "prices", "3", "4", "5", "0", eventually=eventually)
    with mq.reader({"orders": "*", "prices": Sql("n > 3")}) as reader:
        assert bodies(list(reader.messages(until="end"))) == ["1", "2", "4", "5"]
    with mq.reader(["orders", "prices"], filter=Sql("n = 3")) as reader:
        assert bodies(list(reader.messages(until="end"))) == ["3"]


def test_a_reader_begins_and_ends_at_a_time(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """As a datetime or in milliseconds; `last` gets only what comes."""
    fill(mq, "orders", "1", "2", eventually=eventually)
    mq.clock.advance(hours=1)
    noon = mq.clock.now_ms()
    fill(mq, "orders", "3", "4", eventually=eventually)
    mq.clock.advance(hours=1)
    evening = mq.clock.now_ms()
    fill(mq, "orders", "5", eventually=eventually)
    with mq.reader("orders", begin=noon) as reader:
        assert bodies(list(reader.messages(until=evening))) == ["3", "4"]
        assert bodies(list(reader.messages(until="end"))) == ["5"]
        reader.restart(datetime.fromtimestamp(evening / 1000, UTC))
        assert bodies(list(reader.messages(until="end"))) == ["5"]
    with mq.reader("orders", begin="last") as reader:
        assert list(reader.messages(until="end")) == []
        fill(mq, "orders", "6", eventually=eventually)
        assert bodies(list(reader.messages(until="end"))) == ["6"]


def test_another_reader_goes_on_at_the_positions_of_the_first(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Also of one that left its loop early."""
    fill(mq, "orders", "1", "2", "3", "4", "5", eventually=eventually)
    with mq.reader("orders") as first:
        loop = first.messages()
        seen = [next(loop), next(loop)]
        positions = first.positions
    with mq.reader("orders", begin="last") as second:
        second.seek(positions)
        assert bodies([*seen, *second.messages(until="end")]) == ["1", "2", "3", "4", "5"]


def test_a_reader_finds_new_queues(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """And reads them from their first message; here its route is asked for anew at once."""
    fill(mq, "orders", "1", eventually=eventually)
    with mq.reader("orders", begin="last") as reader:
        assert reader.read(wait=0) == []
        with mq.admin() as admin:
            admin.alter_topic("orders", queues=4)
        fill(mq, "orders", "2", "3", "4", "5", eventually=eventually)
        reader._client.common.routes.distrust("orders")
        assert bodies(list(reader.messages(until="end"))) == ["2", "3", "4", "5"]
        assert len(reader.positions) == 4


def test_a_read_waits_for_the_first_message_of_any_queue(mq: ferromq.Embedded) -> None:
    """Several threads share the messages of one reader."""
    with mq.reader("orders") as reader, mq.producer() as producer:
        got: list[MessageView] = []
        threads = [threading.Thread(target=lambda: got.extend(reader.read(1, wait=30))) for _ in range(2)]
        for thread in threads:
            thread.start()
        producer.send("orders", b"1")
        producer.send("orders", b"2")
        for thread in threads:
            thread.join(30)
    assert bodies(got) == ["1", "2"]


def test_closing_a_reader_ends_its_loop(mq: ferromq.Embedded) -> None:
    """Without an error; a later call is refused."""
    reader = mq.reader("orders")
    ended = threading.Event()

    def loop() -> None:
        for _ in reader:
            pass
        ended.set()

    thread = threading.Thread(target=loop)
    thread.start()
    reader.close()
    assert ended.wait(10)
    thread.join()
    assert reader.closed
    with pytest.raises(ferromq.ClientClosed, match="this reader is closed"):
        reader.read()


def test_a_loop_goes_on_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    """It gets the first message that is sent after it, and none twice."""
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{reservation.getsockname()[1]}"
        with ferromq.Reader(endpoint, "orders") as reader:
            loop = iter(reader)
            with ferromq.embedded(tmp_path, grpc_listen=endpoint) as mq, mq.producer() as producer:
                producer.send("orders", b"before")
                assert next(loop).body == b"before"
                found: list[bytes] = []
                waiting = threading.Thread(target=lambda: found.append(next(loop).body))
                waiting.start()
            with ferromq.embedded(tmp_path, grpc_listen=endpoint) as mq, mq.producer() as producer:
                producer.send("orders", b"after")
                waiting.join(30)
                assert found == [b"after"]


def test_readers_of_asyncio_do_the_same(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Loops, reads, positions."""
    fill(mq, "orders", "1", "2", "3", eventually=eventually)

    async def main() -> None:
        async with aio.connect(mq.endpoint) as connection, connection.reader("orders") as reader:
            assert bodies([message async for message in reader.messages(until="end")]) == ["1", "2", "3"]
            positions = reader.positions
            reader.restart()
            assert bodies([message async for message in reader.messages(idle=2)]) == ["1", "2", "3"]
            assert reader.positions == positions
            reading = asyncio.create_task(reader.read(wait=30))
            await asyncio.to_thread(fill, mq, "orders", "4", eventually=eventually)
            assert bodies(await reading) == ["4"]

            async def loop() -> None:
                async for _ in reader:
                    pass

            looping = asyncio.create_task(loop())
            await asyncio.sleep(0)
        await asyncio.wait_for(looping, 10)
        with pytest.raises(ferromq.ClientClosed, match="this reader is closed"):
            await reader.read()

    asyncio.run(main())


def test_wrong_use_is_told(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """There is no lease to end; a missing topic is named by brokers that create none."""
    fill(mq, "orders", "1", eventually=eventually)
    with mq.reader("orders") as reader:
        with pytest.raises(TypeError, match="was pulled, not received"):
            reader.read(wait=10)[0].ack()
        with pytest.raises(ValueError, match="max_messages must be at least 1"):
            reader.read(0)
        with pytest.raises(ValueError, match="cannot be negative"):
            reader.messages(idle=-1)
        assert repr(reader) == f'<Reader endpoint="{mq.endpoint}" topic="orders" open>'
    strict = ferromq.embedded(auto_create_topics=False)
    with strict, strict.reader("nowhere") as reader, pytest.raises(ferromq.TopicNotFound, match="nowhere"):
        reader.read()


def test_a_reader_decodes_bodies_and_goes_on_behind_one_that_does_not_decode(
    mq: ferromq.Embedded, eventually: Eventually
) -> None:
    """What came before it is handed out first; the error names the message."""
    fill(mq, "orders", "1", "2", "none", "4", "5", "6", eventually=eventually)
    with mq.reader("orders", decode=int) as reader:
        values: list[int] = []
        errors: list[ferromq.Undecodable] = []
        while len(values) + len(errors) < 6:
            try:
                values += [message.value for message in reader.read(wait=10)]
            except ferromq.Undecodable as error:
                errors.append(error)
        assert sorted(values) == [1, 2, 4, 5, 6]
        assert re.search("of topic orders, queue [01], offset [012]$", errors[0].__notes__[0])
        reader.restart()
        seen: list[int] = []
        with pytest.raises(ferromq.Undecodable):
            seen.extend(message.value for message in reader.messages(until="end"))
        seen.extend(message.value for message in reader.messages(until="end"))
        assert sorted(seen) == [1, 2, 4, 5, 6]


def test_a_decoder_that_asks_for_a_later_try_is_given_the_same_message_again(
    mq: ferromq.Embedded, eventually: Eventually
) -> None:
    """Its position does not move."""
    fill(mq, "orders", "1", eventually=eventually)
    failures = [ferromq.RetryAfter(1)]

    def decode(body: bytes) -> str:
        if failures:
            raise failures.pop()
        return body.decode()

    with mq.reader("orders", decode=decode) as reader:
        with pytest.raises(ferromq.RetryAfter):
            reader.read(wait=10)
        assert [message.value for message in reader.read(wait=10)] == ["1"]


def test_a_reader_reads_tables_up_to_the_end_of_its_topics(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Each message once, also one that a loop read ahead and did not hand out."""
    pytest.importorskip("pyarrow")
    fill(mq, "orders", *"12345678", eventually=eventually)
    with mq.reader("orders") as reader:
        seen = [next(iter(reader)).body.decode()]
        while table := reader.read_arrow(3, wait=0):
            assert len(table) <= 3
            assert [message.body for message in table] == table.table.column("body").to_pylist()
            seen += [body.decode() for body in table.table.column("body").to_pylist()]
        assert sorted(seen) == list("12345678")
        assert sum(reader.positions.values()) == 8
        assert reader.read_arrow(wait=0).table.schema == ferromq.to_arrow([]).schema
        with pytest.raises(ValueError, match="at least 1, not 0"):
            reader.read_arrow(0)


def test_readers_of_asyncio_decode_and_read_tables(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """As on threads."""
    pytest.importorskip("pyarrow")
    fill(mq, "orders", "1", "2", eventually=eventually)

    async def program() -> None:
        async with aio.Reader(mq.endpoint, "orders", decode=int) as reader:
            values = [message.value async for message in reader.messages(until="end")]
            assert sorted(values) == [1, 2]
            reader.restart()
            tables = [await reader.read_arrow(wait=10) for _ in range(2)]
            assert sorted(body for table in tables for body in table.to_pandas()["body"]) == [b"1", b"2"]

    asyncio.run(program())
