"""
Limits log lines that a peer can cause at any rate, such as those about malformed requests.

The transport does the same for lines from Rust.
"""

import logging
import threading
import time
from collections.abc import Callable

_PERIOD = 10.0
_LINES = 5
"""The most lines in a period, unless the caller says otherwise."""


class LimitedLog:
    """
    Writes up to *lines* lines to *log* in ten seconds. The next line has the number of suppressed ones.

    Thread-safe.
    """

    def __init__(self, log: logging.Logger, *, lines: int = _LINES, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._lines = lines
        self._now = now
        self._lock = threading.Lock()
        self._period_start = float("-inf")
        self._written = 0
        self._suppressed = 0

    def log(self, level: int, text: str, *given: object, exc_info: bool = False) -> bool:
        """
        Write a line unless the limit is reached; return whether it was written.

        *exc_info*: add the traceback of the current exception.
        """
        with self._lock:
            now = self._now()
            if now - self._period_start >= _PERIOD:
                self._period_start, self._written = now, 0
            if self._written == self._lines:
                self._suppressed += 1
                return False
            self._written += 1
            suppressed, self._suppressed = self._suppressed, 0
        if suppressed:
            text, given = f"{text} suppressed=%d", (*given, suppressed)
        self._log.log(level, text, *given, exc_info=exc_info)
        return True
