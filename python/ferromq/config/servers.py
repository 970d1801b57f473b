"""
The options of name server and broker: one frozen dataclass a process, the store's in one of their own.

Later wins: defaults < file < environment < flags. A file is TOML with the fields' names, or RocketMQ's `.conf`. Where a
field is None the default lives in the Rust core, with what is on disk. Nothing here opens a store or a socket; how
files are read is in `_config`.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from ferromq._ferromq import Store
from ferromq.config.compat import CompatConfig
from ferromq.config.grpc import GrpcConfig
from ferromq.config.listener import ListenerConfig
from ferromq.config.membership import MembershipConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.config.read import ReadConfig
from ferromq.config.reader import (
    RETENTION_CONVERTERS,
    Config,
    boolean,
    check_address,
    check_known,
    check_positive,
    from_zero,
    number,
    split_advertised,
    split_list,
    whole,
)
from ferromq.config.rocketmq_keys import REFUSED, WITHOUT_EFFECT
from ferromq.config.send import SendConfig
from ferromq.config.timer import TimerConfig
from ferromq.config.transactions import TransactionConfig
from ferromq.errors import ConfigError, IllegalName
from ferromq.protocol import naming

__all__ = [
    "LIMIT_FOR_QUEUES",
    "BrokerConfig",
    "CompatConfig",
    "GrpcConfig",
    "MembershipConfig",
    "NameServerConfig",
    "ReadConfig",
    "SendConfig",
    "StoreConfig",
    "TimerConfig",
    "TransactionConfig",
]

_log = logging.getLogger("ferromq.config")

LIMIT_FOR_QUEUES = 65_536
"""Queues a topic may have at most."""
_ENTRY_BYTES = 20
# RocketMQ's keys that say one thing together, and their defaults there.
_LISTEN = {"bindAddress": "0.0.0.0", "listenPort": "10911"}  # noqa: S104 (RocketMQ's default)
_TRACE = {"traceTopicEnable": "false", "msgTraceTopicName": naming.TRACE_TOPIC}
# RocketMQ's keys of its asynchronous flush. Left out, they are as in RocketMQ, but no pages are left for later.
_FLUSH_COMMIT_LOG = {
    "flushIntervalCommitLog": "500",
    "flushCommitLogLeastPages": "0",
    "flushCommitLogThoroughInterval": "10000",
}
# RocketMQ's keys of when an asynchronous flush begins: at its times alone, or at each message, too, which takes both.
_WAKE_FLUSH = {"flushCommitLogTimed": "true", "wakeFlushWhenPutMessage": "false"}
# RocketMQ's keys of the steps of disk usage in percent, and their defaults there.
_DISK_USAGE = {"diskMaxUsedSpaceRatio": "75", "diskSpaceCleanForciblyRatio": "85", "diskSpaceWarningLevelRatio": "90"}
# What RocketMQ makes of other percentages: the nearest of these.
_DISK_LIMITS = {
    "diskMaxUsedSpaceRatio": (10, 95),
    "diskSpaceCleanForciblyRatio": (30, 85),
    "diskSpaceWarningLevelRatio": (35, 90),
}


def _flush(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the policy of RocketMQ's flush: one of two kinds, and numbers that count for the asynchronous one."""
    kind = given.get("flushDiskType", "ASYNC_FLUSH")
    if kind == "SYNC_FLUSH":
        return {"flush": "group"}
    if kind != "ASYNC_FLUSH":
        raise ValueError(f"{kind} is no flushDiskType; it may be ASYNC_FLUSH or SYNC_FLUSH")
    timed, woken = (boolean(given.get(key, default)) for key, default in _WAKE_FLUSH.items())
    if woken and not timed:
        raise ValueError(
            "the log is flushed at its times, not at each message as flushCommitLogTimed=false with "
            "wakeFlushWhenPutMessage=true asks; use flushDiskType=SYNC_FLUSH, or a smaller flushIntervalCommitLog"
        )
    interval, pages, thorough = (whole(given.get(key, default)) for key, default in _FLUSH_COMMIT_LOG.items())
    # Without pages to leave there is nothing for the thorough flush to find.
    least = f" pages {pages} thorough {thorough}ms" if pages else ""
    return {"flush": f"interval {interval}ms{least}"}


def _disk_usage(given: Mapping[str, str]) -> dict[str, Any]:
    """Return RocketMQ's steps of disk usage, which delete messages that have not expired, where they are asked for."""
    taken: dict[str, float] = {}
    for key, (least, most) in _DISK_LIMITS.items():
        if key in given and not least <= (asked := number(given[key])) <= most:
            taken[key] = least if asked < least else most
            _log.warning(
                "%s is %s, which is taken for %d, as by RocketMQ; retention_disk_usage, in TOML, has no such limits",
                key,
                given[key],
                taken[key],
            )
    expired, anything, refuse = (
        taken.get(key, number(given.get(key, default))) for key, default in _DISK_USAGE.items()
    )
    if not boolean(given.get("cleanFileForciblyEnable", "true")):
        if given.keys() == {"cleanFileForciblyEnable"}:
            return {}
        anything = 100.0
    # RocketMQ takes each for itself: what is above a step is above the steps below it, too.
    return {"retention_disk_usage": (expired, max(anything, expired), max(refuse, expired))}


@dataclass(frozen=True, kw_only=True)
class StoreConfig(Config):
    """The options of a broker's message store. None: the default, which lives in the Rust core, as do the limits."""

    flush: str | None = None
    """When a send is answered: once on disk (`group`, `each`), or once written (`every 1000`, `interval 200ms`)."""
    flush_every: Mapping[str, int] | None = None
    """Topic → messages of it that may be acknowledged and not yet on disk, whatever `flush` says."""
    max_message_size: int | None = None
    """Largest message body, bytes."""
    commit_log_file_size: int | None = None
    """Size of a new commit log file, bytes."""
    commit_log_paths: tuple[str, ...] | None = None
    """Directories of the commit log, new files are made in each in turn; none: `commitlog` in the store directory."""
    read_only_commit_log_paths: tuple[str, ...] | None = None
    """Directories whose commit log files are read, where no new file is made."""
    consume_queue_file_entries: int | None = None
    """Entries in a new consume queue file."""
    index_enabled: bool | None = None
    """Whether new messages enter the index; otherwise they are not found by key, those in older files still are."""
    index_slots: int | None = None
    """Hash slots in a new index file."""
    index_entries: int | None = None
    """Entries in a new index file."""
    property_crc: bool | None = None
    """Whether each record gets a checksum over all of it, not of its body alone."""
    mapped_bytes: int | None = None
    """Bytes of commit log files that may be mapped beside the two newest."""
    open_files: int | None = None
    """Files of the store that may be open at once, each with a descriptor."""
    disk_reserve: int | None = None
    """Bytes that stay free on the disk; sends are refused below it."""
    delay_levels: str | None = None
    """How long each delay level lasts, level 1 first, each time with its unit: `1s 5s 10s 30s 1m 2h`."""
    dedup_window: timedelta | None = None
    """How long after its last message a writer that numbers its messages is remembered, with a unit."""
    dedup_writers: int | None = None
    """Pairs of a writer's partition and a queue that are remembered; further ones are refused."""
    progress_interval: timedelta | None = None
    """How often consumers' offsets and leases are written."""
    fast_boot: bool | None = None
    """Whether the store opens without checking records after a kill."""
    retention_age: timedelta | None = None
    """Age of its newest message at which a file is deleted, with a unit; `forever` keeps files whatever their age."""
    retention_age_by_topic: Mapping[str, timedelta] | None = None
    """Ages of single topics; a file is deleted when every topic in it allows it."""
    retention_hours: tuple[int, ...] | None = None
    """Hours of the day, local time, in which files are deleted by age; none: any."""
    retention_total_bytes: int | None = None
    """Size of the commit log above which the oldest files are deleted whatever their age, bytes; or `none`."""
    retention_disk_usage: tuple[float, ...] | None = None
    """Percent of disk in use above which: expired files go at any hour, any file goes, sends are refused; or `none`."""
    retention_on_expiry: str | None = None
    """What happens to a file that may go: `discard`, or `archive`: it stays until the archive hook has taken it."""

    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "enabledAppendPropCRC": lambda text: {"property_crc": boolean(text)},
        "storePathCommitLog": lambda text: {"commit_log_paths": split_list(text)},
        "readOnlyCommitLogStorePaths": lambda text: {"read_only_commit_log_paths": split_list(text)},
        "maxMessageSize": lambda text: {"max_message_size": whole(text)},
        "mappedFileSizeCommitLog": lambda text: {"commit_log_file_size": whole(text)},
        "mappedFileSizeConsumeQueue": lambda text: {"consume_queue_file_entries": -(-whole(text) // _ENTRY_BYTES)},
        "messageIndexEnable": lambda text: {"index_enabled": boolean(text)},
        "maxHashSlotNum": lambda text: {"index_slots": whole(text)},
        "maxIndexNum": lambda text: {"index_entries": whole(text)},
        "messageDelayLevel": lambda text: {"delay_levels": text},
        "deleteWhen": lambda text: {"retention_hours": text},
        "fileReservedTime": lambda text: {"retention_age": timedelta(hours=from_zero(text))},
        "flushConsumerOffsetInterval": lambda text: {"progress_interval": timedelta(milliseconds=whole(text))},
    }
    joined: ClassVar[Mapping[tuple[str, ...], Callable[[Mapping[str, str]], dict[str, Any]]]] = {
        ("flushDiskType", *_FLUSH_COMMIT_LOG, *_WAKE_FLUSH): _flush,
        ("cleanFileForciblyEnable", *_DISK_USAGE): _disk_usage,
    }

    own_converters = RETENTION_CONVERTERS

    def __post_init__(self) -> None:
        for name in ("flush_every", "retention_age_by_topic"):
            for topic in getattr(self, name) or ():
                try:
                    naming.check_topic(topic)
                except IllegalName as error:
                    raise ConfigError(f"{name}: {error}") from error
        Store.check(**self.overrides())

    def overrides(self) -> dict[str, Any]:
        """Return the options that were given."""
        return {name: value for name, value in self.given().items() if value is not None}


def _listen(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the address of RocketMQ's two keys."""
    host, port = (given.get(key, default) for key, default in _LISTEN.items())
    return {"listen": f"{host}:{whole(port)}"}


def _trace(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the topic of traces, where it is asked for."""
    asked, name = (given.get(key, default) for key, default in _TRACE.items())
    return {"trace_topic": name if boolean(asked) else ""}


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(Config):
    """The options of a broker."""

    store: str = "store"
    """The store directory."""
    name: str = "broker-a"
    """The broker's name; master and slaves share it."""
    cluster: str = "DefaultCluster"
    """The cluster's name."""
    namesrv: tuple[str, ...] = ()
    """`host:port` of each name server; none: the broker answers for itself alone."""
    listen: str = "0.0.0.0:10911"
    """`host:port` of the remoting listener; port 0 takes a free one."""
    fast_listen: str = "auto"
    """`host:port` of a second remoting listener, as Java's clients ask for; `auto`: the port two below; `off`: none."""
    grpc_listen: str = "0.0.0.0:8081"
    """`host:port` of the gRPC listener; port 0 takes a free one."""
    advertise: str = ""
    """Host, or `host:port`, others reach the remoting listener at; empty: found out."""
    grpc_advertise: str = ""
    """Host, or `host:port`, others reach the gRPC listener at; empty: the host of `advertise`."""
    auto_create_topics: bool = True
    """Whether a topic is created on first use; off means off, for every client."""
    auto_create_groups: bool = True
    """Whether a consumer group is created on first use."""
    default_queues: int = 8
    """Queues of a topic created on first use."""
    client_lease: timedelta = timedelta(seconds=120)
    """How long a client without a heartbeat counts as there."""
    handler_threads: int = 32
    """Threads that answer the requests of the control plane."""
    archive: str = ""
    """`module:function` that takes each file before it is deleted; with a word behind, the one it returns for that."""
    trace_topic: str = ""
    """Topic for the traces of clients, made at start; empty: none."""
    membership: MembershipConfig = field(default_factory=MembershipConfig)
    """The options of the broker as a member of its cluster; they too are named without `membership`."""
    connections: ListenerConfig = field(default_factory=ListenerConfig)
    """The options of its remoting connections; they too are named without `connections`."""
    sends: SendConfig = field(default_factory=SendConfig)
    """The options for messages that are sent to it; they too are named without `sends`."""
    reads: ReadConfig = field(default_factory=ReadConfig)
    """The options for consumers; they too are named without `reads`."""
    grpc: GrpcConfig = field(default_factory=GrpcConfig)
    """The options of its gRPC listener; they too are named without `grpc`."""
    compatibility: CompatConfig = field(default_factory=CompatConfig)
    """The options where RocketMQ allows less, `compat` among them; they too are named without `compatibility`."""
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    """The options for transactions; they too are named without `transactions`."""
    storage: StoreConfig = field(default_factory=StoreConfig)
    """The options of the message store; files, environment and flags name them without `storage`."""
    timers: TimerConfig = field(default_factory=TimerConfig)
    """The options of the message store for times of delivery; they too are named without `timers`."""

    prefix: ClassVar[str] = "FERROMQ_BROKER_"
    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "brokerName": lambda text: {"name": text},
        "brokerClusterName": lambda text: {"cluster": text},
        **REFUSED,
        "namesrvAddr": lambda text: {"namesrv": split_list(text)},
        "brokerIP1": lambda text: {"advertise": text},
        "storePathRootDir": lambda text: {"store": text},
        "autoCreateTopicEnable": lambda text: {"auto_create_topics": boolean(text)},
        "autoCreateSubscriptionGroup": lambda text: {"auto_create_groups": boolean(text)},
        "defaultTopicQueueNums": lambda text: {"default_queues": whole(text)},
        **SendConfig.properties,
        **CompatConfig.properties,
        **ReadConfig.properties,
        **TimerConfig.properties,
        **TransactionConfig.properties,
        **MembershipConfig.properties,
        "channelExpiredTimeout": lambda text: {"client_lease": timedelta(milliseconds=whole(text))},
        **ListenerConfig.properties,
        **StoreConfig.properties,
    }
    joined: ClassVar[Mapping[tuple[str, ...], Callable[[Mapping[str, str]], dict[str, Any]]]] = {
        tuple(_LISTEN): _listen,
        tuple(_TRACE): _trace,
        **MembershipConfig.joined,
        **ListenerConfig.joined,
        **GrpcConfig.joined,
        **StoreConfig.joined,
    }
    parts: ClassVar[Mapping[str, type[Config]]] = {
        "membership": MembershipConfig,
        "connections": ListenerConfig,
        "sends": SendConfig,
        "reads": ReadConfig,
        "grpc": GrpcConfig,
        "compatibility": CompatConfig,
        "timers": TimerConfig,
        "transactions": TransactionConfig,
        "storage": StoreConfig,
    }
    without_effect: ClassVar[Mapping[str, str]] = {**WITHOUT_EFFECT, **ListenerConfig.without_effect}

    def __post_init__(self) -> None:
        check_address("listen", self.listen)
        check_address("grpc_listen", self.grpc_listen)
        if self.fast_listen not in {"auto", "off"}:
            check_address("fast_listen", self.fast_listen)
        for address in self.namesrv:
            check_address("namesrv", address)
        for name in ("advertise", "grpc_advertise"):
            try:
                split_advertised(getattr(self, name) or "unset")
            except ValueError as error:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; {error}") from error
        for name in ("name", "cluster", "store"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty")
        if not 1 <= self.default_queues <= LIMIT_FOR_QUEUES:
            raise ConfigError(f"default_queues is {self.default_queues}; it may be 1 to {LIMIT_FOR_QUEUES}")
        check_positive("client_lease", self.client_lease, timedelta())
        self._check_trace_topic()
        check_positive("handler_threads", self.handler_threads, 0)
        known = [*BrokerConfig.keys_known(), *BrokerConfig.names()]
        check_known(dict.fromkeys(self.membership.protected_keys), known, "option in configBlackList (protected_keys)")

    def _check_trace_topic(self) -> None:
        if not self.trace_topic:
            return
        try:
            naming.check_topic(self.trace_topic)
        except IllegalName as error:
            raise ConfigError(f"trace_topic: {error}") from error
        if naming.is_internal_topic(self.trace_topic):
            raise ConfigError(
                f"trace_topic is {self.trace_topic}, which clients may not write; use {naming.TRACE_TOPIC}, a name "
                f"that begins with {naming.TRACE_PREFIX}, or one outside the system"
            )
