"""
What a broker and its name servers say to each other: registration, routes, gRPC addresses.

When to register is `controller`'s business, what to make of a route that of `routes`.
"""

import logging
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from ferromq import _ferromq, _json
from ferromq._codes import RequestCode, ResponseCode
from ferromq.broker.topics import TopicConfig
from ferromq.errors import OutcomeUnknown
from ferromq.namesrv.kv_config import GRPC_NAMESPACE
from ferromq.route import MASTER, DataVersion, TopicRoute

_log = logging.getLogger("ferromq.broker")
T = TypeVar("T")

_POSITIVE = 0x7FFF_FFFF
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


class NameServers:
    """The name servers of one broker; thread-safe. A name server that fails is logged once until it answers again."""

    def __init__(
        self, addresses: tuple[str, ...], identity: Identity, *, period: timedelta, timeout: timedelta
    ) -> None:
        self._addresses = addresses
        self._identity = identity
        self._timeout = timeout.total_seconds()
        period_ms = period // timedelta(milliseconds=1)
        self._lease_ms = max(_LEASE_MS, _PERIODS_IN_A_LEASE * period_ms)
        self._client = _ferromq.RemotingClient()
        self._threads = self._start_threads()
        self._lock = threading.Lock()
        self._failing: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._addresses)

    def register(self, version: DataVersion, topics: Mapping[str, TopicConfig]) -> bool:
        """Register with every name server at the same time; say whether all took it."""
        body = self._body(version, topics)
        return self._each(self._addresses, lambda address: self._register(address, body))

    def register_change(
        self, version: DataVersion, changed: Mapping[str, TopicConfig], everything: Mapping[str, TopicConfig]
    ) -> bool:
        """
        Register topics that changed; a name server that does not know this broker yet gets *everything*.

        Name servers that failed before are left to the next `register`, so that they keep nobody waiting.
        """
        change, whole = self._body(version, changed), self._body(version, everything)

        def send(address: str) -> None:
            code, *_ = self._call(address, RequestCode.REGISTER_BROKER, self._header(change), change)
            if code != ResponseCode.SUCCESS:
                self._register(address, whole)

        answering = self._answering()
        return self._each(answering, send) and len(answering) == len(self._addresses)

    def unregister(self) -> None:
        """Say goodbye to the name servers that answer; others find out by the closed connection."""
        fields = self._header(b"")
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
        table: dict[str, Any] = {name: topic.to_json() for name, topic in topics.items()}
        wrapper = {"dataVersion": version.to_json(), "topicConfigTable": table}
        return _json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})

    def _header(self, body: bytes) -> dict[str, str]:
        host, _, port = self._identity.address.rpartition(":")
        return {
            "brokerName": self._identity.name,
            "brokerAddr": self._identity.address,
            "clusterName": self._identity.cluster,
            "haServerAddr": f"{host}:{int(port) + 1}",
            "brokerId": str(MASTER),
            "heartbeatTimeoutMillis": str(self._lease_ms),
            "enableActingMaster": "false",
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & _POSITIVE),
        }

    def _register(self, address: str, body: bytes) -> None:
        # The gRPC address first: whoever sees the broker in a route finds the way to it.
        key = {"namespace": GRPC_NAMESPACE, "key": self._identity.name}
        *_, fields, _ = self._call(address, RequestCode.GET_KV_CONFIG, key)
        if fields.get("value") != self._identity.grpc_address:
            self._expect(address, RequestCode.PUT_KV_CONFIG, {**key, "value": self._identity.grpc_address})
        self._expect(address, RequestCode.REGISTER_BROKER, self._header(body), body)

    def _expect(self, address: str, code: RequestCode, fields: Mapping[str, str], body: bytes = b"") -> None:
        answer, remark, *_ = self._call(address, code, fields, body)
        if answer != ResponseCode.SUCCESS:
            raise NameServerFailed(f"{code.name} was answered with code {answer}: {remark}")

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

    def _each(
        self, addresses: Iterable[str], action: Callable[[str], None], threads: ThreadPoolExecutor | None = None
    ) -> bool:
        """Do *action* for all *addresses* at the same time; say whether all went well."""
        addresses = list(addresses)
        try:
            futures = [(threads or self._threads).submit(self._try, address, action) for address in addresses]
        except RuntimeError:
            # The interpreter ends and gives no work to other threads any more.
            outcomes = [self._try(address, action) for address in addresses]
        else:
            outcomes = [future.result() for future in futures]
        return all(outcomes)

    def _try(self, address: str, action: Callable[[str], None]) -> bool:
        try:
            action(address)
        except NameServerFailed as error:
            self._note_failure(address, error)
            return False
        with self._lock:
            was_failing = address in self._failing
            self._failing.discard(address)
        if was_failing:
            _log.warning("name server is back address=%s", address)
        return True

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
