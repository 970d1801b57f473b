"""
The options of name server and broker: one frozen dataclass a process.

Later wins: defaults < file < environment < flags. A file is TOML with the fields' names, or RocketMQ's `.conf`. Where a
field is None the default lives in the Rust core, with what is on disk. Nothing here opens a store or a socket.
"""

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Self

from ferromq.errors import ConfigError

__all__ = ["LIMIT_FOR_QUEUES", "BrokerConfig", "NameServerConfig", "split_advertised"]

_log = logging.getLogger("ferromq.config")

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\Z")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+)\s*(?:(K|M|G)i?B?)?\Z", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_ADVERTISED = re.compile(r"(\[[^\[\]\s]+\]|[^\[\]:\s]+)(?::(\d{1,5}))?\Z")
_MAX_PORT = 65535
LIMIT_FOR_QUEUES = 65_536
"""Queues a topic may have at most."""


class _Config:
    """Reads a configuration from files, environment and flags."""

    prefix: ClassVar[str]
    """Names of environment variables begin with it."""
    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]]
    """RocketMQ's keys, and the fields they set."""
    ignored: ClassVar[frozenset[str]] = frozenset()
    """RocketMQ's keys that have no meaning here; a file written for RocketMQ may keep them."""
    without_effect: ClassVar[Mapping[str, str]] = {}
    """RocketMQ's keys that do nothing yet, and what happens instead; each is warned of."""

    @classmethod
    def load(
        cls,
        file: str | Path | None = None,
        *,
        defaults: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> Self:
        """
        Combine defaults, a file, environment and flags.

        The file is in RocketMQ's format where its name ends in `.conf` or `.properties`, else TOML. A flag that is None
        was not given. Raises `ConfigError`.
        """
        values: dict[str, Any] = dict(defaults or {})
        if file is not None:
            is_properties = Path(file).suffix in {".conf", ".properties"}
            values |= cls._parse_properties(file) if is_properties else cls._parse_toml(file)
        values |= cls._parse_environment(os.environ if environment is None else environment)
        values |= {name: value for name, value in (flags or {}).items() if value is not None}
        return cls.from_options(values)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Take options by the fields' names, as ready values or as text; None is not given. Raises `ConfigError`."""
        return cls._build(options, "option")

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a TOML file whose keys are the fields. Raises `ConfigError`."""
        return cls._build(cls._parse_toml(path), f"key in {path}")

    @classmethod
    def from_properties(cls, path: str | Path) -> Self:
        """Read a RocketMQ `.conf` file. Raises `ConfigError` for a key RocketMQ or ferromq does not know."""
        return cls._build(cls._parse_properties(path), f"key in {path}")

    @classmethod
    def _parse_toml(cls, path: str | Path) -> dict[str, Any]:
        try:
            values = tomllib.loads(_read(path))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is no TOML: {error}") from error
        _check_known(values, cls._names(), f"key in {path}")
        return values

    @classmethod
    def _parse_properties(cls, path: str | Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        skipped: dict[str, int] = {}
        for number, raw in enumerate(_read(path).splitlines(), start=1):
            line = raw.strip()
            if not line or line.startswith(("#", "!")):
                continue
            key, separator, value = (part.strip() for part in line.partition("="))
            if not separator:
                raise ConfigError(f"line {number} of {path} is not KEY=VALUE: {line}")
            if key in cls.ignored or key in cls.without_effect:
                skipped.setdefault(key, number)
                continue
            _check_known({key: value}, [*cls.properties, *cls.ignored, *cls.without_effect], f"key in {path}")
            try:
                values |= cls.properties[key](value)
            except ValueError as error:
                raise ConfigError(f"{key} in line {number} of {path}: {error}") from error
        for key, number in skipped.items():
            if key in cls.without_effect:
                why = cls.without_effect[key]
                _log.warning("key has no effect yet, %s key=%s line=%d file=%s", why, key, number, path)
        return values

    @classmethod
    def _parse_environment(cls, environment: Mapping[str, str]) -> dict[str, str]:
        found = {
            name.removeprefix(cls.prefix).lower(): value
            for name, value in environment.items()
            if name.startswith(cls.prefix)
        }
        _check_known(found, cls._names(), f"variable {cls.prefix}…")
        return found

    @classmethod
    def _names(cls) -> list[str]:
        return [field.name for field in fields(cls)]  # type: ignore[arg-type] # subclasses are dataclasses

    @classmethod
    def _build(cls, values: Mapping[str, Any], what: str) -> Self:
        _check_known(values, cls._names(), what)
        types = {field.name: field.type for field in fields(cls)}  # type: ignore[arg-type]
        converted = {name: _convert(name, value, types[name]) for name, value in values.items() if value is not None}
        return cls(**converted)


@dataclass(frozen=True, kw_only=True)
class NameServerConfig(_Config):
    """The options of a name server."""

    listen: str = "0.0.0.0:9876"
    """`host:port` to listen on; port 0 takes a free one."""
    kv_config_path: str = ""
    """File of the key-value table, RocketMQ's kvConfig.json; empty: kept in memory."""
    scan_interval: timedelta = timedelta(seconds=5)
    """How often ended leases are looked for."""
    lease: timedelta = timedelta(seconds=120)
    """How long a registration holds, unless the broker says otherwise."""
    handler_threads: int = 8
    """Threads that answer requests."""

    prefix: ClassVar[str] = "FERROMQ_NAMESRV_"
    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "listenPort": lambda text: {"listen": f"0.0.0.0:{int(text)}"},
        "kvConfigPath": lambda text: {"kv_config_path": text},
        "scanNotActiveBrokerInterval": lambda text: {"scan_interval": timedelta(milliseconds=int(text))},
        "defaultThreadPoolNums": lambda text: {"handler_threads": int(text)},
    }
    ignored: ClassVar[frozenset[str]] = frozenset({"rocketmqHome", "configStorePath", "clusterTest", "productEnvName"})

    def __post_init__(self) -> None:
        _check_address("listen", self.listen)
        _check_positive("scan_interval", self.scan_interval, timedelta())
        _check_positive("lease", self.lease, timedelta())
        _check_positive("handler_threads", self.handler_threads, 0)


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(_Config):
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
    grpc_listen: str = "0.0.0.0:8081"
    """`host:port` of the gRPC listener; port 0 takes a free one."""
    advertise: str = ""
    """Host, or `host:port`, others reach the remoting listener at; empty: found out."""
    grpc_advertise: str = ""
    """Host, or `host:port`, others reach the gRPC listener at; empty: the host of `advertise`."""
    flush: str = "async"
    """`async`: a send is answered once written; `sync`: once it is on disk."""
    auto_create_topics: bool = True
    """Whether a topic is created on first use; off means off, for every client."""
    auto_create_groups: bool = True
    """Whether a consumer group is created on first use."""
    default_queues: int = 8
    """Queues of a topic created on first use."""
    register_interval: timedelta = timedelta(seconds=30)
    """How often the broker registers with every name server."""
    register_timeout: timedelta = timedelta(seconds=3)
    """How long one name server may take to answer."""
    client_lease: timedelta = timedelta(seconds=120)
    """How long a client without a heartbeat counts as there."""
    max_message_size: int | None = None
    """Largest message body, bytes."""
    commit_log_file_size: int | None = None
    """Size of a new commit log file, bytes."""
    consume_queue_file_entries: int | None = None
    """Entries in a new consume queue file."""
    index_slots: int | None = None
    """Hash slots in a new index file."""
    index_entries: int | None = None
    """Entries in a new index file."""
    flush_interval: timedelta | None = None
    """Time between two flushes where `flush` is `async`."""
    disk_reserve: int | None = None
    """Bytes that stay free on the disk; sends are refused below it."""
    handler_threads: int = 8
    """Threads that answer the requests of the control plane."""

    prefix: ClassVar[str] = "FERROMQ_BROKER_"
    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "brokerName": lambda text: {"name": text},
        "brokerClusterName": lambda text: {"cluster": text},
        "brokerId": lambda text: _only(text, "0", "slaves are not served yet"),
        "brokerRole": lambda text: _only(text, "ASYNC_MASTER", "slaves and synchronous replication are not served yet"),
        "namesrvAddr": lambda text: {"namesrv": _split(text)},
        "listenPort": lambda text: {"listen": f"0.0.0.0:{int(text)}"},
        "brokerIP1": lambda text: {"advertise": text},
        "storePathRootDir": lambda text: {"store": text},
        "flushDiskType": lambda text: {"flush": {"ASYNC_FLUSH": "async", "SYNC_FLUSH": "sync"}.get(text, text)},
        "flushIntervalCommitLog": lambda text: {"flush_interval": timedelta(milliseconds=int(text))},
        "autoCreateTopicEnable": lambda text: {"auto_create_topics": _boolean(text)},
        "autoCreateSubscriptionGroup": lambda text: {"auto_create_groups": _boolean(text)},
        "defaultTopicQueueNums": lambda text: {"default_queues": int(text)},
        "registerNameServerPeriod": lambda text: {"register_interval": timedelta(milliseconds=int(text))},
        "registerBrokerTimeoutMills": lambda text: {"register_timeout": timedelta(milliseconds=int(text))},
        "maxMessageSize": lambda text: {"max_message_size": int(text)},
        "mappedFileSizeCommitLog": lambda text: {"commit_log_file_size": int(text)},
        "maxHashSlotNum": lambda text: {"index_slots": int(text)},
        "maxIndexNum": lambda text: {"index_entries": int(text)},
    }
    ignored: ClassVar[frozenset[str]] = frozenset({"rocketmqHome"})
    without_effect: ClassVar[Mapping[str, str]] = {
        "deleteWhen": "files of the store are never deleted",
        "fileReservedTime": "files of the store are never deleted",
    }

    def __post_init__(self) -> None:
        _check_address("listen", self.listen)
        _check_address("grpc_listen", self.grpc_listen)
        for address in self.namesrv:
            _check_address("namesrv", address)
        for name in ("advertise", "grpc_advertise"):
            try:
                split_advertised(getattr(self, name) or "unset")
            except ValueError as error:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; {error}") from error
        for name in ("name", "cluster", "store"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty")
        if self.flush not in {"async", "sync"}:
            raise ConfigError(f"flush is {self.flush!r}; it may be async or sync")
        if not 1 <= self.default_queues <= LIMIT_FOR_QUEUES:
            raise ConfigError(f"default_queues is {self.default_queues}; it may be 1 to {LIMIT_FOR_QUEUES}")
        for name in ("register_interval", "register_timeout", "client_lease"):
            _check_positive(name, getattr(self, name), timedelta())
        _check_positive("handler_threads", self.handler_threads, 0)


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error}") from error


def _check_known(values: Mapping[str, Any], known: list[str], what: str) -> None:
    for name in values:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"; did you mean {nearest[0]}?" if nearest else f"; known are {', '.join(sorted(known))}"
            raise ConfigError(f"unknown {what}: {name}{hint}")


def _convert(name: str, value: Any, kind: Any) -> Any:
    """Turn text, a number or a ready value into the type of the field."""
    try:
        return _CONVERTERS[kind](value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{name} is {value!r}: {error}") from error


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in {"true", "yes", "on", "1"}:
        return True
    if text in {"false", "no", "off", "0"}:
        return False
    raise ValueError("true or false is expected")


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    match = _DURATION.match(str(value).strip())
    if match is None:
        raise ValueError("a duration is expected, as 500ms, 30s, 2m, 1h")
    return timedelta(seconds=float(match[1]) * _DURATION_UNITS[match[2]])


def _size(value: Any) -> int:
    match = _SIZE.match(str(value).strip())
    if match is None:
        raise ValueError("a whole number is expected, or a size as 64MiB")
    return int(match[1]) * _SIZE_UNITS[(match[2] or "").lower()]


def _split(value: Any) -> tuple[str, ...]:
    parts = re.split(r"[;,]", value) if isinstance(value, str) else value
    return tuple(str(part).strip() for part in parts if str(part).strip())


def _text(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError("a text is expected")
    return os.fspath(value)


_CONVERTERS: Mapping[Any, Callable[[Any], Any]] = {
    str: _text,
    int: _size,
    int | None: _size,
    bool: _boolean,
    timedelta: _duration,
    timedelta | None: _duration,
    tuple[str, ...]: _split,
}


def _only(text: str, allowed: str, why: str) -> dict[str, Any]:
    if text != allowed:
        raise ValueError(f"{text} is asked, but {why}; use {allowed}")
    return {}


def _check_address(name: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _MAX_PORT:
        raise ConfigError(f"{name} is {address!r}; HOST:PORT is expected, as 127.0.0.1:9876")


def split_advertised(address: str) -> tuple[str, str]:
    """Split `HOST` or `HOST:PORT`, the port empty where there is none; a bare IPv6 address gets its brackets."""
    bare = address if address.startswith("[") else f"[{address}]"
    match = _ADVERTISED.match(bare if address.count(":") > 1 else address)
    if match is None or int(match[2] or 0) > _MAX_PORT:
        raise ValueError("HOST or HOST:PORT is expected, as mq.example:10911")
    return match[1], match[2] or ""


def _check_positive(name: str, value: Any, zero: Any) -> None:
    if value <= zero:
        raise ConfigError(f"{name} is {value}; it must be more than 0")
