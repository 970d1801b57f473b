"""
Reads the metadata of a cluster, and makes that of another one the same.

What both do to one broker, name server or user is in `Cluster`; an import compares what it reads with the document.
Nothing is deleted.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from ferromq.admin import access, inventory
from ferromq.admin.asking import Ask
from ferromq.admin.calls import Calls
from ferromq.admin.lone_brokers import LoneBrokers
from ferromq.admin.metadata import EVERY, Metadata
from ferromq.admin.name_servers import NameServers, masters_and_lost
from ferromq.admin.results import BrokerStatus, Change, Import, PolicyEntry
from ferromq.admin.settings import TOPIC_FIELDS, java_text, new_topic
from ferromq.errors import ConfigError, FerromqError, OutcomeUnknown, RequestError, ServerError, Unsupported
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import RequestCode
from ferromq.protocol.namespaces import GRPC_NAMESPACE, ORDER_NAMESPACE
from ferromq.protocol.order_configuration import all_parts
from ferromq.protocol.route import MASTER

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The servers of a cluster, and how to ask them."""

    calls: Calls
    servers: NameServers | LoneBrokers
    masters: Mapping[str, str]
    """Name → address."""
    name: str

    @classmethod
    def of(cls, calls: Calls, servers: NameServers | LoneBrokers, wanted: str | None) -> "Cluster":
        """Return a cluster. Raises the failure of a broker without a master."""
        registered = servers.brokers(None)
        addresses, lost = masters_and_lost(registered, wanted, str(servers))
        if lost:
            raise lost[0].error
        known = [each for each in registered if each.address in addresses and each.broker_id == MASTER]
        return cls(calls, servers, {each.name: each.address for each in known}, known[0].cluster)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of name servers."""
        return self.servers.name_servers() if isinstance(self.servers, NameServers) else ()

    def each(self, read: Callable[[Ask], T]) -> dict[str, T]:
        """Return what every broker tells, by name."""
        return {name: read(Ask(self.calls, address, 1)) for name, address in sorted(self.masters.items())}


# --- export ------------------------------------------------------------------------------------------------------


def export(cluster: Cluster, namespaces: Iterable[str], *, offsets: bool) -> Metadata:
    """Return the metadata of a cluster; what all brokers have alike is under `*`."""
    found = read(cluster, namespaces, offsets=offsets)
    made = Metadata(
        topics=_shared(found.topics, cluster.masters),
        groups=_shared(found.groups, cluster.masters),
        values=found.values,
        broker_options=_alike(
            {name: _broker_options(options) for name, options in found.broker_options.items()}, cluster.masters
        ),
        name_server_options=_alike(
            {name: _name_server_options(options) for name, options in found.name_server_options.items()},
            cluster.name_servers,
        ),
        users=None if found.users is None else _shared(found.users, cluster.masters),
        policies=None if found.policies is None else _shared(found.policies, cluster.masters),
        offsets=found.offsets,
    )
    try:
        made.to_json().encode()
    except ValueError as error:
        raise ServerError(f"a server answered text or numbers that JSON does not have: {error}") from error
    return made


def _shared(table: Mapping[str, Mapping[str, T]], brokers: Iterable[str]) -> dict[str, Mapping[str, T]]:
    return {name: _alike(values, brokers) for name, values in table.items()}


def _alike(values: Mapping[str, T], names: Iterable[str]) -> Mapping[str, T]:
    """Return equal values of all *names* once, under `*`."""
    first = next(iter(values.values()), None)
    is_alike = first is not None and values.keys() == set(names) and all(value == first for value in values.values())
    return {EVERY: first} if is_alike and first is not None else values


def read(cluster: Cluster, namespaces: Iterable[str], *, offsets: bool) -> Metadata:
    """Return the metadata of a cluster by broker and name server, with all options. Every one must answer."""
    calls, masters = cluster.calls, cluster.masters
    held = cluster.each(topics)
    known = [BrokerStatus(cluster.name, name, MASTER, address) for name, address in masters.items()]
    own = inventory.without_system(calls, known, {name for table in held.values() for name in table})
    users, policies = _access(cluster)
    return Metadata(
        topics=_by_name(held, lambda name: name in own),
        groups=_by_name(cluster.each(groups), lambda name: not naming.is_system_group(name)),
        values={
            namespace: found
            for namespace in sorted({ORDER_NAMESPACE, *namespaces} - {GRPC_NAMESPACE})
            if (found := _values(cluster, namespace))
        },
        broker_options=cluster.each(
            lambda ask: inventory.configuration(calls, ask.address, RequestCode.GET_BROKER_CONFIG)
        ),
        name_server_options={
            address: inventory.configuration(calls, address, RequestCode.GET_NAMESRV_CONFIG)
            for address in cluster.name_servers
        },
        users=users,
        policies=policies,
        offsets=_offsets(cluster) if offsets else None,
    )


def _by_name(brokers: Mapping[str, Mapping[str, T]], wanted: Callable[[str], bool]) -> dict[str, dict[str, T]]:
    found: dict[str, dict[str, T]] = {}
    for broker, table in brokers.items():
        for name, value in table.items():
            if wanted(name):
                found.setdefault(name, {})[broker] = value
    return dict(sorted(found.items()))


def topics(ask: Ask) -> dict[str, dict[str, Any]]:
    """Return the settings of all topics of a broker, in the form of a document."""
    told = inventory.topics_at(ask)
    return ask.decoded("the settings of topics", lambda: {name: _topic(topic) for name, topic in told.items()})


def groups(ask: Ask) -> dict[str, dict[str, Any]]:
    """Return the settings of all groups of a broker, in the form of a document."""
    told = inventory.groups_at(ask)
    return ask.decoded("the settings of groups", lambda: {name: _group(group) for name, group in told.items()})


def _topic(topic: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {"order": bool, "topicFilterType": str}
    found = {name: kinds.get(name, int)(topic[name]) for name in TOPIC_FIELDS if topic.get(name) is not None}
    return {**found, "attributes": _texts(topic.get("attributes"))}


def _group(group: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: _present(value) for name, value in group.items() if value is not None and name != "groupName"}
    return {**found, "attributes": _texts(group.get("attributes"))}


def _texts(table: Mapping[str, Any] | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in (table or {}).items()}


def _present(value: Any) -> Any:
    """Return a value of Java without fields that are null."""
    if isinstance(value, Mapping):
        return {name: _present(inner) for name, inner in value.items() if inner is not None}
    return value


def _values(cluster: Cluster, namespace: str) -> dict[str, str]:
    return cluster.servers.values(namespace) if isinstance(cluster.servers, NameServers) else {}


def _broker_options(found: Mapping[str, str]) -> dict[str, str]:
    """Return options by RocketMQ's keys, which brokers of both kinds know, and others by ferromq's names."""
    from ferromq.config import at_run_time  # noqa: PLC0415 (administrators need no configuration otherwise)

    # An option that is not set has no value that RocketMQ's brokers take.
    keys = {name: option for name, option in at_run_time.BROKER_KEYS.items() if found.get(name)}
    return _chosen(found, keys.keys() | at_run_time.BROKER_OPTIONS - set(keys.values()) - keys.keys())


def _name_server_options(found: Mapping[str, str]) -> dict[str, str]:
    from ferromq.config import at_run_time  # noqa: PLC0415 (administrators need no configuration otherwise)

    return _chosen(found, at_run_time.NAME_SERVER_KEYS)


def _chosen(found: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in sorted(found.items()) if name in names}


def _access(cluster: Cluster) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return users and policies of brokers with access control; None: no broker has it."""
    is_off = True
    users: dict[str, Any] = {}
    policies: dict[str, Any] = {}
    for broker, address in sorted(cluster.masters.items()):
        try:
            found = access.users(cluster.calls, [address], None)
            entries = access.acls(cluster.calls, [address], None)
        except (ServerError, Unsupported) as error:
            if error.code is None:  # an answer in another form
                raise
            continue
        is_off = False
        for user in found:
            users.setdefault(user.name, {})[broker] = {"kind": user.kind, "enabled": user.enabled}
        for entry in entries:
            policies.setdefault(entry.user, {}).setdefault(broker, []).append(
                {
                    name: list(value) if isinstance(value, tuple) else value
                    for name, value in asdict(entry).items()
                    if name not in {"user", "brokers"}
                }
            )
    return (None, None) if is_off else (users, policies)


def _offsets(cluster: Cluster) -> dict[str, dict[str, dict[str, dict[str, int]]]]:
    found: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
    for broker, table in cluster.each(inventory.offsets_at).items():
        for (topic, group), queues in table.items():
            if not naming.is_system_group(group) and not naming.is_system_topic(topic):
                by_queue = {str(queue): offset for queue, offset in sorted(queues.items())}
                found.setdefault(group, {}).setdefault(topic, {})[broker] = by_queue
    return found


# --- import ------------------------------------------------------------------------------------------------------


class Importing:
    """Applies a document to a cluster, one difference after the other; those that fail do not stop the others."""

    def __init__(
        self,
        cluster: Cluster,
        wanted: Metadata,
        *,
        dry_run: bool,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._calls = cluster.calls
        self._wanted = wanted
        self._is_dry = dry_run
        self._on_progress = on_progress
        self._compared = 0
        """Entries of the document that are through; all options of brokers are one."""
        self._entries = 0
        self._changes: list[Change] = []
        self._away: dict[str, FerromqError] = {}
        """Servers that did not answer, so that each is waited for once."""

    def run(self, *, offsets: bool) -> Import:
        """Compare, and change what differs unless it is a dry run."""
        wanted = self._wanted
        has_offsets = offsets and wanted.offsets is not None
        parts: list[Mapping[str, object] | None] = [wanted.name_server_options, wanted.topics, wanted.groups]
        parts += [*wanted.values.values(), wanted.users, wanted.policies, wanted.offsets if has_offsets else None]
        self._entries = 1 + sum(len(part or {}) for part in parts)
        present = read(self._cluster, wanted.values, offsets=has_offsets)
        self._options(present)
        for name, values in self._entries_of(wanted.topics):
            self._settings("topic", name, values, present.topics.get(name, {}), self._put_topic)
        for name, values in self._entries_of(wanted.groups):
            self._settings("group", name, values, present.groups.get(name, {}), self._put_group)
        self._put_values(present)
        without_key = self._users(present)
        if has_offsets:
            self._offsets(present)
        if self._on_progress is not None:
            # Policies are left out where access control is off.
            self._on_progress(self._entries, self._entries)
        return Import(tuple(self._changes), tuple(sorted(without_key)))

    def _entries_of(self, part: Mapping[str, T] | None) -> Iterator[tuple[str, T]]:
        """Yield the names and values of a part of the document in their order, and report each that is through."""
        for name, value in sorted((part or {}).items()):
            yield name, value
            self._is_through()

    def _is_through(self) -> None:
        self._compared += 1
        if self._on_progress is not None:
            self._on_progress(self._compared, self._entries)

    def _make(self, change: Change, address: str, make: Callable[[], object] | FerromqError) -> None:
        """Note a change and make it; *make* may be the reason why it cannot be made."""
        error = make if isinstance(make, FerromqError) else self._away.get(address)
        if error is None and not self._is_dry and not isinstance(make, FerromqError):
            try:
                make()
            except FerromqError as failure:
                error = failure
                if isinstance(failure, OutcomeUnknown):
                    self._away[address] = failure
        self._changes.append(Change(change.kind, change.name, change.where, change.before, change.after, error))

    def _each(self, values: Mapping[str, T], kind: str, name: str) -> Iterable[tuple[str, str, T]]:
        """Yield name, address and wanted value of each broker; note those that the cluster does not have."""
        for where, value in sorted(values.items()):
            if where == EVERY:
                yield from (
                    (broker, address, value)
                    for broker, address in sorted(self._cluster.masters.items())
                    if broker not in values
                )
            elif where in self._cluster.masters:
                yield where, self._cluster.masters[where], value
            else:
                known = ", ".join(sorted(self._cluster.masters))
                error = ConfigError(f"the cluster has no broker {where}; it has {known}")
                self._make(Change(kind, name, where, None, value), where, error)

    def _settings(
        self,
        kind: str,
        name: str,
        values: Mapping[str, Mapping[str, Any]],
        present: Mapping[str, Mapping[str, Any]],
        put: Callable[[str, str, Mapping[str, Any], Mapping[str, Any]], object],
    ) -> None:
        for broker, address, value in self._each(values, kind, name):
            before = present.get(broker)
            after = {each: _present(inner) for each, inner in value.items() if each != "groupName"}
            if before is not None:
                # Versions and implementations know different fields.
                after = {each: inner for each, inner in after.items() if each in before}
            if before is None or any(before[each] != inner for each, inner in after.items()):
                change = Change(kind, name, broker, before, after)
                self._make(change, address, partial(put, address, name, after, before or {}))

    def _put_topic(self, address: str, name: str, after: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        # RocketMQ's brokers need every field.
        settings = {**new_topic(name, 1), **before, **after}
        fields = {each: java_text(settings[each]) for each in TOPIC_FIELDS}
        fields |= {"topic": name, "defaultTopic": naming.AUTO_CREATE_TOPIC}
        changed = _attributes(after, before)
        if changed:
            fields["attributes"] = ",".join(f"{each}={value}" if value else each for each, value in changed.items())
        self._calls.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    def _put_group(self, address: str, name: str, after: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        fields = {**before, **after, "groupName": name, "attributes": _attributes(after, before)}
        if not fields["attributes"]:
            del fields["attributes"]
        self._calls.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body=java_json.dumps(fields))

    def _options(self, present: Metadata) -> None:
        for server, values in self._entries_of(self._wanted.name_server_options):
            for address in self._cluster.name_servers if server == EVERY else (server,):
                before = present.name_server_options.get(address)
                if before is None:
                    error = ConfigError(f"the cluster has no name server {address}")
                    self._make(Change("option", ", ".join(sorted(values)), address, None, values), address, error)
                    continue
                self._configure(address, address, RequestCode.UPDATE_NAMESRV_CONFIG, before, values)
        for broker, address, values in self._each(self._wanted.broker_options, "option", "options"):
            before = present.broker_options[broker]
            self._configure(broker, address, RequestCode.UPDATE_BROKER_CONFIG, before, values)
        self._is_through()

    def _configure(
        self, where: str, address: str, code: RequestCode, before: Mapping[str, str], wanted: Mapping[str, str]
    ) -> None:
        known = _changeable(code)
        unknown = sorted(name for name in wanted if name not in before or name not in known)
        if unknown:
            error = ConfigError(f"{where} has no such option that can change while it runs")
            self._make(Change("option", ", ".join(unknown), where, None, _chosen(wanted, unknown)), address, error)
        differing = {name: value for name, value in wanted.items() if name not in unknown and before.get(name) != value}
        is_done = False
        if len(differing) > 1 and not self._is_dry and address not in self._away:
            try:
                # Together first: some options are valid only with others.
                self._set(address, code, differing)
                is_done = True
            except RequestError:
                pass  # one by one, so that each has its own error
            except OutcomeUnknown as error:
                self._away[address] = error
        for name, value in sorted(differing.items()):
            change = Change("option", name, where, before.get(name), value)
            self._make(change, address, _nothing if is_done else partial(self._set, address, code, {name: value}))

    def _set(self, address: str, code: RequestCode, options: Mapping[str, str]) -> None:
        inventory.check_options(options)
        inventory.configure(self._calls, address, code, options)

    def _put_values(self, present: Metadata) -> None:
        servers = self._cluster.servers
        for namespace, table in sorted(self._wanted.values.items()):
            for key, text in self._entries_of(table):
                before = present.values.get(namespace, {}).get(key)
                if before == text:
                    continue
                change = Change("value", f"{namespace}/{key}", EVERY, before, text)
                gone = sorted(all_parts(text).keys() - self._cluster.masters.keys())
                fields = {"namespace": namespace, "key": key, "value": text}
                if namespace == GRPC_NAMESPACE:
                    self._make(change, EVERY, ConfigError(f"brokers write the namespace {namespace} themselves"))
                elif namespace == ORDER_NAMESPACE and gone:
                    error = ConfigError(f"the cluster has no broker {gone[0]}, so its message groups would wait")
                    self._make(change, EVERY, error)
                elif isinstance(servers, NameServers):
                    self._make(change, EVERY, partial(servers.everywhere, RequestCode.PUT_KV_CONFIG, fields))
                else:
                    self._make(change, EVERY, ConfigError(f"{servers} registers with no name server"))

    def _users(self, present: Metadata) -> set[str]:
        """Change users and policies; return the users that are missing."""
        missing: set[str] = set()
        if self._wanted.users and present.users is None:
            error = ConfigError("access control is off on a broker; switch it on (authentication_enabled) first")
            for name, values in self._entries_of(self._wanted.users):
                self._make(Change("user", name, EVERY, None, values), EVERY, error)
            return missing
        known = present.users or {}
        for name, values in self._entries_of(self._wanted.users):
            for broker, address, value in self._each(values, "user", name):
                before = known.get(name, {}).get(broker)
                if before is None:
                    missing.add(name)
                elif before != value:
                    update = partial(access.update_user, self._calls, [address], name, secret_key=None)
                    change = Change("user", name, broker, before, value)
                    self._make(change, address, partial(update, kind=value["kind"], enabled=value["enabled"]))
        for name, entries in self._entries_of(self._wanted.policies):
            for broker, address, listed in self._each(entries, "policy", name):
                if broker not in known.get(name, {}):
                    missing.add(name)
                    continue
                self._policies(name, broker, address, listed, (present.policies or {}).get(name, {}).get(broker, []))
        return missing

    def _policies(
        self,
        user: str,
        broker: str,
        address: str,
        listed: Sequence[Mapping[str, Any]],
        present: Sequence[Mapping[str, Any]],
    ) -> None:
        there = {(each["policy"], each["resource"]): each for each in present}
        for wanted in listed:
            after = {"sources": [], **wanted}
            before = there.get((after["policy"], after["resource"]))
            if before == after:
                continue
            change = Change("policy", f"{user} {after['resource']}", broker, before, after)
            entry = PolicyEntry(
                user,
                after["policy"],
                after["resource"],
                tuple(after["actions"]),
                tuple(after["sources"]),
                after["allow"],
            )
            self._make(change, address, partial(access.update_acl, self._calls, [address], [entry]))

    def _offsets(self, present: Metadata) -> None:
        for group, topics in self._entries_of(self._wanted.offsets):
            for topic, brokers in sorted(topics.items()):
                for broker, address, queues in self._each(brokers, "offset", f"{group} {topic}"):
                    before = (present.offsets or {}).get(group, {}).get(topic, {}).get(broker, {})
                    for queue, offset in sorted(queues.items(), key=lambda item: int(item[0])):
                        if before.get(queue) != offset:
                            change = Change("offset", f"{group} {topic} {queue}", broker, before.get(queue), offset)
                            fields = {"consumerGroup": group, "topic": topic, "queueId": queue}
                            fields["commitOffset"] = str(offset)
                            commit = partial(self._calls.ask, address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
                            self._make(change, address, commit)


def _attributes(after: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, str]:
    """Return the changes of attributes in RocketMQ's form: `+name` and a value, or `-name`."""
    wanted, present = after.get("attributes", {}), before.get("attributes", {})
    changed = {f"+{name}": value for name, value in wanted.items() if present.get(name) != value}
    return changed | {f"-{name}": "" for name in present if "attributes" in after and name not in wanted}


def _changeable(code: RequestCode) -> Collection[str]:
    """Return the names of options that a request may change; RocketMQ's servers would take any."""
    from ferromq.config import at_run_time  # noqa: PLC0415 (administrators need no configuration otherwise)

    if code == RequestCode.UPDATE_NAMESRV_CONFIG:
        return at_run_time.NAME_SERVER_KEYS
    return at_run_time.BROKER_OPTIONS | at_run_time.BROKER_KEYS.keys()


def _nothing() -> None:
    pass
