"""The options of a broker's message store, and RocketMQ's keys for them."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from ferromq._ferromq import Store
from ferromq.config.keys import BOOLEAN, LIST, MILLISECONDS, WHOLE, JoinedKeys, Key, Keys
from ferromq.config.reader import Config
from ferromq.config.values import RETENTION_CONVERTERS, boolean, from_zero, number, whole
from ferromq.errors import ConfigError, IllegalName
from ferromq.protocol import naming

_log = logging.getLogger("ferromq.config")

_ENTRY_BYTES = 20
# RocketMQ's keys of asynchronous flush, with RocketMQ's defaults, except that no pages are left for later.
_FLUSH_COMMIT_LOG = {
    "flushIntervalCommitLog": "500",
    "flushCommitLogLeastPages": "0",
    "flushCommitLogThoroughInterval": "10000",
}
# RocketMQ's keys of when an asynchronous flush begins: only periodically, or (both keys changed) also at each message.
_WAKE_FLUSH = {"flushCommitLogTimed": "true", "wakeFlushWhenPutMessage": "false"}
# RocketMQ's thresholds of disk usage in percent, and their defaults there.
_DISK_USAGE = {"diskMaxUsedSpaceRatio": "75", "diskSpaceCleanForciblyRatio": "85", "diskSpaceWarningLevelRatio": "90"}
# RocketMQ silently replaces a percentage outside these limits by the nearest limit.
_DISK_LIMITS = {
    "diskMaxUsedSpaceRatio": (10, 95),
    "diskSpaceCleanForciblyRatio": (30, 85),
    "diskSpaceWarningLevelRatio": (35, 90),
}


def _flush(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the flush policy: one of two kinds, and the numbers of the asynchronous one."""
    kind = given.get("flushDiskType", "ASYNC_FLUSH")
    if kind == "SYNC_FLUSH":
        return {"flush": "group"}
    if kind != "ASYNC_FLUSH":
        raise ValueError(f"flushDiskType is {kind}; it may be ASYNC_FLUSH or SYNC_FLUSH")
    timed, woken = (boolean(given.get(key, default)) for key, default in _WAKE_FLUSH.items())
    if woken and not timed:
        raise ValueError(
            "an asynchronous flush is periodic, not at each message as with flushCommitLogTimed=false and "
            "wakeFlushWhenPutMessage=true; use flushDiskType=SYNC_FLUSH, or a smaller flushIntervalCommitLog"
        )
    interval, pages, thorough = (whole(given.get(key, default)) for key, default in _FLUSH_COMMIT_LOG.items())
    # Without pages left for later, a thorough flush has nothing to do.
    least = f" pages {pages} thorough {thorough}ms" if pages else ""
    return {"flush": f"interval {interval}ms{least}"}


def _disk_usage(given: Mapping[str, str]) -> dict[str, Any]:
    """Return RocketMQ's thresholds of disk usage. By default ferromq does not delete unexpired messages."""
    taken: dict[str, float] = {}
    for key, (least, most) in _DISK_LIMITS.items():
        if key in given and not least <= (asked := number(given[key])) <= most:
            taken[key] = least if asked < least else most
            _log.warning(
                "%s is %s, using %d as RocketMQ does; retention_disk_usage, in TOML, has no such limits",
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
    # RocketMQ compares each threshold by itself; usage above one is also above the lower ones.
    return {"retention_disk_usage": (expired, max(anything, expired), max(refuse, expired))}


@dataclass(frozen=True, kw_only=True)
class StoreConfig(Config):
    """The options of a broker's message store. None: the default, which the Rust core has, as it has the limits."""

    flush: str | None = None
    """When a send is answered: once on disk (`group`, `each`), or once written (`every 1000`, `interval 200ms`)."""
    flush_every: Mapping[str, int] | None = None
    """Topic → most acknowledged messages that are not yet on disk; it counts in addition to `flush`."""
    max_message_size: int | None = None
    """Largest message body, bytes."""
    commit_log_file_size: int | None = None
    """Size of a new commit log file, bytes."""
    commit_log_paths: tuple[str, ...] | None = None
    """Directories of the commit log, used in turn for new files. None: `commitlog` in the store directory."""
    read_only_commit_log_paths: tuple[str, ...] | None = None
    """More directories with commit log files, which get no new files."""
    consume_queue_file_entries: int | None = None
    """Entries in a new consume queue file."""
    index_enabled: bool | None = None
    """Whether new messages can be found by key."""
    index_slots: int | None = None
    """Hash slots in a new index file."""
    index_entries: int | None = None
    """Entries in a new index file."""
    property_crc: bool | None = None
    """Whether each record gets a checksum over all its bytes, in addition to that of its body."""
    mapped_bytes: int | None = None
    """Bytes of commit log files that may be mapped, in addition to the two newest files."""
    open_files: int | None = None
    """Most open files of the store, each with a descriptor."""
    disk_reserve: int | None = None
    """Free bytes on the disk below which sends are refused."""
    delay_levels: str | None = None
    """The delay of each level, level 1 first, each with a unit: `1s 5s 10s 30s 1m 2h`."""
    dedup_window: timedelta | None = None
    """How long the store remembers an exactly-once writer after its last message, with a unit."""
    dedup_writers: int | None = None
    """Most pairs of a writer's partition and a queue that are remembered; more are refused."""
    progress_interval: timedelta | None = None
    """How often consumers' offsets and leases are written."""
    fast_boot: bool | None = None
    """Whether the store opens after a kill without checking records."""
    retention_age: timedelta | None = None
    """Files expire when their newest message is this old, with a unit; `forever`: never by age."""
    retention_age_by_topic: Mapping[str, timedelta] | None = None
    """Topic → its own age. A file expires once all its topics allow it."""
    retention_hours: tuple[int, ...] | None = None
    """Hours of the day, local time, in which expired files are deleted. Empty: all."""
    retention_total_bytes: int | None = None
    """Size of the commit log, bytes, above which the oldest files are deleted at any age; or `none`."""
    retention_disk_usage: tuple[float, ...] | None = None
    """Percent of disk usage above which: expired files go at any hour, any file goes, sends are refused; or `none`."""
    retention_on_expiry: str | None = None
    """What happens to an expired file: `discard`, or `archive`: it stays until the archive hook has taken it."""

    properties: ClassVar[Keys] = {
        "enabledAppendPropCRC": Key("property_crc", BOOLEAN),
        "storePathCommitLog": Key("commit_log_paths", LIST),
        "readOnlyCommitLogStorePaths": Key("read_only_commit_log_paths", LIST),
        "maxMessageSize": Key("max_message_size", WHOLE),
        "mappedFileSizeCommitLog": Key("commit_log_file_size", WHOLE),
        "mappedFileSizeConsumeQueue": lambda text: {"consume_queue_file_entries": -(-whole(text) // _ENTRY_BYTES)},
        "messageIndexEnable": Key("index_enabled", BOOLEAN),
        "maxHashSlotNum": Key("index_slots", WHOLE),
        "maxIndexNum": Key("index_entries", WHOLE),
        "messageDelayLevel": Key("delay_levels"),
        "deleteWhen": Key("retention_hours"),
        "fileReservedTime": lambda text: {"retention_age": timedelta(hours=from_zero(text))},
        "flushConsumerOffsetInterval": Key("progress_interval", MILLISECONDS),
    }
    joined: ClassVar[JoinedKeys] = {
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
        """Return the given options."""
        return {name: value for name, value in self.given().items() if value is not None}
