"""The progress bar of commands."""

import io

from ferromq._progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_plain_lines_where_there_is_no_terminal() -> None:
    """A line for each quarter, however often it is told."""
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
