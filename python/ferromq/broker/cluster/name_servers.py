"""
The name servers of a broker: registration, routes, gRPC addresses.

`registrar` decides when to register, `routes` what to make of a route.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from ferromq import _ferromq
from ferromq.broker.cluster import registration_body
from ferromq.broker.cluster.identity import BrokerIdentity
from ferromq.broker.cluster.name_server_session import (
    AckedState,
    NameServerFailed,
    NameServerSession,
    ReadTopics,
    RegistrationAnswer,
    RegistrationRound,
    RegistrationScope,
    RoundResult,
)
from ferromq.broker.cluster.order_configurations import NameServerTable, OrderConfigurations, table_of
from ferromq.broker.metadata.topics import RegistrationWait, TopicConfig
from ferromq.config.membership import MembershipConfig
from ferromq.errors import OutcomeUnknown
from ferromq.protocol import java_json
from ferromq.protocol.broker_removal import GONE
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.namespaces import GRPC_NAMESPACE, ORDER_NAMESPACE
from ferromq.protocol.registration_extension import IS_CHANGE, TAKES_CHANGES
from ferromq.protocol.route import DataVersion, Permission, TopicRoute

__all__ = ["BrokerIdentity", "Master", "NameServerFailed", "NameServers", "RegistrationOutcome", "RouteLookup"]

_log = logging.getLogger("ferromq.broker")

_LEASE_MS = 120_000
_PERIODS_IN_A_LEASE = 4
_UNREGISTER_SECONDS = 0.5
A = TypeVar("A")
Answer = tuple[int, str | None, dict[str, str], bytes]


class Master(NamedTuple):
    """The master that a name server reports to a slave."""

    address: str
    ha_address: str | None


class RegistrationOutcome(NamedTuple):
    """The result of a registration with all name servers."""

    is_complete: bool
    """Whether every name server accepted it."""
    master: Master | None
    """The master that a name server reported, if any."""
    has_answers: bool
    """Whether a name server answered for the current role."""
    ordered: frozenset[str]
    """The topics with an order configuration."""
    generation: int
    """The generation of the registered role."""


class RouteLookup(NamedTuple):
    """A name server's answers about a topic."""

    route: TopicRoute | None
    registered: frozenset[str] | None
    """The registered brokers; None if the route is complete without asking for them."""
    grpc: Mapping[str, str]
    """Broker name → gRPC address, including brokers that are away."""
    order: str | None
    """The order configuration, if it was requested or comes with the route."""


class NameServers:
    """The name servers of one broker; thread-safe. A hanging one does not block the others."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        identity: BrokerIdentity,
        membership: MembershipConfig,
        client: _ferromq.RemotingClient,
        *,
        period: timedelta,
    ) -> None:
        """*client* calls the name servers, and is closed with this object."""
        self._identity = identity
        self._membership = membership
        self._timeout = membership.register_timeout.total_seconds()
        self._lease_ms = max(_LEASE_MS, _PERIODS_IN_A_LEASE * (period // timedelta(milliseconds=1)))
        self._client = client
        self._sessions = [NameServerSession(address, self._register_round) for address in addresses]
        self.retry_soon: Callable[[], object] = lambda: None
        """Called if a name server lost this broker, or may lack part of its registration."""
        self._orders = OrderConfigurations()
        self._encoding = threading.Lock()
        self._changing = threading.Lock()
        self._encoded: tuple[AckedState, bytes] | None = None

    def __bool__(self) -> bool:
        return bool(self._sessions)

    @property
    def count(self) -> int:
        """How many name servers there are."""
        return len(self._sessions)

    def failing(self) -> list[str]:
        """Return the addresses of those that did not accept the last registration."""
        return [session.address for session in self._sessions if session.is_failing]

    @property
    def identity(self) -> BrokerIdentity:
        """The broker's identity in registrations."""
        return self._identity

    def become(self, broker_id: int, allowed: Permission) -> None:
        """Register with this id and permission from now on; answers to earlier registrations are ignored."""
        self._change(broker_id=broker_id, allowed=allowed)

    def drain(self, *, is_on: bool, left: Collection[str] = ()) -> None:
        """Register from now on as a broker that drains, or as one that takes messages again; see `BrokerIdentity`."""
        self._change(is_draining=is_on, left=frozenset(left))

    def _change(self, **changes: Any) -> None:
        # The role and a drain change it from different threads.
        with self._changing:
            self._identity = replace(self._identity, generation=self._identity.generation + 1, **changes)

    def register(self, read: ReadTopics, *, is_forced: bool = True, waits_for_all: bool = True) -> RegistrationOutcome:
        """
        Register what *read* returns with all name servers in parallel.

        Unless *is_forced*, a name server that has this version already only renews the lease. Unless *waits_for_all*,
        the outcome does not wait for name servers that failed before.
        """
        scope = RegistrationScope.FULL if is_forced else RegistrationScope.RENEWAL
        rounds = [
            (waits_for_all or not session.is_failing, session.request_round(scope, read)) for session in self._sessions
        ]
        results = [found.result() if is_awaited else RoundResult(is_done=False) for is_awaited, found in rounds]
        generation = self._identity.generation
        answers = [each.answer for each in results if each.answer is not None and each.answer.generation == generation]
        masters = [
            Master(each.fields["masterAddr"], each.fields.get("haServerAddr"))
            for each in answers
            if each.fields.get("masterAddr")
        ]
        return RegistrationOutcome(
            is_complete=all(each.is_done for each in results),
            master=masters[0] if masters else None,
            has_answers=bool(answers),
            ordered=frozenset(topic for each in answers for topic in _ordered(each.body)),
            generation=generation,
        )

    def register_change(self, read: ReadTopics, wait: RegistrationWait, on_failure: Callable[[], object]) -> None:
        """
        Register changed topics, and call *on_failure* if a name server does not accept them.

        A name server that may lack the table before the change gets all topics. Name servers that failed before are
        left to the next `register`, so that they block nothing.
        """
        answering = [session for session in self._sessions if not session.is_failing]
        older = [session.running() for session in answering]
        rounds = [session.request_round(RegistrationScope.CHANGES, read) for session in answering]
        if len(answering) < len(self._sessions):
            on_failure()

        def ended(found: Future[RoundResult]) -> None:
            if not found.result().is_done:
                on_failure()

        def await_rounds() -> None:
            for found in rounds:
                if wait is RegistrationWait.REGISTERED:
                    ended(found)
                else:
                    found.add_done_callback(ended)
            for before in older:
                if wait is RegistrationWait.SETTLED and before is not None:
                    before.result()

        _ferromq.blocking(await_rounds)

    def unregister(self) -> None:
        """Unregister from the name servers that answer; others notice the closed connection."""
        fields = self._broker_fields()
        self._timeout = min(self._timeout, _UNREGISTER_SECONDS)

        def unregister(session: NameServerSession) -> None:
            if session.is_failing:
                session.close()
            else:
                session.unregister(
                    lambda: self._expect(session.address, RequestCode.UNREGISTER_BROKER, fields), _UNREGISTER_SECONDS
                )

        # The sessions' threads may still wait for a name server that does not answer.
        threads = ThreadPoolExecutor(max(1, len(self._sessions)), thread_name_prefix="ferromq-unregister")
        try:
            unregistering = [threads.submit(unregister, session) for session in self._sessions]
        except RuntimeError:
            # The interpreter is shutting down and starts no threads.
            for session in self._sessions:
                unregister(session)
        else:
            for each in unregistering:
                each.result()
        threads.shutdown(wait=False)

    def look_up(self, topic: str, expected: Collection[str], *, is_ordered: bool = False) -> RouteLookup:
        """
        Return the answers of the first authoritative name server about *topic*.

        A name server that lacks a broker of *expected* and does not know this broker has just started, and is skipped.
        Raises `NameServerFailed` if no other answers.
        """
        return self._first(lambda address: self._look_up_at(address, topic, expected, is_ordered=is_ordered))

    def _look_up_at(self, address: str, topic: str, expected: Collection[str], *, is_ordered: bool) -> RouteLookup:
        route = self._route(address, topic)
        there = {queue.broker_name for queue in route.queues} if route else set()
        grpc = self._grpc_addresses(address)
        own = self._identity.name
        registered: frozenset[str] | None = None
        is_short = route is None or not there.issuperset(expected)
        # A broker with a gRPC address and no queue in the route may be away, with queues that no name server knows.
        if is_short or any(at != GONE for name, at in grpc.items() if name not in {own, *there}):
            registered = self._registered(address)
            if is_short and own not in registered:
                self.retry_soon()
                raise NameServerFailed(f"{address} does not know this broker yet, and may not know others")
        order = route.order_conf if route else None
        if is_ordered and order is None:
            order = self._value(address, ORDER_NAMESPACE, topic)
        return RouteLookup(route, registered, grpc, order)

    def _route(self, address: str, topic: str) -> TopicRoute | None:
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        code, remark, _, body = self._call(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        if code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if code != ResponseCode.SUCCESS:
            raise NameServerFailed(f"the route of {topic} was answered with code {code}: {remark}")
        try:
            return TopicRoute.decode(body)
        except ValueError as error:
            raise NameServerFailed(f"the route of {topic} is malformed: {error}") from error

    def _registered(self, address: str) -> frozenset[str]:
        """Return the names of the registered brokers."""
        answer = self._expect(address, RequestCode.GET_BROKER_CLUSTER_INFO, {})
        try:
            return frozenset(str(name) for name in java_json.loads_object(answer.body).get("brokerAddrTable") or ())
        except (ValueError, TypeError) as error:
            raise NameServerFailed(f"the list of brokers at {address} is malformed: {error}") from error

    def _value(self, address: str, namespace: str, key: str) -> str | None:
        code, remark, fields, _ = self._call(address, RequestCode.GET_KV_CONFIG, {"namespace": namespace, "key": key})
        if code not in {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND}:
            raise NameServerFailed(f"{namespace}/{key} was answered with code {code}: {remark}")
        return fields.get("value")

    def _put_value(self, address: str, namespace: str, key: str, value: str) -> None:
        self._expect(address, RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})

    def _grpc_addresses(self, address: str) -> dict[str, str]:
        """Return the gRPC addresses of brokers, by name."""
        code, remark, _, body = self._call(address, RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": GRPC_NAMESPACE})
        if code == ResponseCode.QUERY_NOT_FOUND:
            return {}
        if code != ResponseCode.SUCCESS:
            raise NameServerFailed(f"the list of {GRPC_NAMESPACE} was answered with code {code}: {remark}")
        try:
            return {str(name): str(value) for name, value in java_json.loads_object(body)["table"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NameServerFailed(f"the list of {GRPC_NAMESPACE} at {address} is malformed: {error}") from error

    def close(self) -> None:
        """Cancel running calls and close the connections."""
        self._client.close()
        for session in self._sessions:
            session.close()

    def _register_round(self, session: NameServerSession, round_: RegistrationRound) -> RegistrationAnswer | None:
        now = AckedState(self._identity, round_.read())
        # After a failure from here on, the name server's state is unknown.
        before, session.known = session.known, None
        answer = self._send(session, round_.scope, before, now)
        is_taker = before is not None and before.takes_changes
        if answer is not None:
            is_taker = answer.fields.get(TAKES_CHANGES) == "true"
        if answer is not None or session.written:
            known = None if answer is not None and answer.is_new else before
            session.written = self._orders.registered(
                known, now, answer, self._orders_at(session.address), session.written
            )
            if session.written:
                # Another broker may have overwritten it.
                self.retry_soon()
        session.known = now._replace(takes_changes=is_taker)
        return answer

    def _orders_at(self, address: str) -> NameServerTable:
        return NameServerTable(
            lambda topic: self._value(address, ORDER_NAMESPACE, topic),
            lambda topic, value: self._put_value(address, ORDER_NAMESPACE, topic, value),
        )

    def _send(
        self, session: NameServerSession, scope: RegistrationScope, before: AckedState | None, now: AckedState
    ) -> RegistrationAnswer | None:
        address, identity, content = session.address, now.identity, now.content
        is_same = before is not None and before.identity == identity and before.content is content
        if scope is RegistrationScope.CHANGES:
            if is_same:
                return None
            answer = self._send_topics(address, now, before)
            if answer is not None:
                return answer
        # A slave registers in any case, since the answer names the master.
        may_ask = scope is RegistrationScope.RENEWAL and is_same and not identity.is_slave
        if may_ask and not self._is_changed(address, _version(now)):
            return None
        return self._register(session, now)

    def _send_topics(self, address: str, now: AckedState, before: AckedState | None) -> RegistrationAnswer | None:
        """Register changed topics; None if there are none, or if the name server needs the whole table."""
        change = before.step_to(now.identity, now.content) if before else {}
        if not change:
            return None
        if before is not None and before.takes_changes:
            return self._send_change(address, now, change)
        answer, version = None, _version(now)
        for left, (name, topic) in zip(reversed(range(len(change))), change.items(), strict=True):
            # A name server updates a known topic only under another version. The last topic gets the table's version.
            passing = replace(version, timestamp=version.timestamp - left)
            body = self._body(now.identity, passing, {name: topic})
            header = self._header(now.identity, body)
            code, _, fields, content = self._call(address, RequestCode.REGISTER_BROKER, header, body)
            if code != ResponseCode.SUCCESS:
                return None
            answer = RegistrationAnswer(fields, content, now.identity.generation)
        return answer

    def _send_change(
        self, address: str, now: AckedState, change: Mapping[str, TopicConfig]
    ) -> RegistrationAnswer | None:
        """Register several topics in one request, with a name server that accepts changes."""
        body = self._body(now.identity, _version(now), change)
        header = {**self._header(now.identity, body), IS_CHANGE: "true"}
        code, _, fields, content = self._call(address, RequestCode.REGISTER_BROKER, header, body)
        # Without that field it took them for the whole table: another name server has this address now.
        is_taken = code == ResponseCode.SUCCESS and fields.get(TAKES_CHANGES) == "true"
        return RegistrationAnswer(fields, content, now.identity.generation, is_change=True) if is_taken else None

    def _everything(self, now: AckedState) -> bytes:
        """Return the encoded table, cached for all name servers; encoding many topics is slow."""
        with self._encoding:
            if self._encoded is None or self._encoded[0][0] != now.identity or self._encoded[0][1] is not now.content:
                self._encoded = now, self._body(now.identity, _version(now), now.content.entries)
            return self._encoded[1]

    def _body(self, identity: BrokerIdentity, version: DataVersion, topics: Mapping[str, TopicConfig]) -> bytes:
        is_compressed = self._membership.compress_registration
        return registration_body.encode(version, topics, identity, is_compressed=is_compressed)

    def _broker_fields(self, identity: BrokerIdentity | None = None) -> dict[str, str]:
        identity = identity or self._identity
        return {
            "brokerName": identity.name,
            "brokerAddr": identity.address,
            "clusterName": identity.cluster,
            "brokerId": str(identity.broker_id),
        }

    def _header(self, identity: BrokerIdentity, body: bytes) -> dict[str, str]:
        return {
            **self._broker_fields(identity),
            # RocketMQ requires the field. It is empty, since slaves cannot replicate the log yet.
            "haServerAddr": "",
            "heartbeatTimeoutMillis": str(self._lease_ms),
            "enableActingMaster": "false",
            "compressed": str(self._membership.compress_registration).lower(),
            "bodyCrc32": str(registration_body.crc32(body)),
        }

    def _is_changed(self, address: str, version: DataVersion) -> bool:
        """Return whether a name server has another version of the topics, or none."""
        body = java_json.dumps(version.to_json())
        code, _, fields, known = self._call(address, RequestCode.QUERY_DATA_VERSION, self._broker_fields(), body)
        try:
            is_same = DataVersion.from_json(java_json.loads_object(known)) == version if known else False
        except (ValueError, TypeError):
            is_same = False
        return code != ResponseCode.SUCCESS or fields.get("changed") != "false" or not is_same

    def _register(self, session: NameServerSession, now: AckedState) -> RegistrationAnswer:
        is_late, is_new = session.is_late, False
        # A slave has its master's name, so the entry is the master's.
        has_entry = not now.identity.is_slave
        if has_entry and not is_late:
            is_new = self._put_grpc_address(session.address)
        body = self._everything(now)
        answer = self._expect(session.address, RequestCode.REGISTER_BROKER, self._header(now.identity, body), body)
        # A name server that times out may receive requests all the same, and the lease matters more than the entry.
        if has_entry and is_late:
            is_new = self._put_grpc_address(session.address)
        return answer._replace(generation=now.identity.generation, is_new=is_new)

    def _put_grpc_address(self, address: str) -> bool:
        """Put the gRPC address if it differs; returns whether it was missing."""
        # Before the registration, so that a route never shows the broker without its address.
        key = {"namespace": GRPC_NAMESPACE, "key": self._identity.name}
        *_, fields, _ = self._call(address, RequestCode.GET_KV_CONFIG, key)
        if fields.get("value") != self._identity.grpc_address:
            self._put_value(address, GRPC_NAMESPACE, self._identity.name, self._identity.grpc_address)
        return fields.get("value") is None

    def _expect(
        self, address: str, code: RequestCode, fields: Mapping[str, str], body: bytes = b""
    ) -> RegistrationAnswer:
        status, remark, header, content = self._call(address, code, fields, body)
        if status != ResponseCode.SUCCESS:
            raise NameServerFailed(f"{code.name} was answered with code {status}: {remark}")
        return RegistrationAnswer(header, content)

    def _call(self, address: str, code: RequestCode, fields: Mapping[str, str], body: bytes = b"") -> Answer:
        try:
            return self._client.call(address, code, fields, body, timeout=self._timeout)
        except OutcomeUnknown as error:
            raise NameServerFailed(str(error)) from error

    def _first(self, ask: Callable[[str], A]) -> A:
        failures = []
        # Name servers that failed last time come last: each may cost a timeout.
        for session in sorted(self._sessions, key=lambda session: session.is_failing):
            try:
                return ask(session.address)
            except NameServerFailed as error:
                session.note_failure(error)
                failures.append(str(error))
        raise NameServerFailed("no name server answers: " + "; ".join(failures))


def _version(now: AckedState) -> DataVersion:
    """Return the version to register; a name server takes other permissions only under another version."""
    version = now.content.version
    changes = now.identity.is_draining + len(now.identity.left)
    return replace(version, timestamp=version.timestamp + changes) if changes else version


def _ordered(body: bytes) -> list[str]:
    """Return the topics with an order configuration in a registration's answer; name servers may omit it."""
    return [topic for topic, value in (table_of(body) or {}).items() if value]
