"""
Time in Python: the clock, which tests can advance, and timers that follow it.

Stateful policy (`namesrv.route_info`, `broker.clients`) does not use it; it takes `now` as an argument.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from ferromq import _ferromq
from ferromq.terminal.objects import Shown

_log = logging.getLogger("ferromq.time")

_STOP_SECONDS = 0.5
_LONGEST_WAIT = 5.0
"""Seconds after which a timer checks again: a sleeping machine, or a clock set by hand, wakes no thread."""


class Clock(Shown):
    """
    Wall-clock milliseconds that never go back. Store, servers and policy share one clock.

    A system clock follows the machine's clock forward, also while the machine sleeps. A manual clock stands still.

    `advance` moves either kind forward. It returns after it has started all work that became due, and after Python's
    part (registration, expiry of brokers and clients) is done.
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
    def manual(cls, start: datetime | int | None = None) -> "Clock":
        """
        Return a clock that moves only by `advance`.

        It begins at *start*, a `datetime` with a time zone or milliseconds since 1970, by default at the present.
        Raises `ValueError` for a `datetime` without a time zone.
        """
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise ValueError(f"start is {start}, without a time zone; add one: start.replace(tzinfo=UTC)")
            start = round(start.timestamp() * 1000)
        return cls(_ferromq.Clock.manual(time.time_ns() // 1_000_000 if start is None else start))

    @property
    def is_manual(self) -> bool:
        """Whether time moves only by `advance`."""
        return self.raw.is_manual

    def now_ms(self) -> int:
        """Return milliseconds since 1970, never less than before."""
        return self.raw.now_ms()

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
    ) -> None:
        """Move the clock forward and start all work that becomes due. Raises `ValueError` for a step back."""
        step = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        if step < timedelta():
            raise ValueError(f"the clock cannot go back by {-step}")
        self.raw.advance(step // timedelta(milliseconds=1))
        # Newest first: later parts depend on earlier ones, and renew their leases there before those can expire.
        for listener in reversed(self._listeners.copy()):
            listener()

    def on_advance(self, listener: Callable[[], None]) -> None:
        """Call *listener* after every `advance`."""
        self._listeners.append(listener)

    @property
    def _state(self) -> str:
        return "manual" if self.is_manual else "system"

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield "now", datetime.fromtimestamp(self.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")

    def forget(self, listener: Callable[[], None]) -> None:
        """Stop calling *listener*."""
        if listener in self._listeners:
            self._listeners.remove(listener)


_of_clients: list[Clock] = []


@contextmanager
def default_for_clients(clock: Clock) -> Iterator[None]:
    """Make clients of this process that are created inside of the `with` without a clock count delays from *clock*."""
    _of_clients.append(clock)
    try:
        yield
    finally:
        _of_clients.remove(clock)


def clock_of_clients() -> Clock | None:
    """Return the clock of clients that are created now without one; None: the system's."""
    return _of_clients[-1] if _of_clients else None


def _nothing(_now: int) -> None:
    pass


class Timer:
    """
    Calls a function once in every period of the clock, on a thread of its own.

    `Clock.advance` calls it before it returns, if it becomes due. A failure is logged, and the next call comes after
    the period. Calls do not overlap.
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
        """Start; the first call comes after one period."""
        self._clock.on_advance(self._fire)
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def within(self, period: timedelta) -> None:
        """Make the next call come within *period*."""
        self._due_ms = min(self._due_ms, self._clock.now_ms() + period // timedelta(milliseconds=1))
        self._wake.set()

    def every(self, period: timedelta) -> None:
        """Change the period. The next call comes after the new period."""
        self._period_ms = max(1, period // timedelta(milliseconds=1))
        self._due_ms = self._clock.now_ms() + self._period_ms
        self._wake.set()

    def stop(self) -> None:
        """Stop, and wait up to half a second for a running call."""
        self._stopping = True
        self._clock.forget(self._fire)
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)
        # Releases the objects that the function refers to.
        self._function = _nothing

    def _run(self) -> None:
        while not self._stopping:
            self._fire()
            self._wake.wait(self._seconds_left())
            self._wake.clear()

    def _seconds_left(self) -> float | None:
        # A manual clock moves only by `advance`, which calls the function itself.
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
