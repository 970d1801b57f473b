"""
What a broker and its name servers say to each other: registration, routes, gRPC addresses.

When to register is `controller`'s business, what to make of a route that of `routes`.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple, TypeVar

from ferromq import _ferromq, _json
from ferromq._codes import RequestCode, ResponseCode
from ferromq._membership_config import MembershipConfig
from ferromq.broker import registration
from ferromq.broker.topics import TopicConfig
from ferromq.errors import OutcomeUnknown
from ferromq.namesrv.kv_config import GRPC_NAMESPACE
from ferromq.route import MASTER, READ_WRITE, DataVersion, Permission, TopicRoute

_log = logging.getLogger("ferromq.broker")
T = TypeVar("T")

_LEASE_MS = 120_000
_PERIODS_IN_A_LEASE = 4
_GOODBYE_SECONDS = 0.5
Answer = tuple[int, str | None, dict[str, str], bytes]


class NameServerFailed(Exception):  # noqa: N818 (carried to one log line, never to a user)
    """A name server is not reached, or answered with an error."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The broker as others see it."""

    name: str
    cluster: str
    address: str
    """`host:port` of the remoting listener."""
    grpc_address: str
    """`host:port` of the gRPC listener."""
    ha_address: str
    """`host:port` where slaves fetch the log."""
    broker_id: int = MASTER
    allowed: Permission = READ_WRITE
    """What it allows of what its topics allow."""

    @property
    def is_slave(self) -> bool:
        """Says whether it follows a master of the same name."""
        return self.broker_id != MASTER


class Master(NamedTuple):
    """The master of a slave, as a name server tells."""

    address: str
    ha_address: str | None


class Outcome(NamedTuple):
    """What became of a registration."""

    is_complete: bool
    """Whether every name server took it."""
    master: Master | None
    """The master, where a name server named one."""
    has_answers: bool
    """Whether a name server said who is master, or that there is none."""
    ordered: frozenset[str]
    """The topics that name servers have an order configuration of."""


class Told(NamedTuple):
    """What a name server told in a good answer."""

    fields: dict[str, str]
    body: bytes


class NameServers:
    """The name servers of one broker; thread-safe. A name server that fails is logged once until it answers again."""

    def __init__(
        self, addresses: tuple[str, ...], identity: Identity, membership: MembershipConfig, *, period: timedelta
    ) -> None:
        self._addresses = addresses
        self._identity = identity
        self._membership = membership
        self._timeout = membership.register_timeout.total_seconds()
        self._lease_ms = max(_LEASE_MS, _PERIODS_IN_A_LEASE * (period // timedelta(milliseconds=1)))
        self._client = _ferromq.RemotingClient()
        self._threads = self._start_threads()
        self._lock = threading.Lock()
        self._failing: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._addresses)

    @property
    def identity(self) -> Identity:
        """The broker as it registers."""
        return self._identity

    def become(self, broker_id: int, allowed: Permission) -> None:
        """Register with this id and permission from now on."""
        self._identity = replace(self._identity, broker_id=broker_id, allowed=allowed)

    def register(self, version: DataVersion, topics: Mapping[str, TopicConfig], *, is_forced: bool = True) -> Outcome:
        """
        Register with every name server at the same time.

        Unless *is_forced*, one that has this version of the topics already is not sent them again; asking renews the
        lease, too.
        """
        body = self._body(version, topics)
        # Who follows a master registers in any case: the answer says who that is.
        is_forced = is_forced or self._identity.is_slave

        def send(address: str) -> Told | None:
            if not is_forced and not self._is_changed(address, version):
                return None
            return self._register(address, body)

        return self._outcome(self._addresses, send)

    def register_change(
        self, version: DataVersion, changed: Mapping[str, TopicConfig], everything: Mapping[str, TopicConfig]
    ) -> bool:
        """
        Register topics that changed, and say whether all name servers took them.

        One that does not know this broker yet gets *everything*. Name servers that failed before are left to the next
        `register`, so that they keep nobody waiting.
        """
        change = self._body(version, changed)

        def send(address: str) -> Told:
            code, _, fields, body = self._call(address, RequestCode.REGISTER_BROKER, self._header(change), change)
            if code == ResponseCode.SUCCESS:
                return Told(fields, body)
            # Encoded only where it is needed: with many topics that takes longer than all else of a change.
            return self._register(address, self._body(version, everything))

        answering = self._answering()
        return self._outcome(answering, send).is_complete and len(answering) == len(self._addresses)

    def unregister(self) -> None:
        """Say goodbye to the name servers that answer; others find out by the closed connection."""
        fields = self._who()
        self._timeout = min(self._timeout, _GOODBYE_SECONDS)
        # The usual threads may still wait for somebody who does not answer.
        threads = self._start_threads()
        self._each(self._answering(), lambda address: self._unregister(address, fields), threads)
        threads.shutdown(wait=False)

    def route(self, topic: str) -> TopicRoute | None:
        """
        Return the route of *topic* from the first name server that answers; None where it has none.

        Raises `NameServerFailed` where no name server answers.
        """
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        code, remark, _, body = self._first(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        if code == ResponseCode.SUCCESS:
            try:
                return TopicRoute.decode(body)
            except ValueError as error:
                raise NameServerFailed(f"the route of {topic} is malformed: {error}") from error
        if code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        raise NameServerFailed(f"the route of {topic} was answered with code {code}: {remark}")

    def grpc_address(self, broker_name: str) -> str | None:
        """Return where another broker serves gRPC; None where it does not say. Raises `NameServerFailed`."""
        _, _, fields, _ = self._first(RequestCode.GET_KV_CONFIG, {"namespace": GRPC_NAMESPACE, "key": broker_name})
        return fields.get("value")

    def close(self) -> None:
        """End calls under way and close the connections."""
        self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _body(self, version: DataVersion, topics: Mapping[str, TopicConfig]) -> bytes:
        is_compressed = self._membership.compress_registration
        return registration.encode(version, topics, self._identity.allowed, is_compressed=is_compressed)

    def _who(self) -> dict[str, str]:
        return {
            "brokerName": self._identity.name,
            "brokerAddr": self._identity.address,
            "clusterName": self._identity.cluster,
            "brokerId": str(self._identity.broker_id),
        }

    def _header(self, body: bytes) -> dict[str, str]:
        return {
            **self._who(),
            "haServerAddr": self._identity.ha_address,
            "heartbeatTimeoutMillis": str(self._lease_ms),
            "enableActingMaster": "false",
            "compressed": str(self._membership.compress_registration).lower(),
            "bodyCrc32": str(registration.crc32(body)),
        }

    def _is_changed(self, address: str, version: DataVersion) -> bool:
        """Ask a name server whether it has another version of the topics than this one, or none."""
        body = _json.dumps(version.to_json())
        code, _, fields, known = self._call(address, RequestCode.QUERY_DATA_VERSION, self._who(), body)
        try:
            is_same = DataVersion.from_json(_json.loads_object(known)) == version if known else False
        except (ValueError, TypeError):
            is_same = False
        return code != ResponseCode.SUCCESS or fields.get("changed") != "false" or not is_same

    def _register(self, address: str, body: bytes) -> Told:
        # A slave has its master's name, and the entry is the master's.
        if not self._identity.is_slave:
            self._put_grpc_address(address)
        return self._expect(address, RequestCode.REGISTER_BROKER, self._header(body), body)

    def _put_grpc_address(self, address: str) -> None:
        # Before the registration: whoever sees the broker in a route finds the way to it.
        key = {"namespace": GRPC_NAMESPACE, "key": self._identity.name}
        *_, fields, _ = self._call(address, RequestCode.GET_KV_CONFIG, key)
        if fields.get("value") != self._identity.grpc_address:
            self._expect(address, RequestCode.PUT_KV_CONFIG, {**key, "value": self._identity.grpc_address})

    def _expect(self, address: str, code: RequestCode, fields: Mapping[str, str], body: bytes = b"") -> Told:
        answer, remark, *_ = told = self._call(address, code, fields, body)
        if answer != ResponseCode.SUCCESS:
            raise NameServerFailed(f"{code.name} was answered with code {answer}: {remark}")
        return Told(told[2], told[3])

    def _call(self, address: str, code: RequestCode, fields: Mapping[str, str], body: bytes = b"") -> Answer:
        try:
            return self._client.call(address, code, fields, body, timeout=self._timeout)
        except OutcomeUnknown as error:
            raise NameServerFailed(str(error)) from error

    def _unregister(self, address: str, fields: Mapping[str, str]) -> None:
        self._expect(address, RequestCode.UNREGISTER_BROKER, fields)

    def _start_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max(1, len(self._addresses)), thread_name_prefix="ferromq-register")

    def _answering(self) -> list[str]:
        with self._lock:
            return [address for address in self._addresses if address not in self._failing]

    def _outcome(self, addresses: Sequence[str], send: Callable[[str], Told | None]) -> Outcome:
        answers = self._each(addresses, send)
        told = [answer for is_done, answer in answers if is_done and answer is not None]
        masters = [
            Master(fields["masterAddr"], fields.get("haServerAddr")) for fields, _ in told if fields.get("masterAddr")
        ]
        return Outcome(
            is_complete=all(is_done for is_done, _ in answers),
            master=masters[0] if masters else None,
            has_answers=bool(told),
            ordered=frozenset(topic for _, body in told for topic in _ordered(body)),
        )

    def _each(
        self, addresses: Iterable[str], action: Callable[[str], T], threads: ThreadPoolExecutor | None = None
    ) -> list[tuple[bool, T | None]]:
        """Do *action* for all *addresses* at the same time; say of each whether it went well, and what came of it."""
        addresses = list(addresses)
        try:
            futures = [(threads or self._threads).submit(self._try, address, action) for address in addresses]
        except RuntimeError:
            # The interpreter ends and gives no work to other threads any more.
            return [self._try(address, action) for address in addresses]
        return [future.result() for future in futures]

    def _try(self, address: str, action: Callable[[str], T]) -> tuple[bool, T | None]:
        try:
            result = action(address)
        except NameServerFailed as error:
            self._note_failure(address, error)
            return False, None
        with self._lock:
            was_failing = address in self._failing
            self._failing.discard(address)
        if was_failing:
            _log.warning("name server is back address=%s", address)
        return True, result

    def _note_failure(self, address: str, error: NameServerFailed) -> None:
        with self._lock:
            is_new = address not in self._failing
            self._failing.add(address)
        _log.log(logging.WARNING if is_new else logging.DEBUG, "name server failed address=%s: %s", address, error)

    def _first(self, code: RequestCode, fields: Mapping[str, str]) -> Answer:
        failures = []
        # Those that failed last time are asked last: each may cost a timeout.
        for address in sorted(self._addresses, key=self._failing.__contains__):
            try:
                return self._call(address, code, fields)
            except NameServerFailed as error:
                self._note_failure(address, error)
                failures.append(str(error))
        raise NameServerFailed("no name server answers: " + "; ".join(failures))


def _ordered(body: bytes) -> list[str]:
    """Return the topics of the order configurations in the answer to a registration; name servers may leave it out."""
    try:
        return [str(topic) for topic in _json.loads_object(body)["table"]] if body else []
    except (ValueError, KeyError, TypeError) as error:
        _log.debug("order configurations not understood: %s", error)
        return []
