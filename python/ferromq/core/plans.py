"""
What a client says to servers, in which order, and what the answers mean: written once, without I/O.

Each function is a plan: it yields steps (`requests.Call` and its like), is sent their answers, and returns its
result. It retries, refreshes routes and keeps message ids over repetitions. Threads, tasks and queues are the
business of those who run plans.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from ferromq import _ferromq
from ferromq._ferromq import MessageView
from ferromq._proto import messages as pb
from ferromq.core.numbering import Numbering
from ferromq.core.requests import (
    ACK_RECORDS,
    RETRYABLE,
    Await,
    Call,
    Identity,
    Join,
    Pause,
    Plan,
    T,
    backoff,
    check,
    duration,
    error_of,
    named,
    resource,
)
from ferromq.core.retry import Cause
from ferromq.core.routes import Route, Routes, endpoints_message
from ferromq.core.subscriptions import Subscription
from ferromq.core.watch import Watch, watched
from ferromq.errors import (
    ClientClosed,
    ConnectionFailed,
    FerromqError,
    Forbidden,
    LeaseExpired,
    NotDurable,
    OutcomeUnknown,
    RequestTimeout,
    Throttled,
    Unsupported,
)
from ferromq.protocol import naming
from ferromq.protocol.endpoints import NAMESRV

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_BODY = 4 * 1024 * 1024
"""RocketMQ's limit, until the server's settings tell another."""
ATTEMPT = 3.0
"""Seconds that one attempt of a call may take, at most."""
LEAST = 0.05
"""Seconds below which another attempt is not worth it."""
_PAUSE = 1.0
"""Seconds to wait before a request is repeated, at most."""
_CONNECT = 0.2
"""Seconds to find out whether a broker that did not answer accepts connections."""
_WHICH_PORT = "is this a broker's gRPC port (8081)?"
_RENEWAL = 1.0
"""Seconds that a new route may take where an old one is there, and until it is asked for again where that failed."""
_WHY = ("x-ferromq-dead-letter-reason", "x-ferromq-dead-letter-exception")
_REASON = 1024
"""Characters of a reason that are told."""
_PLAIN = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"


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
    """Where routes are asked for: brokers, or name servers."""
    timeout: float
    attempts: int
    routes: Routes
    namespace: str = ""
    """In which topics and groups are. Plans name them without it, requests with it."""
    max_body: int = MAX_BODY
    is_anonymous: bool = False
    """Whether it makes itself known to no broker."""
    patient: set[str] = field(default_factory=set)
    """Endpoints that refuse receives with a short deadline."""
    max_attempts: int = 0
    """How often a message of the consumer's group is delivered, once its settings have come."""
    takes_records: Callable[[str], bool] = lambda _endpoint: False
    """Says whether a broker takes acknowledgements of records just now."""
    takes_compression: Callable[[str, str], bool] = lambda _endpoint, _compression: True
    """Says whether a broker that is known takes bodies that are compressed so."""
    takes_batches: Callable[[str], bool] = lambda _endpoint: True
    """Says whether a broker that is known takes batches of other messages than plain ones."""
    compression: str | None = None
    """How a producer compresses bodies."""
    attempt_timeout: float = ATTEMPT
    """Seconds that one attempt may take, at most."""
    watch: Watch | None = None
    """Is told of operations."""
    now: Callable[[], float] = time.monotonic
    wall: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    """Milliseconds since 1970, from which delays count."""
    connects: "Callable[[str, float], Future[bool]] | None" = None
    """Begins to find out whether an endpoint accepts a connection within so many seconds."""
    has_name_servers: bool = False
    """Whether the endpoints are those of name servers."""
    numbering: Numbering | None = None
    """The numbers of an idempotent producer's messages."""

    @property
    def address(self) -> str:
        """The address that the client was made with."""
        return f"{NAMESRV if self.has_name_servers else ''}{';'.join(self.endpoints)}"

    def whole(self, name: str) -> str:
        """Return the name that brokers know a topic or group by."""
        return naming.in_namespace(self.namespace, name) if self.namespace else name

    def resource(self, name: str) -> pb.Resource:
        """Return a topic or group as a request names it."""
        return resource(name, self.namespace)

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
            began = self.now()
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
                now = self.now()
                left = until - now
                # With a timeout, half of what is left: there is always time for one more attempt.
                pause = min(backoff(number), _PAUSE, math.inf if timeout is None else left / 2)
                # The refusal of a busy server says more than its silence in less time than it took to refuse.
                least = max(LEAST, pause + now - began) if isinstance(error, Throttled) else LEAST
                if self._is_over(number, left, least if timeout is not None else None):
                    raise _outcome(error, tries) from None
            except FerromqError as error:
                raise _outcome(error, tries) from None
            yield from _pause(pause if number < self.attempts else min(pause, left), last, tries)
            number += 1

    def _is_over(self, number: int, left: float, least: float | None) -> bool:
        """Say whether the try with this number was the last; with a timeout, another one needs *least* seconds."""
        if least is not None:
            return self.attempts == 1 or left < least
        return number >= self.attempts and left <= 0

    def route(self, topic: str, tries: Tries | None = None) -> Plan[Route]:
        """
        Return the topic's route, asked for anew when it is too old; an old one serves while nobody answers.

        Every broker that is known is asked, not those alone that the client was made with.
        """
        fresh = self.routes.fresh(topic)
        if fresh is not None:
            return fresh
        naming.check_topic(topic, self.namespace)
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
            raise (yield from self._silence(topic, endpoint, failure))
        self.routes.trust(topic, _RENEWAL)
        return old

    def check_compression(self, endpoint: str) -> None:
        """Raise `Unsupported` for a broker that takes no bodies compressed as this producer does."""
        if self.compression is not None and not self.takes_compression(endpoint, self.compression):
            raise Unsupported(
                f"the server at {endpoint} does not take bodies compressed with {self.compression} over gRPC; "
                'give compress="zlib", which every RocketMQ server takes'
            )

    def join(self, endpoint: str, topic: str, tries: Tries) -> Plan[None]:
        """Be known at a broker as a producer of *topic*."""
        try:
            yield Join(endpoint, self.limit(tries), topic)
        except OutcomeUnknown:
            self.routes.failed(endpoint)
            raise

    def _ask_route(self, topic: str, endpoint: str, timeout: float) -> Plan[Route]:
        request = pb.QueryRouteRequest(topic=self.resource(topic), endpoints=endpoints_message(self.endpoints))
        try:
            answer = yield Call(endpoint, "QueryRoute", request.SerializeToString(), timeout)
        except ConnectionFailed as error:
            if "Socket closed" not in str(error):
                raise
            raise ConnectionFailed(f"{error}; {_WHICH_PORT}") from None
        response = pb.QueryRouteResponse.FromString(answer)
        check(response.status)
        self.routes.answered(endpoint)
        return self.routes.put(topic, Route.read(topic, response.message_queues))

    def _silence(self, topic: str, endpoint: str, error: FerromqError) -> Plan[FerromqError]:
        """Return the error of a client that got no route, with how far it came."""
        if not isinstance(error, RequestTimeout) or self.connects is None:
            return error
        how = "no connection was opened"
        with suppress(RequestTimeout):
            if (yield Await(self.connects(endpoint, _CONNECT), _CONNECT)):
                how = f"connected, but {endpoint} answers nothing; {_WHICH_PORT}"
        return named(RequestTimeout(f"{error}: {how}"), f"asking for the route of {topic}")


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


def ack(
    common: Common,
    subscription: Subscription,
    endpoint: str,
    messages: Sequence[MessageView],
    lost: OutcomeUnknown | None = None,
    *,
    timeout: float | None = None,
) -> Plan[list[tuple[str, FerromqError]]]:
    """
    Acknowledge messages of one broker and return the ids of those that were refused, and why.

    *timeout*: seconds for all of it; None: the client's. *lost*: what became of an attempt before, if that is unknown.
    """
    until = common.now() + (common.timeout if timeout is None else timeout)
    topics: dict[str, list[MessageView]] = {}
    for message in messages if len(subscription.filters) > 1 else ():
        topics.setdefault(subscription.topic_of(message), []).append(message)
    if len(topics) < 2:  # noqa: PLR2004 (a request names one topic)
        place = (endpoint, subscription.group, next(iter(topics), subscription.first_topic))
        return (yield from _ack_of_topic(common, place, messages, until, lost))
    refused = []
    for topic, some in topics.items():
        try:
            refused += yield from _ack_of_topic(common, (endpoint, subscription.group, topic), some, until, lost)
        except FerromqError as error:  # it does not undo the acknowledgements of other topics
            refused += [(message.message_id, error) for message in some]
    return refused


def _ack_of_topic(
    common: Common,
    place: tuple[str, str, str],
    messages: Sequence[MessageView],
    until: float,
    lost: OutcomeUnknown | None,
) -> Plan[list[tuple[str, FerromqError]]]:
    """Acknowledge messages at a *place*: endpoint, group and topic."""

    def once(tries: Tries) -> Plan[list[tuple[str, FerromqError]]]:
        nonlocal lost
        try:
            code, text, failed = yield from _ack_once(common, place, messages, tries)
        except OutcomeUnknown as error:
            lost = error
            raise
        if code != pb.Code.OK and not failed:
            raise error_of(code, text)
        return [(message_id, refusal(error_of(code, text), lost, place[1])) for message_id, code, text in failed]

    plan = common.attempt(place[2], once, timeout=max(0.0, until - common.now()))
    return (yield from watched(common.watch, "ack", messages, plan))


def _ack_once(
    common: Common, place: tuple[str, str, str], messages: Sequence[MessageView], tries: Tries
) -> Plan[tuple[int, str, list[tuple[str, int, str]]]]:
    """Return code and text of the whole request; message id, code and text of each that was refused."""
    endpoint, group, topic = place[0], common.whole(place[1]), common.whole(place[2])
    if common.takes_records(endpoint):
        request = _ferromq.encode_record_acks(group, topic, messages)
        if request is not None:
            answer = yield Call(endpoint, ACK_RECORDS, request, common.limit(tries))
            code, text, failed = _ferromq.decode_record_acks(answer)
            return code, text, [(messages[index].message_id, code, text) for index, code, text in failed]
    request = _ferromq.encode_acks(group, topic, messages)
    return _ferromq.decode_acked((yield Call(endpoint, "AckMessage", request, common.limit(tries))))


def refusal(error: FerromqError, lost: OutcomeUnknown | None, group: str) -> FerromqError:
    """Return the error of a refusal: a stale handle may mean that the attempt before, *lost*, succeeded."""
    if not isinstance(error, LeaseExpired):
        return error
    if lost is None:
        return LeaseExpired(f"{error}, or it was received by another group than {group}", error.code, error.remark)
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
        group=common.resource(subscription.group),
        topic=common.resource(subscription.topic_of(message)),
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
        _ferromq.renew(message, response.receipt_handle)


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
        group=common.resource(subscription.group),
        topic=common.resource(subscription.topic_of(message)),
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
        plan = common.attempt(subscription.topic_of(message), once, timeout=common.timeout)
        yield from watched(common.watch, "forward_to_dead_letter", [message], plan)
    except LeaseExpired as error:
        raise refusal(error, lost, subscription.group) from None


def not_changed() -> RequestTimeout:
    """Return the error of a lease for whose change there was no time."""
    return RequestTimeout("the lease was not changed in time: brokers did not answer the changes before it")


def no_answer(what: str, timeout: float) -> RequestTimeout:
    """Return the error of a step that took too long."""
    return RequestTimeout(f"{what} did not end within {timeout:g} s")
