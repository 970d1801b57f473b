"""
Registers the broker with its name servers: at start, after each change of topics, and periodically.

`name_servers` speaks to the name servers; `role` decides what follows from the master that they name.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from ferromq.broker.cluster.name_servers import Master, NameServers
from ferromq.broker.metadata.topics import RegistrationWait, TopicTable
from ferromq.config.membership import MembershipConfig
from ferromq.process.clock import Clock, Timer

_log = logging.getLogger("ferromq.broker")

_RETRY = timedelta(seconds=2)
_SHORTEST, _LONGEST = timedelta(seconds=10), timedelta(seconds=60)

OnMaster = Callable[[Master | None, int], None]
"""Called with the master that name servers report, and the generation of the role that registered."""


def registration_period(wanted: timedelta) -> timedelta:
    """Return the period between registrations, limited as in RocketMQ so that the lease is renewed in time."""
    period = max(_SHORTEST, min(wanted, _LONGEST))
    if period != wanted:
        _log.warning("registration period is limited wanted=%s used=%s", wanted, period)
    return period


class Registrar:
    """Registers with the name servers, and retries soon after a failure; thread-safe."""

    def __init__(
        self,
        name_servers: NameServers,
        clock: Clock,
        period: timedelta,
        *,
        membership: Callable[[], MembershipConfig],
    ) -> None:
        self._name_servers = name_servers
        self._membership = membership
        self._on_master: OnMaster = _ignore_master
        self._clock = clock
        self._topics: TopicTable | None = None
        self._timer = Timer("ferromq-registration", clock, period, self._renew)

    def start(self, topics: TopicTable, on_master: OnMaster) -> None:
        """Register now, and again in each period."""
        self._topics, self._on_master = topics, on_master
        self._name_servers.retry_soon = self._retry_soon
        self.register()
        self._timer.start()

    def stop(self) -> None:
        """Unregister, and register no more."""
        self._timer.stop()
        self._name_servers.unregister()
        # Break the reference cycles, so that closing frees the broker at once.
        self._topics = None
        self._name_servers.retry_soon = lambda: None
        self._on_master = _ignore_master

    def set_period(self, period: timedelta) -> None:
        """Change the period between registrations."""
        self._timer.every(period)

    def topics_changed(self, _names: Sequence[str], wait: RegistrationWait) -> None:
        """Register changed topics, and wait as *wait* says for the name servers that answer."""
        topics = self._topics
        if topics is not None and self._name_servers:
            self._name_servers.register_change(lambda: topics.content, wait, self._retry_soon)

    def register(self, *, is_forced: bool = True) -> None:
        """Register all topics; unless *is_forced*, only with name servers that have another version of them."""
        topics = self._topics
        if topics is None or not self._name_servers:
            return
        # With a manual clock time stands still until all have answered. Else one that hangs must delay no period.
        outcome = self._name_servers.register(
            lambda: topics.content, is_forced=is_forced, waits_for_all=self._clock.is_manual
        )
        if outcome.has_answers:
            self._on_master(outcome.master, outcome.generation)
        # A slave takes the order of topics from its master.
        if outcome.ordered and not self._membership().is_slave:
            topics.set_order(outcome.ordered, "name servers")
        if not outcome.is_complete:
            self._retry_soon()

    def _retry_soon(self) -> None:
        self._timer.within(_RETRY)

    def _renew(self, _now: int) -> None:
        self.register(is_forced=self._membership().force_register)


def _ignore_master(_master: Master | None, _generation: int) -> None:
    pass
