"""
The administrator: topics, consumer groups, stored messages and brokers, over RocketMQ's remoting protocol.

It asks the name servers for the brokers, and then the brokers; `discovery` finds both by a broker's gRPC endpoint. The
Rust core decodes records.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from ferromq._ferromq import StoredMessage
from ferromq.admin import (
    access,
    explanations,
    inventory,
    messages,
    metadata_transfer,
    progress,
    retiring,
    traces,
    waiting,
)
from ferromq.admin.asking import Ask
from ferromq.admin.calls import Calls, decoded
from ferromq.admin.dead_letters import DeadLetter, ResentLetter, listed, send_again
from ferromq.admin.explanations import Explanation
from ferromq.admin.metadata import Metadata
from ferromq.admin.name_servers import NameServers, masters_and_lost
from ferromq.admin.progress import ResetTo
from ferromq.admin.queues import browsed
from ferromq.admin.results import (
    BrokerStatus,
    GroupDescription,
    GroupLag,
    Import,
    Member,
    PolicyEntry,
    QueueReset,
    ReloadedConfig,
    Retirement,
    TopicDescription,
    Unreachable,
    User,
)
from ferromq.admin.settings import (
    MESSAGE_TYPE,
    TOPIC_FIELDS,
    MessageType,
    check_group,
    check_queues,
    checked_type,
    compare,
    group_fields,
    java_text,
    new_topic,
    permission_bits,
    policy,
    shown_group,
    shown_topic,
    type_of,
)
from ferromq.admin.traces import MessageTrace
from ferromq.admin.waiting import DelayedMessages, WaitingTransactions
from ferromq.client.tls import Tls, TlsFile
from ferromq.core.arguments import whole_number
from ferromq.core.credentials import credentials_of
from ferromq.core.requests import milliseconds, seconds
from ferromq.errors import (
    ConfigError,
    GroupNotFound,
    IllegalName,
    OutcomeUnknown,
    TopicNotFound,
)
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import RequestCode
from ferromq.protocol.endpoints import parse_endpoints, parse_name_servers
from ferromq.protocol.route import MASTER
from ferromq.terminal.objects import Shown

if TYPE_CHECKING:
    from ferromq.admin.lone_brokers import LoneBrokers

__all__ = ["Admin", "MessageType"]

P = ParamSpec("P")
T = TypeVar("T")
_QUEUES = 8


def _bounded(call: Callable[Concatenate["Admin", P], T]) -> Callable[Concatenate["Admin", P], T]:
    """Bound a call, with all its requests, by the administrator's timeout; after a failure, find the cluster anew."""

    @functools.wraps(call)
    def bounded(self: "Admin", /, *arguments: P.args, **options: P.kwargs) -> T:
        with self._calls.bounded():
            try:
                return call(self, *arguments, **options)
            except OutcomeUnknown as error:
                self._forget(error)
                raise

    return bounded


def _check_none_lost(lost: Iterable[Unreachable]) -> None:
    """Raise the failure of a broker that is known by its slaves alone, after a change at the masters."""
    for broker in lost:
        broker.error.add_note("the other brokers are changed; repeat it once that master is back")
        raise broker.error


class Admin(Shown):
    """
    Creates, alters, describes and deletes topics and consumer groups, tells and resets offsets, and finds messages.

    Thread-safe. Use it in a `with`, or call `close`. *namesrv* is `host:port` of a name server, or several joined by
    `;`. The administrator uses the first one that answers, for as long as it answers. *endpoint*, in place of it, is
    the gRPC address of a ferromq broker, or of several: the first one that answers names its name servers. Brokers
    without name servers are administered directly, and all of them must be given.

    *tls* is as of `Producer`, and holds for all connections: with name servers and brokers over remoting, and with
    *endpoint* over gRPC. True trusts the file of certificates that Python's `ssl` finds on the system.

    Requests are signed with *access_key* and *secret_key*, as of `Producer`.

    Topics and groups are in *namespace*, and are named without it. A `StoredMessage` is as it is stored: its topic has
    the whole name.

    Each call ends within *timeout* (float: seconds), however many servers it asks. It raises `RequestTimeout` if a
    server does not answer, or no time is left to ask it. Changes made by then stay.

    The brokers of a call are those that are registered with the name servers. One that has left them, as it was stopped
    or killed, is not asked: results and changes are without its part, and `unreachable` does not name it. `cluster`
    returns those that are registered.

    Connections are made when they are needed, and stay open until `close`. Raises `ConfigError` for an address that is
    not `host:port`, and without one of *namesrv* and *endpoint*. Calls raise `Unsupported` if the server at *endpoint*
    is not a ferromq broker; give the name servers then.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        endpoint: str | None = None,
        timeout: timedelta | float = 10.0,
        tls: bool | TlsFile | Tls = False,
        namespace: str = "",
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        if (namesrv is None) == (endpoint is None):
            raise ConfigError(
                f"an administrator needs {'one of' if namesrv is None else 'only one of'} two addresses: the name "
                "servers, Admin('HOST:9876'), or a ferromq broker, Admin(endpoint='HOST:8081')"
            )
        self._calls = Calls(timeout, tls=tls, credentials=credentials_of(access_key, secret_key))
        naming.check_namespace(namespace)
        self._tls = tls
        self._namespace = namespace
        self._endpoints = None if endpoint is None else parse_endpoints(endpoint)
        self._known: NameServers | LoneBrokers | None = None
        if namesrv is not None:
            self._known = NameServers(parse_name_servers(namesrv), self._calls)

    @property
    def _cluster(self) -> "NameServers | LoneBrokers":
        """The servers that know the cluster."""
        known = self._known
        if known is None:
            from ferromq.admin.discovery import discover  # noqa: PLC0415 (it imports gRPC, which others do without)

            assert self._endpoints is not None
            known = self._known = discover(self._endpoints, self._calls, self._tls)
        return known

    def _forget(self, error: OutcomeUnknown) -> None:
        """Find the cluster anew in the next call, if an endpoint told it, and note where its addresses come from."""
        if self._endpoints is not None and self._known is not None:
            error.add_note(f"the broker at {';'.join(self._endpoints)} told {self._known.told}")
            self._known = None

    @_bounded
    def topics(self, *, system: bool = True) -> list[str]:
        """
        Return the names of all topics, sorted; with a namespace, those of its topics.

        Without *system*, RocketMQ's own topics, retries and dead letters are left out.
        """
        topics = self._cluster.topics()
        if not system:
            topics = inventory.without_system(self._calls, self._cluster.brokers(None), topics)
        if not self._namespace:
            return sorted(topics)
        names = {topic: naming.without_namespace(self._namespace, topic) for topic in topics}
        return sorted(name for topic, name in names.items() if name != topic)

    @_bounded
    def describe_topic(self, name: str) -> TopicDescription:
        """
        Return a topic's settings on each broker, the offsets and times of its queues, and the groups that read it.

        Brokers that do not answer are `unreachable` in the result. Raises `TopicNotFound`.
        """
        whole = self._whole_topic(name)
        return inventory.topic(self._calls, self._cluster.brokers_of(whole), whole, self._namespace)

    @_bounded
    def create_topic(
        self,
        name: str,
        queues: int | None = None,
        *,
        message_type: MessageType | None = None,
        cluster: str | None = None,
    ) -> None:
        """
        Create a topic on every master of a cluster.

        *queues*: on each broker; default 8. *message_type*: the type of messages that the topic takes, if the broker
        checks types; by default the first message decides. If a master already has the topic, the defaults are that
        topic's values. *cluster* is needed only if the name servers know several.

        An existing topic with the given settings stays as it is; a topic without a message type gets the given one.
        Call it again to finish a creation that failed halfway.

        Raises `AlreadyExists` if the topic has another number of queues or another message type (use `alter_topic`),
        `ConfigError` if several clusters are known and none is given, `IllegalName`, and `RequestError` if a broker
        refuses.
        """
        name = self._whole_topic(name)
        if naming.is_system_topic(name):
            raise IllegalName(f"{name} is a system topic; choose another name")
        kind = checked_type(message_type)
        check_queues(queues)
        masters, lost = self._cluster.masters_and_lost(cluster)
        found = {master: self._calls.topic(master, name) for master in masters}
        for master, topic in found.items():
            if topic is not None:
                given = {"queues": queues, "message_type": kind}
                settings = decoded(master, "the settings of a topic", functools.partial(shown_topic, topic))
                compare("topic", name, master, present=settings, given=given)
        present = [topic for topic in found.values() if topic is not None]
        kind_there = next(filter(None, map(type_of, present)), None)
        model = present[0] if present else new_topic(name, queues or _QUEUES)
        if kind is not None:
            self._calls.check_types(masters)
        for master, topic in found.items():
            if topic is None:
                self._put_topic(master, model, kind or (kind_there if self._calls.keeps_types(master) else None))
            elif kind is not None and type_of(topic) is None:
                self._put_topic(master, topic, kind)
        _check_none_lost(lost)

    @_bounded
    def alter_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        message_type: MessageType | None = None,
        permission: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """
        Change the given settings of a topic on every master of a cluster that has it.

        With fewer *queues* than before, consumers no longer read the messages in the removed queues. *permission* is
        `rw`, `r`, `w` or `none`: what clients may do with the topic. Raises `TopicNotFound`, `ConfigError` if several
        clusters are known and none is given, and `RequestError` if a broker refuses.
        """
        name = self._whole_topic(name)
        kind = checked_type(message_type)
        check_queues(queues)
        if queues is None and kind is None and permission is None:
            raise ValueError("nothing to alter; give queues, message_type or permission")
        bits = None if permission is None else permission_bits(permission)
        masters, lost = self._cluster.masters_and_lost(cluster)
        found = {master: self._calls.topic(master, name) for master in masters}
        if not any(found.values()):
            raise TopicNotFound(f"there is no topic {name}; create_topic({name!r}) creates it")
        if kind is not None:
            self._calls.check_types(masters)
        for master, topic in found.items():
            if topic is not None:
                changed = {"readQueueNums": queues, "writeQueueNums": queues} if queues else {}
                changed |= {} if bits is None else {"perm": bits}
                self._put_topic(master, {**topic, **changed}, kind)
        _check_none_lost(lost)

    @_bounded
    def delete_topic(self, name: str, *, cluster: str | None = None) -> None:
        """
        Delete a topic and its messages on every master of a cluster, and its route on every name server.

        Consumer groups lose their offsets in the topic. If a client still uses the topic, a broker that creates topics
        on first use creates it again; queue offsets then continue. Call it again to finish a deletion that failed
        halfway.

        Raises `TopicNotFound` if no broker and no name server knows the topic, `ConfigError` if several clusters are
        known and none is given, `IllegalName`, and `RequestError` if a broker refuses.
        """
        name = self._whole_topic(name)
        masters, lost = self._cluster.masters_and_lost(cluster)
        # Each name server has a table of its own, and one may still hold the rest of a failed deletion.
        if not any(self._calls.topic(master, name) for master in masters):
            self._cluster.check_routed(name, cluster)
        for master in masters:
            self._calls.ask(master, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
        # The brokers no longer register it.
        self._cluster.forget_topic(name, cluster)
        _check_none_lost(lost)

    @_bounded
    def order_configurations(self) -> dict[str, dict[str, int]]:
        """Return the order configurations: for each topic, the queues of each broker that hold its message groups."""
        return self._cluster.order_configurations()

    @_bounded
    def take_out_broker(self, name: str, *, force: bool = False) -> list[str]:
        """
        Remove a broker that will not come back from every order configuration, and return the topics that had it.

        The message groups of such a topic are then spread over fewer queues, and groups on other brokers may move too:
        let consumers finish the present messages first. Readers of whole topics no longer report the broker as missing.

        The change is made at every name server. Raises `RequestError` before any change if the broker is registered
        with one of them. Raises the first failure if a name server is not reached: call it again then. Raises
        `ConfigError` for a broker that no table of a name server has; one that was removed before has no topics.

        Name servers without a `kv_config_path` lose their tables at a restart. *force* marks the broker as removed
        although no table has it.
        """
        return self._cluster.take_out_broker(name, force=force)

    @_bounded
    def clean(self, *, cluster: str | None = None) -> None:
        """
        Delete the expired files of the store on every master of a cluster, at any hour of the day.

        Raises `ConfigError` if several clusters are known and none is given.
        """
        masters, lost = self._cluster.masters_and_lost(cluster)
        for master in masters:
            self._calls.ask(master, RequestCode.DELETE_EXPIRED_COMMITLOG, {})
        _check_none_lost(lost)

    @_bounded
    def clean_unused_queues(self, *, cluster: str | None = None) -> None:
        """
        Delete the queues of unknown topics on every master of a cluster.

        A broker has such queues if a topic was deleted while the broker was away. Raises `ConfigError` if several
        clusters are known and none is given.
        """
        masters, lost = self._cluster.masters_and_lost(cluster)
        for master in masters:
            self._calls.ask(master, RequestCode.CLEAN_UNUSED_TOPIC, {})
        _check_none_lost(lost)

    @_bounded
    def cluster(self, name: str | None = None, *, figures: bool = True) -> list[BrokerStatus]:
        """
        Return all brokers of the cluster *name*, or of all clusters, with version, rates and disk.

        A broker that does not answer is in the result with its `error`. Without *figures* no broker is asked: the
        result has names and addresses alone.
        """
        known = self._cluster.brokers(name)
        return inventory.cluster(self._calls, known) if figures else known

    @_bounded
    def broker_config(self, broker: str) -> dict[str, str]:
        """Return the options of a running broker, given by its name (the master) or address, by name."""
        address = inventory.found_broker(self._cluster.brokers(None), broker)
        return inventory.configuration(self._calls, address, RequestCode.GET_BROKER_CONFIG)

    @_bounded
    def _options_at(self, address: str) -> dict[str, str]:
        """Return the options of the broker at an address, without a look whether it is registered."""
        return inventory.configuration(self._calls, address, RequestCode.GET_BROKER_CONFIG)

    @_bounded
    def configure_broker(self, broker: str, options: Mapping[str, str]) -> None:
        """
        Change options of a running broker, given by its name (the master) or address; all of them or none.

        Names are RocketMQ's, or ferromq's. Raises `ConfigError` for an unknown broker, and `RequestError` for an option
        that the broker does not know or does not change while it runs.
        """
        inventory.check_options(options)
        address = inventory.found_broker(self._cluster.brokers(None), broker)
        inventory.configure(self._calls, address, RequestCode.UPDATE_BROKER_CONFIG, options)

    @_bounded
    def drain_broker(self, broker: str, *, quiet: timedelta | float = 30.0, timeout: timedelta | float = 60.0) -> None:
        """
        Begin to drain a broker, given by its name (the master) or address; then it stops by itself.

        The broker tells senders and name servers that it takes no new messages, though it does until it stops. It stops
        when no send has come for *quiet* (float: seconds), or after *timeout*. Ordered messages do not count, as their
        senders wait for the broker. A second call gives new times, counted from then.

        Raises `ConfigError` for an unknown broker, `Forbidden` if the broker refuses, and `Unsupported` for a broker of
        RocketMQ.
        """
        times = {"quietMs": f"{seconds(quiet) * 1000:.0f}", "timeoutMs": f"{seconds(timeout) * 1000:.0f}"}
        self._change_state(broker, "draining", times)

    @_bounded
    def resume_broker(self, broker: str) -> None:
        """End the drain of a broker: senders come back. Raises what `drain_broker` raises."""
        self._change_state(broker, "serving", {})

    @_bounded
    def stop_broker(self, broker: str) -> None:
        """Stop a broker at once, as SIGTERM without a drain does. Raises what `drain_broker` raises."""
        self._change_state(broker, "stopped", {})

    @_bounded
    def retire_broker(
        self, broker: str, *, quiet: timedelta | float = 30.0, force: bool = False, stop: bool = False
    ) -> Retirement:
        """
        Take a broker, given by its name (the master) or address, out of its cluster for good, and return what is left.

        Senders leave it, and consumers empty it. An ordered topic leaves the broker once all groups that are known to
        read it have acknowledged its messages there; its message groups then move to other brokers. The call does not
        wait: repeat it until `is_retired`. That is when nothing is left, and no message without order was sent for
        *quiet* (float: seconds). Then the broker leaves the name servers, and with *stop* it stops. `resume_broker`
        brings senders back before that.

        A broker that is restarted takes messages again, until the next call.

        Raises `RequestError` if no other broker takes messages of one of its topics, unless *force* is given, if it
        has slaves, and if it is away; `ConfigError` without a name server; and what `drain_broker` raises.
        """
        servers = self._cluster
        if not isinstance(servers, NameServers):
            raise ConfigError(
                f"{servers} registers with no name server, so no broker takes its place; use drain_broker"
            )
        return retiring.retire(self._calls, servers, broker, quiet=seconds(quiet), force=force, stop=stop)

    def _change_state(self, broker: str, state: str, times: Mapping[str, str]) -> None:
        address = inventory.found_broker(self._cluster.brokers(None), broker)
        self._calls.ask(address, RequestCode.CHANGE_BROKER_STATE, {"state": state, **times})

    @_bounded
    def export_metadata(
        self, *, cluster: str | None = None, namespaces: Iterable[str] = (), offsets: bool = False
    ) -> Metadata:
        """
        Return what a cluster knows beside its messages: `Metadata.to_json` makes a file of it.

        It has topics, consumer groups, order configurations, options that can change at run time, users without their
        secret keys, and policies; with *offsets* also committed offsets. Name servers do not list the namespaces of
        their key-value table: *namespaces* names those of yours. All names are whole. Every master must answer.
        """
        found = metadata_transfer.Cluster.of(self._calls, self._cluster, cluster)
        return metadata_transfer.export(found, namespaces, offsets=offsets)

    def import_metadata(
        self,
        metadata: Metadata,
        *,
        cluster: str | None = None,
        dry_run: bool = False,
        offsets: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Import:
        """
        Make a cluster have what *metadata* has, and return what was changed; with *dry_run*, what would be.

        Nothing is deleted, and what is equal stays: a second call changes nothing. A change that fails has its `error`
        in the result, and the others go on. A user that is missing needs a secret key, so it is only named. Offsets
        are numbers of one broker's queues: they are left alone unless *offsets* is given, and are right only for the
        same messages.

        Every master must answer at the beginning. *timeout* bounds each request. *on_progress*(done, total) is called
        with numbers of entries, on the thread of the call.
        """
        with self._calls.bounded():
            found = metadata_transfer.Cluster.of(self._calls, self._cluster, cluster)
        importing = metadata_transfer.Importing(found, metadata, dry_run=dry_run, on_progress=on_progress)
        return importing.run(offsets=offsets)

    @_bounded
    def reload_broker(self, broker: str) -> ReloadedConfig:
        """
        Let a broker, given by its name (the master) or address, read its configuration file again.

        Returns which options changed, and which need a restart. Raises `RequestError` if the file is wrong or cannot be
        read, and nothing changed then, `ConfigError` for an unknown broker, and `Unsupported` for one of RocketMQ.
        """
        return inventory.reload(self._calls, inventory.found_broker(self._cluster.brokers(None), broker))

    @_bounded
    def reload_name_servers(self) -> dict[str, ReloadedConfig]:
        """
        Let every name server read its configuration file again, one after the other; returns the result by address.

        Raises what `reload_broker` raises, and `ConfigError` without a name server.
        """
        return {address: inventory.reload(self._calls, address) for address in self._cluster.name_servers()}

    @_bounded
    def name_server_config(self) -> dict[str, dict[str, str]]:
        """Return the options of each running name server, by address. Raises `ConfigError` without a name server."""
        return {
            address: inventory.configuration(self._calls, address, RequestCode.GET_NAMESRV_CONFIG)
            for address in self._cluster.name_servers()
        }

    @_bounded
    def configure_name_servers(self, options: Mapping[str, str]) -> None:
        """
        Change options of every running name server; of all or of none.

        All must answer before the first change. If one refuses, the options of those before it get their old values.

        Raises `ConfigError` without a name server, and `RequestError` for an option that one does not know or does not
        change while it runs. After an `OutcomeUnknown` a note tells which ones have changed: call it again.
        """
        inventory.check_options(options)
        inventory.configure_name_servers(self._calls, self._cluster.name_servers(), options)

    @_bounded
    def groups(
        self, *, system: bool = True, cluster: str | None = None, unreachable: list[Unreachable] | None = None
    ) -> list[str]:
        """
        Return the names of all consumer groups, sorted; with a namespace, those of its groups.

        Without *system*, RocketMQ's own groups are left out. Every master must answer, or those that do not are added
        to *unreachable*. Raises `ConfigError` if several clusters are known and
        none is given.
        """
        masters, lost = self._cluster.masters_and_lost(cluster)
        names = inventory.groups(self._calls, masters, unreachable)
        inventory.note(lost, unreachable)
        return sorted(
            naming.without_namespace(self._namespace, name)
            for name in names
            if (system or not naming.is_system_group(name))
            and (not self._namespace or naming.without_namespace(self._namespace, name) != name)
        )

    @_bounded
    def describe_group(self, name: str, *, cluster: str | None = None) -> GroupDescription:
        """
        Return a consumer group's settings, and the subscriptions and connections of its members.

        Brokers that do not answer are `unreachable` in the result. Raises `GroupNotFound`, and `ConfigError` if several
        clusters are known and none is given.
        """
        whole, (masters, lost) = self._whole_group(name), self._cluster.masters_and_lost(cluster)
        found = inventory.group(self._calls, masters, whole, self._namespace)
        return replace(found, unreachable=found.unreachable + lost)

    @_bounded
    def members(
        self, group: str, *, cluster: str | None = None, unreachable: list[Unreachable] | None = None
    ) -> list[Member]:
        """
        Return the connected clients of a consumer group, by id; none if it is unknown or its consumers are away.

        Every master must answer, or those that do not are added to *unreachable*. Raises `ConfigError` if several
        clusters are known and none is given.
        """
        masters, lost = self._cluster.masters_and_lost(cluster)
        found = inventory.members(self._calls, masters, self._whole_group(group), unreachable)
        inventory.note(lost, unreachable)
        return found

    @_bounded
    def lag(self, group: str, *, topic: str | None = None, cluster: str | None = None) -> GroupLag:
        """
        Return how far a consumer group is, in messages and in seconds, in *topic* or in all topics that it has read.

        If the group has members, only their subscribed topics count. Brokers that do not answer, or of which only a
        slave is registered, are `unreachable` in the result. Raises `GroupNotFound`, `TopicNotFound`, and `ConfigError`
        if several clusters are known and none is given.
        """
        whole, (masters, lost) = self._whole_group(group), self._cluster.masters_and_lost(cluster)
        of_topic = None if topic is None else self._whole_topic(topic)
        found = progress.lag(self._calls, masters, whole, of_topic, self._namespace)
        found = replace(found, unreachable=found.unreachable + lost)
        if not found.queues and not found.unreachable:
            progress.check_known(whole, is_known=whole in inventory.groups(self._calls, masters))
            if of_topic is not None:
                list(self._cluster.brokers_of(of_topic))  # raises without a broker
        return found

    @_bounded
    def lags(self, *, cluster: str | None = None) -> list[GroupLag]:
        """
        Return the lag of every consumer group in messages, by one request to each broker; `lag` has the seconds, too.

        It counts from committed offsets, and so messages that retention deleted, too. Brokers that do not answer, or of
        which only a slave is registered, are `unreachable` in each result; if the others know no group, their failure
        is raised. Raises `ConfigError` if several clusters are known and none is given.
        """
        masters, lost = self._cluster.masters_and_lost(cluster)
        return progress.lags(self._calls, masters, lost, self._namespace)

    @_bounded
    def reset_offsets(
        self,
        group: str,
        topic: str,
        to: ResetTo | None = None,
        *,
        offset: int | None = None,
        queue_id: int | None = None,
        broker: str | None = None,
        dry_run: bool = False,
        cluster: str | None = None,
    ) -> list[QueueReset]:
        """
        Move a consumer group in a topic, and return from where to where in each queue.

        *to*: `"begin"`, `"end"`, or a time: the first message stored then or later. *offset*, in place of it, is an
        offset of the queue *queue_id*. *queue_id* moves the group in that queue only, on every broker or on *broker*, a
        broker's name or address. With *dry_run* nothing is moved.

        Every broker must answer before the first one moves the group. If one fails then, the error has a note that
        names what was moved: call it again to finish. Members go on at the new offsets.

        Raises `GroupNotFound`, `TopicNotFound`, `ValueError` unless one of *to* and *offset* is given, `ConfigError`
        for an offset that the queue does not have and if several clusters are known and none is given, and
        `Unsupported` for one queue of a broker before RocketMQ 5.
        """
        if queue_id is not None:
            whole_number("queue_id", queue_id, 0)
        if offset is not None:
            whole_number("offset", offset, 0)
        target = progress.Target(to, offset, queue_id)
        whole, masters = self._whole_group(group), self._masters_to_move(cluster, broker)
        chosen = masters if broker is None else [inventory.found_broker(self._cluster.brokers(cluster), broker)]
        progress.check_known(whole, is_known=whole in inventory.groups(self._calls, masters))
        plan = progress.plan(self._calls, chosen, whole, self._whole_topic(topic), target)
        moved = plan.queues if dry_run else progress.apply(self._calls, whole, [plan])
        return [replace(queue, topic=topic) for queue in moved]

    def _masters_to_move(self, cluster: str | None, broker: str | None = None) -> list[str]:
        """Return the masters. Raises the failure of a broker without one, unless one *broker* alone is meant."""
        masters, lost = self._cluster.masters_and_lost(cluster)
        if lost and broker is None:
            raise lost[0].error
        return masters

    @_bounded
    def skip_backlog(
        self,
        group: str,
        *,
        topic: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        cluster: str | None = None,
    ) -> list[QueueReset]:
        """
        Move a consumer group to the end of *topic*, or of all topics that it has read, its retries included.

        A member that consumes one of the topics may hold messages that it then still handles, so its group is moved
        only with *force*. Every broker must answer for each topic before the group is moved in the first one.

        Returns what `reset_offsets` does, and raises what that does; `RequestError` if the group has such members. With
        *dry_run* nothing is moved, and members are no error.
        """
        whole, masters = self._whole_group(group), self._masters_to_move(cluster)
        progress.check_known(whole, is_known=whole in inventory.groups(self._calls, masters))
        names = [self._whole_topic(topic)] if topic else progress.topics_of(self._calls, masters, whole)
        target = progress.Target("end", None, None)
        plans = []
        for name in names:
            try:
                plans.append(progress.plan(self._calls, masters, whole, name, target))
            except TopicNotFound:
                if topic:
                    raise
                # A topic that was deleted has no backlog.
        if not dry_run and not force:
            inventory.check_unused(self._calls, masters, whole, names)
        moved = [queue for plan in plans for queue in plan.queues]
        if not dry_run:
            moved = progress.apply(self._calls, whole, plans)
        return [replace(queue, topic=naming.without_namespace(self._namespace, queue.topic)) for queue in moved]

    @_bounded
    def delete_group(self, name: str, *, keep_offsets: bool = False, cluster: str | None = None) -> None:
        """
        Delete a consumer group and its committed offsets on every master of a cluster.

        With *keep_offsets* a new group of the name goes on where this one was. Its dead letters and retries stay, in
        the topics `%DLQ%NAME` and `%RETRY%NAME`. If a consumer still uses the group, a broker that creates groups on
        first use creates it again.

        Raises `GroupNotFound`, `ConfigError` if several clusters are known and none is given, `IllegalName`, and
        `RequestError` if a broker refuses.
        """
        whole, (masters, lost) = self._whole_group(name), self._cluster.masters_and_lost(cluster)
        progress.check_known(whole, is_known=any(self._group(master, whole) for master in masters))
        fields = {"groupName": whole, "cleanOffset": java_text(not keep_offsets)}
        for master in masters:
            self._calls.ask(master, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        _check_none_lost(lost)

    @_bounded
    def create_group(
        self,
        name: str,
        *,
        fifo: bool | None = None,
        retries: int | None = None,
        retry_delays: Sequence[timedelta | float] | None = None,
        cluster: str | None = None,
    ) -> None:
        """
        Create a consumer group on every master of a cluster.

        *fifo*: whether the group consumes each message group in order; default no. *retries*: redeliveries of a failed
        message before it becomes a dead letter; default 16. *retry_delays*: seconds that a gRPC push consumer waits
        after the first failure, the second, and so on; the last delay repeats. The default is RocketMQ's, from 1 s to
        2 h. If a master already has the group, the defaults are that group's values. *cluster* is needed only if the
        name servers know several.

        An existing group with the given settings stays as it is. Call it again to finish a creation that failed
        halfway.

        Raises `AlreadyExists` if the group has other settings (use `alter_group`), `ConfigError` if several clusters
        are known and none is given, `IllegalName`, and `RequestError` if a broker refuses.
        """
        name = self._whole_group(name)
        if naming.is_system_group(name):
            raise IllegalName(f"{name} is a system group; choose another name")
        check_group(fifo, retries)
        given = {"fifo": fifo, "retries": retries, "retry_delays": policy(retry_delays)}
        masters, lost = self._cluster.masters_and_lost(cluster)
        found = {master: self._group(master, name) for master in masters}
        for master, group in found.items():
            if group is not None:
                present = decoded(master, "the settings of a group", functools.partial(shown_group, group))
                compare("consumer group", name, master, present=present, given=given)
        new = group_fields(name, fifo=bool(fifo), retries=16 if retries is None else retries, delays=retry_delays)
        model = next((group for group in found.values() if group is not None), new)
        for master, group in found.items():
            if group is None:
                self._put_group(master, model)
        _check_none_lost(lost)

    @_bounded
    def alter_group(
        self,
        name: str,
        *,
        fifo: bool | None = None,
        retries: int | None = None,
        retry_delays: Sequence[timedelta | float] | None = None,
        cluster: str | None = None,
    ) -> None:
        """
        Change the given settings of a consumer group on every master of a cluster that has it.

        Raises `GroupNotFound`, `ConfigError` if several clusters are known and none is given, and `RequestError` if a
        broker refuses.
        """
        name = self._whole_group(name)
        fields = group_fields(name, fifo=fifo, retries=retries, delays=retry_delays)
        if fields.keys() == {"groupName"}:
            raise ValueError("nothing to alter; give fifo, retries or retry_delays")
        masters, lost = self._cluster.masters_and_lost(cluster)
        found = {master: self._group(master, name) for master in masters}
        if not any(found.values()):
            raise GroupNotFound(f"there is no consumer group {name}; create_group({name!r}) creates it")
        for master, group in found.items():
            if group is not None:
                self._put_group(master, {**group, **fields})
        _check_none_lost(lost)

    @_bounded
    def query_by_key(
        self, topic: str, key: str, max_messages: int = 32, *, unreachable: list[Unreachable] | None = None
    ) -> list[StoredMessage]:
        """
        Return up to *max_messages* messages of *topic* that were sent with *key*, newest first.

        Each broker answers with at most 4 MiB, or one message. Every broker must answer, or those that do not are added
        to *unreachable*.
        """
        whole_number("max_messages", max_messages, 1)
        whole = naming.in_namespace(self._namespace, topic)
        found, lost = messages.query(self._calls, self._cluster.brokers_of(whole), whole, key, max_messages)
        inventory.note(lost, unreachable)
        return found

    @_bounded
    def query_by_id(
        self, topic: str, message_id: str, *, unreachable: list[Unreachable] | None = None
    ) -> StoredMessage | None:
        """
        Return the message with this id, if it is stored.

        Takes the id in a producer's receipt, or RocketMQ's offset message id, which holds an address and an offset.
        Every broker must answer, or those that do not are added to *unreachable*. Raises `ConnectionFailed` for an
        address that is not the one of a registered broker: only those are asked.
        """
        whole = naming.in_namespace(self._namespace, topic)
        brokers = self._cluster.brokers_of(whole)
        found, lost = messages.by_id(self._calls, brokers, whole, message_id, datetime.now(UTC))
        inventory.note(lost, unreachable)
        return self._located(whole, message_id)[1] if found is None else found

    @_bounded
    def query_by_offset(
        self, topic: str, queue_id: int, offset: int, max_messages: int = 1, *, broker: str | None = None
    ) -> list[StoredMessage]:
        """
        Return up to *max_messages* messages of a queue from *offset* on, or from the first one that is kept.

        *broker*, a name or address, is needed only if several brokers have the queue. It takes no lease and commits
        nothing. Raises `TopicNotFound` if no broker has the queue, and `ConfigError` if several have it.
        """
        for name, value, least in (("queue_id", queue_id, 0), ("offset", offset, 0), ("max_messages", max_messages, 1)):
            whole_number(name, value, least)
        whole = naming.in_namespace(self._namespace, topic)
        brokers = list(self._cluster.brokers_of(whole))
        if broker is not None:
            brokers = [inventory.found_broker(self._cluster.brokers(None), broker)]
        return messages.by_place(self._calls, brokers, whole, queue_id, offset=offset, count=max_messages)

    @_bounded
    def browse(
        self,
        topic: str,
        *,
        since: datetime | int | None = None,
        newest_first: bool = True,
        unreachable: list[Unreachable] | None = None,
    ) -> Iterator[StoredMessage]:
        """
        Return an iterator over the messages of a topic that are stored now, in the order of store times.

        *since*, an aware time or milliseconds since 1970: only messages stored then or later. It reads a page of each
        queue when it needs one, so a loop that ends early reads a few of many; *timeout* bounds each page. It takes no
        lease and commits nothing. Every broker must answer at the start, or those that do not are added to
        *unreachable*. Raises `TopicNotFound`.
        """
        whole = naming.in_namespace(self._namespace, topic)
        brokers = self._masters() if naming.is_system_topic(whole) else self._cluster.brokers_of(whole)
        begin = None if since is None else milliseconds(since)
        found = browsed(self._calls, brokers, whole, begin, newest_first=newest_first, unreachable=unreachable)
        return (message for _, message in found)

    @_bounded
    def waiting_transactions(self, max_messages: int = 1000) -> WaitingTransactions:
        """
        Return the half messages whose transactions have not ended, of each broker up to *max_messages*, newest first.

        Bodies of one broker's half messages are 16 MiB at most, or one body; older ones are then left out.

        Brokers that do not answer are `unreachable` in the result. With a namespace, topics are named without it.
        """
        whole_number("max_messages", max_messages, 1)
        return waiting.transactions(self._calls, self._masters(), self._namespace, max_messages)

    @_bounded
    def delayed_messages(self) -> DelayedMessages:
        """
        Return how many messages wait for their delivery, by topic and by delay level.

        Brokers that do not answer are `unreachable` in the result.
        """
        return waiting.delayed(self._calls, self._masters(), self._namespace)

    @_bounded
    def producers(self, *, unreachable: list[Unreachable] | None = None) -> dict[str, list[Member]]:
        """
        Return the connected producers by producer group; brokers know those that told a group.

        Every master must answer, or those that do not are added to *unreachable*.
        """
        return inventory.producers(self._calls, self._masters(), unreachable)

    @_bounded
    def explain(
        self, topic: str, message_id: str, *, unreachable: list[Unreachable] | None = None
    ) -> Explanation | None:
        """
        Return where a message is stored, and what became of it in each group of *topic*; None: no broker has it.

        Takes the ids that `query_by_id` takes. Every broker of the topic must answer, or those that do not are added to
        *unreachable*. Raises `TopicNotFound`.
        """
        whole = naming.in_namespace(self._namespace, topic)
        brokers = self._cluster.brokers_of(whole)
        found, lost = explanations.explain(self._calls, brokers, whole, message_id, self._namespace)
        inventory.note(lost, unreachable)
        if found is not None:
            return found
        address, message = self._located(whole, message_id)
        return None if message is None else explanations.of_copy(self._calls, address, message, self._namespace)

    @_bounded
    def trace(
        self,
        message_id: str,
        *,
        topic: str = naming.TRACE_TOPIC,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
    ) -> MessageTrace:
        """
        Return what RocketMQ's clients traced of a message: sends, consumptions, ends of its transaction and recalls.

        Remoting clients write traces with `enableMsgTrace`, some seconds later; gRPC clients write none. *message_id*
        is the one in the producer's receipt, *topic* the trace topic, which is in no namespace. *since* and *until*,
        aware times or milliseconds since 1970, narrow the search to traces that were stored between them.

        Brokers that do not answer are `unreachable` in the result. Raises `TopicNotFound` if no broker has the trace
        topic: no client wrote a trace, and no broker creates it at its start (`trace_topic`, RocketMQ's
        `traceTopicEnable`).
        """
        begin = 0 if since is None else milliseconds(since)
        end = traces.END_OF_TIME if until is None else milliseconds(until)
        if end < begin:
            raise ConfigError(f"until={until} is before since={since}: give the later time as until")
        try:
            brokers = list(self._cluster.brokers_of(topic))
        except TopicNotFound as error:
            raise TopicNotFound(
                f"no broker has the trace topic {topic}: no client wrote a trace, or brokers do not create the topic. "
                "Set enableMsgTrace in the clients, and trace_topic (RocketMQ: traceTopicEnable=true) at the brokers; "
                "clients with a trace topic of their own need its name here"
            ) from error
        return traces.trace(self._calls, brokers, traces.Search(topic, message_id, begin, end))

    @_bounded
    def dead_letters(
        self, group: str, *, newest_first: bool = True, unreachable: list[Unreachable] | None = None
    ) -> Iterator[DeadLetter]:
        """
        Return an iterator over the dead letters of a consumer group that are stored now, in the order of store times.

        It reads a page of each queue when it needs one, so a loop that ends early reads a few of many; *timeout* bounds
        each page. It takes no lease and commits nothing. A group without dead letters, or an unknown group, has none.
        Every broker must answer at the start, or those that do not are added to *unreachable*.
        """
        whole = self._whole_group(group)
        try:
            brokers = list(self._cluster.brokers_of(naming.DLQ_PREFIX + whole))
        except TopicNotFound:  # the first dead letter creates the topic
            return iter(())
        return listed(self._calls, brokers, group, self._namespace, newest_first=newest_first, unreachable=unreachable)

    def resend_dead_letters(self, letters: Iterable[DeadLetter], *, topic: str | None = None) -> list[ResentLetter]:
        """
        Send each of *letters* once, to the topic it came from or to *topic*, and return what became of each.

        A letter that is given twice is sent once. The message keeps body, keys, tag, message id, message group and its
        properties, without those of the dead letter; every group of the topic receives it. The letter stays in the dead
        letters until its broker deletes it, so a second call sends it again. A refusal is the `error` of its result,
        and the others go on. Behind a letter whose server does not answer, no more is sent: each further result
        `is_skipped`. *timeout* bounds each letter. Nothing is repeated.
        """
        wanted = list(letters)
        with self._calls.bounded():
            queues_of = self._cluster.writable_queues
        return send_again(self._calls, queues_of, wanted, topic, self._namespace)

    def _located(self, topic: str, message_id: str) -> tuple[str, StoredMessage | None]:
        """Return the message at the place in an offset message id, and its broker; None for another kind of id."""
        location = messages.location(message_id)
        if location is None:
            return "", None
        known = [broker.address for broker in self._cluster.brokers(None)]
        address = messages.registered(location, known, str(self._cluster))
        return address, messages.at(self._calls, address, topic, location.offset)

    def _masters(self) -> list[str]:
        return [broker.address for broker in self._cluster.brokers(None) if broker.broker_id == MASTER]

    def _whole_topic(self, name: str) -> str:
        naming.check_topic(name, self._namespace)
        return naming.in_namespace(self._namespace, name)

    def _whole_group(self, name: str) -> str:
        naming.check_group(name, self._namespace)
        return naming.in_namespace(self._namespace, name)

    def _put_topic(self, master: str, topic: Mapping[str, Any], kind: str | None) -> None:
        def read() -> dict[str, str]:
            fields = {name: java_text(topic[name]) for name in TOPIC_FIELDS if topic.get(name) is not None}
            return fields | {"topic": str(topic["topicName"]), "defaultTopic": naming.AUTO_CREATE_TOPIC}

        fields = decoded(master, "the settings of a topic", read)
        if kind is not None:
            fields["attributes"] = f"+{MESSAGE_TYPE}={kind}"
        self._calls.ask(master, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    def _group(self, master: str, name: str) -> Mapping[str, Any] | None:
        """Return one broker's settings of a consumer group. A request for one group might create it on first use."""
        return inventory.groups_at(Ask(self._calls, master, 1)).get(name)

    def _put_group(self, master: str, group: Mapping[str, Any]) -> None:
        # A request takes changes of attributes, not their values.
        fields = {name: value for name, value in group.items() if name != "attributes"}
        self._calls.ask(master, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body=java_json.dumps(fields))

    @_bounded
    def users(self, name: str | None = None, *, broker: str | None = None, cluster: str | None = None) -> list[User]:
        """
        Return all users, or one, sorted; a user whose settings differ between brokers is there for each of them.

        Each broker and each name server has users of its own. All methods about users and policies ask every broker of
        the cluster, or only *broker*: a master's name, an address, or the address of a name server, as it is known
        here. Each must answer; call a change that failed halfway again. Names in policies are whole, with the
        namespace. Raises `UserNotFound`, `Forbidden`, and `ServerError` where access control is off.
        """
        return access.users(self._calls, self._brokers_with_users(broker, cluster), name)

    @_bounded
    def create_user(
        self,
        name: str,
        secret_key: str,
        *,
        super_user: bool = False,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """
        Create a user. Brokers that have it from a creation that failed halfway get the same secret key.

        Raises `AlreadyExists` if all brokers have it, or one has it with other settings, and as `users`.
        """
        kind = "Super" if super_user else "Normal"
        access.create_user(self._calls, self._brokers_with_users(broker, cluster), name, secret_key, kind)

    @_bounded
    def update_user(
        self,
        name: str,
        *,
        secret_key: str | None = None,
        super_user: bool | None = None,
        enabled: bool | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Change the given settings of a user on the brokers that have it. Raises as `users`."""
        kind = None if super_user is None else "Super" if super_user else "Normal"
        brokers = self._brokers_with_users(broker, cluster)
        access.update_user(self._calls, brokers, name, secret_key=secret_key, kind=kind, enabled=enabled)

    @_bounded
    def delete_user(self, name: str, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Delete a user with its policies. Raises as `users`."""
        access.delete_user(self._calls, self._brokers_with_users(broker, cluster), name)

    @_bounded
    def acls(
        self, user: str | None = None, *, broker: str | None = None, cluster: str | None = None
    ) -> list[PolicyEntry]:
        """Return the entries of all policies, or of one user's, by user and resource. Raises as `users`."""
        return access.acls(self._calls, self._brokers_with_users(broker, cluster), user)

    @_bounded
    def create_acl(
        self,
        user: str,
        resources: str | Iterable[str],
        actions: str | Iterable[str],
        *,
        allow: bool = True,
        sources: str | Iterable[str] = (),
        policy: str = "Custom",
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """
        Allow a user *actions* on each of *resources*, or deny them; `PolicyEntry` has the words.

        Equal entries stay as they are. Raises `AlreadyExists` for an entry of the resource with other settings,
        `ValueError` for an unknown word, and as `users`.
        """
        entries = access.entries_of(user, resources, actions, allow=allow, sources=sources, policy=policy)
        access.create_acl(self._calls, self._brokers_with_users(broker, cluster), entries)

    @_bounded
    def update_acl(
        self,
        user: str,
        resources: str | Iterable[str],
        actions: str | Iterable[str],
        *,
        allow: bool = True,
        sources: str | Iterable[str] = (),
        policy: str = "Custom",
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """As `create_acl`, in place of the entries for the same resources."""
        entries = access.entries_of(user, resources, actions, allow=allow, sources=sources, policy=policy)
        access.update_acl(self._calls, self._brokers_with_users(broker, cluster), entries)

    @_bounded
    def delete_acl(
        self,
        user: str,
        *,
        resource: str | None = None,
        policy: str | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """
        Delete the entry for *resource* of a user's *policy* (`Custom`), or without both all entries of both policies.

        Raises `PolicyNotFound`, `ValueError` for a policy without a resource, and as `users`.
        """
        if resource is None and policy is not None:
            raise ValueError("policy belongs to one entry; give resource=, or leave out both to delete both policies")
        brokers = self._brokers_with_users(broker, cluster)
        access.delete_acl(self._calls, brokers, user, resource=resource, policy=policy or "Custom")

    def _brokers_with_users(self, broker: str | None, cluster: str | None) -> list[str]:
        """Return the address of one broker or name server, or of all brokers of a cluster, masters first."""
        if isinstance(self._cluster, NameServers) and broker in self._cluster.name_servers():
            return [broker]
        known = self._cluster.brokers(None)
        if broker is not None:
            return [inventory.found_broker(known, broker)]
        masters, _ = masters_and_lost(known, cluster, str(self._cluster))
        names = {each.cluster for each in known if each.address in masters}
        return masters + [each.address for each in known if each.cluster in names and each.address not in masters]

    def close(self, timeout: timedelta | float = 5.0) -> None:
        """
        Take no more calls, wait up to *timeout* (float: seconds) for those under way, and end. Idempotent.

        Calls that take longer raise `ClientClosed` or an `OutcomeUnknown`.
        """
        self._calls.close(timeout)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._calls.is_closed

    @property
    def _state(self) -> str:
        return self._calls.state

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield ("namesrv", self._known) if self._endpoints is None else ("endpoint", ";".join(self._endpoints))
        if self._namespace:
            yield "namespace", self._namespace

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
