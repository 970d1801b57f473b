"""The commands of `mqadmin` for topics and their order configurations."""

import json
import re
from collections.abc import Iterable
from typing import Any

from ferromq.cli.mqadmin.options import Command, Given, flag, may, must, one_of
from ferromq.cli.mqadmin.session import Session, java
from ferromq.cli.mqadmin.times import stamp
from ferromq.errors import ConfigError, TopicNotFound
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.message_queue import MessageQueue, table_of
from ferromq.protocol.namespaces import ORDER_NAMESPACE
from ferromq.protocol.route import Permission, TopicRoute

_UNIT, _UNIT_SUBSCRIPTIONS = 1, 2
"""Bits of a topic's system flag."""
_INTEGER_KEY = re.compile(r'^(\t*)"(-?\d+)":', re.MULTILINE)
_ROUTE = "{:<45} {:<32} {:<50} {:<10} {:<11} {:<5}"
_STATUS = "{:<32}  {:<4}  {:<20}  {:<20}    {}"
_LISTED = "{:<20}  {:<64}  {:<64}"
_STATISTICS = "{:<64}  {:<64} {:>12} {:>11} {:>11} {:>14} {:>14}"


def update_topic(session: Session, given: Given) -> None:
    """Create a topic, or replace its settings."""
    attributes = [word.partition("=") for word in given.words("a")]
    flags = _UNIT * given.truth("u", default=False) + _UNIT_SUBSCRIPTIONS * given.truth("s", default=False)
    fields: dict[str, object] = {
        "topic": given["t"],
        "readQueueNums": given.number("r", 8),
        "writeQueueNums": given.number("w", 8),
        "perm": given.number("p", Permission.READ | Permission.WRITE),
        "topicSysFlag": flags,
        "order": given.truth("o", default=False),
    }
    masters = session.targets(given)
    for address in masters:
        put_topic(session, address, fields | {"attributes": given.get("a")})
        if fields["order"] and "b" in given:
            name = session.name_of(address).name
            parts = _order(session, given["t"]) | {name: str(fields["writeQueueNums"])}
            _set_order(session, given["t"], ";".join(":".join(part) for part in parts.items()))
            part = f"{name}:{fields['writeQueueNums']}"
            session.say(f"set broker orderConf. isOrder=true, orderConf=[{part}]")
        session.say(f"create topic to {address} success.")
    if fields["order"] and "c" in given:
        names = dict.fromkeys(broker.name for broker in session.names.brokers(given["c"]))
        text = ";".join(f"{name}:{fields['writeQueueNums']}" for name in names)
        _set_order(session, given["t"], text)
        session.say(f"set cluster orderConf. isOrder=true, orderConf=[{text}]")
    session.say(topic_text(fields, {name: value for name, _, value in attributes}))


def put_topic(session: Session, address: str, fields: dict[str, object]) -> None:
    """Create a topic on a broker, or replace its settings."""
    also = {"defaultTopic": naming.AUTO_CREATE_TOPIC, "topicFilterType": "SINGLE_TAG"}
    session.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields | also)


def topic_text(fields: dict[str, object], attributes: dict[str, str]) -> str:
    """Return the settings of a topic as RocketMQ prints them."""
    return (
        f"TopicConfig [topicName={fields['topic']}, readQueueNums={fields['readQueueNums']}, "
        f"writeQueueNums={fields['writeQueueNums']}, perm={_permission(fields['perm'])}, topicFilterType=SINGLE_TAG, "
        f"topicSysFlag={fields['topicSysFlag']}, order={java(fields['order'])}, attributes={java(attributes)}]"
    )


def _permission(bits: object) -> str:
    assert isinstance(bits, int)
    letters = ((Permission.READ, "R"), (Permission.WRITE, "W"), (Permission.INHERIT, "X"))
    return "".join(letter if bits & bit else "-" for bit, letter in letters)


def delete_topic(session: Session, given: Given) -> None:
    """Delete a topic on the masters of a cluster and on the name servers."""
    topic, cluster = given["t"], given["c"]
    delete_everywhere(session, [topic], session.targets(given), cluster)
    session.say(f"delete topic [{topic}] from cluster [{cluster}] success.")
    session.say(f"delete topic [{topic}] from NameServer success.")


def delete_everywhere(session: Session, topics: Iterable[str], masters: list[str], cluster: str) -> None:
    """Delete topics on the masters of a cluster, and their routes there."""
    for topic in topics:
        for address in masters:
            session.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        session.names.forget_topic(topic, cluster)


def update_permission(session: Session, given: Given) -> None:
    """Change the permission of a topic."""
    topic, permission = given["t"], given.number("p", 0)
    route = session.route(topic)
    if not route.queues:
        raise TopicNotFound(f"no broker has queues of the topic {topic}")
    queues = {queue.broker_name: queue for queue in route.queues}
    model = route.queues[0]
    fields: dict[str, object] = {
        "topic": topic,
        "readQueueNums": model.read_queues,
        "writeQueueNums": model.write_queues,
        "perm": permission,
        "topicSysFlag": model.sys_flag,
        "order": False,
    }
    for address in session.targets(given):
        old = int(model.permission)
        if "b" in given:
            names = [broker.broker_name for broker in route.brokers if broker.master == address]
            if not names or names[0] not in queues:
                raise ConfigError(f"{address} is not the address of a master that has the topic {topic}")
            old = int(queues[names[0]].permission)
            if old == permission:
                session.say("new perm equals to the old one!")
                return
        put_topic(session, address, fields)
        session.say(f"update topic perm from {old} to {permission} in {address} success.")
    if "b" in given:
        session.say(topic_text(fields, {}) + ".")


def topic_route(session: Session, given: Given) -> None:
    """Print the route of a topic."""
    route = session.route(given["t"])
    if "l" in given:
        _list_route(session, route)
    else:
        text = json.dumps(java_json.loads(route.encode()), indent="\t", ensure_ascii=False, separators=(",", ":"))
        session.say(_INTEGER_KEY.sub(r"\1\2:", text))


def _list_route(session: Session, route: TopicRoute) -> None:
    queues = {queue.broker_name: queue for queue in route.queues}
    session.say(_ROUTE.format("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm"))
    shown = [
        broker for broker in sorted(route.brokers, key=lambda one: one.broker_name) if broker.broker_name in queues
    ]
    for broker in shown:
        queue = queues[broker.broker_name]
        cells = broker.cluster, broker.broker_name, java(dict(sorted(broker.addresses.items())))
        session.say(_ROUTE.format(*cells, queue.read_queues, queue.write_queues, int(queue.permission)))
    session.say("-" * 158)
    reads, writes = (
        sum(getattr(queues[one.broker_name], name) for one in shown) for name in ("read_queues", "write_queues")
    )
    session.say(_ROUTE.format("Total:", len(queues), "", reads, writes, ""))


def topic_status(session: Session, given: Given) -> None:
    """Print offsets and times of the queues of a topic."""
    found: dict[MessageQueue, Any] = {}
    rate = 0.0
    for address in session.brokers_of(given["t"], given.get("c")):
        code = RequestCode.GET_TOPIC_STATS_INFO
        answer = session.nested(address, code, {"topic": given["t"]})
        found |= session.decoded(address, code, table_of, answer, "offsetTable")
        rate += float(answer.get("topicPutTps") or 0)
    session.say(_STATUS.format("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated"))
    for queue, row in sorted(found.items()):
        updated = int(row["lastUpdateTimestamp"])
        cells = queue.broker_name[:32], queue.queue_id, row["minOffset"], row["maxOffset"]
        session.say(_STATUS.format(*cells, stamp(updated) if updated > 0 else ""))
    session.say()
    session.say(f"Topic Put TPS: {rate}")


def topic_clusters(session: Session, given: Given) -> None:
    """Print the cluster of a topic."""
    for name in _clusters(session, given["t"]):
        session.say(name)


def _clusters(session: Session, topic: str) -> list[str]:
    route = session.route(topic)
    names = {broker.broker_name for broker in route.brokers[:1]}
    return sorted({broker.cluster for broker in session.names.brokers(None) if broker.name in names})


def topic_list(session: Session, given: Given) -> None:
    """Print all topics, with their cluster and groups if it is asked for."""
    topics = sorted(session.names.topics())
    if "c" not in given:
        for topic in topics:
            session.say(topic)
        return
    session.say("{:<20}  {:<48}  {:<48}".format("#Cluster Name", "#Topic", "#Consumer Group"))
    for topic in topics:
        if topic.startswith((naming.RETRY_PREFIX, naming.DLQ_PREFIX)):
            continue
        cluster, groups = "", list[str]()
        try:
            cluster = "".join(_clusters(session, topic)[:1])
            groups = session.part(groups_of, session, topic) or []
        except TopicNotFound:
            pass  # it was deleted meanwhile
        for group in groups or [""]:
            session.say(_LISTED.format(cluster[:20], topic[:64], group[:64]))


def groups_of(session: Session, topic: str) -> list[str]:
    """Return the groups that read a topic, as its first broker tells."""
    for address in session.brokers_of(topic):
        answer = session.table(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
        return sorted(str(group) for group in answer.get("groupList") or ())
    return []


def update_order(session: Session, given: Given) -> None:
    """Get, put or delete the order configuration of a topic."""
    topic, method = given["t"], given["m"]
    if method == "get":
        found, _ = session.names.exchange_in_turn(RequestCode.GET_KV_CONFIG, _order_key(topic))
        session.say(f"get orderConf success. topic=[{topic}], orderConf=[{found.get('value', '')}] ")
    elif method == "put":
        text = given.get("v")
        if not text:
            raise ConfigError("please set orderConf with option -v.")
        _set_order(session, topic, text)
        session.say(f"update orderConf success. topic=[{topic}], orderConf=[{text}]")
    elif method == "delete":
        session.names.everywhere(RequestCode.DELETE_KV_CONFIG, _order_key(topic))
        session.say(f"delete orderConf success. topic=[{topic}]")
    else:
        raise ConfigError(f"-m is {method!r}; get, put or delete is expected")


def _order_key(topic: str) -> dict[str, str]:
    return {"namespace": ORDER_NAMESPACE, "key": topic}


def _order(session: Session, topic: str) -> dict[str, str]:
    text = session.names.order_configurations().get(topic) or {}
    return {name: str(count) for name, count in text.items()}


def _set_order(session: Session, topic: str, text: str) -> None:
    session.names.everywhere(RequestCode.PUT_KV_CONFIG, {**_order_key(topic), "value": text})


def statistics(session: Session, given: Given) -> None:
    """Print rates, counts and backlogs of topics and their groups."""
    head = "#Topic", "#Consumer Group", "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour"
    session.say(_STATISTICS.format(*head))
    wanted = given.get("t")
    for topic in sorted(session.names.topics()):
        if topic.startswith((naming.RETRY_PREFIX, naming.DLQ_PREFIX)) or wanted not in {None, "", topic}:
            continue
        try:
            rows = session.part(_statistics_of, session, topic)
        except TopicNotFound:
            continue  # it was deleted meanwhile, or is on no broker
        for row, is_active in rows or ():
            if is_active or "a" not in given:
                session.say(row)


def _statistics_of(session: Session, topic: str) -> list[tuple[str, bool]]:
    """Return the row of each group of a topic, and whether messages came or went today."""
    masters = [broker.master for broker in session.route(topic).brokers if broker.master is not None]
    sent, sent_today = _rates(session, masters, "TOPIC_PUT_NUMS", topic)
    groups = groups_of(session, topic)
    rows = []
    for group in groups:
        received, received_today = _rates(session, masters, "GROUP_GET_NUMS", f"{topic}@{group}")
        behind = max(0, sum(_behind(session, address, group, topic) for address in session.brokers_of(topic)))
        cells = behind, f"{sent:.2f}", f"{received:.2f}", sent_today, received_today
        rows.append((_STATISTICS.format(topic[:64], group[:64], *cells), bool(sent_today or received_today)))
    if not groups:
        cells_of_none = "", 0, f"{sent:.2f}", "", sent_today, "NO_CONSUMER"
        rows.append((_STATISTICS.format(topic[:64], *cells_of_none), bool(sent_today)))
    return rows


def _rates(session: Session, masters: list[str], name: str, key: str) -> tuple[float, int]:
    """Return messages per second in the last minute, and how many there were today; 0 without statistics."""
    rate, count = 0.0, 0
    for address in masters:
        fields = {"statsName": name, "statsKey": key}
        also = (ResponseCode.SYSTEM_ERROR,)
        code, _, body = session.calls.exchange(address, RequestCode.VIEW_BROKER_STATS_DATA, fields, also)
        if code == ResponseCode.SUCCESS:
            found = session.decoded(address, RequestCode.VIEW_BROKER_STATS_DATA, java_json.loads_object, body)
            rate += float((found.get("statsMinute") or {}).get("tps") or 0)
            spans = (found.get(span) or {} for span in ("statsDay", "statsHour", "statsMinute"))
            count += next((int(span["sum"]) for span in spans if span.get("sum")), 0)
    return rate, count


def _behind(session: Session, address: str, group: str, topic: str) -> int:
    code = RequestCode.GET_CONSUME_STATS
    answer = session.nested(address, code, {"consumerGroup": group, "topic": topic})
    rows = session.decoded(address, code, table_of, answer, "offsetTable").values()
    return sum(int(row["brokerOffset"]) - int(row["consumerOffset"]) for row in rows)


COMMANDS = (
    Command(
        "updateTopic",
        "Update or create topic.",
        update_topic,
        (
            *one_of(
                may("b", "brokerAddr", "create topic to which broker"),
                may("c", "clusterName", "create topic to which cluster"),
            ),
            may("a", "attributes", "attribute(+a=b,+c=d,-e)"),
            must("t", "topic", "topic name"),
            may("r", "readQueueNums", "set read queue nums"),
            may("w", "writeQueueNums", "set write queue nums"),
            may("p", "perm", "set topic's permission(2|4|6), intro[2:W 4:R; 6:RW]"),
            may("o", "order", "set topic's order(true|false)"),
            may("u", "unit", "is unit topic (true|false)"),
            may("s", "hasUnitSub", "has unit sub (true|false)"),
        ),
    ),
    Command(
        "deleteTopic",
        "Delete topic from broker and NameServer.",
        delete_topic,
        (must("t", "topic", "topic name"), must("c", "clusterName", "delete topic from which cluster")),
    ),
    Command(
        "updateTopicPerm",
        "Update topic perm.",
        update_permission,
        (
            may("b", "brokerAddr", "create topic to which broker"),
            may("c", "clusterName", "create topic to which cluster"),
            must("t", "topic", "topic name"),
            must("p", "perm", "set topic's permission(2|4|6), intro[2:W; 4:R; 6:RW]"),
        ),
    ),
    Command(
        "topicRoute",
        "Examine topic route info.",
        topic_route,
        (must("t", "topic", "topic name"), flag("l", "list", "Use list format to print data")),
    ),
    Command(
        "topicStatus",
        "Examine topic Status info.",
        topic_status,
        (
            must("t", "topic", "topic name"),
            may("c", "cluster", "cluster name or lmq parent topic, lmq is used to find the route."),
        ),
    ),
    Command("topicClusterList", "Get cluster info for topic.", topic_clusters, (must("t", "topic", "topic name"),)),
    Command(
        "topicList", "Fetch all topic list from name server.", topic_list, (flag("c", "clusterModel", "clusterModel"),)
    ),
    Command(
        "updateOrderConf",
        "Create or update or delete order conf.",
        update_order,
        (
            must("t", "topic", "topic name"),
            may("v", "orderConf", "set order conf [eg. brokerName1:num;brokerName2:num]"),
            must("m", "method", "option type [eg. put|get|delete"),
        ),
    ),
    Command(
        "statsAll",
        "Topic and Consumer tps stats.",
        statistics,
        (flag("a", "activeTopic", "print active topic only"), may("t", "topic", "print select topic only")),
    ),
)
