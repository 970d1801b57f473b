"""The progress bar of commands."""

import contextlib
import io
import re
import threading
from types import SimpleNamespace

import pytest

from ferromq.terminal.progress import Progress, watching


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_plain_lines_where_there_is_no_terminal() -> None:
    """A line for each quarter, however often it is updated."""
    stream = io.StringIO()
    with Progress("sending", 1000, stream) as progress:
        for done in range(1, 1001):
            progress.update(done)
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["25%", "50%", "75%", "100%"]
    assert "1,000 of 1,000" in lines[-1]


def test_one_line_that_moves_on_a_terminal() -> None:
    """The bar is drawn over itself, is full at the end, and ends its line."""
    stream = Terminal()
    with Progress("sending", 1000, stream) as progress:
        progress.update(1000)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("]\x1b[K\r\n")
    assert "100%" in text.split("\r")[-2]
    assert "#" * 28 in text.split("\r")[-2]


def test_nothing_to_do_is_done() -> None:
    """A total of zero is no division by it."""
    stream = Terminal()
    with Progress("sending", 0, stream) as progress:
        progress.update(0)
    assert "100%" in stream.getvalue()


def test_a_failure_before_a_total_is_known_is_no_full_bar() -> None:
    """Nor is a block that tells nothing. A failure later shows how far it came."""
    stream = Terminal()
    with contextlib.suppress(OSError), Progress("import", 0, stream):
        raise OSError("no broker")
    with contextlib.suppress(OSError), Progress("import", 0, stream) as progress:
        progress.show(0, 0)
        raise OSError("no broker")
    with Progress("import", 0, stream):
        pass
    assert stream.getvalue() == ""
    with contextlib.suppress(OSError), Progress("import", 0, stream) as progress:
        progress.show(1, 4)
        raise OSError("no broker")
    assert "25%" in stream.getvalue()


def test_the_rate_is_of_the_time_since_the_last_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came before is not part of it."""
    now = 100.0
    monkeypatch.setattr("ferromq.terminal.progress.time", SimpleNamespace(monotonic=lambda: now))
    stream = Terminal()
    with Progress("verify", 0, stream) as progress:
        now = 160.0
        progress.restart()
        now = 162.0
        progress.show(10, 10)
    assert "5/s" in stream.getvalue()


def test_bytes_are_shown_as_sizes_with_the_time_that_is_left() -> None:
    """The total may become known while it runs."""
    stream = Terminal()
    with Progress("verify", 0, stream, is_bytes=True) as progress:
        progress.show(1 << 30, 4 << 30)
    text = stream.getvalue().split("\r")[-2]
    assert "25%" in text
    assert "1.00 of 4.00 GiB" in text
    assert re.search(r"GiB/s  [\d,]+ s left", text)


def test_quiet_shows_nothing() -> None:
    """For commands whose reader is a program."""
    for stream in (Terminal(), io.StringIO()):
        with Progress("verify", 10, stream, is_quiet=True) as progress:
            progress.update(10)
        assert stream.getvalue() == ""


def test_a_block_is_watched_from_another_thread() -> None:
    """From the first total on; its end is the end of the bar, unless it failed."""
    stream, numbers, is_read = Terminal(), [(0, 0)], threading.Event()

    def read() -> tuple[int, int]:
        if numbers[-1][1]:
            is_read.set()
        return numbers[-1]

    with watching("recovery", read, stream) as is_shown:
        assert is_shown
        numbers.append((1 << 29, 1 << 30))
        assert is_read.wait(10)
    assert "recovery   100%  0.50 of 0.50 GiB" in stream.getvalue().split("\r")[-2]
    assert "ferromq-progress" not in {each.name for each in threading.enumerate()}
    is_read.clear()
    with contextlib.suppress(OSError), watching("recovery", read, stream):
        assert is_read.wait(10)
        raise OSError("no store")
    assert "recovery    50%  0.50 of 1.00 GiB" in stream.getvalue().split("\r")[-2]


def test_nothing_is_watched_without_a_terminal_or_a_total() -> None:
    """A store without a log to walk has no bar."""
    plain, terminal = io.StringIO(), Terminal()
    with watching("recovery", lambda: (1, 2), plain) as is_shown:
        assert not is_shown
    with watching("recovery", lambda: (0, 0), terminal):
        pass
    assert plain.getvalue() == terminal.getvalue() == ""
