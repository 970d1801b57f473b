"""
Time in Python: the one clock with a friendly `advance`, and timers that follow it.

Policy with state (`namesrv.route_info`, `broker.clients`) takes `now` as an argument and never comes here.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from ferromq import _ferromq

_log = logging.getLogger("ferromq.time")

_STOP_SECONDS = 0.5
_LONGEST_WAIT = 5.0
"""A timer looks again after so many seconds: a machine that slept, or whose clock was set, wakes no thread."""


class Clock:
    """
    Wall milliseconds that never go back, real or moved by hand; one object for store, servers and policy.

    A real clock follows the machine's forward, also while the machine sleeps, and never back.

    `advance` moves it forward, on either kind. It returns after everything that became due has been started, and what
    runs in Python (registration, leases of brokers, clients) has been done.
    """

    def __init__(self, raw: _ferromq.Clock | None = None) -> None:
        self.raw = raw or _ferromq.Clock.system()
        """The clock of the Rust core."""
        self._listeners: list[Callable[[], None]] = []

    @classmethod
    def system(cls) -> "Clock":
        """Return a clock that follows real time."""
        return cls()

    @classmethod
    def manual(cls, start_ms: int | None = None) -> "Clock":
        """Return a clock that stands, at *start_ms* since 1970 or at the present, until it is advanced."""
        return cls(_ferromq.Clock.manual(time.time_ns() // 1_000_000 if start_ms is None else start_ms))

    @property
    def is_manual(self) -> bool:
        """Says whether time moves only by `advance`."""
        return self.raw.is_manual

    def now_ms(self) -> int:
        """Return milliseconds since 1970; never less than an earlier answer."""
        return self.raw.now_ms()

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
    ) -> None:
        """Move the clock forward and start everything that is due then. Raises `ValueError` for a step back."""
        step = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        if step < timedelta():
            raise ValueError(f"the clock never goes back; {step} was asked")
        self.raw.advance(step // timedelta(milliseconds=1))
        # Newest first: what was started later depends on what was started earlier, and renews its leases there
        # before they are judged.
        for listener in reversed(self._listeners.copy()):
            listener()

    def on_advance(self, listener: Callable[[], None]) -> None:
        """Call *listener* after every `advance`."""
        self._listeners.append(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        """Call *listener* no more."""
        if listener in self._listeners:
            self._listeners.remove(listener)


def _nothing(_now: int) -> None:
    pass


class Timer:
    """
    Calls a function in every period of the clock, on a thread of its own.

    `Clock.advance` calls it itself, before it returns, when that makes it due. A failing function is logged and called
    again in the next period. One call runs at a time.
    """

    def __init__(self, name: str, clock: Clock, period: timedelta, function: Callable[[int], object]) -> None:
        self._name = name
        self._clock = clock
        self._period_ms = max(1, period // timedelta(milliseconds=1))
        self._function = function
        self._wake = threading.Event()
        self._stopping = False
        self._running = threading.Lock()
        self._due_ms = clock.now_ms() + self._period_ms
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; the first call comes after one period."""
        self._clock.on_advance(self._fire)
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def within(self, period: timedelta) -> None:
        """Make the next call come after *period* at the latest."""
        self._due_ms = min(self._due_ms, self._clock.now_ms() + period // timedelta(milliseconds=1))
        self._wake.set()

    def every(self, period: timedelta) -> None:
        """Change the period; the next call comes after one of the new ones."""
        self._period_ms = max(1, period // timedelta(milliseconds=1))
        self._due_ms = self._clock.now_ms() + self._period_ms
        self._wake.set()

    def stop(self) -> None:
        """End; a call under way is waited for, half a second at most."""
        self._stopping = True
        self._clock.forget(self._fire)
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)
        # What it called need not live as long as the timer does.
        self._function = _nothing

    def _run(self) -> None:
        while not self._stopping:
            self._fire()
            self._wake.wait(self._seconds_left())
            self._wake.clear()

    def _seconds_left(self) -> float | None:
        # A manual clock moves only by `advance`, which fires by itself.
        left = self._due_ms - self._clock.now_ms()
        return None if self._clock.is_manual and left > 0 else min(max(0.0, left / 1000), _LONGEST_WAIT)

    def _fire(self) -> None:
        with self._running:
            now = self._clock.now_ms()
            if self._stopping or now < self._due_ms:
                return
            self._due_ms = now + self._period_ms
            try:
                self._function(now)
            except Exception:  # noqa: BLE001 (the next period must come)
                _log.exception("timer failed timer=%s", self._name)
