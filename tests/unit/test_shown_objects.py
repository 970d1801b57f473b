"""What objects show of themselves: on one line for `repr`, and as a table in notebooks."""

import asyncio
import inspect
from enum import Enum
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import ferromq
import ferromq.aio
from ferromq import Message, Reply, telemetry
from ferromq._ferromq import MessageView, Store, decode_received
from ferromq._proto import messages as pb
from ferromq.admin import DeadLetter
from ferromq.broker.controller import BrokerController
from ferromq.core.payloads import Decoder
from ferromq.core.pull_plans import NoLease, Pulled
from ferromq.process.clock import Clock
from ferromq.tables import PulledTable, table_of
from ferromq.terminal.objects import html_of
from ferromq.testing.clock import VirtualClock

SCRIPT = "<script>alert('hello')</script>"
ABSENT = "127.0.0.1:1"


def classes(module: ModuleType) -> list[type]:
    """Return the public classes of objects that a program holds."""
    found = [getattr(module, name) for name in module.__all__]
    return [each for each in found if inspect.isclass(each) and not issubclass(each, (BaseException, Enum))]


@pytest.mark.parametrize(
    "kind",
    [
        *classes(ferromq),
        *classes(ferromq.aio),
        *classes(ferromq.admin),
        BrokerController,
        VirtualClock,
        telemetry.OpenTelemetry,
        Store,
    ],
)
def test_every_object_shows_itself(kind: type) -> None:
    """In a log, a debugger, and a notebook."""
    assert kind.__repr__ is not object.__repr__
    if kind is not Store:
        assert hasattr(kind, "_repr_html_")


def received(body: bytes, **system: Any) -> MessageView:
    """Return a received message whose texts are scripts."""
    message = pb.Message(topic=pb.Resource(name=SCRIPT), body=body, user_properties={SCRIPT: SCRIPT})
    message.system_properties.MergeFrom(pb.SystemProperties(message_id=SCRIPT, tag=SCRIPT, keys=[SCRIPT], **system))
    answer = pb.ReceiveMessageResponse(message=message).SerializeToString()
    return decode_received([answer], packed=False, lease=NoLease(), endpoint="")[1][0]


def stored(body: bytes) -> ferromq.StoredMessage:
    """Return a stored message whose texts are scripts."""
    with ferromq.embedded() as mq:
        _, offset = mq.store.append("orders", 0, body, {"KEYS": SCRIPT, "TAGS": SCRIPT})
        message = mq.store.message_at(offset)
        assert message is not None
        return message


def bearers(body: bytes) -> list[Any]:
    """Return objects of each kind that shows a message."""
    view = received(body)
    table = table_of([view])
    return [
        view,
        Decoder(bytes.decode).given(view),
        Message(body, keys=SCRIPT.replace(" ", ""), tag=SCRIPT),
        Reply(SCRIPT, body, SCRIPT, (SCRIPT,), {SCRIPT: SCRIPT}, SCRIPT, 0, SCRIPT),
        ferromq.SendReceipt(SCRIPT, 0, 0, SCRIPT),
        Pulled([view] * 20, 1),
        table,
        PulledTable(table.table, 1),
        stored(body),
        DeadLetter("billing", stored(body), SCRIPT),
    ]


def test_a_notebook_runs_nothing_that_came_in_a_message() -> None:
    """Body, topic, properties, keys: all of it is escaped."""
    for each in bearers(SCRIPT.encode()):
        found = each._repr_html_()
        assert "<table>" in found
        assert "<script" not in found, each
        assert "&lt;script&gt;" in found, each


def test_no_more_of_a_body_is_shown_than_its_beginning() -> None:
    """Neither in a notebook nor in a log."""
    for each in bearers(b"x" * 100_000):
        assert "x" * 201 not in each._repr_html_(), each
        assert "x" * 201 not in repr(each), each
    found = received(b"y" * 100_000)._repr_html_()
    assert f"b&#x27;{'y' * 64}&#x27;… (100,000 bytes)" in found


def test_a_notebook_shows_a_message_whose_body_does_not_decompress() -> None:
    """With the error in place of the body."""
    assert "does not decompress as zlib" in received(b"plain", body_encoding=pb.Encoding.GZIP)._repr_html_()


def test_clients_show_their_namespace() -> None:
    """Two clients of one topic are told apart."""
    with ferromq.connect(ABSENT, namespace="shop") as mq:
        clients: list[Any] = [mq.producer(), mq.consumer("billing", "orders"), mq.reader("orders"), mq.admin()]
        for each in clients:
            assert f'<{type(each).__name__} endpoint="127.0.0.1:1" namespace="shop"' in repr(each)
            assert "<tr><th>namespace</th><td>shop</td></tr>" in each._repr_html_()

    async def program() -> None:
        async with ferromq.aio.connect(ABSENT, namespace="shop") as there:
            for each in (there.producer(), there.consumer("billing", "orders"), there.reader("orders"), there.admin()):
                assert f'<aio.{type(each).__name__} endpoint="127.0.0.1:1" namespace="shop"' in repr(each)
                assert f"<b>aio.{type(each).__name__} (open)</b>" in each._repr_html_()

    asyncio.run(program())


def test_parts_of_a_program_show_what_they_are() -> None:
    """Clocks, workers, a broker and its store."""
    assert repr(Clock.manual(0)) == '<Clock now="1970-01-01T00:00:00.000+00:00" manual>'
    assert repr(VirtualClock()).startswith('<VirtualClock now="')
    assert repr(telemetry.OpenTelemetry()).startswith('<OpenTelemetry tracer="')
    workers = ferromq.aio.Workers()

    @workers.handler("billing", "orders")
    async def bill(_message: Any) -> None: ...

    assert repr(workers) == '<aio.Workers billing="orders" 1 handlers>'
    with ferromq.embedded() as mq:
        assert f'endpoint="{mq.endpoint}"' in repr(mq.broker)
        assert repr(mq.store) == f'<Store directory="{mq.broker.config.store}">'


def test_a_value_that_does_not_know_whether_it_is_true_is_shown() -> None:
    """As an array of NumPy, which a decoder may return."""

    class Ambiguous:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

        def __repr__(self) -> str:
            return "array"

    class Shown(NamedTuple):
        value: object
        empty: str = ""

    shown = html_of(Shown(Ambiguous()))
    assert "array" in shown
    assert "empty" not in shown
