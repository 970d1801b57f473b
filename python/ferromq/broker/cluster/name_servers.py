"""
What a broker and its name servers say to each other: registration, routes, gRPC addresses.

When to register is `controller`'s business, what to make of a route that of `routes`.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple, TypeVar

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
_GOODBYE_SECONDS = 0.5
A = TypeVar("A")
Answer = tuple[int, str | None, dict[str, str], bytes]


class Master(NamedTuple):
    """The master of a slave, as a name server tells."""

    address: str
    ha_address: str | None


class RegistrationOutcome(NamedTuple):
    """What became of a registration."""

    is_complete: bool
    """Whether every name server took it."""
    master: Master | None
    """The master, where a name server named one."""
    has_answers: bool
    """Whether a name server said who is master, or that there is none."""
    ordered: frozenset[str]
    """The topics that name servers have an order configuration of."""
    generation: int
    """Of the role they were told of."""


class RouteLookup(NamedTuple):
    """What a name server says of a topic."""

    route: TopicRoute | None
    registered: frozenset[str] | None
    """The brokers that are registered; None where the route has all there may be, so that it was not asked."""
    grpc: Mapping[str, str]
    """Broker name → where it serves gRPC, also of brokers that are away."""
    order: str | None
    """The order configuration, where it was asked for or comes with the route."""


class NameServers:
    """The name servers of one broker; thread-safe. None of them keeps another one waiting."""

    def __init__(
        self, addresses: tuple[str, ...], identity: BrokerIdentity, membership: MembershipConfig, *, period: timedelta
    ) -> None:
        self._identity = identity
        self._membership = membership
        self._timeout = membership.register_timeout.total_seconds()
        self._lease_ms = max(_LEASE_MS, _PERIODS_IN_A_LEASE * (period // timedelta(milliseconds=1)))
        self._client = _ferromq.RemotingClient()
        self._sessions = [NameServerSession(address, self._tell) for address in addresses]
        self.try_soon: Callable[[], object] = lambda: None
        """Called where a name server does not know this broker any more, or may lack what it was told."""
        self._orders = OrderConfigurations()
        self._encoding = threading.Lock()
        self._encoded: tuple[AckedState, bytes] | None = None

    def __bool__(self) -> bool:
        return bool(self._sessions)

    @property
    def identity(self) -> BrokerIdentity:
        """The broker as it registers."""
        return self._identity

    def become(self, broker_id: int, allowed: Permission) -> None:
        """Register with this id and permission from now on; what is told to the broker as it was is passed over."""
        generation = self._identity.generation + 1
        self._identity = replace(self._identity, broker_id=broker_id, allowed=allowed, generation=generation)

    def register(self, read: ReadTopics, *, is_forced: bool = True, waits_for_all: bool = True) -> RegistrationOutcome:
        """
        Register what *read* returns with every name server at the same time.

        Unless *is_forced*, one that has this version of the topics already is not sent them again; asking renews the
        lease, too. Unless it *waits_for_all*, the outcome says of those that failed before only that they do not have
        it yet.
        """
        asked = RegistrationScope.FULL if is_forced else RegistrationScope.RENEWAL
        rounds = [(waits_for_all or not session.is_failing, session.ask(asked, read)) for session in self._sessions]
        results = [found.result() if is_awaited else RoundResult(is_done=False) for is_awaited, found in rounds]
        generation = self._identity.generation
        told = [each.told for each in results if each.told is not None and each.told.generation == generation]
        masters = [
            Master(each.fields["masterAddr"], each.fields.get("haServerAddr"))
            for each in told
            if each.fields.get("masterAddr")
        ]
        return RegistrationOutcome(
            is_complete=all(each.is_done for each in results),
            master=masters[0] if masters else None,
            has_answers=bool(told),
            ordered=frozenset(topic for each in told for topic in _ordered(each.body)),
            generation=generation,
        )

    def register_change(self, read: ReadTopics, wait: RegistrationWait, on_failure: Callable[[], object]) -> None:
        """
        Register what changed of what *read* returns; call *on_failure* where a name server does not take it.

        One that may not have the table before the change gets everything. Name servers that failed before are left to
        the next `register`, so that they keep nobody waiting.
        """
        answering = [session for session in self._sessions if not session.is_failing]
        older = [session.under_way() for session in answering]
        rounds = [session.ask(RegistrationScope.CHANGES, read) for session in answering]
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
        """Say goodbye to the name servers that answer; others find out by the closed connection."""
        fields = self._who()
        self._timeout = min(self._timeout, _GOODBYE_SECONDS)

        def leave(session: NameServerSession) -> None:
            if session.is_failing:
                session.close()
            else:
                session.leave(
                    lambda: self._expect(session.address, RequestCode.UNREGISTER_BROKER, fields), _GOODBYE_SECONDS
                )

        # The usual threads may still wait for somebody who does not answer.
        threads = ThreadPoolExecutor(max(1, len(self._sessions)), thread_name_prefix="ferromq-unregister")
        try:
            leaving = [threads.submit(leave, session) for session in self._sessions]
        except RuntimeError:
            # The interpreter ends and gives no work to other threads any more.
            for session in self._sessions:
                leave(session)
        else:
            for each in leaving:
                each.result()
        threads.shutdown(wait=False)

    def look_up(self, topic: str, expected: Collection[str], *, is_ordered: bool = False) -> RouteLookup:
        """
        Return what the first name server that is an authority says of *topic*.

        One that lacks a broker of *expected*, and does not know this broker, has just started: it is asked nothing.
        Raises `NameServerFailed` where no other answers.
        """
        return self._first(lambda address: self._look_up_at(address, topic, expected, is_ordered=is_ordered))

    def _look_up_at(self, address: str, topic: str, expected: Collection[str], *, is_ordered: bool) -> RouteLookup:
        route = self._route(address, topic)
        there = {queue.broker_name for queue in route.queues} if route else set()
        grpc = self._grpc_addresses(address)
        own = self._identity.name
        registered: frozenset[str] | None = None
        is_short = route is None or not there.issuperset(expected)
        # Those that serve gRPC and have no queue in the route may be away, with queues that no name server knows of.
        if is_short or any(at != GONE for name, at in grpc.items() if name not in {own, *there}):
            registered = self._registered(address)
            if is_short and own not in registered:
                self.try_soon()
                raise NameServerFailed(f"{address} does not know this broker yet, and maybe not the others")
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
        """Return the names of the brokers that are registered there."""
        told = self._expect(address, RequestCode.GET_BROKER_CLUSTER_INFO, {})
        try:
            return frozenset(str(name) for name in java_json.loads_object(told.body).get("brokerAddrTable") or ())
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
        """Return where brokers serve gRPC, by their names."""
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
        """End calls under way and close the connections."""
        self._client.close()
        for session in self._sessions:
            session.close()

    def _tell(self, session: NameServerSession, turn: RegistrationRound) -> RegistrationAnswer | None:
        now = AckedState(self._identity, turn.read())
        # Whatever goes wrong from here on, it is not known what the name server has.
        before, session.known = session.known, None
        told = self._send(session, turn.asked, before, now)
        is_taker = before is not None and before.takes_changes
        if told is not None:
            is_taker = told.fields.get(TAKES_CHANGES) == "true"
        if told is not None or session.written:
            known = None if told is not None and told.is_new else before
            session.written = self._orders.registered(
                known, now, told, self._orders_at(session.address), session.written
            )
            if session.written:
                # Another broker may have overwritten it.
                self.try_soon()
        session.known = now._replace(takes_changes=is_taker)
        return told

    def _orders_at(self, address: str) -> NameServerTable:
        return NameServerTable(
            lambda topic: self._value(address, ORDER_NAMESPACE, topic),
            lambda topic, value: self._put_value(address, ORDER_NAMESPACE, topic, value),
        )

    def _send(
        self, session: NameServerSession, asked: RegistrationScope, before: AckedState | None, now: AckedState
    ) -> RegistrationAnswer | None:
        address, identity, content = session.address, now.identity, now.content
        is_same = before is not None and before.identity == identity and before.content is content
        if asked is RegistrationScope.CHANGES:
            if is_same:
                return None
            told = self._send_topics(address, now, before)
            if told is not None:
                return told
        # Who follows a master registers in any case: the answer says who that is.
        may_ask = asked is RegistrationScope.RENEWAL and is_same and not identity.is_slave
        if may_ask and not self._is_changed(address, content.version):
            return None
        return self._register(session, now)

    def _send_topics(self, address: str, now: AckedState, before: AckedState | None) -> RegistrationAnswer | None:
        """Register topics that changed; None where there are none, or the name server wants the whole table."""
        change = before.step_to(now.identity, now.content) if before else {}
        if not change:
            return None
        if before is not None and before.takes_changes:
            return self._send_change(address, now, change)
        told, version = None, now.content.version
        for left, (name, topic) in zip(reversed(range(len(change))), change.items(), strict=True):
            # A name server reads a topic it knows only where the version is another one. The last one is the table's.
            passing = replace(version, timestamp=version.timestamp - left)
            body = self._body(now.identity, passing, {name: topic})
            header = self._header(now.identity, body)
            code, _, fields, answer = self._call(address, RequestCode.REGISTER_BROKER, header, body)
            if code != ResponseCode.SUCCESS:
                return None
            told = RegistrationAnswer(fields, answer, now.identity.generation)
        return told

    def _send_change(
        self, address: str, now: AckedState, change: Mapping[str, TopicConfig]
    ) -> RegistrationAnswer | None:
        """Register several topics at once, with a name server that takes them for a change."""
        body = self._body(now.identity, now.content.version, change)
        header = {**self._header(now.identity, body), IS_CHANGE: "true"}
        code, _, fields, answer = self._call(address, RequestCode.REGISTER_BROKER, header, body)
        # One that does not say so took them for the whole table: another name server is at this address now.
        is_taken = code == ResponseCode.SUCCESS and fields.get(TAKES_CHANGES) == "true"
        return RegistrationAnswer(fields, answer, now.identity.generation, is_change=True) if is_taken else None

    def _everything(self, now: AckedState) -> bytes:
        """Encode the whole table, once for all name servers, and where one needs it: with many topics that is long."""
        with self._encoding:
            if self._encoded is None or self._encoded[0][0] != now.identity or self._encoded[0][1] is not now.content:
                self._encoded = now, self._body(now.identity, now.content.version, now.content.entries)
            return self._encoded[1]

    def _body(self, identity: BrokerIdentity, version: DataVersion, topics: Mapping[str, TopicConfig]) -> bytes:
        is_compressed = self._membership.compress_registration
        return registration_body.encode(version, topics, identity.allowed, is_compressed=is_compressed)

    def _who(self, identity: BrokerIdentity | None = None) -> dict[str, str]:
        identity = identity or self._identity
        return {
            "brokerName": identity.name,
            "brokerAddr": identity.address,
            "clusterName": identity.cluster,
            "brokerId": str(identity.broker_id),
        }

    def _header(self, identity: BrokerIdentity, body: bytes) -> dict[str, str]:
        return {
            **self._who(identity),
            # RocketMQ requires the field. Nothing serves the log to slaves yet, so they are sent nowhere.
            "haServerAddr": "",
            "heartbeatTimeoutMillis": str(self._lease_ms),
            "enableActingMaster": "false",
            "compressed": str(self._membership.compress_registration).lower(),
            "bodyCrc32": str(registration_body.crc32(body)),
        }

    def _is_changed(self, address: str, version: DataVersion) -> bool:
        """Ask a name server whether it has another version of the topics than this one, or none."""
        body = java_json.dumps(version.to_json())
        code, _, fields, known = self._call(address, RequestCode.QUERY_DATA_VERSION, self._who(), body)
        try:
            is_same = DataVersion.from_json(java_json.loads_object(known)) == version if known else False
        except (ValueError, TypeError):
            is_same = False
        return code != ResponseCode.SUCCESS or fields.get("changed") != "false" or not is_same

    def _register(self, session: NameServerSession, now: AckedState) -> RegistrationAnswer:
        is_late, is_new = session.is_late, False
        # A slave has its master's name, and the entry is the master's.
        has_entry = not now.identity.is_slave
        if has_entry and not is_late:
            is_new = self._put_grpc_address(session.address)
        body = self._everything(now)
        told = self._expect(session.address, RequestCode.REGISTER_BROKER, self._header(now.identity, body), body)
        # One that answers nothing in time may hear all the same: the lease counts more than the entry it has.
        if has_entry and is_late:
            is_new = self._put_grpc_address(session.address)
        return told._replace(generation=now.identity.generation, is_new=is_new)

    def _put_grpc_address(self, address: str) -> bool:
        """Put it where it is missing or another; says whether there was none."""
        # Before the registration: whoever sees the broker in a route finds the way to it.
        key = {"namespace": GRPC_NAMESPACE, "key": self._identity.name}
        *_, fields, _ = self._call(address, RequestCode.GET_KV_CONFIG, key)
        if fields.get("value") != self._identity.grpc_address:
            self._put_value(address, GRPC_NAMESPACE, self._identity.name, self._identity.grpc_address)
        return fields.get("value") is None

    def _expect(
        self, address: str, code: RequestCode, fields: Mapping[str, str], body: bytes = b""
    ) -> RegistrationAnswer:
        answer, remark, *_ = told = self._call(address, code, fields, body)
        if answer != ResponseCode.SUCCESS:
            raise NameServerFailed(f"{code.name} was answered with code {answer}: {remark}")
        return RegistrationAnswer(told[2], told[3])

    def _call(self, address: str, code: RequestCode, fields: Mapping[str, str], body: bytes = b"") -> Answer:
        try:
            return self._client.call(address, code, fields, body, timeout=self._timeout)
        except OutcomeUnknown as error:
            raise NameServerFailed(str(error)) from error

    def _first(self, ask: Callable[[str], A]) -> A:
        failures = []
        # Those that failed last time are asked last: each may cost a timeout.
        for session in sorted(self._sessions, key=lambda session: session.is_failing):
            try:
                return ask(session.address)
            except NameServerFailed as error:
                session.note_failure(error)
                failures.append(str(error))
        raise NameServerFailed("no name server answers: " + "; ".join(failures))


def _ordered(body: bytes) -> list[str]:
    """Return the topics of the order configurations in the answer to a registration; name servers may leave it out."""
    return [topic for topic, value in (table_of(body) or {}).items() if value]
