"""What a client tells brokers of itself over remoting, and what they tell it: heartbeats, settings, check-backs."""

import json
from collections.abc import Iterable, Mapping

from ferromq._proto import messages as pb
from ferromq.core.remoting.receives import expression_type
from ferromq.core.remoting.records import decode, message_of
from ferromq.core.remoting.sends import PRODUCERS, transaction_id
from ferromq.errors import ServerError
from ferromq.protocol import java_json
from ferromq.protocol.java_hash import java_hash
from ferromq.protocol.retry_policy import Exponential, parse

_DEFAULT_RETRIES = 16


def heartbeat(client_id: str, settings: pb.Settings, topics: Iterable[str]) -> bytes:
    """Return the body of HEART_BEAT (34); *topics*: those about whose half messages the producer is asked."""
    producers, consumers = [], []
    if settings.HasField("publishing"):
        producers = [{"groupName": name} for name in (PRODUCERS, *topics)]
    elif settings.subscription.group.name:
        consumers.append(
            {
                "groupName": settings.subscription.group.name,
                "consumeType": "CONSUME_ACTIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [_subscription(each) for each in settings.subscription.subscriptions],
                "unitMode": False,
            }
        )
    content = {"clientID": client_id, "producerDataSet": producers, "consumerDataSet": consumers}
    return json.dumps(content).encode()


def _subscription(entry: pb.SubscriptionEntry) -> dict[str, object]:
    wanted = entry.expression
    kind = expression_type(wanted)
    parts = [part.strip() for part in wanted.expression.split("||")]
    tags = [part for part in parts if part not in {"", "*"}] if kind == "TAG" else []
    return {
        "topic": entry.topic.name,
        "subString": wanted.expression or "*",
        "tagsSet": tags,
        "codeSet": [java_hash(tag) for tag in tags],
        "subVersion": 0,
        "expressionType": kind,
    }


def farewells(client_id: str, settings: pb.Settings, topics: Iterable[str]) -> list[dict[str, str]]:
    """Return the fields of the requests by which a client unregisters, UNREGISTER_CLIENT (35)."""
    if settings.HasField("publishing"):
        return [{"clientID": client_id, "producerGroup": name} for name in (PRODUCERS, *topics)]
    group = settings.subscription.group.name
    return [{"clientID": client_id, "consumerGroup": group}] if group else []


def settings_of(told: pb.Settings, config: bytes, address: str) -> pb.Settings:
    """Return a consumer's settings with those of its group, a SubscriptionGroupConfig in JSON. Raises `ServerError`."""
    settings = pb.Settings()
    settings.CopyFrom(told)
    settings.ClearField("backoff_policy")
    backoff = settings.backoff_policy
    try:
        content = java_json.loads_object(config)
        settings.subscription.fifo = bool(content.get("consumeMessageOrderly", False))
        backoff.max_attempts = max(0, int(content.get("retryMaxTimes", _DEFAULT_RETRIES))) + 1
        policy = parse(content.get("groupRetryPolicy") or {})
        if isinstance(policy, Exponential):
            backoff.exponential_backoff.initial.FromMilliseconds(policy.initial_ms)
            backoff.exponential_backoff.max.FromMilliseconds(policy.max_ms)
            backoff.exponential_backoff.multiplier = policy.multiplier
        for delay_ms in () if isinstance(policy, Exponential) else policy.delays_ms:
            backoff.customized_backoff.next.add().FromMilliseconds(delay_ms)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ServerError(f"{address} answered with a wrong configuration of the group: {error}") from None
    return settings


def check_back(fields: Mapping[str, str], body: bytes, address: str) -> pb.RecoverOrphanedTransactionCommand:
    """
    Return the question of a CHECK_TRANSACTION_STATE request (39) as gRPC's brokers ask it.

    Raises `ServerError` for fields or a body of another form.
    """
    records = decode(body, address)
    try:
        queue_offset, offset = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
    except (KeyError, ValueError) as error:
        raise ServerError(f"{address} asked about a transaction without its offsets: {error!r}") from None
    if len(records) != 1:
        raise ServerError(f"{address} asked about a transaction with {len(records)} messages; one is expected")
    (record,) = records
    topic = record.properties.get("REAL_TOPIC") or record.topic
    own_id = fields.get("transactionId") or record.message_id
    return pb.RecoverOrphanedTransactionCommand(
        message=message_of(record, topic), transaction_id=transaction_id(queue_offset, offset, own_id)
    )
