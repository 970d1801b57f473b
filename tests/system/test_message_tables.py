"""Messages as tables: a row for each, with the types that the documentation names."""

import asyncio
import sys
from collections.abc import Iterator

import pytest
from dispatching import dispatched

import ferromq
import ferromq.aio
from ferromq import Message, MessageView, PulledTable
from ferromq.tables import table_of


@pytest.fixture
def messages() -> Iterator[list[MessageView]]:
    """Yield two received messages."""
    with ferromq.embedded() as mq, mq.producer() as producer, mq.consumer("billing", "orders") as consumer:
        producer.send("orders", Message(b"one" * 5000, keys=["a", "b"], tag="new", properties={"colour": "red"}))
        producer.send("orders", b"two")
        found = consumer.receive_many(2, wait=10)
        yield sorted(found, key=lambda message: message.tag is None)


def test_an_arrow_table_has_a_row_for_each_message(messages: list[MessageView]) -> None:
    """An empty table has the same columns and types."""
    pa = pytest.importorskip("pyarrow")
    table = ferromq.to_arrow(messages)
    assert ferromq.to_arrow([]).schema == table.schema
    first, second = table.to_pylist(maps_as_pydicts="strict")
    assert (first["keys"], first["tag"], first["properties"]) == (["a", "b"], "new", {"colour": "red"})
    assert (second["keys"], second["tag"], second["properties"]) == ([], None, {})
    assert [first["body"], second["body"]] == [b"one" * 5000, b"two"]
    for name in ("message_id", "topic", "queue_id", "queue_offset"):
        assert table.column(name).to_pylist() == [getattr(message, name) for message in messages]
    for name in ("born", "store"):
        stamps = table.column(f"{name}_timestamp")
        assert stamps.type == pa.timestamp("us", "UTC")
        millis = [getattr(each, f"{name}_timestamp") for each in messages]
        assert stamps.cast(pa.int64()).to_pylist() == [1000 * each for each in millis]


def test_a_data_frame_has_dicts_for_properties(messages: list[MessageView]) -> None:
    """And the columns of the table."""
    pytest.importorskip("pandas")
    frame = ferromq.to_pandas(messages)
    assert list(frame.columns) == ferromq.to_arrow([]).column_names
    assert list(frame["properties"]) == [{"colour": "red"}, {}]


@pytest.mark.parametrize(
    ("name", "line"),
    [("pyarrow", r"'ferromq\[arrow\]'"), ("pandas", "pandas"), ("polars", "polars")],
)
def test_a_missing_package_is_named_with_the_line_to_type(
    name: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the other extras are."""
    pytest.importorskip("pyarrow")
    table = PulledTable(ferromq.to_arrow([]), 0)  # pyarrow looks for pandas once, and not for one marked as missing
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ferromq.ConfigError, match=f"{name}.*pip install {line}$"):
        table.to_polars() if name == "polars" else ferromq.to_pandas([])


def test_tables_become_data_frames_with_a_column_for_each_of_theirs(messages: list[MessageView]) -> None:
    """Received ones, and pulled ones, in pandas and in polars."""
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    table = table_of(messages)
    for each in (table, PulledTable(table.table, 2)):
        frame = each.to_pandas()
        assert list(frame["properties"]) == [{"colour": "red"}, {}]
        assert list(frame["body"]) == [b"one" * 5000, b"two"]
        other = each.to_polars()
        assert other.columns == table.table.column_names
        assert other["body"].to_list() == [b"one" * 5000, b"two"]
        assert other["keys"].to_list() == [["a", "b"], []]
        assert other["born_timestamp"].dt.epoch("ms").to_list() == [message.born_timestamp for message in messages]


def test_programs_that_know_arrow_take_a_table_as_it_is(messages: list[MessageView]) -> None:
    """By Arrow's PyCapsule interface."""
    pa = pytest.importorskip("pyarrow")
    pl = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    received = table_of(messages)
    assert pa.table(received).equals(received.table)
    assert pl.DataFrame(received)["tag"].to_list() == ["new", None]
    assert duckdb.sql("select tag, octet_length(body) from received").fetchall() == [("new", 15000), (None, 3)]


def _sent(mq: ferromq.Embedded) -> None:
    mq.admin().create_topic("orders", queues=1)
    with mq.producer() as producer:
        producer.send("orders", Message(b"one" * 5000, keys=["a", "b"], tag="new", properties={"colour": "red"}))
        producer.send("orders", b"two")
    dispatched(mq)


def test_a_received_table_has_the_rows_of_its_messages_and_is_acknowledged_as_one() -> None:
    """Decoded columns are those that single messages make; what is acknowledged does not come again."""
    pytest.importorskip("pyarrow")
    with ferromq.embedded(clock=ferromq.Clock.manual()) as mq:
        _sent(mq)
        with mq.consumer("billing", "orders") as consumer:
            received = consumer.receive_arrow(10, wait=20)
            assert len(received) == 2
            assert received.table.equals(ferromq.to_arrow(received))
            assert "MessageTable of 2" in repr(received)
            assert "two" in received._repr_html_()
            assert [message.receipt_handle != "" for message in received] == [True, True]
            consumer.ack(received)
            mq.clock.advance(minutes=5)
            assert len(consumer.receive_arrow(10, wait=0)) == 0
        with mq.consumer("audit", "orders") as consumer:
            first = consumer.receive_arrow(1, wait=20)
            consumer.give_back(first)
            assert consumer.receive_arrow(10, wait=20).table.num_rows == 2, "what was given back comes again"


def test_pulled_tables_follow_each_other_to_the_end_of_a_queue() -> None:
    """Nothing is leased, and the last one has no rows."""
    pytest.importorskip("pyarrow")
    with ferromq.embedded() as mq:
        _sent(mq)
        with mq.consumer("billing", "orders") as consumer:
            (queue,) = consumer.queues()
            bodies, offset = [], consumer.offset_at(queue, "begin")
            while (pulled := consumer.pull_arrow(queue, offset, 1)).table.num_rows:
                bodies += pulled.table.column("body").to_pylist()
                offset = pulled.next_offset
            assert (bodies, offset) == ([b"one" * 5000, b"two"], 2)
            assert pulled.table.schema == ferromq.to_arrow([]).schema
            with pytest.raises(ferromq.RequestError, match="holds 0 to 2"):
                consumer.pull_arrow(queue, 7)


def test_tables_are_received_and_pulled_on_an_event_loop() -> None:
    """As on threads."""
    pytest.importorskip("pyarrow")

    async def program(endpoint: str) -> None:
        async with ferromq.aio.Consumer(endpoint, "billing", "orders") as consumer:
            received = await consumer.receive_arrow(10, wait=20)
            assert received.table.equals(ferromq.to_arrow(received))
            await consumer.ack(received)
            (queue,) = await consumer.queues()
            assert (await consumer.pull_arrow(queue, 1)).table.column("body").to_pylist() == [b"two"]

    with ferromq.embedded() as mq:
        _sent(mq)
        asyncio.run(program(mq.endpoint))


def test_a_table_needs_pyarrow_before_a_message_is_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is still there for others."""
    pytest.importorskip("pyarrow")
    with ferromq.embedded() as mq:
        _sent(mq)
        with mq.consumer("billing", "orders") as consumer:
            with monkeypatch.context() as without:
                without.setitem(sys.modules, "pyarrow", None)
                for call in (
                    lambda: consumer.receive_arrow(wait=20),
                    lambda: consumer.pull_arrow(consumer.queues()[0], 0),
                ):
                    with pytest.raises(ferromq.ConfigError, match=r"pyarrow.*pip install 'ferromq\[arrow\]'"):
                        call()
            assert len(consumer.receive_many(2, wait=10)) == 2
