"""The commands of `mqadmin` for consumer groups: settings, progress and moves."""

import time
from collections.abc import Mapping
from typing import Any

from ferromq.admin import inventory, progress
from ferromq.admin.results import QueueReset
from ferromq.cli.mqadmin.clients import connections_of, holders
from ferromq.cli.mqadmin.options import LITE_PARENT, Command, Given, may, must
from ferromq.cli.mqadmin.session import Session, is_routed_elsewhere, java, opened, version
from ferromq.cli.mqadmin.times import parsed, second
from ferromq.cli.mqadmin.topics import delete_everywhere
from ferromq.errors import ConfigError, Forbidden, GroupNotFound, RequestError
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import RequestCode
from ferromq.protocol.message_queue import MessageQueue, table_of

_SETTINGS: Mapping[str, Any] = {
    "groupName": "",
    "consumeEnable": True,
    "consumeFromMinEnable": False,
    "consumeBroadcastEnable": False,
    "consumeMessageOrderly": False,
    "retryQueueNums": 1,
    "retryMaxTimes": 16,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": True,
    "groupSysFlag": 0,
    "consumeTimeoutMinute": 15,
    "subscriptionDataSet": None,
    "attributes": {},
}
"""RocketMQ's settings of a group, with their defaults, in the order in which it prints them."""
_PROGRESS = "{:<64}  {:<32}  {:<4}  {:<20}  {:<20}  {:<20} {:<20}"
_PROGRESS_OF_CLIENTS = "{:<64}  {:<32}  {:<4}  {:<20}  {:<20}  {:<20} {:<20} {:<20}"
_GROUPS = "{:<64}  {:<6}  {:<24} {:<5}  {:<14}  {:<7}  {}"
_ALL_QUEUES = "{:<64}  {:<64}  {:<32}  {:<4}  {:<20}  {:<20}  {:<20}  {}"
_MOVED = "{:<40}  {:<40}  {:<40}"
_POP_RETRY = "+"
"""Between group and topic, in the name of a retry topic of pops."""


def update_group(session: Session, given: Given) -> None:
    """Create a group, or replace its settings."""
    flags = {
        "s": "consumeEnable",
        "m": "consumeFromMinEnable",
        "d": "consumeBroadcastEnable",
        "o": "consumeMessageOrderly",
        "a": "notifyConsumerIdsChangedEnable",
    }
    numbers = {"q": "retryQueueNums", "r": "retryMaxTimes", "i": "brokerId", "w": "whichBrokerWhenConsumeSlowly"}
    settings = {**_SETTINGS, "groupName": given["g"]}
    settings |= {name: given.truth(key, default=settings[name]) for key, name in flags.items()}
    settings |= {name: given.number(key, settings[name]) for key, name in numbers.items()}
    if "p" in given:
        try:
            settings["groupRetryPolicy"] = java_json.loads_object(given["p"])
        except ValueError as error:
            raise ConfigError(f"-p is no JSON of a retry policy: {error}") from None
    settings["attributes"] = {
        name: value for name, _, value in (word.partition("=") for word in given.words("attributes"))
    }
    body = java_json.dumps({name: value for name, value in settings.items() if value is not None})
    for address in session.targets(given):
        session.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        session.say(f"create subscription group to {address} success.")
    shown = ", ".join(f"{name}={_shown(name, value)}" for name, value in settings.items())
    session.say(f"SubscriptionGroupConfig{{{shown}}}")


def _shown(name: str, value: Any) -> str:
    """Return a setting of a group as RocketMQ prints it."""
    if name != "groupRetryPolicy" or not isinstance(value, Mapping):
        return java(value)
    exponential, customized = value.get("exponentialRetryPolicy"), value.get("customizedRetryPolicy")
    parts = {
        "type": value.get("type"),
        "exponentialRetryPolicy": exponential and f"ExponentialRetryPolicy{java(exponential)}",
        "customizedRetryPolicy": customized and f"CustomizedRetryPolicy{java(customized)}",
    }
    return "GroupRetryPolicy" + java(parts)


def delete_group(session: Session, given: Given) -> None:
    """Delete a group, and of a whole cluster its retries and dead letters."""
    group = given["g"]
    fields = {"groupName": group, "cleanOffset": given.truth("r", default=False)}
    masters = session.targets(given)
    for address in masters:
        session.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        place = f" in cluster [{given['c']}]" if "b" not in given else ""
        session.say(f"delete subscription group [{group}] from broker [{address}]{place} success.")
    if "b" not in given:
        delete_everywhere(session, (naming.RETRY_PREFIX + group, naming.DLQ_PREFIX + group), masters, given["c"])


def group_config(session: Session, given: Given) -> None:
    """Print the settings of a group on each broker that has it."""
    seen = set[str]()
    for broker in session.names.brokers(None):
        if broker.name in seen:
            continue
        seen.add(broker.name)
        settings = session.part(_settings_at, session, broker.address, given["g"])
        if settings is not None:
            session.say(f"============================={broker.cluster}:{broker.name}=============================")
            for name in _SETTINGS:
                value = settings.get(name, _SETTINGS[name])
                session.say(f"{name:<40}=  {'' if value is None else _shown(name, value)}")


def _settings_at(session: Session, address: str, group: str) -> Mapping[str, Any] | None:
    # A request for one group might create it on first use.
    table = session.table(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    found: Mapping[str, Any] | None = (table.get("subscriptionGroupTable") or {}).get(group)
    return found


Progress = dict[MessageQueue, dict[str, int]]


def consumed(
    session: Session, group: str, topic: str | None = None, option: str | None = None
) -> tuple[Progress, float]:
    """Return how far a group is in each queue, and the messages that it consumes per second; *option* is `-c`."""
    found: Progress = {}
    rate = 0.0
    code = RequestCode.GET_CONSUME_STATS
    try:
        cluster = None if topic is not None and is_routed_elsewhere(topic) else option
        addresses = session.of_group(group, cluster)
    except GroupNotFound:
        if topic is None:
            raise
        addresses = session.brokers_of(topic, option)
    for address in addresses:
        answer = session.nested(address, code, {"consumerGroup": group, "topic": topic})
        rate += float(answer.get("consumeTps") or 0)
        rows = session.decoded(address, code, table_of, answer, "offsetTable")
        found |= {queue: _row(row) for queue, row in rows.items()}
    return found, rate


def _row(row: Mapping[str, Any]) -> dict[str, int]:
    names = "brokerOffset", "consumerOffset", "pullOffset", "lastTimestamp"
    return {name: int(row.get(name) or 0) for name in names}


def group_progress(session: Session, given: Given) -> None:
    """Print how far a group is in each queue, or all groups in sum."""
    if "g" not in given:
        _all_progress(session)
        return
    found, rate = consumed(session, given["g"], given.get("t"), given.get("c"))
    clients = given.truth("s", default=False)
    owners = holders(session, given["g"]) if clients else {}
    heads = "#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset"
    if clients:
        session.say(_PROGRESS_OF_CLIENTS.format(*heads, "#Client IP", "#Diff", "#Inflight") + "#LastTime")
    else:
        session.say(_PROGRESS.format(*heads, "#Diff", "#Inflight") + "#LastTime")
    behind = flying = 0
    for queue, row in sorted(found.items()):
        lag, ahead = row["brokerOffset"] - row["consumerOffset"], row["pullOffset"] - row["consumerOffset"]
        behind, flying = behind + lag, flying + ahead
        place = queue.topic[:64], queue.broker_name[:32], queue.queue_id, row["brokerOffset"], row["consumerOffset"]
        last = second(row["lastTimestamp"]) if row["lastTimestamp"] else "N/A"
        if clients:
            line = _PROGRESS_OF_CLIENTS.format(*place, owners.get(queue, "N/A"), lag, ahead)
        else:
            line = _PROGRESS.format(*place, lag, ahead)
        session.say(f"{line} {last}")
    session.say()
    session.say(f"Consume TPS: {rate:.2f}")
    session.say(f"Consume Diff Total: {behind}")
    session.say(f"Consume Inflight Total: {flying}")


def _all_progress(session: Session) -> None:
    session.say(_GROUPS.format("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total"))
    for topic in sorted(session.names.topics()):
        if topic.startswith(naming.RETRY_PREFIX):
            group = topic.removeprefix(naming.RETRY_PREFIX).partition(_POP_RETRY)[0]
            session.say(_GROUPS.format(group[:64], *_sums(session, group)))


def _sums(session: Session, group: str) -> tuple[object, ...]:
    """Return members, version, kind, model, rate and lag of a group; of what no broker tells, nothing."""
    rate, behind = 0.0, 0
    told: Mapping[str, Any] = {}
    try:
        found, rate = session.part(consumed, session, group) or ({}, 0.0)
        behind = sum(row["brokerOffset"] - row["consumerOffset"] for row in found.values())
        told = session.part(connections_of, session, group) or {}
    except RequestError as error:
        if isinstance(error, Forbidden):
            raise
        # The group is unknown, or has no members.
    members = told.get("connectionSet") or ()
    if not members:
        return 0, "OFFLINE", "", "", int(rate), behind
    oldest = min(int(member.get("version") or 0) for member in members)
    is_pull = told.get("consumeType") == "CONSUME_ACTIVELY"
    model = told.get("messageModel") if told.get("consumeType") == "CONSUME_PASSIVELY" else ""
    return len(members), version(oldest), "PULL" if is_pull else "PUSH", model or "", int(rate), behind


def all_queues(session: Session, given: Given) -> None:
    """Print how far each group is in each queue of a broker."""
    least = given.number("l", 0)
    code, fields = RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": given.truth("o", default=False)}
    with opened(given.get("n"), given.number("t", 50_000) / 1000) as patient:
        answer = patient.nested(given["b"], code, fields)
    heads = "#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff", "#LastTime"
    session.say(_ALL_QUEUES.format(*heads))
    for entry in answer.get("consumeStatsList") or ():
        for group, lists in entry.items():
            for one in lists:
                rows = session.decoded(given["b"], code, table_of, one, "offsetTable")
                for queue, row in sorted((queue, _row(row)) for queue, row in rows.items()):
                    lag = row["brokerOffset"] - row["consumerOffset"]
                    if lag >= least and row["lastTimestamp"] > 0:
                        place = queue.topic[:64], group, queue.broker_name[:32], queue.queue_id
                        offsets = row["brokerOffset"], row["consumerOffset"], lag, second(row["lastTimestamp"])
                        session.say(_ALL_QUEUES.format(*place, *offsets))
    session.say()
    session.say(f"Diff Total: {answer.get('totalDiff', 0)}")


def clone_offsets(session: Session, given: Given) -> None:
    """Give a group the offsets of another one on the brokers of a topic."""
    if "o" in given:
        session.note("-o has no effect, as in RocketMQ")
    found, _ = consumed(session, given["s"])
    addresses = {broker.broker_name: broker.master for broker in session.route(given["t"]).brokers}
    for queue in found:
        if addresses.get(queue.broker_name) is None:
            where = f"{queue.broker_name}, where {given['s']} has offsets of {queue.topic}"
            raise ConfigError(f"no master of the broker {where}, is in the route of {given['t']}; nothing was changed")
    for queue, row in sorted(found.items()):
        if row["consumerOffset"] >= 0:
            fields = {"consumerGroup": given["d"], "topic": queue.topic, "queueId": queue.queue_id}
            fields |= {"commitOffset": row["consumerOffset"]}
            session.ask(str(addresses[queue.broker_name]), RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    session.say(f"clone group offset success. srcGroup[{given['s']}], destGroup=[{given['d']}], topic[{given['t']}]")


def reset_offsets(session: Session, given: Given) -> None:
    """Move a group to a time, in a topic or in one queue of it."""
    group, topic, text = given["g"], given["t"], given["s"]
    timestamp = round(time.time() * 1000) if text == "now" else parsed("s", text)
    to: progress.ResetTo = "end" if timestamp < 0 else timestamp
    queue_id = given.number("q", -1)
    if "o" in given and ("b" not in given or queue_id < 0):
        raise ConfigError("an offset (-o) belongs to one queue; give its broker (-b) and its number (-q), too")
    if "b" in given and queue_id >= 0:
        offset = given.number("o", -1) if "o" in given else None
        plan = _plan(session, given, [given["b"]], progress.Target(None if "o" in given else to, offset, queue_id))
        progress.apply(session.calls, group, [plan])
        session.say(
            f"start reset consumer offset by specified, group[{group}], topic[{topic}], queueId[{queue_id}], "
            f"broker[{given['b']}], timestamp(string)[{text}], timestamp(long)[{timestamp}]"
        )
        session.say(f"reset consumer offset to {plan.queues[0].to_offset}")
        return
    if "b" in given or queue_id >= 0:
        raise ConfigError("a queue (-q) belongs to one broker; give both -b and -q, or none of them")
    plan = _plan(session, given, session.brokers_of(topic, given.get("c")), progress.Target(to, None, None))
    moved = progress.apply(session.calls, group, [plan])
    session.say(
        f"start reset consumer offset by specified, group[{group}], topic[{topic}], "
        f"force[{java(given.truth('f', default=True))}], timestamp(string)[{text}], timestamp(long)[{timestamp}]"
    )
    _show_moved(session, moved)


def skip(session: Session, given: Given) -> None:
    """Move a group to the end of a topic."""
    brokers = session.brokers_of(given["t"], given.get("c"))
    plan = _plan(session, given, brokers, progress.Target("end", None, None))
    _show_moved(session, progress.apply(session.calls, given["g"], [plan]))


def _plan(session: Session, given: Given, brokers: list[str], target: progress.Target) -> progress.Plan:
    """Return what a move of a group in a topic does; with `-f false` it has no connected consumers."""
    plan = progress.plan(session.calls, brokers, given["g"], given["t"], target)
    if not given.truth("f", default=True):
        inventory.check_unused(session.calls, brokers, given["g"], [given["t"]], "leave out -f false")
    return plan


def _show_moved(session: Session, moved: list[QueueReset]) -> None:
    session.say(_MOVED.format("#brokerName", "#queueId", "#offset"))
    for queue in moved:
        session.say(_MOVED.format(queue.broker[:32], queue.queue_id, queue.to_offset))


_GROUP, _TOPIC = must("g", "group", "set the consumer group"), must("t", "topic", "set the topic")

COMMANDS = (
    Command(
        "updateSubGroup",
        "Update or create subscription group.",
        update_group,
        (
            may("b", "brokerAddr", "create subscription group to which broker"),
            may("c", "clusterName", "create subscription group to which cluster"),
            must("g", "groupName", "consumer group name"),
            may("s", "consumeEnable", "consume enable"),
            may("m", "consumeFromMinEnable", "from min offset"),
            may("d", "consumeBroadcastEnable", "broadcast"),
            may("o", "consumeMessageOrderly", "consume message orderly"),
            may("q", "retryQueueNums", "retry queue nums"),
            may("r", "retryMaxTimes", "retry max times"),
            may(
                "p",
                "groupRetryPolicy",
                'the json string of retry policy ( exp: {"type":"EXPONENTIAL","exponentialRetryPolicy":'
                '{"initial":5000,"max":7200000,"multiplier":2}} {"type":"CUSTOMIZED","customizedRetryPolicy":'
                '{"next":[1000,5000,10000]}} )',
            ),
            may("i", "brokerId", "consumer from which broker id"),
            may("w", "whichBrokerWhenConsumeSlowly", "which broker id when consume slowly"),
            may("a", "notifyConsumerIdsChanged", "notify consumerId changed"),
            may("", "attributes", "attribute(+a=b,+c=d,-e)"),
        ),
    ),
    Command(
        "deleteSubGroup",
        "Delete subscription group from broker.",
        delete_group,
        (
            may("b", "brokerAddr", "delete subscription group from which broker"),
            may("c", "clusterName", "delete subscription group from which cluster"),
            must("g", "groupName", "subscription group name"),
            may("r", "removeOffset", "remove offset"),
        ),
    ),
    Command(
        "getConsumerConfig",
        "Get consumer config by subscription group name.",
        group_config,
        (must("g", "groupName", "subscription group name"),),
    ),
    Command(
        "consumerProgress",
        "Query consumer's progress, speed.",
        group_progress,
        (
            may("g", "groupName", "consumer group name"),
            may("t", "topicName", "topic name"),
            may("s", "showClientIP", "Show Client IP per Queue"),
            LITE_PARENT,
        ),
    ),
    Command(
        "brokerConsumeStats",
        "Fetch broker consume stats data.",
        all_queues,
        (
            must("b", "brokerAddr", "Broker address"),
            may("t", "timeoutMillis", "request timeout Millis"),
            may("l", "level", "threshold of print diff"),
            may("o", "order", "order topic"),
        ),
    ),
    Command(
        "cloneGroupOffset",
        "Clone offset from other group.",
        clone_offsets,
        (
            must("s", "srcGroup", "set source consumer group"),
            must("d", "destGroup", "set destination consumer group"),
            must("t", "topic", "set the topic"),
            may("o", "offline", "the group or the topic is offline"),
        ),
    ),
    Command(
        "resetOffsetByTime",
        "Reset consumer offset by timestamp(without client restart).",
        reset_offsets,
        (
            _GROUP,
            _TOPIC,
            must("s", "timestamp", "set the timestamp[now|currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]"),
            may("f", "force", "set the force rollback by timestamp switch[true|false]. Deprecated."),
            LITE_PARENT,
            may("b", "broker", "broker addr"),
            may("q", "queue", "queue id"),
            may("o", "offset", "Expect queue offset, not support old version broker"),
        ),
    ),
    Command(
        "skipAccumulatedMessage",
        "Skip all messages that are accumulated (not consumed) currently.",
        skip,
        (_GROUP, _TOPIC, may("f", "force", "set the force rollback by timestamp switch[true|false]"), LITE_PARENT),
    ),
)
