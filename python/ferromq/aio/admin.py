# Generated from admin/admin.py by tools/sync_from_async.py: change that file, then run `make sync`.
"""
The administrator for asyncio.

Requests are rare and short, so each call runs on a thread.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from ferromq._ferromq import StoredMessage
from ferromq.admin import Admin as BlockingAdmin
from ferromq.admin.dead_letters import DeadLetter, ResentLetter
from ferromq.admin.explanations import Explanation
from ferromq.admin.metadata import Metadata
from ferromq.admin.progress import ResetTo
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
from ferromq.admin.settings import MessageType
from ferromq.admin.traces import MessageTrace
from ferromq.admin.waiting import DelayedMessages, WaitingTransactions
from ferromq.client.tls import Tls, TlsFile
from ferromq.protocol import naming
from ferromq.terminal.objects import Shown

__all__ = ["Admin"]


class Admin(Shown):
    """
    Creates, alters, describes and deletes topics and consumer groups, tells and resets offsets, and finds messages.

    Each call runs on a thread; one that is cancelled goes on until it ends by itself. Use it in an `async with`, or
    await `close`. *namesrv* is `host:port` of a name server, or several joined by `;`. The administrator uses the first
    one that answers, for as long as it answers. *endpoint*, in place of it, is the gRPC address of a ferromq broker, or
    of several: the first one that answers names its name servers. Brokers without name servers are administered
    directly, and all of them must be given.

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
        self._admin = BlockingAdmin(
            namesrv,
            endpoint=endpoint,
            timeout=timeout,
            tls=tls,
            namespace=namespace,
            access_key=access_key,
            secret_key=secret_key,
        )

    async def topics(self, *, system: bool = True) -> list[str]:
        """
        Return the names of all topics, sorted; with a namespace, those of its topics.

        Without *system*, RocketMQ's own topics, retries and dead letters are left out.
        """
        return await asyncio.to_thread(self._admin.topics, system=system)

    async def describe_topic(self, name: str) -> TopicDescription:
        """
        Return a topic's settings on each broker, the offsets and times of its queues, and the groups that read it.

        Brokers that do not answer are `unreachable` in the result. Raises `TopicNotFound`.
        """
        return await asyncio.to_thread(self._admin.describe_topic, name)

    async def create_topic(
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
        await asyncio.to_thread(self._admin.create_topic, name, queues, message_type=message_type, cluster=cluster)

    async def alter_topic(
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
        await asyncio.to_thread(
            self._admin.alter_topic,
            name,
            queues=queues,
            message_type=message_type,
            permission=permission,
            cluster=cluster,
        )

    async def delete_topic(self, name: str, *, cluster: str | None = None) -> None:
        """
        Delete a topic and its messages on every master of a cluster, and its route on every name server.

        Consumer groups lose their offsets in the topic. If a client still uses the topic, a broker that creates topics
        on first use creates it again; queue offsets then continue. Call it again to finish a deletion that failed
        halfway.

        Raises `TopicNotFound` if no broker and no name server knows the topic, `ConfigError` if several clusters are
        known and none is given, `IllegalName`, and `RequestError` if a broker refuses.
        """
        await asyncio.to_thread(self._admin.delete_topic, name, cluster=cluster)

    async def order_configurations(self) -> dict[str, dict[str, int]]:
        """Return the order configurations: for each topic, the queues of each broker that hold its message groups."""
        return await asyncio.to_thread(self._admin.order_configurations)

    async def take_out_broker(self, name: str, *, force: bool = False) -> list[str]:
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
        return await asyncio.to_thread(self._admin.take_out_broker, name, force=force)

    async def clean(self, *, cluster: str | None = None) -> None:
        """
        Delete the expired files of the store on every master of a cluster, at any hour of the day.

        Raises `ConfigError` if several clusters are known and none is given.
        """
        await asyncio.to_thread(self._admin.clean, cluster=cluster)

    async def clean_unused_queues(self, *, cluster: str | None = None) -> None:
        """
        Delete the queues of unknown topics on every master of a cluster.

        A broker has such queues if a topic was deleted while the broker was away. Raises `ConfigError` if several
        clusters are known and none is given.
        """
        await asyncio.to_thread(self._admin.clean_unused_queues, cluster=cluster)

    async def cluster(self, name: str | None = None, *, figures: bool = True) -> list[BrokerStatus]:
        """
        Return all brokers of the cluster *name*, or of all clusters, with version, rates and disk.

        A broker that does not answer is in the result with its `error`. Without *figures* no broker is asked: the
        result has names and addresses alone.
        """
        return await asyncio.to_thread(self._admin.cluster, name, figures=figures)

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Return the options of a running broker, given by its name (the master) or address, by name."""
        return await asyncio.to_thread(self._admin.broker_config, broker)

    async def configure_broker(self, broker: str, options: Mapping[str, str]) -> None:
        """
        Change options of a running broker, given by its name (the master) or address; all of them or none.

        Names are RocketMQ's, or ferromq's. Raises `ConfigError` for an unknown broker, and `RequestError` for an option
        that the broker does not know or does not change while it runs.
        """
        await asyncio.to_thread(self._admin.configure_broker, broker, options)

    async def drain_broker(
        self, broker: str, *, quiet: timedelta | float = 30.0, timeout: timedelta | float = 60.0
    ) -> None:
        """
        Begin to drain a broker, given by its name (the master) or address; then it stops by itself.

        The broker tells senders and name servers that it takes no new messages, though it does until it stops. It stops
        when no send has come for *quiet* (float: seconds), or after *timeout*. Ordered messages do not count, as their
        senders wait for the broker. A second call gives new times, counted from then.

        Raises `ConfigError` for an unknown broker, `Forbidden` if the broker refuses, and `Unsupported` for a broker of
        RocketMQ.
        """
        await asyncio.to_thread(self._admin.drain_broker, broker, quiet=quiet, timeout=timeout)

    async def resume_broker(self, broker: str) -> None:
        """End the drain of a broker: senders come back. Raises what `drain_broker` raises."""
        await asyncio.to_thread(self._admin.resume_broker, broker)

    async def stop_broker(self, broker: str) -> None:
        """Stop a broker at once, as SIGTERM without a drain does. Raises what `drain_broker` raises."""
        await asyncio.to_thread(self._admin.stop_broker, broker)

    async def retire_broker(
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
        return await asyncio.to_thread(self._admin.retire_broker, broker, quiet=quiet, force=force, stop=stop)

    async def export_metadata(
        self, *, cluster: str | None = None, namespaces: Iterable[str] = (), offsets: bool = False
    ) -> Metadata:
        """
        Return what a cluster knows beside its messages: `Metadata.to_json` makes a file of it.

        It has topics, consumer groups, order configurations, options that can change at run time, users without their
        secret keys, and policies; with *offsets* also committed offsets. Name servers do not list the namespaces of
        their key-value table: *namespaces* names those of yours. All names are whole. Every master must answer.
        """
        return await asyncio.to_thread(
            self._admin.export_metadata, cluster=cluster, namespaces=list(namespaces), offsets=offsets
        )

    async def import_metadata(
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
        with numbers of entries, on a worker thread, not that of the event loop.
        """
        return await asyncio.to_thread(
            self._admin.import_metadata,
            metadata,
            cluster=cluster,
            dry_run=dry_run,
            offsets=offsets,
            on_progress=on_progress,
        )

    async def reload_broker(self, broker: str) -> ReloadedConfig:
        """
        Let a broker, given by its name (the master) or address, read its configuration file again.

        Returns which options changed, and which need a restart. Raises `RequestError` if the file is wrong or cannot be
        read, and nothing changed then, `ConfigError` for an unknown broker, and `Unsupported` for one of RocketMQ.
        """
        return await asyncio.to_thread(self._admin.reload_broker, broker)

    async def reload_name_servers(self) -> dict[str, ReloadedConfig]:
        """
        Let every name server read its configuration file again, one after the other; returns the result by address.

        Raises what `reload_broker` raises, and `ConfigError` without a name server.
        """
        return await asyncio.to_thread(self._admin.reload_name_servers)

    async def name_server_config(self) -> dict[str, dict[str, str]]:
        """Return the options of each running name server, by address. Raises `ConfigError` without a name server."""
        return await asyncio.to_thread(self._admin.name_server_config)

    async def configure_name_servers(self, options: Mapping[str, str]) -> None:
        """
        Change options of every running name server; of all or of none.

        All must answer before the first change. If one refuses, the options of those before it get their old values.

        Raises `ConfigError` without a name server, and `RequestError` for an option that one does not know or does not
        change while it runs. After an `OutcomeUnknown` a note tells which ones have changed: call it again.
        """
        await asyncio.to_thread(self._admin.configure_name_servers, options)

    async def groups(
        self, *, system: bool = True, cluster: str | None = None, unreachable: list[Unreachable] | None = None
    ) -> list[str]:
        """
        Return the names of all consumer groups, sorted; with a namespace, those of its groups.

        Without *system*, RocketMQ's own groups are left out. Every master must answer, or those that do not are added
        to *unreachable*. Raises `ConfigError` if several clusters are known and
        none is given.
        """
        return await asyncio.to_thread(self._admin.groups, system=system, cluster=cluster, unreachable=unreachable)

    async def describe_group(self, name: str, *, cluster: str | None = None) -> GroupDescription:
        """
        Return a consumer group's settings, and the subscriptions and connections of its members.

        Brokers that do not answer are `unreachable` in the result. Raises `GroupNotFound`, and `ConfigError` if several
        clusters are known and none is given.
        """
        return await asyncio.to_thread(self._admin.describe_group, name, cluster=cluster)

    async def members(
        self, group: str, *, cluster: str | None = None, unreachable: list[Unreachable] | None = None
    ) -> list[Member]:
        """
        Return the connected clients of a consumer group, by id; none if it is unknown or its consumers are away.

        Every master must answer, or those that do not are added to *unreachable*. Raises `ConfigError` if several
        clusters are known and none is given.
        """
        return await asyncio.to_thread(self._admin.members, group, cluster=cluster, unreachable=unreachable)

    async def lag(self, group: str, *, topic: str | None = None, cluster: str | None = None) -> GroupLag:
        """
        Return how far a consumer group is, in messages and in seconds, in *topic* or in all topics that it has read.

        If the group has members, only their subscribed topics count. Brokers that do not answer, or of which only a
        slave is registered, are `unreachable` in the result. Raises `GroupNotFound`, `TopicNotFound`, and `ConfigError`
        if several clusters are known and none is given.
        """
        return await asyncio.to_thread(self._admin.lag, group, topic=topic, cluster=cluster)

    async def lags(self, *, cluster: str | None = None) -> list[GroupLag]:
        """
        Return the lag of every consumer group in messages, by one request to each broker; `lag` has the seconds, too.

        It counts from committed offsets, and so messages that retention deleted, too. Brokers that do not answer, or of
        which only a slave is registered, are `unreachable` in each result; if the others know no group, their failure
        is raised. Raises `ConfigError` if several clusters are known and none is given.
        """
        return await asyncio.to_thread(self._admin.lags, cluster=cluster)

    async def reset_offsets(
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
        return await asyncio.to_thread(
            self._admin.reset_offsets,
            group,
            topic,
            to,
            offset=offset,
            queue_id=queue_id,
            broker=broker,
            dry_run=dry_run,
            cluster=cluster,
        )

    async def skip_backlog(
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
        return await asyncio.to_thread(
            self._admin.skip_backlog, group, topic=topic, force=force, dry_run=dry_run, cluster=cluster
        )

    async def delete_group(self, name: str, *, keep_offsets: bool = False, cluster: str | None = None) -> None:
        """
        Delete a consumer group and its committed offsets on every master of a cluster.

        With *keep_offsets* a new group of the name goes on where this one was. Its dead letters and retries stay, in
        the topics `%DLQ%NAME` and `%RETRY%NAME`. If a consumer still uses the group, a broker that creates groups on
        first use creates it again.

        Raises `GroupNotFound`, `ConfigError` if several clusters are known and none is given, `IllegalName`, and
        `RequestError` if a broker refuses.
        """
        await asyncio.to_thread(self._admin.delete_group, name, keep_offsets=keep_offsets, cluster=cluster)

    async def create_group(
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
        await asyncio.to_thread(
            self._admin.create_group, name, fifo=fifo, retries=retries, retry_delays=retry_delays, cluster=cluster
        )

    async def alter_group(
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
        await asyncio.to_thread(
            self._admin.alter_group, name, fifo=fifo, retries=retries, retry_delays=retry_delays, cluster=cluster
        )

    async def query_by_key(
        self, topic: str, key: str, max_messages: int = 32, *, unreachable: list[Unreachable] | None = None
    ) -> list[StoredMessage]:
        """
        Return up to *max_messages* messages of *topic* that were sent with *key*, newest first.

        Each broker answers with at most 4 MiB, or one message. Every broker must answer, or those that do not are added
        to *unreachable*.
        """
        return await asyncio.to_thread(self._admin.query_by_key, topic, key, max_messages, unreachable=unreachable)

    async def query_by_id(
        self, topic: str, message_id: str, *, unreachable: list[Unreachable] | None = None
    ) -> StoredMessage | None:
        """
        Return the message with this id, if it is stored.

        Takes the id in a producer's receipt, or RocketMQ's offset message id, which holds an address and an offset.
        Every broker must answer, or those that do not are added to *unreachable*. Raises `ConnectionFailed` for an
        address that is not the one of a registered broker: only those are asked.
        """
        return await asyncio.to_thread(self._admin.query_by_id, topic, message_id, unreachable=unreachable)

    async def query_by_offset(
        self, topic: str, queue_id: int, offset: int, max_messages: int = 1, *, broker: str | None = None
    ) -> list[StoredMessage]:
        """
        Return up to *max_messages* messages of a queue from *offset* on, or from the first one that is kept.

        *broker*, a name or address, is needed only if several brokers have the queue. It takes no lease and commits
        nothing. Raises `TopicNotFound` if no broker has the queue, and `ConfigError` if several have it.
        """
        return await asyncio.to_thread(
            self._admin.query_by_offset, topic, queue_id, offset, max_messages, broker=broker
        )

    async def browse(
        self,
        topic: str,
        *,
        since: datetime | int | None = None,
        newest_first: bool = True,
        unreachable: list[Unreachable] | None = None,
    ) -> AsyncIterator[StoredMessage]:
        """
        Return an iterator over the messages of a topic that are stored now, in the order of store times.

        *since*, an aware time or milliseconds since 1970: only messages stored then or later. It reads a page of each
        queue when it needs one, so a loop that ends early reads a few of many; *timeout* bounds each page. It takes no
        lease and commits nothing. Every broker must answer at the start, or those that do not are added to
        *unreachable*. Raises `TopicNotFound`.
        """
        found = await asyncio.to_thread(
            self._admin.browse, topic, since=since, newest_first=newest_first, unreachable=unreachable
        )
        while (one := await asyncio.to_thread(next, found, None)) is not None:
            yield one

    async def waiting_transactions(self, max_messages: int = 1000) -> WaitingTransactions:
        """
        Return the half messages whose transactions have not ended, of each broker up to *max_messages*, newest first.

        Bodies of one broker's half messages are 16 MiB at most, or one body; older ones are then left out.

        Brokers that do not answer are `unreachable` in the result. With a namespace, topics are named without it.
        """
        return await asyncio.to_thread(self._admin.waiting_transactions, max_messages)

    async def delayed_messages(self) -> DelayedMessages:
        """
        Return how many messages wait for their delivery, by topic and by delay level.

        Brokers that do not answer are `unreachable` in the result.
        """
        return await asyncio.to_thread(self._admin.delayed_messages)

    async def producers(self, *, unreachable: list[Unreachable] | None = None) -> dict[str, list[Member]]:
        """
        Return the connected producers by producer group; brokers know those that told a group.

        Every master must answer, or those that do not are added to *unreachable*.
        """
        return await asyncio.to_thread(self._admin.producers, unreachable=unreachable)

    async def explain(
        self, topic: str, message_id: str, *, unreachable: list[Unreachable] | None = None
    ) -> Explanation | None:
        """
        Return where a message is stored, and what became of it in each group of *topic*; None: no broker has it.

        Takes the ids that `query_by_id` takes. Every broker of the topic must answer, or those that do not are added to
        *unreachable*. Raises `TopicNotFound`.
        """
        return await asyncio.to_thread(self._admin.explain, topic, message_id, unreachable=unreachable)

    async def trace(
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
        return await asyncio.to_thread(self._admin.trace, message_id, topic=topic, since=since, until=until)

    async def dead_letters(
        self, group: str, *, newest_first: bool = True, unreachable: list[Unreachable] | None = None
    ) -> AsyncIterator[DeadLetter]:
        """
        Return an iterator over the dead letters of a consumer group that are stored now, in the order of store times.

        It reads a page of each queue when it needs one, so a loop that ends early reads a few of many; *timeout* bounds
        each page. It takes no lease and commits nothing. A group without dead letters, or an unknown group, has none.
        Every broker must answer at the start, or those that do not are added to *unreachable*.
        """
        found = await asyncio.to_thread(
            self._admin.dead_letters, group, newest_first=newest_first, unreachable=unreachable
        )
        while (one := await asyncio.to_thread(next, found, None)) is not None:
            yield one

    async def resend_dead_letters(
        self, letters: Iterable[DeadLetter], *, topic: str | None = None
    ) -> list[ResentLetter]:
        """
        Send each of *letters* once, to the topic it came from or to *topic*, and return what became of each.

        A letter that is given twice is sent once. The message keeps body, keys, tag, message id, message group and its
        properties, without those of the dead letter; every group of the topic receives it. The letter stays in the dead
        letters until its broker deletes it, so a second call sends it again. A refusal is the `error` of its result,
        and the others go on. Behind a letter whose server does not answer, no more is sent: each further result
        `is_skipped`. *timeout* bounds each letter. Nothing is repeated.
        """
        return await asyncio.to_thread(self._admin.resend_dead_letters, list(letters), topic=topic)

    async def users(
        self, name: str | None = None, *, broker: str | None = None, cluster: str | None = None
    ) -> list[User]:
        """
        Return all users, or one, sorted; a user whose settings differ between brokers is there for each of them.

        Each broker and each name server has users of its own. All methods about users and policies ask every broker of
        the cluster, or only *broker*: a master's name, an address, or the address of a name server, as it is known
        here. Each must answer; call a change that failed halfway again. Names in policies are whole, with the
        namespace. Raises `UserNotFound`, `Forbidden`, and `ServerError` where access control is off.
        """
        return await asyncio.to_thread(self._admin.users, name, broker=broker, cluster=cluster)

    async def create_user(
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
        await asyncio.to_thread(
            self._admin.create_user, name, secret_key, super_user=super_user, broker=broker, cluster=cluster
        )

    async def update_user(
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
        await asyncio.to_thread(
            self._admin.update_user,
            name,
            secret_key=secret_key,
            super_user=super_user,
            enabled=enabled,
            broker=broker,
            cluster=cluster,
        )

    async def delete_user(self, name: str, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Delete a user with its policies. Raises as `users`."""
        await asyncio.to_thread(self._admin.delete_user, name, broker=broker, cluster=cluster)

    async def acls(
        self, user: str | None = None, *, broker: str | None = None, cluster: str | None = None
    ) -> list[PolicyEntry]:
        """Return the entries of all policies, or of one user's, by user and resource. Raises as `users`."""
        return await asyncio.to_thread(self._admin.acls, user, broker=broker, cluster=cluster)

    async def create_acl(
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
        await asyncio.to_thread(
            self._admin.create_acl,
            user,
            resources,
            actions,
            allow=allow,
            sources=sources,
            policy=policy,
            broker=broker,
            cluster=cluster,
        )

    async def update_acl(
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
        await asyncio.to_thread(
            self._admin.update_acl,
            user,
            resources,
            actions,
            allow=allow,
            sources=sources,
            policy=policy,
            broker=broker,
            cluster=cluster,
        )

    async def delete_acl(
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
        await asyncio.to_thread(
            self._admin.delete_acl, user, resource=resource, policy=policy, broker=broker, cluster=cluster
        )

    async def close(self, timeout: timedelta | float = 5.0) -> None:
        """
        Take no more calls, wait up to *timeout* (float: seconds) for those under way, and end. Idempotent.

        Calls that take longer raise `ClientClosed` or an `OutcomeUnknown`.
        """
        await asyncio.to_thread(self._admin.close, timeout)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._admin.closed

    def __repr__(self) -> str:
        return repr(self._admin).replace("<", "<aio.", 1)

    def _repr_html_(self) -> str:
        return self._admin._repr_html_().replace("Admin", "aio.Admin", 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
