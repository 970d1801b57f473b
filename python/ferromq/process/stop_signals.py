"""Waits for the signal that stops a server process."""

import signal
import socket
from typing import Self

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """
    Waits for SIGINT or SIGTERM; a second one ends the process at once.

    The interpreter runs signal handlers before it waits for a lock, not while it waits. It would notice a signal in
    between, or one that another thread received, only with the next signal. So the main thread waits for a byte
    instead, which the interpreter writes as soon as any thread receives a signal.
    """

    def __init__(self) -> None:
        self._signals, self._woken_by = socket.socketpair()
        self._woken_by.settimeout(0)
        self._before = -1

    def __enter__(self) -> Self:
        self._before = signal.set_wakeup_fd(self._woken_by.fileno(), warn_on_full_buffer=False)
        for number in _STOP_SIGNALS:
            signal.signal(number, self._stop)
        return self

    def __exit__(self, *_error: object) -> None:
        self._end_at_the_next()
        signal.set_wakeup_fd(self._before)
        self._woken_by.close()
        self._signals.close()

    def wait(self) -> None:
        """Return after the first signal."""
        while self._signals.recv(1)[0] not in _STOP_SIGNALS:
            pass
        self._end_at_the_next()

    def _stop(self, _number: int, _frame: object) -> None:
        self._end_at_the_next()

    def _end_at_the_next(self) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
