"""
What a client says to servers, in which order, and what the answers mean: written once, without I/O.

Each function is a plan: it yields steps (`requests.Call` and its like), is sent their answers, and returns its
result. It retries, refreshes routes and keeps message ids over repetitions. Threads, tasks and queues are the
business of those who run plans.
"""

import math
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from ferromq import _ferromq
from ferromq._ferromq import MessageView
from ferromq._proto import messages as pb
from ferromq.core.requests import (
    RETRYABLE,
    Call,
    Identity,
    Join,
    Packets,
    Pause,
    Plan,
    Stream,
    T,
    backoff,
    check,
    duration,
    error_of,
    resource,
)
from ferromq.core.retry import Cause
from ferromq.core.routes import Route, Routes, endpoints_message
from ferromq.errors import (
    ClientClosed,
    ConnectionFailed,
    FerromqError,
    Forbidden,
    LeaseExpired,
    NotDurable,
    OutcomeUnknown,
    RequestTimeout,
    ServerError,
)
from ferromq.protocol import naming

if TYPE_CHECKING:
    from ferromq._ferromq import LeaseKeeper

MAX_BODY = 4 * 1024 * 1024
"""RocketMQ's limit, until the server's settings tell another."""
GRACE = 5.0
"""Seconds a long poll's answer may take beyond the poll; RocketMQ wants its own poll to fit well inside."""
LATE = 2.8
"""Seconds after its wait in which a receive ends, whatever hangs."""
ATTEMPT = 3.0
"""Seconds that one attempt of a call may take, at most."""
LEAST = 0.05
"""Seconds below which another attempt is not worth it."""
_PAUSE = 1.0
"""Seconds to wait before a request is repeated, at most."""
_RENEWAL = 1.0
"""Seconds that a new route may take where an old one is there, and until it is asked for again where that failed."""
_WHY = ("x-ferromq-dead-letter-reason", "x-ferromq-dead-letter-exception")
_REASON = 1024
"""Characters of a reason that are told."""
_PLAIN = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"
_TURN = 1.0
"""Seconds to wait at one broker where a topic is on several."""


@dataclass(slots=True)
class Tries:
    """What the tries of one request have in common."""

    until: float = math.inf
    """When the call ends (monotonic), whatever hangs."""
    endpoints: set[str] = field(default_factory=set)
    """Those tried, to choose another one the next time."""
    unknown: OutcomeUnknown | None = None
    """What became of a try that may have done its work; a later refusal does not undo it."""


@dataclass(slots=True)
class Common:
    """What all plans of a client share."""

    identity: Identity
    endpoints: tuple[str, ...]
    timeout: float
    attempts: int
    routes: Routes
    max_body: int = MAX_BODY
    max_attempts: int = 0
    """How often a message of the consumer's group is delivered, once its settings have come."""
    attempt_timeout: float = ATTEMPT
    """Seconds that one attempt may take, at most."""
    now: Callable[[], float] = time.monotonic
    wall: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    """Milliseconds since 1970, from which delays count."""

    def limit(self, tries: Tries) -> float:
        """Return the seconds that the next step of a call may take."""
        return max(0.001, min(self.attempt_timeout, tries.until - self.now()))

    def attempt(
        self,
        topic: str,
        once: Callable[[Tries], Plan[T]],
        *,
        is_repeatable: bool = True,
        timeout: float | None = None,
    ) -> Plan[T]:
        """
        Run *once* until it succeeds, or *timeout* seconds have passed; one attempt means one.

        Without *timeout* it ends once it has failed often enough, and for `timeout` long enough. What is not
        *is_repeatable* is left at the first try that may have done its work.
        """
        tries = Tries() if timeout is None else Tries(self.now() + timeout)
        until = self.now() + (self.timeout if self.attempts > 1 else 0.0) if timeout is None else tries.until
        number = 1
        while True:
            is_known = self.routes.fresh(topic) is not None
            try:
                return (yield from once(tries))
            except NotDurable:
                raise  # it is stored: again would be twice
            except Forbidden as error:
                # A route from before may be older than what it was refused for: a closed queue, a permission taken.
                self.routes.distrust(topic)
                if not is_known or number >= self.attempts:
                    raise _outcome(error, tries) from None
                number += 1
                continue
            except RETRYABLE as error:
                last = error
                if not is_repeatable and tries.unknown is not None:
                    raise
                self.routes.distrust(topic)
                left = until - self.now()
                if self._is_over(number, left, is_bounded=timeout is not None):
                    raise _outcome(error, tries) from None
            except FerromqError as error:
                raise _outcome(error, tries) from None
            pause = min(backoff(number), _PAUSE)
            if timeout is not None:
                # Half of what is left: there is always time for one more attempt.
                pause = min(pause, left / 2)
            yield from _pause(pause if number < self.attempts else min(pause, left), last, tries)
            number += 1

    def _is_over(self, number: int, left: float, *, is_bounded: bool) -> bool:
        """Say whether the try with this number was the last."""
        if is_bounded:
            return self.attempts == 1 or left < LEAST
        return number >= self.attempts and left <= 0

    def route(self, topic: str, tries: Tries | None = None) -> Plan[Route]:
        """
        Return the topic's route, asked for anew when it is too old; an old one serves while nobody answers.

        Every broker that is known is asked, not those alone that the client was made with.
        """
        fresh = self.routes.fresh(topic)
        if fresh is not None:
            return fresh
        naming.check_topic(topic)
        old = self.routes.known(topic)
        failure: FerromqError | None = None
        until = min((tries or Tries()).until, math.inf if old is None else self.now() + _RENEWAL)
        for endpoint in self.routes.answering_first(dict.fromkeys((*self.endpoints, *(old.endpoints if old else ())))):
            left = until - self.now()
            if failure is not None and left < LEAST:
                break
            try:
                return (yield from self._ask_route(topic, endpoint, max(0.001, min(self.attempt_timeout, left))))
            except (*RETRYABLE,) as error:
                failure = error
                if isinstance(error, OutcomeUnknown):  # else it answers, though it does not know
                    self.routes.failed(endpoint)
        if old is None:
            assert failure is not None
            raise failure
        self.routes.trust(topic, _RENEWAL)
        return old

    def join(self, endpoint: str, topic: str, tries: Tries) -> Plan[None]:
        """Be known at a broker as a producer of *topic*."""
        try:
            yield Join(endpoint, self.limit(tries), topic)
        except OutcomeUnknown:
            self.routes.failed(endpoint)
            raise

    def _ask_route(self, topic: str, endpoint: str, timeout: float) -> Plan[Route]:
        request = pb.QueryRouteRequest(topic=resource(topic), endpoints=endpoints_message(self.endpoints))
        try:
            answer = yield Call(endpoint, "QueryRoute", request.SerializeToString(), timeout)
        except ConnectionFailed as error:
            if "Socket closed" not in str(error):
                raise
            raise ConnectionFailed(f"{error}; is this a broker's gRPC port (8081)?") from None
        response = pb.QueryRouteResponse.FromString(answer)
        check(response.status)
        self.routes.answered(endpoint)
        return self.routes.put(topic, Route.read(topic, response.message_queues))


def _pause(seconds: float, last: FerromqError, tries: Tries) -> Plan[None]:
    """Wait after the error *last*; where the client is closed meanwhile, what was tried may have been done."""
    try:
        yield Pause(seconds)
    except ClientClosed as closed:
        raise _outcome(last if isinstance(last, OutcomeUnknown) else closed, tries) from None


def _outcome(error: FerromqError, tries: Tries) -> FerromqError:
    """Return the error of the last try, or of an earlier one that may have done its work nevertheless."""
    if tries.unknown is None or isinstance(error, OutcomeUnknown):
        return error
    tries.unknown.add_note(f"it was tried again after that: {error}")
    return tries.unknown


@dataclass(slots=True)
class Subscription:
    """What a consumer wants."""

    group: str
    topic: str
    wanted: pb.FilterExpression

    def settings(self) -> pb.Subscription:
        """Return it as settings."""
        entry = pb.SubscriptionEntry(topic=resource(self.topic), expression=self.wanted)
        return pb.Subscription(group=resource(self.group), subscriptions=[entry])


@dataclass(frozen=True, slots=True)
class Wish:
    """What one receive asks for; times in seconds."""

    max_messages: int
    wait: float
    invisible: float
    attempt_id: str = ""
    grace: float = LATE
    """How long after the wait it may end."""


def receive(common: Common, subscription: Subscription, wish: Wish, lease: "LeaseKeeper") -> Plan[list[MessageView]]:
    """
    Receive messages, waiting for the first; an empty list when none came in time.

    A broker that does not answer is asked again until the wait is over, and as often as attempts are allowed where
    there is time: it ends at most *grace* seconds after the wait, whatever hangs.
    """
    topic = subscription.topic
    until = common.now() + wish.wait
    tries = Tries(until + wish.grace)
    failures = asked = 0
    # The same over repetitions: what a lost answer held comes again, although nobody else may have it now.
    attempt_id = str(uuid.uuid4())
    while True:
        left = max(0.0, until - common.now())
        try:
            route = yield from common.route(topic, tries)
            several = len(route.readable) > 1
            # Each broker once without waiting: a long poll at one that has nothing would hold up what another one has.
            is_first_round = several and asked < len(route.readable)
            asked += 1
            turn = replace(
                wish,
                wait=0.0 if is_first_round else min(left, _TURN) if several else left,
                attempt_id=attempt_id,
            )
            messages = yield from _receive_once(common, subscription, route, turn, (lease, tries))
        except RETRYABLE:
            failures += 1
            common.routes.distrust(topic)
            left = tries.until - common.now()
            if common.now() >= until and (failures >= common.attempts or left < LEAST):
                raise
            yield Pause(min(backoff(min(failures, 3)), max(0.0, left / 2)))
            continue
        if messages or (common.now() >= until and asked >= len(route.readable)):
            return messages


def introduce(common: Common, topic: str) -> Plan[None]:
    """Make the client known to a broker of a topic, whose answer says whether the group keeps order."""
    route = yield from common.route(topic)
    yield Join(route.next_readable(common.routes.failing())[0], common.attempt_timeout)


def _receive_once(
    common: Common, subscription: Subscription, route: Route, wish: Wish, of: tuple["LeaseKeeper", Tries]
) -> Plan[list[MessageView]]:
    lease, tries = of
    endpoint, broker_name = route.next_readable(common.routes.failing())
    topic = resource(subscription.topic)
    request = pb.ReceiveMessageRequest(
        group=resource(subscription.group),
        message_queue=pb.MessageQueue(
            topic=topic,
            id=-1,
            permission=pb.Permission.READ,
            broker=pb.Broker(name=broker_name, endpoints=endpoints_message([endpoint])),
        ),
        filter_expression=subscription.wanted,
        batch_size=wish.max_messages,
        invisible_duration=duration(wish.invisible),
        long_polling_timeout=duration(wish.wait),
        attempt_id=wish.attempt_id,
    )
    try:
        yield Join(endpoint, common.limit(tries))
        limit = max(0.001, min(wish.wait + GRACE, tries.until - common.now()))
        answer: Packets = yield Stream(endpoint, "ReceiveMessage", request.SerializeToString(), limit)
    except OutcomeUnknown:
        common.routes.failed(endpoint)
        raise
    common.routes.answered(endpoint)
    status, messages, _ = _ferromq.decode_received(answer.packets, answer.packed, lease, endpoint)
    if status is None:
        if messages:
            return messages
        raise ServerError(f"{endpoint} ended a receive without a status")
    code, text = status
    if code not in {pb.Code.OK, pb.Code.MESSAGE_NOT_FOUND}:
        raise error_of(code, text)
    return messages


def ack(
    common: Common,
    subscription: Subscription,
    endpoint: str,
    messages: Sequence[MessageView],
    *,
    timeout: float | None = None,
) -> Plan[list[tuple[str, FerromqError]]]:
    """
    Acknowledge messages of one broker and return the ids of those that were refused, and why.

    *timeout*: seconds for all of it; None: the client's.
    """
    limit = common.timeout if timeout is None else timeout
    request = _ferromq.encode_acks(subscription.group, subscription.topic, messages)
    lost: OutcomeUnknown | None = None

    def once(tries: Tries) -> Plan[list[tuple[str, FerromqError]]]:
        nonlocal lost
        try:
            answer = yield Call(endpoint, "AckMessage", request, common.limit(tries))
        except OutcomeUnknown as error:
            lost = error
            raise
        code, text, refused = _ferromq.decode_acked(answer)
        if code != pb.Code.OK and not refused:
            raise error_of(code, text)
        return [(message_id, _refusal(error_of(code, text), lost)) for message_id, code, text in refused]

    return (yield from common.attempt(subscription.topic, once, timeout=limit))


def _refusal(error: FerromqError, lost: OutcomeUnknown | None) -> FerromqError:
    """Return the error of a refused repetition: a stale handle may mean that the attempt before, *lost*, succeeded."""
    if lost is None or not isinstance(error, LeaseExpired):
        return error
    return OutcomeUnknown(f"{lost}; the repetition was refused ({error}): the message may be redelivered")


def change_invisible_duration(
    common: Common,
    subscription: Subscription,
    message: MessageView,
    invisible: float,
    *,
    suspend: bool = False,
    timeout: float | None = None,
) -> Plan[None]:
    """Let a lease end *invisible* seconds from now; *suspend*: do not count the delivery as an attempt."""
    limit = min(common.timeout, common.attempt_timeout)
    timeout = limit if timeout is None else min(timeout, limit)
    request = pb.ChangeInvisibleDurationRequest(
        group=resource(subscription.group),
        topic=resource(subscription.topic),
        receipt_handle=message.receipt_handle,
        invisible_duration=duration(invisible),
        message_id=message.message_id,
    )
    if suspend:
        request.suspend = True
    # Not repeated: if the answer was lost, so was the new receipt handle.
    answer = yield Call(message.endpoint, "ChangeInvisibleDuration", request.SerializeToString(), timeout)
    response = pb.ChangeInvisibleDurationResponse.FromString(answer)
    check(response.status)
    if response.receipt_handle:
        message.renew(response.receipt_handle)


def forward_to_dead_letter(
    common: Common, subscription: Subscription, message: MessageView, cause: Cause
) -> Plan[None]:
    """
    Put a message into the group's dead letter queue and end its lease.

    RocketMQ's request has no field for a reason: it travels as metadata, which other brokers ignore.
    """
    texts = zip(_WHY, (cause.reason, cause.exception), strict=True)
    why = tuple((name, quote(text[:_REASON], safe=_PLAIN)) for name, text in texts if text)
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        group=resource(subscription.group),
        topic=resource(subscription.topic),
        receipt_handle=message.receipt_handle,
        message_id=message.message_id,
        delivery_attempt=cause.attempts or message.delivery_attempt,
        max_delivery_attempts=common.max_attempts,
    ).SerializeToString()
    lost: OutcomeUnknown | None = None

    def once(tries: Tries) -> Plan[None]:
        nonlocal lost
        try:
            answer = yield Call(message.endpoint, "ForwardMessageToDeadLetterQueue", request, common.limit(tries), why)
            check(pb.ForwardMessageToDeadLetterQueueResponse.FromString(answer).status)
        except OutcomeUnknown as error:
            lost = error
            raise

    try:
        yield from common.attempt(subscription.topic, once, timeout=common.timeout)
    except LeaseExpired as error:
        raise _refusal(error, lost) from None


def not_changed() -> RequestTimeout:
    """Return the error of a lease for whose change there was no time."""
    return RequestTimeout("the lease was not changed in time: brokers did not answer the changes before it")


def no_answer(what: str, timeout: float) -> RequestTimeout:
    """Return the error of a step that took too long."""
    return RequestTimeout(f"{what} did not end within {timeout:g} s")
