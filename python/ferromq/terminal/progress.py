"""
A progress bar for commands.

On a terminal one line changes in place; elsewhere a few plain lines are printed.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TextIO

_WIDTH = 28
_REDRAW = 0.1
"""Seconds between two updates of the bar."""
_LINES = 4
"""Plain lines until the end, without a terminal."""
_GIB = 1 << 30


class Progress:
    """
    Shows how much of *total* is done, and the rate. As a context manager, it ends its line.

    With a *total* of 0, which is not known yet, it shows nothing before `show` or `update`. With *is_bytes* it shows
    sizes and the remaining time, with *is_quiet* nothing.
    """

    def __init__(
        self, what: str, total: int, stream: TextIO | None = None, *, is_bytes: bool = False, is_quiet: bool = False
    ) -> None:
        self.done = 0
        self.total = total
        self._what, self._is_bytes, self._is_quiet = what, is_bytes, is_quiet
        self._stream = sys.stderr if stream is None else stream
        self._moves = self._stream.isatty()
        self._lines = 0
        self._is_told = False
        self.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Without a total nothing is done, unless what ended well had nothing to do.
        is_known = self.total or (self._is_told and error is None)
        if self._moves and not self._is_quiet and is_known:
            self._draw()
            self._stream.write("\n")
            self._stream.flush()

    def restart(self) -> None:
        """Count the seconds from now on, as what came before is not part of it."""
        self._begin = self._drawn = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin

    def update(self, done: int) -> None:
        """Show the number *done*."""
        self.done = done
        self._is_told = True
        if self._is_quiet:
            return
        if self._moves:
            now = time.monotonic()
            if now - self._drawn >= _REDRAW:
                self._drawn = now
                self._draw()
        elif self.total and done * _LINES // self.total > self._lines:
            self._lines = done * _LINES // self.total
            self._stream.write(f"{self._text()}\n")
            self._stream.flush()

    def show(self, done: int, total: int) -> None:
        """Show the number *done* of a total that became known, or changed."""
        self.total = total
        self.update(done)

    def _text(self) -> str:
        share = self.done / self.total if self.total else 1.0
        rate = self.done / max(self.seconds, 1e-9)
        if self._is_bytes:
            left = (self.total - self.done) / rate if rate else 0.0
            sizes = f"{self.done / _GIB:,.2f} of {self.total / _GIB:,.2f} GiB  {rate / _GIB:.2f} GiB/s"
            return f"  {self._what:<10} {share:4.0%}  {sizes}  {left:,.0f} s left"
        return f"  {self._what:<10} {share:4.0%}  {self.done:>9,} of {self.total:,}  {rate:>9,.0f}/s"

    def _draw(self) -> None:
        filled = _WIDTH * self.done // self.total if self.total else _WIDTH
        # The rest of the line is cleared, as the bar before may have been longer. The cursor goes back, so a line of
        # the log written meanwhile begins in place of the bar; the end of a bar that is longer stays behind it.
        self._stream.write(f"{self._text()}  [{'#' * filled:<{_WIDTH}}]\x1b[K\r")
        self._stream.flush()


@contextmanager
def watching(what: str, read: Callable[[], tuple[int, int]], stream: TextIO | None = None) -> Iterator[bool]:
    """
    Show a bar from a thread of its own while the block runs, on a terminal alone. Yields whether there is a terminal.

    *read* returns the bytes that are done, and the most that will be; the bar begins once there are any. A block that
    ends without an exception has done all.
    """
    shown = sys.stderr if stream is None else stream
    if not shown.isatty():
        yield False
        return
    is_over = threading.Event()
    has_failed = False

    def show() -> None:
        while not read()[1]:
            if is_over.wait(_REDRAW):
                return
        with Progress(what, 0, shown, is_bytes=True) as bar:
            while not is_over.wait(_REDRAW):
                bar.show(*read())
            done, total = read()
            bar.show(done, total if has_failed else done)

    thread = threading.Thread(target=show, name="ferromq-progress")
    thread.start()
    try:
        yield True
    except BaseException:
        has_failed = True
        raise
    finally:
        is_over.set()
        thread.join()
