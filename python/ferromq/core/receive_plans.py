"""What a consumer says to servers to receive messages: written once, without I/O, as `plans` is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from ferromq._proto import messages as pb
from ferromq.core.arguments import MOST, whole_number
from ferromq.core.plans import LEAST, Common, Tries
from ferromq.core.requests import (
    BEGIN,
    RETRYABLE,
    Arrive,
    Call,
    Decoded,
    Join,
    Pause,
    Plan,
    Stream,
    backoff,
    check,
    decode_messages,
    duration,
    error_of,
)
from ferromq.core.routes import Route, endpoints_message
from ferromq.core.subscriptions import Subscription
from ferromq.errors import OutcomeUnknown, RequestError, ServerError, Unsupported

if TYPE_CHECKING:
    from ferromq._ferromq import LeaseKeeper
    from ferromq.core.pull_plans import PullAhead

LATE = 2.8
"""Seconds after its wait in which a receive ends, whatever hangs."""
ACKS_FIRST = 1.0
"""Seconds that a receive gives to the acknowledgements that wait, at most."""
LONG_POLL = 20.0
"""Seconds that a receive of a loop or of `run` waits for a message."""
GRACE = 5.0
"""Seconds a long poll's answer may take beyond the poll; RocketMQ wants its own poll to fit well inside."""
_TURN = 1.0
"""Seconds to wait for one topic at one broker, where there are several topics or brokers."""
_WATCH = 20.0
"""Seconds that a broker waits for messages to tell of."""
_THROTTLED = 0.1
"""Seconds until a broker is asked again that throttles the client."""
_LEAST_POLL = 5.0
"""Seconds that a receive waits at RocketMQ's proxy at least; one with less time until its deadline is refused:"""
_TOO_SHORT = "not enough for polling"
_NO_SHORT_WAIT = (
    "RocketMQ's proxy refuses receives that wait for less than 3 s: give wait=3 or more, or set "
    "grpcClientConsumerMinLongPollingTimeoutMillis=0 at the proxy"
)
_attempts = count()
"""Tells the receives of a client apart."""
_NO_BEGIN = "begin= needs brokers of ferromq: leave it out, or set the offsets of the group before it begins"


@dataclass(frozen=True, slots=True)
class Wish:
    """What one receive asks for; times in seconds."""

    max_messages: int
    wait: float
    invisible: float
    grace: float = LATE
    """How long after the wait it may end."""
    decode: Callable[..., Decoded[Any]] = decode_messages
    """Makes of an answer what the plan returns: a list of messages, or a table."""
    ahead: "PullAhead | None" = None
    """Sends pulls that follow others before they are asked for."""

    @classmethod
    def before(
        cls, until: float, now: float, max_messages: int, invisible: float, decode: Callable[..., Decoded[Any]]
    ) -> "Wish":
        """Return a wish whose wait ends at *until*; a call that acknowledged first still ends within its grace."""
        left = max(0.0, until - now)
        grace = until + LATE - now - left
        return cls(max_messages, left, invisible, grace=max(grace, LATE - ACKS_FIRST), decode=decode)


def check_count(max_messages: int) -> None:
    """Raise `ConfigError` for a call that asks for no message or too many, and `TypeError` for no whole number."""
    whole_number("max_messages", max_messages, 1, MOST)


def receive(common: Common, subscription: Subscription, wish: Wish, lease: "LeaseKeeper") -> Plan[Any]:
    """
    Receive messages, waiting for the first; an empty list when none came in time.

    A broker that throttles the client is asked again until the wait is over; without a wait, it raises `Throttled`.
    A broker that does not answer is asked again until the wait is over, and as often as attempts are allowed where
    there is time: it ends at most *grace* seconds after the wait, whatever hangs.
    """
    until = common.now() + wish.wait
    tries = Tries(until + wish.grace)
    failures = answers = 0
    turns = _Turns()
    # All repetitions have the same id: to a group that keeps order the broker sends what a lost answer leased again.
    attempt = f"{common.identity.client_id}@{next(_attempts):x}"
    while True:
        left = max(0.0, until - common.now())
        try:
            routes = _fresh_routes(common, subscription) or (yield from _routes(common, subscription, tries))
            targets = _targets(common, routes)
            target, wait = yield from turns.take(common, subscription, targets, routes[0], left)
            turn = _Turn(target, wait, attempt)
            messages = yield from _receive_once(common, subscription, wish, turn, (lease, tries))
            answers += 1
        except RequestError as error:
            if _TOO_SHORT not in str(error):
                raise
            if target.endpoint in common.patient:  # what is left of the time is too short
                if answers:
                    return []
                raise Unsupported(f"{error}; {_NO_SHORT_WAIT}") from None
            common.patient.add(target.endpoint)
            continue
        except RETRYABLE:
            failures += 1
            for topic in subscription.filters:
                common.routes.distrust(topic)
            left = tries.until - common.now()
            if common.now() >= until and (failures >= common.attempts or left < LEAST):
                raise
            yield Pause(min(backoff(min(failures, 3)), max(0.0, left / 2)))
            continue
        if messages or (common.now() >= until and turns.asked >= len(targets)):
            return messages


@dataclass(slots=True)
class _Turns:
    """Which broker and topic a receive asks next, and how long it waits there."""

    asked: int = 0
    _ready: "list[Target]" = field(default_factory=list)
    """Those that have told of messages."""

    def take(
        self, common: Common, subscription: Subscription, targets: "list[Target]", first: Route, left: float
    ) -> "Plan[tuple[Target, float]]":
        """
        Return the next target, and the seconds to wait for its messages while *left* seconds are left.

        Of several, each is asked without a wait before there is one: a long poll would hold up what another one has.
        Then it waits at all of them at once, or where brokers do not tell of messages, for a while at one.
        """
        if len(targets) == 1:
            self.asked += 1
            return targets[0], left
        is_sweep = bool(self._ready) or self.asked % (len(targets) + 1) < len(targets)
        if not is_sweep and left and _tell_arrivals(common, targets):
            self._ready = yield from _arrived(common, subscription, targets, min(left, _WATCH))
            is_sweep = True
        target = self._ready.pop() if self._ready else targets[first.take_turn() % len(targets)]
        self.asked += 1
        return target, 0.0 if is_sweep else min(left, _TURN)


def _arrived(common: Common, subscription: Subscription, targets: "list[Target]", left: float) -> "Plan[list[Target]]":
    """
    Wait until brokers have messages, *left* seconds at most, and return those that have.

    Each turn of the wait sends again what was lost with its connection, or was answered for another receive.
    """
    until = common.now() + left
    requests = [_watched(common, subscription, target) for target in targets]
    while left > 0 and _tell_arrivals(common, targets):
        names = yield Arrive(requests, min(left, _TURN))
        if names:
            return [target for target in targets if _name(target) in names]
        left = until - common.now()
    return []


def _tell_arrivals(common: Common, targets: "list[Target]") -> bool:
    """Say whether all brokers tell of messages without leasing them."""
    return all(common.takes_records(target.endpoint) for target in targets)


def _name(target: "Target") -> str:
    return f"{target.endpoint} {target.topic}"


def _watched(common: Common, subscription: Subscription, target: "Target") -> tuple[str, str, bytes]:
    request = pb.ReceiveMessageRequest(
        group=common.resource(subscription.group),
        message_queue=pb.MessageQueue(topic=common.resource(target.topic)),
        long_polling_timeout=duration(_WATCH),
    )
    return _name(target), target.endpoint, request.SerializeToString()


def introduce(common: Common, topic: str) -> Plan[None]:
    """Make the client known to a broker of a topic, whose answer says whether the group keeps order."""
    route = yield from common.route(topic)
    endpoint, _ = route.to_read(common.routes.failing())[0]
    yield Join(endpoint, common.attempt_timeout)


class Target(NamedTuple):
    """A broker that has a topic."""

    topic: str
    endpoint: str
    broker_name: str


class _Turn(NamedTuple):
    """One request of a receive."""

    target: Target
    wait: float
    attempt: str


def _fresh_routes(common: Common, subscription: Subscription) -> list[Route] | None:
    """Return the routes of all topics; None where one is too old."""
    routes = [route for topic in subscription.filters if (route := common.routes.fresh(topic)) is not None]
    return routes if len(routes) == len(subscription.filters) else None


def _routes(common: Common, subscription: Subscription, tries: Tries) -> Plan[list[Route]]:
    routes = list[Route]()
    for topic in subscription.filters:
        route = yield from common.route(topic, tries)
        routes.append(route)
    return routes


def _targets(common: Common, routes: Sequence[Route]) -> list[Target]:
    """Return what a receive may ask."""
    failing = common.routes.failing()
    return [Target(route.topic, *broker) for route in routes for broker in route.to_read(failing)]


def begin_at(common: Common, subscription: Subscription, target: Target, tries: Tries) -> Plan[None]:
    """
    Have the group begin at a broker where `Subscription.begin` says, unless it has an offset there.

    The broker decides, once for all members: a ferromq extension of GetOffset. Raises `Unsupported` for other brokers.
    """
    place = target.topic, target.broker_name
    if place in subscription.begun:
        return
    route = common.routes.known(target.topic)
    brokers = frozenset(route.readable.values()) if route else frozenset()
    start = subscription.start_at(*place, brokers)
    broker = pb.Broker(name=target.broker_name, endpoints=endpoints_message([target.endpoint]))
    queue = pb.MessageQueue(topic=common.resource(target.topic), id=0, permission=pb.Permission.READ, broker=broker)
    request = pb.GetOffsetRequest(group=common.resource(subscription.group), message_queue=queue).SerializeToString()
    try:
        answer = yield Call(target.endpoint, "GetOffset", request, common.limit(tries), ((BEGIN, start),))
    except Unsupported as error:
        raise Unsupported(f"{error}; {_NO_BEGIN}") from None
    status = pb.GetOffsetResponse.FromString(answer).status
    if status.code == pb.Code.OFFSET_NOT_FOUND:
        raise Unsupported(f"the broker {target.endpoint} does not let clients say where a group begins; {_NO_BEGIN}")
    check(status)
    subscription.begun.add(place)


def first_part(common: Common, subscription: Subscription, target: Target) -> bytes:
    """Return the beginning of an encoded request, which is the same for all receives from a place."""
    first = subscription.requests.get(target)
    if first is None:
        name, endpoint, broker_name = target
        first = subscription.requests[target] = pb.ReceiveMessageRequest(
            group=common.resource(subscription.group),
            message_queue=pb.MessageQueue(
                topic=common.resource(name),
                id=-1,
                permission=pb.Permission.READ,
                broker=pb.Broker(name=broker_name, endpoints=endpoints_message([endpoint])),
            ),
            filter_expression=subscription.filters[name],
        ).SerializeToString()
    return first


def _request(common: Common, subscription: Subscription, wish: Wish, turn: _Turn) -> bytes:
    rest = pb.ReceiveMessageRequest(
        batch_size=wish.max_messages,
        invisible_duration=duration(wish.invisible),
        long_polling_timeout=duration(turn.wait),
        attempt_id=turn.attempt,
    )
    return first_part(common, subscription, turn.target) + rest.SerializeToString()


def _receive_once(
    common: Common, subscription: Subscription, wish: Wish, turn: _Turn, of: tuple["LeaseKeeper", Tries]
) -> Plan[Any]:
    lease, tries = of
    target, endpoint = turn.target, turn.target.endpoint
    try:
        yield Join(endpoint, common.limit(tries))
        if subscription.begin is not None:
            yield from begin_at(common, subscription, target, tries)
        wait = max(turn.wait, _LEAST_POLL) if endpoint in common.patient else turn.wait
        limit = max(0.001, min(wait + GRACE, tries.until - common.now()))
        answer = yield Stream(endpoint, "ReceiveMessage", _request(common, subscription, wish, turn), limit, lease)
    except OutcomeUnknown:
        common.routes.failed(endpoint)
        raise
    common.routes.answered(endpoint)
    status, messages, _ = wish.decode(answer, lease, endpoint, subscription.namespace)
    if status is None:
        if messages:
            return messages
        raise ServerError(f"{endpoint} ended a receive without a status")
    code, text = status
    left = tries.until - wish.grace - common.now()
    if code == pb.Code.TOO_MANY_REQUESTS and left > 0:
        yield Pause(min(_THROTTLED, left))
    elif code not in {pb.Code.OK, pb.Code.MESSAGE_NOT_FOUND}:
        raise error_of(code, text)
    return messages
