"""
The options of a broker while it runs, under RocketMQ's names: shown (request 26), changed (25), and kept in its file.

What an option may be is decided by `config`; who acts on a change listens to `Settings`.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from ferromq._ferromq import Request, Store
from ferromq.config.broker import BrokerConfig
from ferromq.config.compat import CompatConfig, effective, in_milliseconds
from ferromq.config.consume import ConsumeConfig
from ferromq.config.file_edit import ProtectedKey, keep
from ferromq.config.known_names import check_known
from ferromq.config.properties_file import parse_lines
from ferromq.config.store import StoreConfig
from ferromq.config.values import written
from ferromq.errors import ConfigError
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, failure, success
from ferromq.protocol.route import DataVersion

_log = logging.getLogger("ferromq.broker")

_ENTRY_BYTES = 20
# Values of which each of RocketMQ's keys with an effect takes one.
_SAMPLES = ("1", "true", "100")
_MILLISECOND, _HOUR = timedelta(milliseconds=1), timedelta(hours=1)
_FOREVER_HOURS = (1 << 31) - 1
# What RocketMQ says of the flush where its keys are left out.
_FLUSH = {"interval": "500", "pages": "0", "thorough": "10000"}
# The step of disk usage at which any file goes, where none does, and RocketMQ's default of it.
_NEVER_FORCIBLY, _CLEAN_FORCIBLY = 100, "85"
_CHANGEABLE = frozenset(
    {"auto_create_topics", "auto_create_groups", "default_queues", "mixed_topics", "check_types"}
    | {"flush", "flush_every"}
    | {"permission", "force_register", "sync_interval", "register_interval"}
    | {"region", "trace", "transaction_timeout", "transaction_check_interval", "transaction_check_max"}
    | {"recall", "reject_transactions", "sql_filters"}
    | (frozenset(CompatConfig.names()) - {"compat"})
    | (frozenset(ConsumeConfig.names()) - {"notify_consumers"})
    | {name for name in StoreConfig.names() if name.startswith("retention_")}
)
"""The options that can change while the broker runs."""

Listener = Callable[[frozenset[str], BrokerConfig, BrokerConfig], None]
"""Hears the names of the options that changed, and all of them before and after."""


class Settings:
    """
    The options of one broker; thread-safe.

    *file* is where they came from, where it keeps what is changed; None: a change holds until the broker stops.
    """

    def __init__(
        self,
        config: BrokerConfig,
        file: Path | None,
        now_ms: Callable[[], int],
        configure: Callable[..., None] = lambda **_options: None,
    ) -> None:
        self._config = config
        self._file = file
        self._now_ms = now_ms
        self._configure = configure
        self._of_store: Callable[[], Mapping[str, Any]] = dict
        self._version = DataVersion(now_ms())
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []

    @property
    def config(self) -> BrokerConfig:
        """The options as they are now."""
        return self._config

    @property
    def version(self) -> DataVersion:
        """Counts the changes."""
        return self._version

    def add_listener(self, listener: Listener) -> None:
        """Call *listener* after every change, one after the other."""
        self._listeners.append(listener)

    def attach(self, configure: Callable[..., None], options: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Call *configure* with changes of the store's options from now on; *options* are those it has now."""
        self._configure = configure
        self._of_store = options

    def clear_listeners(self) -> None:
        """Tell nobody of changes any more."""
        self._listeners.clear()

    def update(self, wanted: Mapping[str, str], shown: Mapping[str, str]) -> frozenset[str]:
        """
        Change options, named as RocketMQ or as `BrokerConfig` does; return the fields that changed.

        *shown* is what RocketMQ's names stand for now. All of them change, or none: raises `ConfigError` naming the one
        that is unknown, has no effect, cannot change while the broker runs, or has a value that may not be, and
        `ProtectedKey` for those that may not be changed from outside.
        """
        with self._lock:
            # The store has options of its own, which `configure` may have changed.
            now = flat(self._config)
            now |= {name: value for name, value in self._of_store().items() if name in now}
            before = flat(BrokerConfig.from_options(now))
            wanted = _without_unchanged(wanted, shown, now)
            meant = _translate(wanted, shown)
            self._check_protected(meant)
            given = {name: value for of_key in meant.values() for name, value in of_key.items()}
            after = BrokerConfig.from_options({**now, **given})
            changed = frozenset(name for name, value in flat(after).items() if value != before[name])
            for key, of_key in meant.items():
                fixed = [name for name in of_key if name in changed - _CHANGEABLE]
                if fixed:
                    raise ConfigError(
                        f"{key} cannot change while the broker runs; set it in its configuration and restart it"
                    )
            if not changed:
                return changed
            if self._file is not None:
                options = flat(after)
                keys = {key: text for key, text in wanted.items() if changed & meant[key].keys()}
                _check_words(self._file, keys)
                try:
                    keep(self._file, BrokerConfig, keys, {name: own_text(options[name]) for name in changed})
                except (OSError, UnicodeDecodeError) as error:
                    raise ConfigError(f"the configuration file {self._file} cannot be changed: {error}") from error
            of_store = {name: getattr(after.storage, name) for name in changed & frozenset(StoreConfig.names())}
            if of_store:
                self._configure(**of_store)
            self._take_over(changed, after)
        return changed

    def _check_protected(self, meant: Iterable[str]) -> None:
        """Raise `ProtectedKey` for an option that may not be changed, whichever of its names is used."""
        keys = self._config.membership.protected_keys
        protected = {*keys, *(name for key in keys for name in fields_of(key))}
        found = sorted(key for key in meant if protected & {key, *fields_of(key)})
        if found:
            raise ProtectedKey(
                f"{', '.join(found)} may not be changed from outside, as configBlackList says; change the file, and "
                "restart the broker"
            )

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise the `ConfigError` that `set` would raise."""
        BrokerConfig.from_options({**flat(self._config), **options})

    def set(self, options: Mapping[str, Any]) -> None:
        """Change options of the broker itself by the fields' names, until it stops. Raises `ConfigError`."""
        with self._lock:
            before = flat(self._config)
            after = BrokerConfig.from_options({**before, **options})
            changed = frozenset(name for name, value in flat(after).items() if value != before[name])
            if changed:
                self._take_over(changed, after)

    def _take_over(self, changed: frozenset[str], after: BrokerConfig) -> None:
        before, self._config = self._config, after
        self._version = self._version.next(self._now_ms())
        for listener in self._listeners:
            listener(changed, before, after)


class SettingsRequests:
    """Answers requests 25 and 26."""

    def __init__(self, settings: Settings, store: Store, address: str) -> None:
        self._settings = settings
        self._store = store
        self._address = address

    def get(self, _request: Request) -> Answer:
        """Answer request 26: every option, RocketMQ's names first."""
        body = as_lines(self._options(), self._shown()).encode()
        return success({"version": java_json.dumps(self._settings.version.to_json()).decode()}, body)

    def update(self, request: Request) -> Answer:
        """Answer request 25: change options; the body has RocketMQ's lines, KEY=VALUE."""
        try:
            lines = parse_lines(request.body.decode(errors="replace"), "the request")
            wanted = {key: value for key, (_, value) in lines.items()}
            changed = self._settings.update(wanted, self._shown())
        except ProtectedKey as error:
            return failure(ResponseCode.NO_PERMISSION, str(error))
        except ConfigError as error:
            return failure(ResponseCode.INVALID_PARAMETER, str(error))
        if changed:
            _log.warning("options changed options=%s peer=%s", ",".join(sorted(changed)), request.peer)
        return success()

    def _options(self) -> dict[str, Any]:
        return {**flat(self._settings.config), **self._store.options()}

    def _shown(self) -> dict[str, str]:
        """Return RocketMQ's names; with the address others reach, which the options may leave to be found out."""
        host, _, port = self._address.rpartition(":")
        return {**rocketmq_names(self._options()), "brokerIP1": host.strip("[]"), "listenPort": port}


def as_lines(options: Mapping[str, Any], shown: Mapping[str, str] | None = None) -> str:
    """Return lines NAME=VALUE of every option, RocketMQ's names first; *shown* where they are known already."""
    lines = [
        *(shown or rocketmq_names(options)).items(),
        *((name, own_text(value)) for name, value in sorted({**options, **effective(options)}.items())),
    ]
    return "".join(f"{name}={value}\n" for name, value in lines)


def flat(config: BrokerConfig) -> dict[str, Any]:
    """Return every option by its name, those of the parts included."""
    parts = BrokerConfig.parts
    own = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in parts}
    for part, kind in parts.items():
        own.update((name, getattr(getattr(config, part), name)) for name in kind.names())
    return own


def _without_unchanged(wanted: Mapping[str, str], shown: Mapping[str, str], now: Mapping[str, Any]) -> dict[str, str]:
    """
    Return what is *wanted* without the values that equal those that are shown.

    An option that stands as `compat` says is kept where it is named: the value holds whatever `compat` says later. All
    options sent back together name none.
    """
    told = {**{name: own_text(value) for name, value in effective(now).items()}, **shown}
    open_fields = set() if shown.keys() <= wanted.keys() else {name for name in effective(now) if now[name] is None}
    return {key: text for key, text in wanted.items() if told.get(key) != text or fields_of(key) & open_fields}


def fields_of(key: str) -> frozenset[str]:
    """Return the fields that a key of RocketMQ sets, or an option's own name; none where it sets nothing."""
    if key in BrokerConfig.names():
        return frozenset({key})
    together = next((keys for keys in BrokerConfig.joined if key in keys), None)
    if together is not None:
        return frozenset(BrokerConfig.joined[together]({}))
    for text in _SAMPLES if key in BrokerConfig.properties else ():
        try:
            return frozenset(BrokerConfig.properties[key](text))
        except (ConfigError, ValueError):
            continue
    return frozenset()


def _check_words(file: Path, keys: Iterable[str]) -> None:
    """Raise `ConfigError` for an option that RocketMQ's format of *file* has no word for."""
    if file.suffix not in {".conf", ".properties"}:
        return
    known = BrokerConfig.keys_known()
    for key in keys:
        if key not in known:
            words = [word for word in known if key in fields_of(word)]
            way_out = f"use {' and '.join(words)}" if words else "keep the options in TOML, or give it as a flag"
            raise ConfigError(f"{key} has no word in RocketMQ's format, which {file} has; {way_out}")


def own_text(value: Any) -> str:
    """Return a value as files and flags take it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return written(value)
    if isinstance(value, Mapping):
        return ",".join(f"{name}={own_text(entry)}" for name, entry in sorted(value.items()))
    if isinstance(value, tuple | list):
        return ",".join(map(own_text, value))
    return str(value)


def rocketmq_names(options: Mapping[str, Any]) -> dict[str, str]:
    """Return what RocketMQ calls the options, and how it writes them."""
    host, _, port = options["listen"].rpartition(":")
    age, used = options["retention_age"], effective(options)
    named = {
        "autoCreateSubscriptionGroup": own_text(options["auto_create_groups"]),
        "autoCreateTopicEnable": own_text(options["auto_create_topics"]),
        "bindAddress": host,
        "brokerClusterName": options["cluster"],
        "brokerIP1": options["advertise"].partition(":")[0],
        "brokerId": str(options["broker_id"]),
        "brokerName": options["name"],
        "brokerPermission": str(options["permission"]),
        "brokerRole": "SLAVE" if options["broker_id"] else "ASYNC_MASTER",
        "configBlackList": ";".join(options["protected_keys"]),
        "compressedRegister": own_text(options["compress_registration"]),
        "defaultTopicQueueNums": str(options["default_queues"]),
        "deleteWhen": ";".join(f"{hour:02}" for hour in options["retention_hours"]),
        "enableMixedMessageType": own_text(options["mixed_topics"]),
        "enablePropertyFilter": own_text(options["sql_filters"]),
        "enableTopicMessageTypeCheck": own_text(options["check_types"] != "none"),
        "enabledAppendPropCRC": own_text(options["property_crc"]),
        "fileReservedTime": str(_FOREVER_HOURS if age in {None, timedelta.max} else age // _HOUR),
        "flushConsumerOffsetInterval": str(options["progress_interval"] // _MILLISECOND),
        "forceRegister": own_text(options["force_register"]),
        "listenPort": port,
        "mappedFileSizeCommitLog": str(options["commit_log_file_size"]),
        "mappedFileSizeConsumeQueue": str(options["consume_queue_file_entries"] * _ENTRY_BYTES),
        "maxDelayTimeMills": in_milliseconds(used["max_delay_time"]),
        "maxHashSlotNum": str(options["index_slots"]),
        "maxIndexNum": str(options["index_entries"]),
        "maxInvisibleTimeMills": in_milliseconds(used["max_invisible_time"]),
        "maxMessageSize": str(options["max_message_size"]),
        "messageDelayLevel": options.get("delay_levels") or "",
        "messageIndexEnable": own_text(options["index_enabled"]),
        "minInvisibleTimeMillsForRecv": in_milliseconds(used["min_invisible_time"]),
        "msgTraceTopicName": options["trace_topic"] or naming.TRACE_TOPIC,
        "namesrvAddr": ";".join(options["namesrv"]),
        "readOnlyCommitLogStorePaths": ",".join(options["read_only_commit_log_paths"]),
        "registerBrokerTimeoutMills": str(options["register_timeout"] // _MILLISECOND),
        "recallMessageEnable": own_text(options["recall"]),
        "regionId": options["region"],
        "rejectTransactionMessage": own_text(options["reject_transactions"]),
        "registerNameServerPeriod": str(options["register_interval"] // _MILLISECOND),
        "storePathCommitLog": ",".join(options["commit_log_paths"]) or f"{options['store']}/commitlog",
        "storePathRootDir": options["store"],
        "timerMaxDelaySec": str(int(options["timer_max_delay"].total_seconds())),
        "timerPrecisionMs": str(options["timer_precision"] // _MILLISECOND),
        "timerRollWindowSlot": str(options["timer_roll_window"]),
        "timerWheelEnable": own_text(options["timer_enabled"]),
        "mappedFileSizeTimerLog": str(options["timer_log_file_size"]),
        "traceOn": own_text(options["trace"]),
        "traceTopicEnable": own_text(bool(options["trace_topic"])),
        "transactionCheckInterval": str(options["transaction_check_interval"] // _MILLISECOND),
        "transactionCheckMax": str(options["transaction_check_max"]),
        "transactionTimeOut": str(options["transaction_timeout"] // _MILLISECOND),
        **ConsumeConfig(**{name: options[name] for name in ConsumeConfig.names()}).shown(),
        **_flush_names(str(options["flush"])),
        **_disk_names(options["retention_disk_usage"]),
    }
    return dict(sorted(named.items()))


def _flush_names(policy: str) -> dict[str, str]:
    numbers = {**_FLUSH, **dict(re.findall(r"(interval|pages|thorough) (\d+)", policy))}
    return {
        "flushDiskType": "SYNC_FLUSH" if policy.partition(" ")[0] in {"group", "each"} else "ASYNC_FLUSH",
        "flushIntervalCommitLog": numbers["interval"],
        "flushCommitLogLeastPages": numbers["pages"],
        "flushCommitLogThoroughInterval": numbers["thorough"],
    }


def _disk_names(steps: tuple[float, float, float] | None) -> dict[str, str]:
    if steps is None:
        return {"cleanFileForciblyEnable": "false"}
    names = ("diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio")
    shown = {name: f"{step:g}" for name, step in zip(names, steps, strict=True)}
    if steps[1] == _NEVER_FORCIBLY:
        return {"cleanFileForciblyEnable": "false", **shown, "diskSpaceCleanForciblyRatio": _CLEAN_FORCIBLY}
    return {"cleanFileForciblyEnable": "true", **shown}


def _translate(wanted: Mapping[str, str], shown: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the fields each key sets. Raises `ConfigError`."""
    meant: dict[str, dict[str, Any]] = {}
    for key, text in wanted.items():
        together = next((keys for keys in BrokerConfig.joined if key in keys), None)
        try:
            if key in BrokerConfig.properties:
                meant[key] = BrokerConfig.properties[key](text)
            elif together is not None:
                # Those that are not mentioned stay as they are.
                given = {name: value for name, value in {**shown, **wanted}.items() if name in together}
                meant[key] = BrokerConfig.joined[together](given)
            elif key in BrokerConfig.names():
                meant[key] = {key: text}
            else:
                _check(key)
        except (ValueError, OverflowError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{key}={text}: {error}") from error
    return meant


def _check(key: str) -> None:
    if key in BrokerConfig.without_effect:
        raise ConfigError(f"{key} has no effect here: {BrokerConfig.without_effect[key]}; leave it out")
    check_known({key: ""}, [*BrokerConfig.keys_known(), *BrokerConfig.names()], "option")
