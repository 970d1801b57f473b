"""
The settings sent to a gRPC client: its own, with the server's values where the server decides.

The values are the defaults of RocketMQ's proxy.
"""

from ferromq._proto import messages as pb
from ferromq.broker.grpc_answers import OK
from ferromq.broker.metadata.groups import GroupConfig
from ferromq.protocol.retry_policy import Exponential

_PUBLISH_ATTEMPTS = 3
_PUBLISH_BACKOFF_MS = (10, 1_000)
_PUBLISH_BACKOFF_MULTIPLIER = 2
_RECEIVE_BATCH = 32
_LONG_POLLING_MS = 20_000


def publishing(settings: pb.Settings, max_body_size: int, *, validates: bool) -> pb.TelemetryCommand:
    """Return a producer's settings; *validates*: whether messages must have their topic's type."""
    answer = _copy(settings)
    answer.publishing.max_body_size = max_body_size
    answer.publishing.validate_message_type = validates
    answer.backoff_policy.max_attempts = _PUBLISH_ATTEMPTS
    backoff = answer.backoff_policy.exponential_backoff
    backoff.initial.FromMilliseconds(_PUBLISH_BACKOFF_MS[0])
    backoff.max.FromMilliseconds(_PUBLISH_BACKOFF_MS[1])
    backoff.multiplier = _PUBLISH_BACKOFF_MULTIPLIER
    return pb.TelemetryCommand(status=OK, settings=answer)


def subscription(settings: pb.Settings, group: GroupConfig) -> pb.TelemetryCommand:
    """Return the settings of a consumer of *group*."""
    answer = _copy(settings)
    answer.subscription.fifo = group.fifo
    answer.subscription.receive_batch_size = _RECEIVE_BATCH
    answer.subscription.long_polling_timeout.FromMilliseconds(_LONG_POLLING_MS)
    policy = answer.backoff_policy
    policy.max_attempts = group.max_attempts
    if isinstance(group.retry, Exponential):
        policy.exponential_backoff.initial.FromMilliseconds(group.retry.initial_ms)
        policy.exponential_backoff.max.FromMilliseconds(group.retry.max_ms)
        policy.exponential_backoff.multiplier = group.retry.multiplier
    else:
        for delay_ms in group.retry.delays_ms:
            policy.customized_backoff.next.add().FromMilliseconds(delay_ms)
    return pb.TelemetryCommand(status=OK, settings=answer)


def _copy(settings: pb.Settings) -> pb.Settings:
    """Return the client's settings without the parts that the server decides."""
    answer = pb.Settings()
    answer.CopyFrom(settings)
    answer.ClearField("backoff_policy")
    answer.ClearField("metric")
    answer.metric.on = False
    return answer
