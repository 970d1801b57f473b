"""Which channels of a client are closed: idle ones, of unused endpoints; time is an argument."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ferromq.client import connection
from ferromq.client.connection import Channels, Use
from ferromq.core.requests import Identity
from ferromq.errors import ClientClosed, ConnectionFailed

PATIENCE = 30
MOMENT = 0.2
"""Seconds that another thread has for a forbidden action."""


def test_an_endpoint_is_idle_when_no_call_to_it_can_be_under_way() -> None:
    """The longest call counts, not the last one; a used endpoint is never idle."""
    now, needed = [0.0], {"a"}
    use = Use(lambda: now[0])
    use.is_needed = needed.__contains__
    use.begin("a", 3)
    use.begin("b", 30)
    use.begin("b", 3)
    now[0] = 10
    assert use.idle(["a", "b", "never"]) == ["never"]
    needed.clear()
    assert use.idle(["a", "b"]) == ["a"]
    now[0] = 31
    assert use.idle(["b"]) == ["b"]


def test_a_new_channel_takes_the_place_of_idle_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """So there are never more than endpoints in routes, and those just used."""
    closed: list[str] = []

    def open_channel(_module: Any, endpoint: str, _tls: object) -> Any:
        return SimpleNamespace(unary_unary=lambda path: path, close=lambda: closed.append(endpoint))

    monkeypatch.setattr(connection, "open_channel", open_channel)
    channels = Channels(Identity(), None)
    channels.use.is_needed = lambda endpoint: endpoint == "b:1"
    channels.method("a:1", "QueryRoute")
    channels.method("b:1", "QueryRoute")
    assert closed == ["a:1"]
    channels.use.begin("c:1", 60)
    channels.method("c:1", "QueryRoute")
    channels.method("d:1", "QueryRoute")
    assert closed == ["a:1"]
    channels.close()
    assert sorted(closed) == ["a:1", "b:1", "c:1", "d:1"]


def test_the_longer_of_two_calls_counts_that_begin_at_once() -> None:
    """Also if the second one begins while the first one is noted."""
    others: list[threading.Thread] = []

    def now() -> float:
        if not others:
            others.append(threading.Thread(target=use.begin, args=("a", 60)))
            others[0].start()
            others[0].join(MOMENT)
        return clock[0]

    clock = [0.0]
    use = Use(now)
    use.is_needed = lambda _endpoint: False
    use.begin("a", 3)
    others[0].join(PATIENCE)
    clock[0] = 30
    assert use.idle(["a"]) == []


def test_a_call_that_begins_as_its_channel_is_found_idle_has_an_open_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel that is closed is not found any more."""
    closed: list[Any] = []
    found: list[Any] = []
    others: list[threading.Thread] = []
    begun = threading.Event()

    def open_channel(_module: Any, _endpoint: str, _tls: object) -> Any:
        channel: Any = SimpleNamespace(close=lambda: closed.append(channel))
        channel.unary_unary = lambda _path: channel
        return channel

    def begin() -> None:
        channels.use.begin("a:1", 60)
        found.append(channels.method("a:1", "QueryRoute"))
        begun.set()

    def is_needed(_endpoint: str) -> bool:
        if not others:
            others.append(threading.Thread(target=begin))
            others[0].start()
            begun.wait(MOMENT)
        return False

    monkeypatch.setattr(connection, "open_channel", open_channel)
    channels = Channels(Identity(), None)
    first = channels.method("a:1", "QueryRoute")
    channels.use.is_needed = is_needed
    channels.use.begin("b:1", 60)
    channels.method("b:1", "QueryRoute")
    others[0].join(PATIENCE)
    assert closed == [first]
    assert found[0] is not first


def test_a_channel_closed_before_its_call_is_no_closed_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker left: plans ask another one."""

    def refuse(*_arguments: object) -> None:
        raise ValueError("Cannot invoke RPC on closed channel!")

    method = SimpleNamespace(future=refuse)
    channel = SimpleNamespace(unary_unary=lambda _path: method, close=lambda: None)
    monkeypatch.setattr(connection, "open_channel", lambda *_arguments: channel)
    channels = Channels(Identity(), None)
    with pytest.raises(ConnectionFailed, match="connection to broker a:1 was given up"):
        channels.call("a:1", "QueryRoute", b"", 1)
    channels._closed = True
    with pytest.raises(ClientClosed):
        channels.call("a:1", "QueryRoute", b"", 1)


def test_a_channel_that_does_not_end_holds_up_no_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C inside grpcio, whose channel then waits for ever; others are closed."""
    monkeypatch.setattr(connection, "_LONGEST_CLOSE", 0.05)
    ends, closed = threading.Event(), threading.Event()
    hanging: Any = SimpleNamespace(close=ends.wait)
    other: Any = SimpleNamespace(close=closed.set)
    connection.close_all([hanging, other])
    assert closed.wait(20)
    ends.set()
