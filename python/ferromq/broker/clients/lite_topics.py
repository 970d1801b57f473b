"""Lite topics of RocketMQ 5.5: known by their names and numbers, and answered that they are not supported yet."""

from ferromq._ferromq import Request
from ferromq._proto import messages as pb
from ferromq.broker.grpc_answers import Refused

NO_LITE = "lite topics, which are not supported yet"
"""What every answer about them ends with."""
REFUSED = f"the request is about {NO_LITE}; use a topic for each, or tags or properties to filter by"
"""What a remoting client is told."""


def sync_subscription(message: pb.SyncLiteSubscriptionRequest, _request: Request) -> pb.SyncLiteSubscriptionResponse:
    """Answer SyncLiteSubscription, always by a refusal. Raises `Refused`."""
    named = message.topic.name or "the topic"
    raise Refused(pb.Code.UNSUPPORTED, f"a subscription of {named} asks for {NO_LITE}; subscribe to a topic of its own")
