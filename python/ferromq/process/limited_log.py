"""
Log lines that a peer can cause as often as it likes: the first of each while, and how many were left out.

The same for lines that Rust writes is in the transport.
"""

import logging
import threading
import time
from collections.abc import Callable

_WHILE = 10.0
_LINES = 5


class LimitedLog:
    """Writes to *log* five lines in ten seconds; the next one after them says how many were left out. Thread-safe."""

    def __init__(self, log: logging.Logger, *, now: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now = now
        self._lock = threading.Lock()
        self._begun = float("-inf")
        self._said = 0
        self._left_out = 0

    def log(self, level: int, text: str, *given: object, exc_info: bool = False) -> bool:
        """
        Write one line, unless there were enough for now; says whether it was written.

        *exc_info*: with the traceback of the exception that is being handled.
        """
        with self._lock:
            now = self._now()
            if now - self._begun >= _WHILE:
                self._begun, self._said = now, 0
            if self._said == _LINES:
                self._left_out += 1
                return False
            self._said += 1
            left_out, self._left_out = self._left_out, 0
        if left_out:
            text, given = f"{text} left_out=%d", (*given, left_out)
        self._log.log(level, text, *given, exc_info=exc_info)
        return True
