"""
What there is: topics, groups with their members, brokers, and the configuration of servers.

Requests 21, 26, 28, 43, 201, 202, 203, 300, 305, 318, 319, 328 and 351; bodies are Java's.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ferromq.admin import progress
from ferromq.admin.asking import Ask, each
from ferromq.admin.calls import Calls
from ferromq.admin.results import (
    BrokerStatus,
    GroupDescription,
    Member,
    QueueRange,
    ReloadedConfig,
    TopicDescription,
    TopicOnBroker,
    Unreachable,
)
from ferromq.admin.settings import permission_text, type_of
from ferromq.errors import ConfigError, FerromqError, OutcomeUnknown, RequestError, ServerError, TopicNotFound
from ferromq.protocol import java_json, naming, retry_policy
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.route import MASTER

_FIRST_REGULAR, _PER_MAJOR, _PER_MINOR, _PER_PATCH = 212, 200, 20, 2
"""RocketMQ numbers its versions since 4.0.0 regularly: each patch is a snapshot and a release, each minor has ten."""
_MAJOR = 4


def without_system(calls: Calls, brokers: Iterable[BrokerStatus], topics: Iterable[str]) -> set[str]:
    """
    Return topics without those of RocketMQ and of its brokers, and without retries and dead letters.

    Each broker has the same ones, beside those of its name and cluster, so one that is away is not missed.
    """

    def own(ask: Ask) -> list[str]:
        body = ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {})
        return ask.decoded(
            "topics", lambda: [str(name) for name in java_json.loads_object(body).get("topicList") or ()]
        )

    known = list(brokers)
    answers, _ = each(calls, (broker.address for broker in known if broker.broker_id == MASTER), own)
    left_out = {name for _, names in answers for name in names}
    left_out.update(name for broker in known for name in (broker.name, broker.cluster))
    return {
        name
        for name in topics
        if name not in left_out
        and not naming.is_system_topic(name)
        and not name.startswith((naming.RETRY_PREFIX, naming.DLQ_PREFIX))
    }


def topic(calls: Calls, brokers: Iterable[str], name: str, namespace: str) -> TopicDescription:
    """Describe a topic by what each of its brokers tells. Raises `TopicNotFound`."""
    answers, unreachable = each(calls, brokers, lambda ask: _topic_at(ask, name))
    found = [answer for _, answer in answers if answer is not None]
    if not found:
        _check_all(unreachable)
        raise TopicNotFound(f"there is no topic {name}; create_topic({name!r}) creates it")
    queues = sorted((queue for _, ranges, _ in found for queue in ranges), key=lambda one: (one.broker, one.queue_id))
    groups = {naming.without_namespace(namespace, group) for _, _, groups in found for group in groups}
    return TopicDescription(
        naming.without_namespace(namespace, name),
        tuple(settings for settings, _, _ in found),
        tuple(queues),
        tuple(sorted(groups)),
        unreachable,
    )


def _topic_at(ask: Ask, name: str) -> tuple[TopicOnBroker, list[QueueRange], list[str]] | None:
    found = ask.topic(name)
    if found is None:
        return None

    def settings() -> TopicOnBroker:
        reads, writes = int(found["readQueueNums"]), int(found["writeQueueNums"])
        return TopicOnBroker(ask.address, reads, writes, permission_text(int(found["perm"])), type_of(found))

    ranges = [
        QueueRange(queue.broker_name, queue.queue_id, begin, end, updated or None)
        for queue, (begin, end, updated) in progress.extents(ask, name).items()
    ]
    return ask.decoded("the settings of a topic", settings), ranges, readers(ask, name)


def readers(ask: Ask, topic: str) -> list[str]:
    """Return the groups that subscribe to a topic or have read it on one broker."""
    body = ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
    return ask.decoded("groups", lambda: [str(name) for name in java_json.loads_object(body).get("groupList") or ()])


def groups(calls: Calls, brokers: Iterable[str], lost: list[Unreachable] | None = None) -> dict[str, Mapping[str, Any]]:
    """
    Return the settings of all groups by name, in RocketMQ's fields, as the first broker that has each tells them.

    Every broker must answer, as a group may be on one of them only; or those that do not are added to *lost*.
    """
    answers, unreachable = each(calls, brokers, groups_at)
    note(unreachable, lost)
    found: dict[str, Mapping[str, Any]] = {}
    for _, table in answers:
        found = {**table, **found}
    return found


def groups_at(ask: Ask) -> dict[str, Mapping[str, Any]]:
    """Return the settings of all groups of a broker by name, in RocketMQ's fields."""
    body = ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})

    def read() -> dict[str, Mapping[str, Any]]:
        table = java_json.loads_object(body).get("subscriptionGroupTable") or {}
        return {name: dict(group) for name, group in table.items()}

    return ask.decoded("groups", read)


def group(calls: Calls, brokers: Sequence[str], name: str, namespace: str) -> GroupDescription:
    """Describe a consumer group. Raises `GroupNotFound`."""

    def question(ask: Ask) -> tuple[GroupDescription | None, dict[str, str], list[Member]]:
        settings = groups_at(ask).get(name)
        connections = _connections(ask, name)
        found = None if settings is None else ask.decoded("the settings of a group", lambda: _settings(settings))
        subscribed = ask.decoded("subscriptions", lambda: _subscriptions(connections, namespace))
        return found, subscribed, _members(ask, connections)

    answers, unreachable = each(calls, brokers, question)
    found = next((found for _, (found, _, _) in answers if found is not None), None)
    if found is None:
        _check_all(unreachable)
    progress.check_known(name, is_known=found is not None)
    assert found is not None
    subscriptions = {topic: expression for _, (_, each, _) in answers for topic, expression in each.items()}
    return replace(
        found,
        name=naming.without_namespace(namespace, name),
        subscriptions=dict(sorted(subscriptions.items())),
        members=_by_id(found for _, (_, _, found) in answers),
        unreachable=unreachable,
    )


def _settings(group: Mapping[str, Any]) -> GroupDescription:
    return GroupDescription(
        "",
        bool(group.get("consumeMessageOrderly", False)),
        int(group.get("retryMaxTimes", 16)),
        retry_policy.parse(group.get("groupRetryPolicy") or {}),
        bool(group.get("consumeEnable", True)),
        {},
        (),
    )


def _subscriptions(connections: Mapping[str, Any], namespace: str) -> dict[str, str]:
    return {
        naming.without_namespace(namespace, str(subscribed)): str(data.get("subString") or "*")
        for subscribed, data in (connections.get("subscriptionTable") or {}).items()
    }


def members(calls: Calls, brokers: Iterable[str], name: str, lost: list[Unreachable] | None = None) -> list[Member]:
    """Return the connected clients of a group, by id. Brokers that do not answer are added to *lost*, or raise."""
    answers, unreachable = each(calls, brokers, lambda ask: _members(ask, _connections(ask, name)))
    note(unreachable, lost)
    return list(_by_id(found for _, found in answers))


def check_unused(
    calls: Calls,
    brokers: Iterable[str],
    name: str,
    topics: Collection[str],
    way_out: str = "skip with force=True (--force)",
) -> None:
    """Raise `RequestError` if a connected client of a group subscribes to one of *topics*. Every broker must answer."""

    def question(ask: Ask) -> list[Member]:
        connections = _connections(ask, name)
        subscribed = ask.decoded("subscriptions", lambda: set(connections.get("subscriptionTable") or topics))
        return _members(ask, connections) if subscribed & set(topics) else []

    answers, unreachable = each(calls, brokers, question)
    _check_all(unreachable)
    found = _by_id(members for _, members in answers)
    if found:
        clients = f"{len(found)} connected consumers" if len(found) > 1 else "a connected consumer"
        raise RequestError(
            f"the group {name} has {clients} ({found[0].client_id}), which may hold messages that would be skipped; "
            f"stop the consumers, or {way_out}"
        )


def _check_all(unreachable: Iterable[Unreachable]) -> None:
    """Raise the first failure, if there is one."""
    for broker in unreachable:
        raise broker.error


def note(unreachable: Iterable[Unreachable], lost: list[Unreachable] | None) -> None:
    """Add brokers that did not answer to *lost*; without this list, raise the first failure."""
    if lost is None:
        _check_all(unreachable)
    else:
        lost += unreachable


def _connections(ask: Ask, name: str) -> dict[str, Any]:
    body = ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": name}, ResponseCode.CONSUMER_NOT_ONLINE)
    return ask.decoded("connections", lambda: java_json.loads_object(body) if body else {})


def _members(ask: Ask, connections: Mapping[str, Any]) -> list[Member]:
    def member(connection: Mapping[str, Any]) -> Member:
        protocol = connection.get("protocol")
        return Member(
            str(connection["clientId"]),
            str(connection.get("clientAddr") or ""),
            str(connection.get("language") or ""),
            version_text(int(connection.get("version") or 0)),
            None if protocol is None else str(protocol),
        )

    return ask.decoded("connections", lambda: [member(each) for each in connections.get("connectionSet") or ()])


def producers(calls: Calls, brokers: Iterable[str], lost: list[Unreachable] | None = None) -> dict[str, list[Member]]:
    """Return the connected producers by group. Brokers that do not answer are added to *lost*, or raise."""

    def producer(told: Mapping[str, Any]) -> Member:
        version = version_text(int(told.get("version") or 0))
        return Member(
            str(told["clientId"]), str(told.get("remoteIP") or ""), str(told.get("language") or ""), version, None
        )

    def question(ask: Ask) -> dict[str, list[Member]]:
        body = ask(RequestCode.GET_ALL_PRODUCER_INFO, {})

        def read() -> dict[str, list[Member]]:
            groups = java_json.loads_object(body).get("data") or {}
            return {str(group): [producer(each) for each in members] for group, members in groups.items()}

        return ask.decoded("producers", read)

    answers, unreachable = each(calls, brokers, question)
    note(unreachable, lost)
    groups = sorted({group for _, found in answers for group in found})
    return {group: list(_by_id(found.get(group, ()) for _, found in answers)) for group in groups}


def _by_id(answers: Iterable[Iterable[Member]]) -> tuple[Member, ...]:
    """Return members once: most of them are connected with several brokers."""
    found = {member.client_id: member for members in answers for member in members}
    return tuple(found[client_id] for client_id in sorted(found))


def version_text(number: int) -> str:
    """Return the version that RocketMQ numbers so: `5.3.0`; the number itself for one before 4.0.0."""
    if number < _FIRST_REGULAR:
        return str(number)
    major, rest = divmod(number - _FIRST_REGULAR, _PER_MAJOR)
    minor, rest = divmod(rest, _PER_MINOR)
    patch, is_release = divmod(rest, _PER_PATCH)
    return f"{major + _MAJOR}.{minor}.{patch}" + ("" if is_release else "-SNAPSHOT")


def cluster(calls: Calls, brokers: Iterable[BrokerStatus]) -> list[BrokerStatus]:
    """Return each broker with its version, rates and disk, or its error."""
    known = list(brokers)
    found = []
    for number, broker in enumerate(known):
        ask = Ask(calls, broker.address, len(known) - number)
        try:
            found.append(_status(broker, ask))
        except (OutcomeUnknown, ServerError) as error:
            found.append(replace(broker, error=error))
    return found


def _status(broker: BrokerStatus, ask: Ask) -> BrokerStatus:
    told = progress.runtime(ask)

    def first(*names: str) -> float | None:
        words = next((told[name] for name in names if name in told), "").split()
        return float(words[0]) if words else None

    def today() -> int | None:
        names = ("msgPutTotalTodayNow", "msgPutTotalTodayMorning")
        return int(told[names[0]]) - int(told[names[1]]) if all(name in told for name in names) else None

    version = told.get("brokerVersionDesc", "").removeprefix("V").replace("_", ".")
    return ask.decoded(
        "figures",
        lambda: replace(
            broker,
            version=version or None,
            state=told.get("brokerState"),
            sent_per_second=first("putTps"),
            # The second name is that of RocketMQ 4.
            received_per_second=first("getTransferredTps", "getTransferedTps"),
            sent_today=today(),
            disk_used=first("commitLogDiskRatio"),
        ),
    )


def topics_at(ask: Ask) -> dict[str, Mapping[str, Any]]:
    """Return the settings of all topics of a broker, by name."""
    body = ask(RequestCode.GET_ALL_TOPIC_CONFIG, {})
    return ask.decoded("topics", lambda: dict(java_json.loads_object(body)["topicConfigTable"].items()))


def offsets_at(ask: Ask) -> dict[tuple[str, str], dict[int, int]]:
    """Return all committed offsets of a broker by topic and group, then by queue."""
    body = ask(RequestCode.GET_ALL_CONSUMER_OFFSET, {})

    def read() -> dict[tuple[str, str], dict[int, int]]:
        found = {}
        for name, queues in java_json.loads_object(body)["offsetTable"].items():
            topic, _, group = str(name).rpartition("@")
            found[topic, group] = {int(queue): int(offset) for queue, offset in queues.items() if int(offset) >= 0}
        return found

    return ask.decoded("the offsets of groups", read)


def configuration(calls: Calls, address: str, code: RequestCode) -> dict[str, str]:
    """Return the options of a running server by name."""
    body = calls.ask(address, code, {})
    pairs = (line.partition("=") for line in body.decode(errors="replace").splitlines())
    return {name.strip(): value.strip() for name, separator, value in pairs if separator}


def configure(calls: Calls, address: str, code: RequestCode, options: Mapping[str, str]) -> None:
    """Change options of a running server."""
    lines = "".join(f"{name}={value}\n" for name, value in options.items())
    calls.ask(address, code, {}, body=lines.encode())


def reload(calls: Calls, address: str) -> ReloadedConfig:
    """Let a running server read its configuration file again."""
    ask = Ask(calls, address, 1)
    body = ask(RequestCode.RELOAD_CONFIG, {})

    def read() -> ReloadedConfig:
        found = java_json.loads_object(body)
        return ReloadedConfig(tuple(map(str, found["changed"])), tuple(map(str, found["restart"])))

    return ask.decoded("the options that changed", read)


def configure_name_servers(calls: Calls, addresses: Sequence[str], options: Mapping[str, str]) -> None:
    """Change options of all name servers; if one refuses, take back the changes of those before it."""
    before = {address: configuration(calls, address, RequestCode.GET_NAMESRV_CONFIG) for address in addresses}
    changed: list[str] = []
    try:
        for address in addresses:
            configure(calls, address, RequestCode.UPDATE_NAMESRV_CONFIG, options)
            changed.append(address)
    except RequestError as error:
        for address in changed:
            try:
                old = {name: before[address][name] for name in options}
                configure(calls, address, RequestCode.UPDATE_NAMESRV_CONFIG, old)
            except (FerromqError, KeyError) as failure:
                error.add_note(f"{address} keeps the change: {failure!r}")
        raise
    except OutcomeUnknown as error:
        if changed:
            error.add_note(f"{', '.join(changed)} changed already; make the change again")
        raise


def check_options(options: Mapping[str, str]) -> None:
    """Raise `ConfigError` for options that the request cannot carry: it has a line NAME=VALUE for each."""
    if not options:
        raise ConfigError("no option is given; give at least one name and value")
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"an option is a name and a text, not {name!r}: {value!r}")
        if not name.strip() or set(name) & set("=\r\n#!") or set(value) & set("\r\n\\"):
            raise ConfigError(f"{name}={value!r} is no option: a name has no =, a value no line break and no backslash")


def found_broker(brokers: Sequence[BrokerStatus], wanted: str) -> str:
    """Return the address of the broker with this address or name, of its master. Raises `ConfigError`."""
    for broker in brokers:
        if wanted == broker.address or (wanted == broker.name and broker.broker_id == MASTER):
            return broker.address
    names = ", ".join(f"{broker.name} ({broker.address})" for broker in brokers)
    raise ConfigError(
        f"broker is {wanted!r}, which is neither name nor address of a known one: {names}; one that hung registers "
        "again within 60 s once it runs; else stop its process (SIGTERM)"
    )
