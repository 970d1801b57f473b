"""Which channels of a client are closed: idle ones, of endpoints that are needed no more; time is given."""

from types import SimpleNamespace
from typing import Any

import pytest

from ferromq.client import _connection
from ferromq.client._connection import Channels, Use
from ferromq.client._protocol import Identity


def test_an_endpoint_is_idle_when_no_call_to_it_can_be_under_way() -> None:
    """The longest call counts, not the last one; what is needed is never idle."""
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

    monkeypatch.setattr(_connection, "open_channel", open_channel)
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
