"""The progress bar of commands."""

import io
import re

from ferromq.terminal.progress import Progress


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
    assert text.endswith("]\n")
    assert "100%" in text.split("\r")[-1]
    assert "#" * 28 in text.split("\r")[-1]


def test_nothing_to_do_is_done() -> None:
    """A total of zero is no division by it."""
    stream = Terminal()
    with Progress("sending", 0, stream) as progress:
        progress.update(0)
    assert "100%" in stream.getvalue()


def test_bytes_are_shown_as_sizes_with_the_time_that_is_left() -> None:
    """The total may become known while it runs."""
    stream = Terminal()
    with Progress("verify", 0, stream, is_bytes=True) as progress:
        progress.total = 4 << 30
        progress.update(1 << 30)
    text = stream.getvalue().split("\r")[-1]
    assert "25%" in text
    assert "1.00 of 4.00 GiB" in text
    assert re.search(r"GiB/s  [\d,]+ s left", text)


def test_quiet_shows_nothing() -> None:
    """For commands whose reader is a program."""
    for stream in (Terminal(), io.StringIO()):
        with Progress("verify", 10, stream, is_quiet=True) as progress:
            progress.update(10)
        assert stream.getvalue() == ""
