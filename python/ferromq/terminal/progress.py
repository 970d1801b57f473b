"""
A progress bar for commands.

On a terminal one line changes in place; elsewhere a few plain lines are printed.
"""

import sys
import time
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

    With *is_bytes* it shows sizes and the remaining time, with *is_quiet* nothing.
    """

    def __init__(
        self, what: str, total: int, stream: TextIO | None = None, *, is_bytes: bool = False, is_quiet: bool = False
    ) -> None:
        self.done = 0
        self.total = total
        """May change while it runs."""
        self._what, self._is_bytes, self._is_quiet = what, is_bytes, is_quiet
        self._stream = sys.stderr if stream is None else stream
        self._moves = self._stream.isatty()
        self._begin = self._drawn = time.monotonic()
        self._lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._moves and not self._is_quiet:
            self._draw()
            self._stream.write("\n")
            self._stream.flush()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin

    def update(self, done: int) -> None:
        """Show the number *done*."""
        self.done = done
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
        self._stream.write(f"\r{self._text()}  [{'#' * filled:<{_WIDTH}}]")
        self._stream.flush()
