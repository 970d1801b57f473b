"""
Answers the steps of plans, which are calls of gRPC's verbs, by requests over remoting to brokers behind name servers.

An endpoint is the remoting address of a broker, or of a name server for routes. What a client says of itself is
`membership`; connections are a protocol.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ferromq._proto import messages as pb
from ferromq.core.remoting import pulls, sends
from ferromq.core.remoting.calls import Calls, Links
from ferromq.core.remoting.membership import settings_of
from ferromq.core.remoting.receives import Policy, Receives
from ferromq.core.remoting.routes import RemotingRoutes
from ferromq.core.requests import BEGIN, Await, Call, Join, Plan, Stream
from ferromq.errors import Unsupported
from ferromq.protocol.broker_description import DESCRIBE_BROKER
from ferromq.protocol.codes import RequestCode, ResponseCode

_SETTINGS_AGE = 30.0
"""Seconds for which a group's settings are used."""
_DEFAULT_ATTEMPTS = 17
"""Deliveries of a message where the broker does not say: RocketMQ's 16 retries and the first."""


class Bridge:
    """Answers the steps of one client; thread-safe, as each of its tables is written in one step."""

    def __init__(
        self,
        links: Links,
        name_servers: tuple[str, ...],
        settings: Callable[[], pb.Settings],
        on_settings: Callable[[pb.Settings], None],
        now: Callable[[], float],
    ) -> None:
        self._calls = Calls(links)
        self._settings = settings
        self._on_settings = on_settings
        self._now = now
        self._routes = RemotingRoutes(self._calls, name_servers)
        self._receives = Receives(self._calls, now, self._policy)
        self._verbs: Mapping[str, Callable[[Call], Plan[bytes]]] = {
            "QueryRoute": self._routes.query,
            "SendMessage": lambda step: sends.send(self._calls, step),
            "EndTransaction": lambda step: sends.end_transaction(self._calls, step),
            "RecallMessage": lambda step: sends.recall(self._calls, step),
            "AckMessage": self._receives.ack,
            "ChangeInvisibleDuration": self._receives.change,
            "ForwardMessageToDeadLetterQueue": self._receives.forward,
            "QueryOffset": lambda step: pulls.query_offset(self._calls, step),
            "GetOffset": self._get_offset,
            "UpdateOffset": lambda step: pulls.update_offset(self._calls, step),
            DESCRIBE_BROKER: self._describe,
        }
        self._joined: dict[str, float] = {}
        """Broker → when it is asked for the group's settings again."""

    def answer(self, step: Call | Stream) -> Plan[Any]:
        """Return the plan that answers a call, with the bytes that gRPC's broker would answer."""
        match step:
            case Stream(method="ReceiveMessage"):
                return self._receives.receive(step)
            case Stream(method="PullMessage"):
                return pulls.pull(self._calls, step, self._now)
            case Call(method=method) if method in self._verbs:
                return self._verbs[method](step)
        raise Unsupported(
            f"{step.method} is no verb of brokers behind name servers; connect to the gRPC endpoint of a ferromq broker"
        )

    def join(self, step: Join) -> Plan[None]:
        """Be known at a broker, and take the settings of the consumer's group from it, from time to time anew."""
        if self._now() < self._joined.get(step.endpoint, 0.0):
            return
        until = self._now() + step.timeout
        yield Await(self._calls.links.open(step.endpoint), step.timeout)
        told = self._settings()
        if told.subscription.group.name:
            fields = {"group": told.subscription.group.name}
            accepted = {ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
            limit = max(0.001, until - self._now())
            code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
            answer = yield from self._calls.call(step.endpoint, code, fields, limit, accepted=accepted)
            config = answer[3] if answer[0] == ResponseCode.SUCCESS else b"{}"
            self._on_settings(settings_of(told, config, step.endpoint))
        self._joined[step.endpoint] = self._now() + _SETTINGS_AGE

    def _policy(self) -> Policy:
        told = self._settings()
        return Policy(told.subscription.fifo, told.backoff_policy.max_attempts or _DEFAULT_ATTEMPTS)

    def _get_offset(self, step: Call) -> Plan[bytes]:
        start = dict(step.metadata).get(BEGIN)
        if start is None:
            return (yield from pulls.get_offset(self._calls, step))
        topic = pb.GetOffsetRequest.FromString(step.request).message_queue.topic.name
        self._receives.begin_at(step.endpoint, topic, start)
        return pb.GetOffsetResponse(status=pb.Status(code=pb.Code.OK)).SerializeToString()

    def _describe(self, step: Call) -> Plan[bytes]:
        yield from ()
        return self._routes.describe(step)
