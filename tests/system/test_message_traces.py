"""Traces of messages: administrators and `ferromq message trace` find what clients wrote into the trace topic."""

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from dashboards import Visitor, served
from remoting_peer import Peer

import ferromq
from ferromq._ferromq import decode_records
from ferromq.admin import asking, traces
from ferromq.cli import main as cli
from ferromq.errors import ServerError

TOPIC = "RMQ_SYS_TRACE_TOPIC"
SEND = 310
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def clock() -> ferromq.Clock:
    """Return the broker's clock, which is moved by hand."""
    return ferromq.Clock.manual()


@pytest.fixture
def mq(clock: ferromq.Clock) -> Iterator[ferromq.Embedded]:
    """Run a broker."""
    with ferromq.embedded(clock=clock) as embedded:
        yield embedded


def write(mq: ferromq.Embedded, *messages: tuple[str, str], is_compressed: bool = False, cut: int = 0) -> None:
    """
    Write trace messages: each with its keys, and its records with `|` between fields and `;` between records.

    A compressed one may be *cut* by so many bytes.
    """
    with Peer(mq.remoting) as peer:
        for key, text in messages:
            properties = f"KEYS\x01{key}\x02"
            named = {"a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
            named["f"] = str(int(is_compressed))
            body = text.replace("|", "\x01").replace(";", "\x02").encode()
            fields = {**named, "i": properties, "j": "0", "k": "false", "m": "false"}
            packed = zlib.compress(body)
            answer = peer.call(SEND, fields, packed[: len(packed) - cut] if is_compressed else body)
            assert answer.code == 0, answer.remark


def ran(mq: ferromq.Embedded, *words: str) -> tuple[int, str, str]:
    """Run a command, and return its exit code and what it printed."""
    with CliRunner().isolation() as (out, error, _):
        code = cli.main(("message", "trace", *words, "--namesrv", mq.namesrv))
        return code, out.getvalue().decode(), error.getvalue().decode()


def test_a_trace_topic_that_is_missing_is_named_with_its_option(tmp_path: Path) -> None:
    """And by its name, if clients have a topic of their own."""
    with ferromq.embedded(tmp_path) as mq:
        code, out, error = ran(mq, "id")
        assert (code, out) == (3, "")
        assert "enableMsgTrace" in error
        assert "traceTopicEnable=true" in error
        assert "no broker has the trace topic traces" in ran(mq, "id", "--trace-topic", "traces")[2]


def test_a_trace_joins_begins_and_ends_of_consumptions(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """From all messages with the id as a key; records that came twice count once."""
    sent = "Pub|1000|r|makers|orders|joined|null|k|10.0.0.1:10911|3|5|0|x|true|10.0.0.9;"
    begun = "SubBefore|2000|r|takers|req-1|joined|0|k;SubBefore|3000|r|takers|req-2|joined|1|k;"
    ended = "SubAfter|req-1|joined|12|false|k|4|2012|takers;SubAfter|req-1|other|12|true|k|0|2012|takers;"
    write(mq, ("joined", sent + sent), ("joined", begun), ("joined", ended), ("joined", "Wrong|1;" + sent))
    with mq.admin() as admin:
        assert eventually(lambda: len(admin.query_by_key(TOPIC, "joined")) == 4)
        found = admin.trace("joined")
        (send,) = found.sends
        assert (send.began, send.latency, send.client, send.broker) == (1000, 5, "10.0.0.9", "10.0.0.1:10911")
        first, second = found.consumptions
        assert (first.result, first.latency, first.client) == ("failed", 12, "127.0.0.1")
        assert (second.result, second.latency, second.deliveries_before) == (None, None, 1)
        assert (found.unreadable, found.is_complete, found.is_empty) == (1, True, False)
        stored = [message.store_timestamp for message in admin.query_by_key(TOPIC, "joined")]
        assert admin.trace("joined", since=min(stored), until=max(stored)) == found
        assert admin.trace("joined", since=max(stored) + 2000).is_empty
        assert admin.trace("joined", until=min(stored) - 2000).is_empty
        with pytest.raises(ferromq.ConfigError, match="is before"):
            admin.trace("joined", since=max(stored), until=min(stored) - 1)
    code, out, _ = ran(mq, "joined", "--json")
    value = json.loads(out)
    assert (code, value["message_id"], len(value["consumptions"]), value["sends"][0]["latency"]) == (0, "joined", 2, 5)
    code, out, _ = ran(mq, "joined")
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 4)
    assert [line.split()[2] for line in lines[1:]] == ["send", "consumption", "consumption"]
    assert "its end is not traced" in lines[-1]
    assert "delivery 2" in lines[-1]


def test_a_message_without_a_trace_is_an_exit_code(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """And the error says how clients trace."""
    write(mq, ("someone", "Pub|1|r|g|t|someone|null|k|h:1|3|5|0|x|true;"))
    with mq.admin() as admin:
        assert eventually(lambda: not admin.trace("someone").is_empty)
    code, out, error = ran(mq, "no-one")
    assert (code, out) == (3, "")
    assert f"no client traced the message no-one in {TOPIC}" in error


def test_a_trace_that_cannot_be_read_is_no_trace_that_is_not_there(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """Records of an unknown form, and those beyond the limits, are named."""
    write(mq, ("odd", "New|1;"))
    with mq.admin() as admin:
        assert eventually(lambda: admin.trace("odd").unreadable == 1)
    code, out, error = ran(mq, "odd")
    assert (code, out) == (3, "")
    assert "no record of the message odd could be read" in error
    assert "1 record of an unknown form" in error
    sent = "Pub|1000|r|makers|orders|odd|null|k|10.0.0.1:10911|3|5|0|x|true|10.0.0.9;"
    write(mq, ("odd", sent))
    with mq.admin() as admin:
        assert eventually(lambda: not admin.trace("odd").is_empty)
    code, out, error = ran(mq, "odd")
    assert (code, len(out.splitlines())) == (0, 2)
    assert "1 record of an unknown form" in error
    monkeypatch.setattr(traces, "_MOST_RECORDS", 0)
    code, out, error = ran(mq, "odd")
    assert (code, out) == (3, "")
    assert "no record of the message odd could be read" in error
    assert "--since and --until" in error


def test_a_broker_that_is_gone_leaves_an_empty_document(mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its address, instead of no output."""
    gone = (ferromq.admin.Unreachable("mq2:10911", ferromq.OutcomeUnknown("no answer")),)
    found = traces.MessageTrace("id", (), (), (), (), 0, is_complete=True, unreachable=gone)
    monkeypatch.setattr(ferromq.Admin, "trace", lambda *_given, **_options: found)
    code, out, _ = ran(mq, "id", "--json")
    value = json.loads(out)
    assert (code, value["message_id"], value["unreachable"][0]["address"]) == (4, "id", "mq2:10911")


def test_traces_of_many_messages_are_read_in_several_answers(
    mq: ferromq.Embedded, clock: ferromq.Clock, eventually: Eventually
) -> None:
    """Each answer is limited; more of one second than one answer has is told, and earlier ones are read."""
    texts = [f"SubBefore|{at}|r|g|req-{at}|many|0|k;" for at in range(140)]
    with mq.admin() as admin:
        for part in (texts[:35], texts[35:70]):
            write(mq, *(("many", text) for text in part))
            clock.advance(seconds=1)
        assert eventually(lambda: len(admin.query_by_key(TOPIC, "many", 1000)) == 70)
        found = admin.trace("many")
        assert (len(found.consumptions), found.is_complete) == (70, True)
        write(mq, *(("many", text) for text in texts[70:]))
        assert eventually(lambda: len(admin.query_by_key(TOPIC, "many", 1000)) == 140)
        found = admin.trace("many")
        assert (len(found.consumptions), found.is_complete) == (64 + 70, False)
    code, _, error = ran(mq, "many")
    assert code == 0
    assert "--since and --until" in error


def test_what_a_stranger_writes_is_bounded(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """A body that is large once it is decompressed is not read, and records are kept up to a limit."""
    begun = "".join(f"SubBefore|{at}|r|g|req-{at}|much|0|k;" for at in range(300))
    write(mq, ("much", "SubBefore|1|r|g|large|much|0|k;" * 40_000), ("much", begun), is_compressed=True)
    write(mq, ("much", begun.replace("req-", "cut-")), is_compressed=True, cut=5)
    write(mq, ("much", "New|1"))
    with mq.admin() as admin:
        assert eventually(lambda: len(admin.query_by_key(TOPIC, "much")) == 4)
        found = admin.trace("much")
        assert (len(found.consumptions), found.unreadable, found.is_complete) == (300, 3, True)
        monkeypatch.setattr(traces, "_MOST_RECORDS", 299)
        found = admin.trace("much")
        assert (len(found.consumptions), found.is_complete) == (299, False)
        monkeypatch.setattr(traces, "_MOST_BYTES", len(begun) - 1)
        found = admin.trace("much")
        # The newest two, of which the second cannot be read and counts as a large one.
        assert (len(found.consumptions), found.unreadable, found.is_complete) == (0, 2, False)


def test_an_answer_in_another_form_names_its_broker(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """Of a trace and of each search."""
    with mq.producer() as producer, mq.admin() as admin:
        receipt = producer.send("odd", b"body", keys="key")
        write(mq, ("odd", "New|1;"))
        assert eventually(lambda: bool(admin.query_by_key(TOPIC, "odd") and admin.query_by_key("odd", "key")))
        monkeypatch.setattr(asking, "decode_records", lambda _body: decode_records(b"abc"))
        for ask in (
            lambda: admin.trace("odd"),
            lambda: admin.query_by_key("odd", "key"),
            lambda: admin.query_by_offset("odd", receipt.queue_id, 0, 1),
        ):
            with pytest.raises(ServerError, match=r"messages at 127\.0\.0\.1:\d+ are malformed"):
                ask()


def test_the_dashboard_shows_a_trace_beside_its_message(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """And nothing about traces before a client traces."""
    with mq.producer() as producer, mq.admin() as admin:
        sent = producer.send("shown", b"body").message_id
        assert eventually(lambda: admin.query_by_id("shown", sent) is not None)
        with served(mq.namesrv) as dashboard, Visitor(dashboard) as visitor:
            assert ">Trace<" not in visitor.page("/message", topic="shown", id=sent)
            write(mq, (sent, f"SubBefore|2000|r|takers|req|{sent}|1|k;SubAfter|req|{sent}|12|false|k|2|2012|takers;"))
            assert eventually(lambda: len(admin.query_by_key(TOPIC, sent)) == 1)
            page = visitor.page("/message", topic="shown", id=sent)
            assert all(text in page for text in (">Trace<", "takers", "delivery 2", "exception"))
            assert "of an unknown form" not in page
            many = "".join(f"SubBefore|{at}|r|g|req-{at}|{sent}|0|k;" for at in range(150))
            write(mq, (sent, f"New|1;{many}"))
            assert eventually(lambda: len(admin.query_by_key(TOPIC, sent)) == 2)
            page = visitor.page("/message", topic="shown", id=sent)
    assert "Records of an unknown form in its trace messages: 1<" in page
    assert page.count("consumed, delivery") == 100
    assert "Only the first 100 records" in page
