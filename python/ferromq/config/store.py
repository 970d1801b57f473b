"""The options of a broker's message store, and RocketMQ's keys for them."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from ferromq._ferromq import Store
from ferromq.config.reader import Config
from ferromq.config.values import RETENTION_CONVERTERS, boolean, from_zero, number, split_list, whole
from ferromq.errors import ConfigError, IllegalName
from ferromq.protocol import naming

_log = logging.getLogger("ferromq.config")

_ENTRY_BYTES = 20
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
