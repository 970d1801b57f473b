"""Waits for the signal that stops a server process."""

import contextlib
import signal
import socket
import time
from collections.abc import Callable
from typing import Self

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_REQUEST = 0
"""No signal has this number."""


class StopSignals:
    """
    Waits for SIGINT or SIGTERM; a second one ends the process at once.

    The interpreter runs signal handlers before it waits for a lock, not while it waits. It would notice a signal in
    between, or one that another thread received, only with the next signal. So the main thread waits for a byte
    instead, which the interpreter writes as soon as any thread receives a signal.
    """

    def __init__(self, *, takes_hangup: bool = False) -> None:
        """*takes_hangup*: note each SIGHUP from now on, for `on_hangup`. Below nohup, which ignores it, it stays so."""
        self._takes_hangup = takes_hangup and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        self._signals, self._woken_by = socket.socketpair()
        self._woken_by.settimeout(0)
        self._before = -1
        self._on_hangup: Callable[[], object] | None = None
        self.asked: tuple[str, float] | None = None
        """What ended the first `wait`, and when, on the monotonic clock."""

    def __enter__(self) -> Self:
        self._before = signal.set_wakeup_fd(self._woken_by.fileno(), warn_on_full_buffer=False)
        for number in _STOP_SIGNALS:
            signal.signal(number, self._stop)
        if self._takes_hangup:
            signal.signal(signal.SIGHUP, _nothing)
        return self

    def on_hangup(self, function: Callable[[], object]) -> None:
        """Call *function* during `wait` after each SIGHUP, also after those that came before."""
        self._on_hangup = function

    def __exit__(self, *_error: object) -> None:
        self._end_at_the_next()
        if self._takes_hangup:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.set_wakeup_fd(self._before)
        self._woken_by.close()
        self._signals.close()

    def wait(self) -> int:
        """Return the first signal; 0 after `request`."""
        while (number := self._signals.recv(1)[0]) not in {*_STOP_SIGNALS, _REQUEST}:
            if number == signal.SIGHUP and self._on_hangup is not None:
                self._on_hangup()
        self._end_at_the_next()
        if self.asked is None:
            self.asked = ("request" if number == _REQUEST else signal.Signals(number).name), time.monotonic()
        return number

    def take_another(self) -> None:
        """Let one more signal end the next `wait`, not the process."""
        for number in _STOP_SIGNALS:
            signal.signal(number, self._stop)

    def request(self) -> None:
        """Act as if a signal had come; from any thread."""
        with contextlib.suppress(OSError):  # closed, or full of signals
            self._woken_by.send(bytes([_REQUEST]))

    def _stop(self, _number: int, _frame: object) -> None:
        self._end_at_the_next()

    def _end_at_the_next(self) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)


def _nothing(_number: int, _frame: object) -> None:
    pass
