"""`connect` without a broker: its addresses, how a connection shows itself, and what its end means."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ferromq
from ferromq import aio
from ferromq.message import Batch, SendSummary

CONNECT = [ferromq.connect, aio.connect]
ABSENT = "127.0.0.1:1"
Connect = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variable that the tests may have been started with."""
    monkeypatch.delenv("FERROMQ_ENDPOINT", raising=False)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


@pytest.mark.parametrize("connect", CONNECT)
@pytest.mark.parametrize(
    ("given", "endpoint"),
    [
        ("a:1", "a:1"),
        ("a:1; [::1]:2", "a:1;[::1]:2"),
        (["a:1", "b:2"], "a:1;b:2"),
        (("a:1;b:2", "c:3"), "a:1;b:2;c:3"),
    ],
)
def test_one_broker_or_several_are_given(connect: Connect, given: Any, endpoint: str) -> None:
    """Joined, or as a sequence; clients get all of them."""
    mq = connect(given)
    assert mq.endpoint == endpoint
    assert endpoint in repr(mq.producer())


@pytest.mark.parametrize("connect", CONNECT)
def test_without_an_argument_the_environment_says_the_address(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An argument goes before it."""
    monkeypatch.setenv("FERROMQ_ENDPOINT", "a:1;b:2")
    assert connect().endpoint == "a:1;b:2"
    assert connect("c:3").endpoint == "c:3"
    monkeypatch.setenv("FERROMQ_ENDPOINT", "nonsense")
    with pytest.raises(ferromq.ConfigError, match=r"FERROMQ_ENDPOINT is 'nonsense': .*host:port"):
        connect()


@pytest.mark.parametrize("connect", CONNECT)
@pytest.mark.parametrize("given", ["a:9876; b:9876", ["a:9876", "b:9876"]])
def test_name_servers_are_given_in_the_same_forms(connect: Connect, given: Any) -> None:
    """All clients get them, administrators, too; the address of such a connection can be given to any client."""
    mq = connect(namesrv=given)
    assert mq.endpoint == "namesrv://a:9876;b:9876"
    assert "namesrv://a:9876;b:9876" in repr(mq.producer())
    assert "a:9876" in repr(mq.admin())
    assert connect(mq.endpoint).endpoint == mq.endpoint


@pytest.mark.parametrize("connect", CONNECT)
def test_rocketmqs_variable_names_the_name_servers(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint of the environment goes before it, and an argument before both."""
    monkeypatch.setenv("NAMESRV_ADDR", "n:9876;m:9876")
    assert connect().endpoint == "namesrv://n:9876;m:9876"
    monkeypatch.setenv("FERROMQ_ENDPOINT", "a:1")
    assert connect().endpoint == "a:1"
    assert connect(namesrv="c:9876").endpoint == "namesrv://c:9876"
    monkeypatch.delenv("FERROMQ_ENDPOINT")
    monkeypatch.setenv("NAMESRV_ADDR", "nonsense")
    with pytest.raises(ferromq.ConfigError, match=r"NAMESRV_ADDR is 'nonsense': a name server is host:port"):
        connect()


@pytest.mark.parametrize("connect", CONNECT)
@pytest.mark.parametrize(
    ("endpoint", "namesrv", "text"),
    [
        ("a:1", "b:9876", "endpoint and namesrv are given"),
        (None, "http://b:9876", "a name server is host:port"),
        (None, "", "a name server is host:port"),
        (None, 9876, "namesrv is 9876"),
        ("namesrv://", None, "a name server is host:port"),
    ],
)
def test_wrong_name_servers_are_refused(connect: Connect, endpoint: Any, namesrv: Any, text: str) -> None:
    """With the form that is right."""
    with pytest.raises(ferromq.ConfigError, match=text):
        connect(endpoint, namesrv=namesrv)


@pytest.mark.parametrize("connect", CONNECT)
@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_address_is_an_error_that_names_both_ways(
    connect: Connect, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty variable is a missing one."""
    if value is not None:
        monkeypatch.setenv("FERROMQ_ENDPOINT", value)
    with pytest.raises(ferromq.ConfigError, match=r"ferromq\.connect\('HOST:8081'\).*FERROMQ_ENDPOINT"):
        connect()


@pytest.mark.parametrize("connect", CONNECT)
@pytest.mark.parametrize("given", ["", [], "a", ["a:1", "b"], 8081, b"a:1", ["a:1", 2], "a:0", "http://a:1"])
def test_a_malformed_address_is_refused(connect: Connect, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an empty one: only None stands for the variable."""
    monkeypatch.setenv("FERROMQ_ENDPOINT", "a:1")
    with pytest.raises(ferromq.ConfigError, match="host:port"):
        connect(given)


def test_nothing_is_connected_before_the_first_use() -> None:
    """Neither by a connection nor by the clients it makes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        with ferromq.connect(f"127.0.0.1:{server.getsockname()[1]}") as mq:
            mq.producer()
            mq.consumer("g", "t")
            mq.admin()
        with pytest.raises(BlockingIOError):
            server.accept()


def test_clients_have_the_options_of_their_connection_unless_they_are_given_others() -> None:
    """The timeout stands for all; administrators have no attempts."""
    mq = ferromq.connect(ABSENT, timeout=7, attempts=2)
    producer, consumer, admin = mq.producer(), mq.consumer("g", "t", timeout=3), mq.admin()
    common = [each._client.common for each in (producer, consumer)]
    assert [(each.timeout, each.attempts) for each in common] == [(7, 2), (3, 2)]
    assert (admin._calls._timeout, mq.admin(timeout=1)._calls._timeout) == (7, 1)
    for make in (mq.producer, mq.admin):
        with pytest.raises(TypeError, match="nonsense"):
            make(nonsense=1)


def test_a_closed_connection_makes_no_clients_and_has_closed_those_it_made() -> None:
    """The error says what to do."""
    with ferromq.connect(ABSENT) as mq:
        clients = [mq.producer(), mq.consumer("g", "t"), mq.admin()]
    assert mq.closed
    assert all(each.closed for each in clients)
    mq.close()
    for make in (mq.producer, mq.admin, lambda: mq.consumer("g", "t"), mq.__enter__):
        with pytest.raises(ferromq.ClientClosed, match=r"connection is closed; .* ferromq\.connect\(\)"):
            make()


def test_a_closed_connection_of_asyncio_has_closed_its_clients() -> None:
    """As the synchronous one."""

    async def use() -> None:
        async with aio.connect(ABSENT) as mq:
            clients = [mq.producer(), mq.consumer("g", "t"), mq.admin()]
        assert mq.closed
        assert all(each.closed for each in clients)
        await mq.close()
        with pytest.raises(ferromq.ClientClosed, match=r"ferromq\.aio\.connect\(\)"):
            mq.producer()
        with pytest.raises(ferromq.ClientClosed):
            await clients[2].topics()

    asyncio.run(use())


def test_a_connection_keeps_no_client_that_was_closed() -> None:
    """A program may make any number of them, one after the other."""
    with ferromq.connect(ABSENT) as mq:
        for _ in range(5):
            mq.producer().close()
        last = mq.producer()
        assert list(mq._made.values()) == [last]


def test_clients_show_their_address_and_state() -> None:
    """On one line."""
    with ferromq.connect(ABSENT) as mq:
        clients = [mq, mq.producer(), mq.consumer("billing", "orders"), mq.admin(), ferromq.Admin("a:1;b:2")]
        shown = [repr(each) for each in clients]
    assert shown == [
        '<Connection endpoint="127.0.0.1:1" open>',
        '<Producer endpoint="127.0.0.1:1" open>',
        '<Consumer endpoint="127.0.0.1:1" group="billing" topic="orders" open>',
        '<Admin endpoint="127.0.0.1:1" open>',
        '<Admin namesrv="a:1;b:2" open>',
    ]
    assert repr(clients[1]) == '<Producer endpoint="127.0.0.1:1" closed>'


def test_clients_of_asyncio_show_the_same() -> None:
    """With the name of their module."""
    mq = aio.connect(ABSENT)
    for each in (mq, mq.producer(), mq.consumer("g", "t"), mq.admin()):
        assert repr(each).startswith(f'<aio.{type(each).__name__} endpoint="127.0.0.1:1"')


def test_no_client_shows_its_secrets(tmp_path: Path) -> None:
    """Neither files of keys nor certificates."""
    trust = tmp_path / "ca.pem"
    trust.touch()
    with ferromq.connect(ABSENT, tls=ferromq.Tls(trust)) as mq:
        assert "ca.pem" not in repr(mq) + mq._repr_html_()


def test_a_notebook_shows_a_connection_with_its_open_clients() -> None:
    """Few of many; all texts are escaped."""
    with ferromq.connect(ABSENT) as mq:
        for _ in range(12):
            mq.producer()
        mq.producer().close()
        found = mq._repr_html_()
    assert found.count("Producer") == 10
    assert "and 2 more" in found
    assert "<td>&lt;Producer endpoint=&quot;127.0.0.1:1&quot; open&gt;</td>" in found


def test_a_notebook_shows_the_first_receipts_of_a_summary() -> None:
    """As a table; a topic's name is escaped like any text."""
    ids: Any = [f"id-{number}" for number in range(1200)]
    summary = SendSummary([Batch(ids, 3, range(1200), "<b>orders</b>")])
    found = summary._repr_html_()
    assert "SendSummary of 1,200 messages" in found
    assert found.count("<tr>") == 12
    assert "<td>id-9</td><td>&lt;b&gt;orders&lt;/b&gt;</td><td>3</td><td>9</td>" in found
    assert "and 1,190 more" in found
    assert "id-10" not in found
    assert "more" not in SendSummary([])._repr_html_()


def test_an_administrator_needs_one_of_two_addresses() -> None:
    """The error names both."""
    for given in ({}, {"namesrv": "a:1", "endpoint": "b:2"}):
        with pytest.raises(ferromq.ConfigError, match=r"one of two.*9876.*8081"):
            ferromq.Admin(**given)
