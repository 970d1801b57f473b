"""
Makes a client known to the brokers behind name servers, and takes what they ask; for gRPC it is `session`.

Heartbeats are those of the connections, `links`. What they say is decided in `core.remoting.membership`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ferromq._proto import messages as pb
from ferromq.client.links import Links
from ferromq.client.tls import Tls, TlsFile
from ferromq.core.plans import Common
from ferromq.core.remoting import membership
from ferromq.core.remoting.bridge import Bridge
from ferromq.core.requests import Call, Join, Plan, Stream
from ferromq.errors import FerromqError
from ferromq.protocol.codes import RequestCode, ResponseCode

_log = logging.getLogger("ferromq.client")


class RemotingSession:
    """The life of one client at all its brokers, and the way to call them; thread-safe."""

    def __init__(
        self,
        common: Common,
        tls: bool | TlsFile | Tls,
        settings: Callable[[], pb.Settings],
        on_settings: Callable[[pb.Settings], None],
    ) -> None:
        self._common = common
        self._settings = settings
        self._topics: frozenset[str] = frozenset()
        self.links = Links(tls, self, credentials=common.identity.credentials)
        self._bridge = Bridge(self.links, common.endpoints, settings, on_settings, common.now)
        self.on_left: Callable[[str], object] = lambda _endpoint: None
        """Called on the thread of the connections with each broker that is lost and in no route."""
        self._on_orphan: Callable[[str, pb.RecoverOrphanedTransactionCommand], None] | None = None

    @property
    def on_orphan(self) -> Callable[[str, pb.RecoverOrphanedTransactionCommand], None] | None:
        """Is called with the broker and what it asks when it wants to know what became of a transaction."""
        return self._on_orphan

    @on_orphan.setter
    def on_orphan(self, take: Callable[[str, pb.RecoverOrphanedTransactionCommand], None]) -> None:
        self._on_orphan = take
        self.links.beat_soon()

    @property
    def is_begun(self) -> bool:
        """Whether any connection was made."""
        return self.links.is_begun

    def answer(self, step: Call | Stream | Join) -> Plan[Any]:
        """Return the plan that answers a call, or makes the client known at a broker."""
        if not isinstance(step, Join):
            return self._bridge.answer(step)
        if step.topic is not None:
            self.publish(step.topic)
        return self._bridge.join(step)

    def publish(self, topic: str) -> None:
        """Tell the brokers, all there are and will be, that this producer sends to *topic*."""
        if topic not in self._topics:
            self._topics |= {topic}
            self.links.beat_soon()

    def close(self, until: float) -> None:
        """Unregister at all brokers, and end the connections, all before *until* (monotonic)."""
        self.links.close(until)

    # --- what the connections call ---

    @property
    def _answered_for(self) -> Sequence[str]:
        """The topics about whose half messages it can answer; none without a checker."""
        return sorted(self._topics) if self._on_orphan is not None else ()

    def heartbeat(self) -> bytes:
        """Return the body of a heartbeat."""
        return membership.heartbeat(self._common.identity.client_id, self._settings(), self._answered_for)

    def farewells(self) -> Sequence[Mapping[str, str]]:
        """Return the fields of each request that unregisters the client."""
        return membership.farewells(self._common.identity.client_id, self._settings(), self._answered_for)

    def asked(self, address: str, code: int, fields: Mapping[str, str], body: bytes) -> int:
        """Take a request of a broker, and return the code of its answer."""
        if code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return ResponseCode.SUCCESS  # pops are not divided among the members of a group
        if code != RequestCode.CHECK_TRANSACTION_STATE or self._on_orphan is None:
            return ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        try:
            self._on_orphan(address, membership.check_back(fields, body, address))
        except FerromqError as error:
            _log.warning("check-back not understood, the broker asks again: %s", error)
            return ResponseCode.SYSTEM_ERROR
        return ResponseCode.SUCCESS

    def needs(self, address: str) -> bool:
        """Return whether a lost connection is opened again: the broker is in a route. Else it has left."""
        is_needed = self._common.routes.has(address)
        if not is_needed:
            self.on_left(address)
        return is_needed
