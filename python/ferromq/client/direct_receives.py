"""
Receives with one call of the core, without a plan, where that is all it takes.

Acknowledgements that wait travel with the receive: both go to the broker with one write.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ferromq import _ferromq
from ferromq._proto import messages as pb
from ferromq.client.client import Client
from ferromq.client.session import Session
from ferromq.core.plans import refusal
from ferromq.core.receive_plans import ACKS_FIRST, GRACE, LATE, Target, Wish, first_part
from ferromq.core.requests import ACK_RECORDS, Decoded, duration, error_of
from ferromq.core.subscriptions import Subscription
from ferromq.errors import ConnectionFailed, OutcomeUnknown
from ferromq.message import MessageView

if TYPE_CHECKING:
    from ferromq._ferromq import Ahead
    from ferromq.client.connection import Cancel
    from ferromq.client.leases import Leases
    from ferromq.client.receive_ahead import ReceiveAhead
    from ferromq.core.routes import Route

_OK, _NO_MESSAGES = int(pb.Code.OK), int(pb.Code.MESSAGE_NOT_FOUND)
_ENDS = 64
"""How many encoded ends of requests are kept."""


class DirectPlace:
    """Where a group that keeps no order receives with one call: at the only broker of its only topic."""

    def __init__(self, client: Client, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        # A plan knows several topics, telemetry, and brokers behind name servers.
        self._is_on = len(subscription.filters) == 1 and client.common.watch is None and client.remoting is None
        self._route: Route | None = None
        self._target = Target("", "", "")
        """Of the route, with the first part of its requests."""
        self._first = b""
        self._ends: dict[tuple[int, float, float], bytes] = {}

    def find(self) -> str | None:
        """Return the endpoint of the broker; None: a plan receives."""
        client, subscription = self._client, self._subscription
        route = client.common.routes.fresh(subscription.first_topic)
        if route is None or not self._is_on or client.settings.subscription.fifo:
            return None
        if route is not self._route:
            if len(route.readable) != 1:
                return None
            ((endpoint, broker_name),) = route.readable.items()
            self._target = Target(route.topic, endpoint, broker_name)
            self._first = first_part(client.common, subscription, self._target)
            self._route = route
        topic, endpoint, broker_name = self._target
        is_known = (
            (subscription.begin is None or (topic, broker_name) in subscription.begun)
            and isinstance(client.session, Session)
            and client.session.is_known(endpoint)
            and "2" in client.channels.framed.get(endpoint, ())
        )
        return endpoint if is_known else None

    def request(self, max_messages: int, invisible: float, wait: float) -> bytes:
        """Return an encoded receive from the broker that was found; times in seconds."""
        end = self._ends.get((max_messages, invisible, wait))
        if end is None:
            if len(self._ends) >= _ENDS:
                self._ends.clear()
            end = self._ends[max_messages, invisible, wait] = pb.ReceiveMessageRequest(
                batch_size=max_messages, invisible_duration=duration(invisible), long_polling_timeout=duration(wait)
            ).SerializeToString()
        return self._first + end

    def receive_ahead(
        self, ahead: "Ahead", wish: Wish, cancel: "Cancel", lease: "_ferromq.LeaseKeeper"
    ) -> list[MessageView] | None:
        """Receive messages that *ahead* will hold; None: a plan does."""
        endpoint, frames = self.find(), self._client.channels.frames
        if endpoint is None or frames is None:
            return None
        common = self._client.common
        request = self.request(wish.max_messages, wish.invisible, wish.wait)
        receiver = (lease, self._subscription.namespace)
        timeout = wish.wait + min(GRACE, wish.grace)
        try:
            status, code, messages = frames.receive(
                endpoint, request, timeout, common.identity.client_id, cancel.framed, ahead, receiver
            )
        except OutcomeUnknown:
            return None
        if status or code not in {_OK, _NO_MESSAGES}:
            return None
        common.routes.answered(endpoint)
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
        """Receive messages until a time (monotonic), behind the acknowledgements that wait; None: a plan does."""
        endpoint = None if self._ahead.has_messages else self._place.find()
        acks = None if endpoint is None else self._leases.take_for_receive(endpoint)
        if endpoint is None or acks is None:
            return None
        wait = max(0.0, round(until - time.monotonic(), 3))
        request = self._place.request(max_messages, invisible, wait)
        try:
            status, _, records = self._poll(endpoint, request, acks, wait, until + LATE)
        except OutcomeUnknown:
            return None
        if status:
            return None
        self._client.common.routes.answered(endpoint)
        answered, messages, _ = decode(records, self._leases, endpoint, self._subscription.namespace)
        code = _OK if answered is None else answered[0]
        is_over = code == _OK or (code == _NO_MESSAGES and time.monotonic() >= until)
        return messages if is_over else None

    def _poll(
        self, endpoint: str, request: bytes, acks: list[MessageView], wait: float, until: float
    ) -> tuple[int, str | None, _ferromq.Records]:
        """Send acknowledgements and a receive, and return the answer of the latter by a time (monotonic)."""
        frames, client_id = self._client.channels.frames, self._client.common.identity.client_id
        assert frames is not None
        limit = max(0.001, min(wait + GRACE, until - time.monotonic()))
        if not acks:
            return frames.poll(endpoint, "ReceiveMessage", request, limit, client_id, self._cancellation)
        common, subscription = self._client.common, self._subscription
        group, topic = common.whole(subscription.group), common.whole(subscription.first_topic)
        encoded = _ferromq.encode_record_acks(group, topic, acks)
        if encoded is None:  # a lease was renewed
            self._leases.send_again(endpoint, acks, None)
            raise OutcomeUnknown("they were not sent")
        timeouts = min(max(ACKS_FIRST, wait), common.attempt_timeout), limit
        try:
            (status, _, answer), begun = frames.begin_behind(endpoint, encoded, request, timeouts, client_id)
        except BaseException as error:
            interrupted = ConnectionFailed(f"the call of broker {endpoint} was interrupted ({ACK_RECORDS})")
            self._leases.send_again(endpoint, acks, error if isinstance(error, OutcomeUnknown) else interrupted)
            raise
        code, _, failed = (status, "", ()) if status else _ferromq.decode_record_acks(answer)
        if (status or code != _OK) and not failed:  # the whole request was refused
            self._leases.send_again(endpoint, acks, None)
        else:
            errors = ((index, refusal(error_of(code, text), None, subscription.group)) for index, code, text in failed)
            self._leases.were_sent(endpoint, acks, [(acks[index].message_id, error) for index, error in errors])
        return begun.wait(self._cancellation)
