"""
What a consumer tells about itself, as RocketMQ prints it: the answer of request 307.

It has properties, subscriptions, queues with what the consumer holds of them, rates, and the stacks of its threads.
"""

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from ferromq.cli.mqadmin.session import java
from ferromq.protocol.message_queue import MessageQueue, table_of

PASSIVELY = "CONSUME_PASSIVELY"
_QUEUE = "{:<64}  {:<32}  {:<4}  {:<20}"
_NARROW_QUEUE = "{:<32}  {:<32}  {:<4}  {:<20}"
_RATES = "{:<64}  {:>14} {:>14} {:>14} {:>14} {:>18} {:>25}"
_HELD = (
    *("commitOffset", "cachedMsgMinOffset", "cachedMsgMaxOffset", "cachedMsgCount", "cachedMsgSizeInMiB"),
    *("transactionMsgMinOffset", "transactionMsgMaxOffset", "transactionMsgCount", "locked", "tryUnlockTimes"),
    *("lastLockTimestamp", "droped", "lastPullTimestamp", "lastConsumeTimestamp"),
)
_POPPED = ("waitAckCount", "droped", "lastPopTimestamp")
_YOUNG_MS = 120_000
"""A consumer that is younger may not have all its subscriptions yet."""
_LONG_MS = 60_000
"""A consumer that holds messages and has handled none for so long may be blocked."""


def text_of(info: Mapping[str, Any]) -> str:
    """Return all of it."""
    lines = ["#Consumer Properties#"]
    lines += [f"{name:<40}: {java(value)}" for name, value in (info.get("properties") or {}).items()]
    lines += ["", "", "#Consumer Subscription#"]
    for number, each in enumerate(info.get("subscriptionSet") or (), 1):
        topic, expression = str(each.get("topic")), java(each.get("subString"))
        is_class = java(bool(each.get("classFilterMode")))
        lines.append(f"{number:03d} Topic: {topic:<40} ClassFilter: {is_class:<8} SubExpression: {expression}")
    lines += ["", "", "#Consumer Offset#", _QUEUE.format("#Topic", "#Broker Name", "#QID", "#Consumer Offset")]
    queues = sorted(table_of(info, "mqTable").items())
    lines += [_NARROW_QUEUE.format(*_place(queue), held.get("commitOffset", 0)) for queue, held in queues]
    lines += ["", "", "#Consumer MQ Detail#", _QUEUE.format("#Topic", "#Broker Name", "#QID", "#ProcessQueueInfo")]
    lines += [_QUEUE.format(*_place(queue), _held("ProcessQueueInfo", held, _HELD)) for queue, held in queues]
    head = _NARROW_QUEUE.format("#Topic", "#Broker Name", "#QID", "#ProcessQueueInfo")
    lines += ["", "", "#Consumer Pop Detail#", head]
    for queue, held in sorted(table_of(info, "mqPopTable").items()):
        lines.append(_NARROW_QUEUE.format(*_place(queue), _held("PopProcessQueueInfo", held, _POPPED)))
    lines += ["", "", "#Consumer RT&TPS#", *_rates(info)]
    if info.get("userConsumerInfo") is not None:
        lines += ["", "", "#User Consume Info#"]
        lines += [f"{name:<40}: {java(value)}" for name, value in info["userConsumerInfo"].items()]
    if info.get("jstack") is not None:
        lines += ["", "", "#Consumer jstack#", str(info["jstack"])]
    return "\n".join(lines)


def _place(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


def _held(title: str, held: Mapping[str, Any], names: tuple[str, ...]) -> str:
    def shown(name: str) -> str:
        value = held.get(name, 0)
        return _stamp(int(value)) if name.endswith("Timestamp") else java(value)

    return f"{title} [{', '.join(f'{name}={shown(name)}' for name in names)}]"


def _stamp(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds // 1000):%Y%m%d%H%M%S}{milliseconds % 1000:03d}"  # noqa: DTZ006


def _rates(info: Mapping[str, Any]) -> Iterator[str]:
    heads = "#Topic", "#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS", "#ConsumeFailed TPS"
    yield _RATES.format(*heads, "#ConsumeFailedMsgsInHour")
    names = "pullRT", "pullTPS", "consumeRT", "consumeOKTPS", "consumeFailedTPS"
    for topic, status in (info.get("statusTable") or {}).items():
        rates = (f"{float(status.get(name) or 0):.2f}" for name in names)
        row = "{:<32}  {:>14} {:>14} {:>14} {:>14} {:>18} {:>25}"
        yield row.format(topic, *rates, int(status.get("consumeFailedMsgs") or 0))


def is_push(info: Mapping[str, Any]) -> bool:
    """Return whether its messages are pushed to it."""
    return bool((info.get("properties") or {}).get("PROP_CONSUME_TYPE") == PASSIVELY)


def subscribe_alike(infos: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether all consumers have the same subscriptions; one that has just started need not."""
    found = [infos[client] for client in sorted(infos)]
    started = int((found[0].get("properties") or {}).get("PROP_CONSUMER_START_TIMESTAMP") or 0)
    if not is_push(found[0]) or time.time() * 1000 - started <= _YOUNG_MS:
        return True
    sets = [
        sorted((str(each.get("topic")), str(each.get("subString"))) for each in info.get("subscriptionSet") or ())
        for info in found
    ]
    return all(each == sets[0] for each in sets)


def complaints(client: str, info: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each queue whose messages a consumer may be unable to handle."""
    if not is_push(info):
        return
    is_ordered = str((info.get("properties") or {}).get("PROP_CONSUMEORDERLY")).lower() == "true"
    now = round(time.time() * 1000)
    for queue, held in sorted(table_of(info, "mqTable").items()):
        topic, broker, number = _place(queue)
        start = f"{client} MessageQueue [topic={topic}, brokerName={broker}, queueId={number}]"
        if is_ordered and not held.get("locked"):
            yield f"{start} can't lock for a while, {now - int(held.get('lastLockTimestamp') or 0)}ms"
        elif is_ordered and held.get("droped") and int(held.get("tryUnlockTimes") or 0) > 0:
            yield f"{start} unlock {held['tryUnlockTimes']} times, still failed"
        elif not is_ordered:
            idle = now - int(held.get("lastConsumeTimestamp") or 0)
            if idle > _LONG_MS and int(held.get("cachedMsgCount") or 0) > 0:
                yield f"{start} can't consume for a while, maybe blocked, {idle}ms"
