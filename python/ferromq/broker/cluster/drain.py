"""
The end of a broker's work, step by step: senders leave, the last sends arrive, then the process may stop.

A broker that retires also leaves order configurations, and in the end the name servers, when an administrator says so.

`name_servers` registers what a draining broker has, `routes` answers it to gRPC clients, `controller` stops.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta

from ferromq.broker.cluster.name_servers import NameServers
from ferromq.broker.cluster.registrar import Registrar
from ferromq.process.clock import Clock, Timer

_log = logging.getLogger("ferromq.broker")

_MILLISECOND = timedelta(milliseconds=1)
_PERIOD = timedelta(milliseconds=200)
_STOP_SECONDS = 0.5
SERVING, DRAINING, DRAINED = "serving", "draining", "drained"
RETIRING, RETIRED = "retiring", "retired"

Sends = Mapping[str, int]
"""The messages that producers sent to each topic whose senders shall leave, since the start."""


class Drain:
    """
    Makes senders leave a running broker, and tells when none has sent for a while; thread-safe.

    The broker takes messages and serves consumers all the time: senders with an older route lose nothing. Ordered
    messages do not count, as their senders wait for this broker.
    """

    def __init__(
        self,
        name_servers: NameServers,
        registrar: Registrar,
        clock: Clock,
        *,
        sends: Callable[[], Sends],
    ) -> None:
        self._name_servers = name_servers
        self._registrar = registrar
        self._clock = clock
        self._sends = sends
        self.tell_producers: Callable[[], object] = _nothing
        """Called when routes have changed, so that producers which can be told look for them at once."""
        self.on_end: Callable[[], object] = _nothing
        """Called at the end of a drain."""
        self._lock = threading.Lock()
        self._timer: Timer | None = None
        self._announcing: threading.Thread | None = None
        self._state = SERVING
        self._is_stopped = self._is_announced = self._is_final = False
        self._until = self._quiet_ms = self._last_send = 0
        self._seen: Sends = {}

    @property
    def state(self) -> str:
        """
        What the broker does.

        `serving`, `draining`, or `drained`: the drain is over, and the broker still runs; `retiring`: senders leave and
        the broker goes on until it is asked to leave the name servers; then it is `retired`.
        """
        return self._state

    @property
    def is_final(self) -> bool:
        """Whether nothing can end the drain any more but the stop of the process."""
        return self._is_final

    @property
    def quiet_ms(self) -> int:
        """The milliseconds since the last send that counts, or since senders were told; 0 before that."""
        with self._lock:
            is_counted = self._state != SERVING and self._is_announced
            return max(0, self._clock.now_ms() - self._last_send) if is_counted else 0

    def begin(self, quiet: timedelta, timeout: timedelta, *, is_final: bool = False) -> None:
        """
        Begin to drain, until no send has come for *quiet*, or *timeout* has passed.

        *quiet* counts from the moment at which name servers and producers were told. A drain under way goes on with
        these times, counted from now; they cannot prolong a final one, after which the process stops. A retired broker
        stays so.
        """
        with self._lock:
            if self._is_stopped or self._state == RETIRED:
                return
            now = self._clock.now_ms()
            until = now + timeout // _MILLISECOND
            self._until = min(until, self._until) if self._is_final else until
            self._is_final = self._is_final or is_final
            self._quiet_ms = quiet // _MILLISECOND
            _log.warning("draining quiet=%s timeout=%s", quiet, timeout)
            self._count(now)
            if self._state == SERVING:
                self._leave(is_on=True)
            self._state = DRAINING

    def retire(self, topics: Collection[str]) -> None:
        """
        Make senders leave until `leave` or `end`; ordered *topics* leave their order configurations, too.

        A drain under way goes on without an end, unless it is final. Topics of earlier calls stay out. A retired broker
        stays so.
        """
        with self._lock:
            if self._is_stopped or self._is_final or self._state == RETIRED:
                return
            if self._state != RETIRING:
                _log.warning("retiring")
            before = self._name_servers.identity.left
            left = before.union(topics)
            if self._state == SERVING or left != before:
                self._leave(is_on=True, topics=left)
            if self._state in {SERVING, DRAINED} or left != before:
                # Senders are told only now.
                self._count(self._clock.now_ms())
            self._state = RETIRING

    def leave(self) -> None:
        """Leave the name servers for good, after `retire`. They know the broker again when it is started again."""
        with self._lock:
            if self._is_stopped or self._state not in {RETIRING, RETIRED}:
                return
            self._state = RETIRED
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
        self._registrar.stop()
        _log.warning("retired: the broker left its name servers")

    def end(self) -> None:
        """Take messages again. A final drain goes on."""
        with self._lock:
            if self._state in {SERVING, RETIRED} or self._is_stopped or self._is_final:
                return
            self._state = SERVING
            timer, self._timer = self._timer, None
            self._leave(is_on=False)
        if timer is not None:
            timer.stop()
        _log.warning("drain ended, senders come back")

    def stop(self) -> None:
        """Stop counting; the routes stay as they are."""
        with self._lock:
            self._is_stopped = True
            timer, self._timer, announcing = self._timer, None, self._announcing
            self.on_end = self.tell_producers = _nothing
        if timer is not None:
            timer.stop()
        if announcing is not None:
            announcing.join(_STOP_SECONDS)

    def _count(self, now: int) -> None:
        self._last_send, self._seen = now, self._sends()
        if self._timer is None:
            self._timer = Timer("ferromq-drain", self._clock, _PERIOD, self._look)
            self._timer.start()

    def _leave(self, *, is_on: bool, topics: Collection[str] = ()) -> None:
        self._is_announced = False
        self._name_servers.drain(is_on=is_on, left=topics)
        # A name server that hangs delays neither the caller nor the end of the drain.
        self._announcing = threading.Thread(target=self._announce, name="ferromq-drain-register", daemon=True)
        self._announcing.start()

    def _announce(self) -> None:
        try:
            self._registrar.register()
            # Last: producers ask other brokers for routes, too, which come from the name servers.
            self.tell_producers()
        except Exception:  # noqa: BLE001 (the next registration says it again)
            _log.exception("registration failed state=%s", self._state)
        with self._lock:
            if self._announcing is threading.current_thread():
                self._is_announced, self._last_send = True, self._clock.now_ms()

    def _look(self, now: int) -> None:
        with self._lock:
            if self._state not in {DRAINING, RETIRING} or self._is_stopped:
                return
            before, self._seen = self._seen, self._sends()
            if any(count > before.get(name, 0) for name, count in self._seen.items()):
                self._last_send = now
            is_quiet = self._is_announced and now - self._last_send >= self._quiet_ms
            if self._state == RETIRING or (not is_quiet and now < self._until):
                return
            self._state = DRAINED
            self._is_final = self._is_final or self.on_end is not _nothing
            timer, self._timer, on_end = self._timer, None, self.on_end
        quiet = timedelta(milliseconds=self._quiet_ms)
        if is_quiet:
            _log.warning("drained: no send came for %s", quiet)
        else:
            _log.warning("drained: the time is up, and it was not quiet for %s", quiet)
        if timer is not None:
            timer.stop()
        on_end()


def _nothing() -> None:
    pass
