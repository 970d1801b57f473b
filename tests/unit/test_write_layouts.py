"""The layouts of writes as a broker keeps them: the first one of an epoch, over kills and restarts."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferromq._proto import messages as pb
from ferromq.broker.messages.write_layouts import (
    MAX_BYTES,
    MAX_LAYOUT,
    TooManyLayouts,
    UnknownTopic,
    WriteLayouts,
    without_steps,
)
from ferromq.errors import CorruptStore
from ferromq.protocol import java_json

WINDOW_MS = 1000


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 5000

    def __call__(self) -> int:
        """Return the time."""
        return self.now


def opened(path: Path, now_ms: Callable[[], int] = Clock(), limit: int = 1000) -> WriteLayouts:  # noqa: B008
    """Open the table as a starting broker does, after a kill."""
    return WriteLayouts(path / "layouts.json", now_ms, window_ms=WINDOW_MS, limit=limit)


def test_the_first_layout_of_an_epoch_is_kept_over_a_kill(tmp_path: Path) -> None:
    """A request without one changes nothing; the next epoch has its own, and an older one the latest."""
    layouts = opened(tmp_path)
    assert layouts.keep("w", "orders", 3, None) is None
    assert layouts.keep("w", "orders", 3, "a:0") == "a:0"
    assert layouts.keep("w", "orders", 3, "a:1") == "a:0"
    for others in (("v", "orders"), ("w", "returns")):
        assert layouts.keep(*others, 3, None) is None
    layouts = opened(tmp_path)
    assert layouts.keep("w", "orders", 3, "a:1") == "a:0"
    assert layouts.keep("w", "orders", 4, None) is None
    assert layouts.keep("w", "orders", 4, "a:1") == "a:1"
    assert opened(tmp_path).keep("w", "orders", 2, "a:2") == "a:1"


def test_a_layout_is_forgotten_a_window_after_it_was_asked_for_and_with_its_topic(tmp_path: Path) -> None:
    """A query counts as a use, also over a restart."""
    clock = Clock()
    layouts = opened(tmp_path, clock)
    layouts.keep("w", "orders", 0, "a:0")
    for _ in range(3):
        clock.now += WINDOW_MS - 1
        assert layouts.keep("w", "orders", 0, None) == "a:0"
        layouts = opened(tmp_path, clock)
    clock.now += WINDOW_MS
    assert layouts.keep("w", "orders", 0, None) is None
    assert layouts.keep("w", "orders", 0, "a:1") == "a:1"
    layouts.keep("w", "returns", 0, "a:2")
    layouts.forget("orders")
    for each in (layouts, opened(tmp_path, clock)):
        assert each.keep("w", "orders", 0, None) is None
        assert each.keep("w", "returns", 0, None) == "a:2"


def test_steps_of_the_clock_make_no_layout_older_and_keep_none_for_longer(tmp_path: Path) -> None:
    """Its age is elapsed time; one from a clock that was ahead is as old as the broker's start."""
    wall, passed = Clock(), [0.0]
    now_ms = without_steps(cast("Any", SimpleNamespace(is_manual=False, now_ms=wall)), lambda: passed[0])
    layouts = opened(tmp_path, now_ms)
    layouts.keep("w", "orders", 0, "a:0")
    wall.now += 100 * WINDOW_MS
    assert layouts.keep("w", "orders", 0, None) == "a:0"
    passed[0] += WINDOW_MS / 1000
    assert layouts.keep("w", "orders", 0, None) is None
    layouts.keep("w", "orders", 0, "a:1")
    behind = Clock()
    behind.now = 0
    layouts = opened(tmp_path, behind)
    behind.now += WINDOW_MS - 1
    assert opened(tmp_path, behind).keep("w", "orders", 1, None) is None
    behind.now += 1
    assert layouts.keep("w", "orders", 0, None) is None


def test_the_limit_refuses_new_writers_until_one_is_out_of_the_window(tmp_path: Path) -> None:
    """Forgetting the oldest would store its rows twice."""
    clock = Clock()
    layouts = opened(tmp_path, clock, limit=2)
    layouts.keep("v", "orders", 0, "a:0")
    clock.now += WINDOW_MS // 2
    layouts.keep("w", "orders", 0, "a:0")
    with pytest.raises(TooManyLayouts, match="2 layouts of writers are kept; 2 are allowed"):
        layouts.keep("x", "orders", 0, "a:0")
    clock.now += WINDOW_MS // 4
    assert layouts.keep("v", "orders", 1, "a:1") == "a:1"
    clock.now += WINDOW_MS // 4 * 3
    assert layouts.keep("x", "orders", 0, "a:0") == "a:0"
    assert opened(tmp_path, clock, limit=2).keep("v", "orders", 1, None) == "a:1"


def test_the_bytes_of_all_layouts_are_bounded(tmp_path: Path) -> None:
    """Wide characters count with their memory; expired layouts free theirs."""
    clock = Clock()
    layouts = opened(tmp_path, clock, limit=10_000)
    large = "a" * (MAX_LAYOUT - 1) + chr(0x1F980)
    there = MAX_BYTES // (4 * MAX_LAYOUT) - 1
    for number in range(there):
        layouts.keep(f"w{number}", "orders", 0, large)
    for again in (layouts, opened(tmp_path, clock, limit=10_000)):
        with pytest.raises(TooManyLayouts, match=rf"\d+ bytes; {MAX_BYTES} are allowed"):
            again.keep("x", "orders", 0, large + large)
        with pytest.raises(TooManyLayouts, match=f"{MAX_BYTES} are allowed"):
            again.keep("w0", "orders", 1, 3 * large)
        assert again.keep("w0", "orders", 0, None) == large
    assert layouts.keep("w0", "orders", 1, "a:0") == "a:0"
    clock.now += WINDOW_MS
    assert layouts.keep("x", "orders", 0, large + large) == large + large


def test_a_layout_of_no_topic_and_one_without_space_are_refused(tmp_path: Path) -> None:
    """Queries are not; kept layouts are still answered."""
    topics = {"orders"}
    kwargs: dict[str, Any] = {"window_ms": WINDOW_MS, "limit": 10, "is_topic": topics.__contains__}
    layouts = WriteLayouts(tmp_path / "new" / "layouts.json", Clock(), **kwargs)
    assert layouts.keep("w", "orders", 0, "a:0") == "a:0"
    with pytest.raises(UnknownTopic, match="the topic returns does not exist here"):
        layouts.keep("w", "returns", 0, "a:0")
    assert layouts.keep("w", "returns", 0, None) is None
    right = {"writer": "w", "topic": "returns", "epoch": 0, "layout": "a:0"}
    assert asked(layouts, **right)["code"] == pb.Code.TOPIC_NOT_FOUND
    layouts.close()
    layouts = WriteLayouts(tmp_path / "new" / "layouts.json", Clock(), **kwargs, reserve=1 << 62)
    assert layouts.keep("w", "orders", 0, "a:1") == "a:0"
    told = asked(layouts, **{**right, "topic": "orders", "epoch": 1})
    assert told["code"] == pb.Code.INTERNAL_SERVER_ERROR
    assert "disk_reserve" in told["message"]
    assert layouts.keep("w", "orders", 1, None) is None


def test_nothing_is_kept_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets no layout that a restart would lose."""
    layouts = opened(tmp_path)
    layouts.keep("w", "orders", 0, "a:0")
    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", lambda _file: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            layouts.keep("w", "orders", 1, "a:1")
        assert layouts.keep("w", "orders", 1, None) is None
    assert layouts.keep("w", "orders", 1, "a:2") == "a:2"
    assert opened(tmp_path).keep("w", "orders", 1, None) == "a:2"


def test_a_damaged_file_stops_the_start_and_a_torn_line_of_the_journal_does_not(tmp_path: Path) -> None:
    """The error names the file and the way out."""
    layouts = opened(tmp_path)
    layouts.keep("w", "orders", 0, "a:0")
    layouts.keep("w", "orders", 1, "a:1")
    journal = tmp_path / "layouts.journal"
    journal.write_bytes(journal.read_bytes()[:-3])
    assert opened(tmp_path).keep("w", "orders", 0, None) == "a:0"
    (tmp_path / "layouts.json").write_text('{"layouts":[["w"]]}')
    with pytest.raises(CorruptStore, match=r"layouts\.json is not a table of write layouts.*remove it if"):
        opened(tmp_path)


Step = tuple[str, int, str]
STEPS = st.lists(
    st.tuples(st.sampled_from(["v", "w"]), st.integers(0, 3), st.sampled_from(["a:0", "a:1", "", "restart", "forget"])),
    max_size=30,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_kills_change_nothing(tmp_path_factory: pytest.TempPathFactory, steps: list[Step]) -> None:
    """A table that is opened anew at any time answers as one that never was."""
    path = tmp_path_factory.mktemp("layouts")
    layouts = opened(path)
    known: dict[str, tuple[int, str]] = {}
    for writer, epoch, word in steps:
        if word == "restart":
            layouts = opened(path)
            continue
        if word == "forget":
            layouts.forget("orders")
            known.clear()
            continue
        before = known.get(writer)
        if before is None or epoch > before[0]:
            expected = word or None
            if word:
                known[writer] = epoch, word
        else:
            expected = before[1]
        assert layouts.keep(writer, "orders", epoch, word or None) == expected


def test_the_file_is_written_anew_before_the_journal_is_long(tmp_path: Path) -> None:
    """A stream of many epochs leaves few lines behind."""
    layouts = opened(tmp_path)
    for epoch in range(1000):
        layouts.keep("w", "orders", epoch, f"a:{epoch}")
    assert (tmp_path / "layouts.journal").read_bytes().count(b"\n") < 300
    assert opened(tmp_path).keep("w", "orders", 999, None) == "a:999"


def asked(layouts: WriteLayouts, **fields: Any) -> dict[str, Any]:
    """Return the answer to a request."""
    request: Any = SimpleNamespace(body=json.dumps(fields).encode(), peer="here")
    return java_json.loads_object(layouts.answer(request))


def test_requests_are_json_and_those_that_are_wrong_are_refused(tmp_path: Path) -> None:
    """The answer has the valid form."""
    layouts = opened(tmp_path, limit=1)
    right = {"writer": "w", "topic": "orders", "epoch": 0, "layout": "a:0"}
    assert asked(layouts, **right) == {"code": pb.Code.OK, "message": "OK", "layout": "a:0"}
    for wrong in (
        {"writer": "a/b"},
        {"writer": None},
        {"topic": "a b"},
        {"topic": 5},
        {"epoch": -1},
        {"epoch": 1 << 63},
        {"epoch": True},
        {"layout": "a" * (MAX_LAYOUT + 1)},
        {"layout": 3},
    ):
        assert asked(layouts, **{**right, **wrong})["code"] == pb.Code.BAD_REQUEST, wrong
    assert asked(layouts, writer="w")["code"] == pb.Code.BAD_REQUEST
    refused = asked(layouts, **{**right, "writer": "v"})
    assert refused["code"] == pb.Code.FORBIDDEN
    assert "limit" in refused["message"]
