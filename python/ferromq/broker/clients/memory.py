"""
Limits the memory of clients' groups, subscriptions and settings.

The network's budget counts a request until it is answered; this module counts what stays. Sizes are estimates of
what CPython uses.
"""

import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ferromq.config.consume import ConsumeConfig

if TYPE_CHECKING:
    from ferromq.broker.clients.subscription import Subscription

OF_MEMBER = 1 << 10
"""Bytes of a client in a group, beside its texts."""
OF_TOPIC = 128
"""Bytes of a topic for each member of a group that reads it."""
_OF_SUBSCRIPTION = 512
_OF_ITEM = 16
_DEFAULT = ConsumeConfig()


class LimitExceeded(Exception):  # noqa: N818 (an answer, not a failure of ours)
    """A client exceeds a limit; the text names it."""


class ClientMemory:
    """Counts the bytes kept for clients, by connection and in total. Thread-safe."""

    def __init__(
        self, *, of_connection: int = _DEFAULT.client_memory_by_connection, of_all: int = _DEFAULT.memory_of_clients
    ) -> None:
        self._of_connection = of_connection
        self._of_all = of_all
        self._lock = threading.Lock()
        self._connections: dict[int, int] = {}
        self._all = 0

    @property
    def total(self) -> int:
        """The bytes of all clients."""
        return self._all

    def change(self, connection: int, own: int, shared: int | None = None) -> None:
        """
        Add *own* bytes to a connection's count and *shared* to the total (default: *own*); both may be negative.

        Raises `LimitExceeded`, and counts nothing, if an increase exceeds a limit.
        """
        with self._lock:
            kept, self._all = self._after(connection, own, own if shared is None else shared)
            if kept:
                self._connections[connection] = kept
            else:
                self._connections.pop(connection, None)

    def check(self, connection: int, more: int) -> None:
        """Raise `LimitExceeded` if `change` would; counts nothing."""
        with self._lock:
            self._after(connection, more, more)

    def _after(self, connection: int, own: int, shared: int) -> tuple[int, int]:
        """Return the bytes of the connection and the total after a change; raises `LimitExceeded`."""
        kept, kept_by_all = self._connections.get(connection, 0) + own, self._all + shared
        if own > 0 and kept > self._of_connection:
            raise LimitExceeded(
                f"the groups, subscriptions and settings of the clients of this connection would take {kept} bytes "
                f"of the broker's memory; {self._of_connection} are allowed; name fewer groups and topics, or have "
                "client_memory_by_connection raised"
            )
        if shared > 0 and kept_by_all > self._of_all:
            raise LimitExceeded(
                f"the groups, subscriptions and settings of all clients would take {kept_by_all} bytes of the "
                f"broker's memory; {self._of_all} are allowed; try again when some are gone, or have client_memory "
                "raised"
            )
        return kept, kept_by_all


def size_of_texts(*texts: str) -> int:
    """Return the bytes of texts."""
    return sum(map(sys.getsizeof, texts))


def size_of_subscriptions(subscriptions: Iterable["Subscription"]) -> int:
    """Return the bytes of subscriptions."""
    return sum(
        _OF_SUBSCRIPTION
        + size_of_texts(each.topic, each.expression, each.expression_type, *each.tags)
        + _OF_ITEM * (len(each.tags) + 3 * len(each.codes))
        for each in subscriptions
    )
