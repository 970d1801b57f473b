"""Lite topics of RocketMQ 5.5, which are not supported yet: all requests about them are refused."""

from ferromq._ferromq import Request
from ferromq._proto import messages as pb
from ferromq.broker.grpc_answers import Refused

NO_LITE = "lite topics, which are not supported yet"
"""The end of every refusal."""
REFUSED = f"the request is about {NO_LITE}; use a topic for each, or tags or properties to filter by"
"""The refusal over remoting."""


def sync_subscription(message: pb.SyncLiteSubscriptionRequest, _request: Request) -> pb.SyncLiteSubscriptionResponse:
    """Refuse SyncLiteSubscription. Raises `Refused`."""
    named = message.topic.name or "the topic"
    raise Refused(pb.Code.UNSUPPORTED, f"a subscription of {named} asks for {NO_LITE}; subscribe to a topic of its own")
