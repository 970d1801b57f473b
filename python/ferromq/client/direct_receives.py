"""
Receives with one call of the core, without a plan, where that is all it takes.

Acknowledgements that wait travel with the receive: both go to the broker with one write.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ferromq import _ferromq
from ferromq._proto import messages as pb
from ferromq.client.client import Client
from ferromq.client.session import Session
from ferromq.core.plans import refusal
from ferromq.core.receive_plans import ACKS_FIRST, GRACE, LATE, Target, Wish, first_part
from ferromq.core.requests import ACK_RECORDS, Decoded, duration, error_of
from ferromq.core.routes import Route
from ferromq.core.subscriptions import Subscription
from ferromq.errors import ConnectionFailed, FerromqError, OutcomeUnknown, RequestTimeout
from ferromq.message import MessageView

if TYPE_CHECKING:
    from ferromq.client.connection import Cancel
    from ferromq.client.leases import Leases
    from ferromq.client.receive_ahead import ReceiveAhead

_OK, _NO_MESSAGES = int(pb.Code.OK), int(pb.Code.MESSAGE_NOT_FOUND)
_ENDS = 64
"""How many encoded ends of requests are kept."""


class Place(NamedTuple):
    """The only broker of the only topic, by the route that said so."""

    route: Route
    endpoint: str
    broker_name: str
    first: bytes
    """The first part of encoded receives."""


class Following(NamedTuple):
    """A receive whose request was sent."""

    place: Place
    wish: Wish
    cancel: "Cancel"
    begun: "_ferromq.BegunCall"


class DirectPlace:
    """Where a group that keeps no order receives with one call: at the only broker of its only topic."""

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        # A plan knows several topics, telemetry, and brokers behind name servers.
        self._is_on = len(subscription.filters) == 1 and client.common.watch is None and client.remoting is None
        self._place: Place | None = None
        self._ends: dict[tuple[int, float, float], bytes] = {}
        self.following: Following | None = None
        """The next `receive_ahead`, if its request was sent: it has to be called, with its wish and what ends it."""

    def find(self) -> Place | None:
        """Return the place; None: a plan receives."""
        client, subscription = self._client, self._subscription
        route = client.common.routes.fresh(subscription.first_topic)
        if route is None or not self._is_on or client.settings.subscription.fifo:
            return None
        place = self._place
        if place is None or place.route is not route:
            if len(route.readable) != 1:
                return None
            ((endpoint, broker_name),) = route.readable.items()
            target = Target(route.topic, endpoint, broker_name)
            place = self._place = Place(route, endpoint, broker_name, first_part(client.common, subscription, target))
        is_known = (
            (subscription.begin is None or (route.topic, place.broker_name) in subscription.begun)
            and isinstance(client.session, Session)
            and client.session.is_known(place.endpoint)
            and "2" in client.channels.framed.get(place.endpoint, ())
        )
        return place if is_known else None

    def request(self, place: Place, max_messages: int, invisible: float, wait: float) -> bytes:
        """Return an encoded receive; times in seconds."""
        end = self._ends.get((max_messages, invisible, wait))
        if end is None:
            if len(self._ends) >= _ENDS:
                self._ends.clear()
            end = self._ends[max_messages, invisible, wait] = pb.ReceiveMessageRequest(
                batch_size=max_messages, invisible_duration=duration(invisible), long_polling_timeout=duration(wait)
            ).SerializeToString()
        return place.first + end

    def receive_ahead(
        self, ahead: "_ferromq.Ahead", wish: Wish, cancel: "Cancel", lease: "_ferromq.LeaseKeeper"
    ) -> list[MessageView] | None:
        """
        Receive messages that *ahead* will hold; None: a plan does. Raises `RequestTimeout` and `Cancelled`.

        While messages flow, the request of the next call is sent before those that arrived are decoded.
        """
        following, self.following = self.following, None
        found = self.find()
        place, begun = (found, None) if following is None else (following.place, following.begun)
        frames = self._client.channels.frames
        if place is None or frames is None:
            return None
        common, count = self._client.common, wish.max_messages
        request = self.request(place, count, wish.invisible, wish.wait)
        receiver = (lease, self._subscription.namespace)
        timeout = wish.wait + min(GRACE, wish.grace)
        client_id = common.identity.client_id
        try:
            status, code, messages, begun = frames.receive(
                place.endpoint,
                request,
                count,
                timeout,
                client_id,
                cancel.framed,
                ahead,
                receiver,
                begun,
                is_followed=place is found,
            )
        except OutcomeUnknown as error:
            cancel.check()
            common.routes.failed(place.endpoint)
            if isinstance(error, RequestTimeout):
                raise
            return None
        if begun is not None:
            self.following = Following(place, wish, cancel, begun)
        if status or code not in {_OK, _NO_MESSAGES}:
            return None
        common.routes.answered(place.endpoint)
        return messages


class DirectReceives:
    """Receives for a group that receives nothing ahead."""

    def __init__(self, client: Client, subscription: Subscription, leases: "Leases", ahead: "ReceiveAhead") -> None:
        self._client = client
        self._subscription = subscription
        self._leases = leases
        self._ahead = ahead
        self._place = DirectPlace(client, subscription)
        self._cancellation = _ferromq.Cancellation()

    def receive(
        self, max_messages: int, until: float, invisible: float, decode: Callable[..., Decoded[Any]]
    ) -> Any | None:
        """
        Receive messages until a time (monotonic), behind the acknowledgements that wait; None: a plan does.

        Raises `OutcomeUnknown` where no time is left for that.
        """
        place, frames = None if self._ahead.has_messages else self._place.find(), self._client.channels.frames
        if place is None or frames is None:
            return None
        common, end = self._client.common, until + LATE
        wait = max(0.0, round(until - time.monotonic(), 3))
        request = self._place.request(place, max_messages, invisible, wait)
        limit = max(0.001, min(wait + GRACE, end - time.monotonic()))
        try:
            answer = self._poll(frames, place.endpoint, request, wait, limit)
        except OutcomeUnknown:
            common.routes.failed(place.endpoint)
            now = time.monotonic()
            if end - now < LATE - ACKS_FIRST or (common.attempts == 1 and now >= until):
                raise
            return None
        if answer is None or answer[0]:
            return None
        records = answer[2]
        common.routes.answered(place.endpoint)
        answered, messages, _ = decode(records, self._leases, place.endpoint, self._subscription.namespace)
        code = _OK if answered is None else answered[0]
        is_over = code == _OK or (code == _NO_MESSAGES and time.monotonic() >= until)
        return messages if is_over else None

    def _poll(
        self, frames: "_ferromq.FramedCalls", endpoint: str, request: bytes, wait: float, limit: float
    ) -> "tuple[int, str | None, _ferromq.Records] | None":
        """Send what waits and a receive, and return the answer of the latter; None: a plan does."""
        common, subscription, leases = self._client.common, self._subscription, self._leases
        client_id = common.identity.client_id
        acks: list[MessageView] = []
        refused: list[tuple[str, FerromqError]] | None = None
        lost: OutcomeUnknown | None = None
        try:
            if not leases.take_for_receive(endpoint, acks):
                return None
            if not acks:
                return frames.poll(endpoint, "ReceiveMessage", request, limit, client_id, self._cancellation)
            group, topic = common.whole(subscription.group), common.whole(subscription.first_topic)
            encoded = _ferromq.encode_record_acks(group, topic, acks)
            if encoded is None:  # a lease was renewed
                return None
            lost = ConnectionFailed(f"the call of broker {endpoint} was interrupted ({ACK_RECORDS})")
            timeouts = min(max(ACKS_FIRST, wait), common.attempt_timeout), limit
            (status, _, answer), begun = frames.begin_behind(endpoint, encoded, request, timeouts, client_id)
            if status == 0:
                refused = self._refused(acks, answer)
            lost = None  # if it refused all of it, it did nothing
        except OutcomeUnknown as error:
            lost = error
            raise
        finally:
            if refused is not None:
                leases.were_sent(endpoint, acks, refused)
            elif acks:
                leases.send_again(endpoint, acks, lost)
        return begun.wait(self._cancellation)

    def _refused(self, acks: Sequence[MessageView], answer: bytes) -> list[tuple[str, FerromqError]] | None:
        """Return what an answer refuses; None: the whole request. Raises `ConnectionFailed` for a malformed answer."""
        try:
            code, _, failed = _ferromq.decode_record_acks(answer)
            found = [(acks[index].message_id, error_of(code, text)) for index, code, text in failed]
        except (ValueError, IndexError) as error:
            raise ConnectionFailed(f"the answer to {ACK_RECORDS} cannot be read: {error}") from None
        if code != _OK and not found:
            return None
        group = self._subscription.group
        return [(message_id, refusal(error, None, group)) for message_id, error in found]
