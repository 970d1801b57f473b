"""
Sends of single messages through the Rust core, without a plan.

The core sends what it has a route for, and reports failures. The plan of `send_plans` does the rest: it looks up the
route, makes the client known, and repeats what failed, with the same message id.
"""

from random import randrange

from ferromq._ferromq import FailedSend, Message
from ferromq.client.client import Client
from ferromq.core import send_plans
from ferromq.core.plans import LEAST
from ferromq.core.requests import RETRYABLE, error_of, grpc_code, transport_error
from ferromq.errors import ConnectionFailed, FerromqError, Forbidden, NotDurable, OutcomeUnknown, RequestTimeout
from ferromq.message import SendReceipt

_TURNS = 1 << 16
"""New clients begin at any queue: many that send one message each would all use the first."""


class DirectSends:
    """Sends single messages for a producer; thread-safe."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._attempts = Attempts(client)

    def send(self, topic: str, message: Message, timeout: float | None) -> SendReceipt:
        """Send a message within *timeout* seconds; None: the client's timeout."""
        common, sends = self._client.common, self._client.channels.sends
        limit = common.timeout if timeout is None else timeout
        after: send_plans.Earlier | None = None
        if sends is not None:
            begun = common.now()
            sent = sends.send(common.whole(topic), message, common.wall(), min(limit, common.attempt_timeout))
            if isinstance(sent, SendReceipt):
                return self._attempts.receipt(topic, sent)
            if sent is not None:
                after = self._attempts.failed(topic, message, sent, limit)
                limit = self._attempts.left(limit - (common.now() - begun), after)
        plan = send_plans.send(common, topic, [message], timeout=limit, after=after)
        receipt = self._client.run(plan).receipt(0)
        self._attempts.put_route(topic)
        return receipt


class Attempts:
    """What a producer does before and after the core's attempts to send; thread-safe."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def failed(self, topic: str, message: Message, failed: FailedSend, timeout: float) -> send_plans.Earlier:
        """Return what a plan must know of the attempt. Raises its error if it is not repeated."""
        error: FerromqError | None = None
        match failed.cause:
            case "refused":
                error = error_of(failed.code, failed.text)
                if isinstance(error, NotDurable) or not isinstance(error, (*RETRYABLE, Forbidden)):
                    raise error
            case "rpc":
                error = transport_error(grpc_code(failed.code), failed.text, failed.endpoint, "SendMessage", timeout)
                if not isinstance(error, RETRYABLE):
                    raise error
            case "timeout":
                error = RequestTimeout(f"no answer from broker {failed.endpoint} in time (SendMessage)")
            case "not_sent" | "lost":
                error = ConnectionFailed(f"cannot reach broker {failed.text}")
        if isinstance(error, OutcomeUnknown):
            return self.unanswered(topic, message, send_plans.Earlier(failed.ids, failed.endpoint, error))
        if error is not None and self._client.common.attempts == 1:
            raise error
        return send_plans.Earlier(failed.ids, failed.endpoint, error)

    def unanswered(self, topic: str, message: Message, attempt: send_plans.Earlier) -> send_plans.Earlier:
        """Note a broker that did not answer, and return the attempt. Raises its error if it is not repeated."""
        common = self._client.common
        common.routes.failed(attempt.endpoint)
        if common.attempts == 1 and attempt.error is not None:
            raise send_plans.for_group(common, topic, message, attempt.error)
        return attempt

    def left(self, seconds: float, after: send_plans.Earlier | None) -> float:
        """Return the seconds left for a plan. Raises the error of the attempt before if they are too few."""
        if seconds < LEAST and after is not None:
            raise after.error or RequestTimeout(
                "a message beside it was refused, and there is no time to repeat the send"
            )
        return seconds

    def receipt(self, topic: str, sent: SendReceipt) -> SendReceipt:
        """Return the core's receipt with the name that the caller gave the topic."""
        return sent._replace(topic=topic) if self._client.common.namespace else sent

    def put_route(self, topic: str) -> None:
        """
        Let the core send to a topic once all its brokers take framed calls, but for those that do not answer.

        With another broker a plan spreads the messages of the topic: the core would leave it out.
        """
        common, channels = self._client.common, self._client.channels
        route = common.routes.fresh(topic)
        whole = common.whole(topic)
        if channels.sends is None or route is None or channels.sends.has_route(whole):
            return
        if common.numbering is not None:
            return  # a plan numbers the messages, and keeps a repetition in its queue
        brokers = {queue.endpoint for queue in route.in_order}
        framed = brokers & channels.framed.keys()
        failing = common.routes.failing()
        if framed <= failing or not brokers <= framed | failing:
            return
        wanted = common.compression
        if wanted is not None and not all(channels.takes_compression(broker, wanted) for broker in framed):
            return  # a plan says which one does not
        channels.sends.put_route(
            whole,
            [(queue.queue_id, queue.endpoint, queue.broker_name) for queue in route.writable],
            [(queue.queue_id, queue.endpoint, queue.broker_name) for queue in route.in_order],
            common.routes.remaining(topic),
            common.max_body,
            [*framed],
            randrange(_TURNS),  # noqa: S311 (no secret)
        )
