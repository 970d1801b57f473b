"""
The broker's options under RocketMQ's names: how to print them, and what each key sets.

`config` defines the options and their limits.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any

from ferromq.config.broker import BrokerConfig
from ferromq.config.compat import effective, in_milliseconds
from ferromq.config.consume import ConsumeConfig
from ferromq.config.keys import Key, written_keys
from ferromq.config.known_names import check_known
from ferromq.config.values import written
from ferromq.errors import ConfigError
from ferromq.protocol import naming

_ENTRY_BYTES = 20
# Each of RocketMQ's keys without a plain form accepts one of these values.
_SAMPLES = ("1", "true", "100")
_MILLISECOND, _HOUR = timedelta(milliseconds=1), timedelta(hours=1)
_FOREVER_HOURS = (1 << 31) - 1
# RocketMQ's defaults of its flush keys.
_FLUSH = {"interval": "500", "pages": "0", "thorough": "10000"}
# The disk usage that deletes unexpired files: never, and RocketMQ's default.
_NEVER_FORCIBLY, _CLEAN_FORCIBLY = 100, "85"
_PLAIN_KEYS = {
    key: BrokerConfig.properties[key]
    for key in (
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerClusterName",
        "brokerName",
        "brokerPermission",
        "compressedRegister",
        "configBlackList",
        "defaultTopicQueueNums",
        "enableMixedMessageType",
        "enablePropertyFilter",
        "enabledAppendPropCRC",
        "flushConsumerOffsetInterval",
        "forceRegister",
        "mappedFileSizeCommitLog",
        "mappedFileSizeTimerLog",
        "maxHashSlotNum",
        "maxIndexNum",
        "maxMessageSize",
        "messageIndexEnable",
        "namesrvAddr",
        "recallMessageEnable",
        "regionId",
        "registerBrokerTimeoutMills",
        "registerNameServerPeriod",
        "rejectTransactionMessage",
        "storePathRootDir",
        "timerRollWindowSlot",
        "timerWheelEnable",
        "traceOn",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionTimeOut",
    )
}
"""The shown keys that set one option each."""


def as_lines(options: Mapping[str, Any], shown: Mapping[str, str] | None = None) -> str:
    """Return lines NAME=VALUE of every option but secrets, RocketMQ's names first; *shown* overrides their values."""
    lines = [
        *(shown or rocketmq_names(options)).items(),
        *(
            (name, own_text(value))
            for name, value in sorted({**options, **effective(options)}.items())
            if not BrokerConfig.is_secret(name)
        ),
    ]
    return "".join(f"{name}={value}\n" for name, value in lines)


def flat(config: BrokerConfig) -> dict[str, Any]:
    """Return every option by name, including those of the parts."""
    parts = BrokerConfig.parts
    own = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in parts}
    for part, kind in parts.items():
        own.update((name, getattr(getattr(config, part), name)) for name in kind.names())
    return own


def fields_of(key: str) -> frozenset[str]:
    """Return the fields that a RocketMQ key or an option's own name sets; empty if it has no effect."""
    if key in BrokerConfig.names():
        return frozenset({key})
    together = next((keys for keys in BrokerConfig.joined if key in keys), None)
    if together is not None:
        return frozenset(BrokerConfig.joined[together]({}))
    entry = BrokerConfig.properties.get(key)
    if isinstance(entry, Key):
        return frozenset({entry.option})
    for text in _SAMPLES if entry is not None else ():
        try:
            return frozenset(BrokerConfig.properties[key](text))
        except (ConfigError, ValueError):
            continue
    return frozenset()


def own_text(value: Any) -> str:
    """Return a value as text for files and flags."""
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
    """Return the options under RocketMQ's names, as texts in its format."""
    host, _, port = options["listen"].rpartition(":")
    age, used = options["retention_age"], effective(options)
    named = {
        **written_keys(_PLAIN_KEYS, options),
        "authenticationEnabled": own_text(options["authentication_enabled"]),
        "authorizationEnabled": own_text(options["authorization_enabled"]),
        "bindAddress": host,
        "brokerIP1": options["advertise"].partition(":")[0],
        "brokerId": str(options["broker_id"]),
        "brokerRole": "SLAVE" if options["broker_id"] else "ASYNC_MASTER",
        "deleteWhen": ";".join(f"{hour:02}" for hour in options["retention_hours"]),
        "enableTopicMessageTypeCheck": own_text(options["check_types"] != "none"),
        "fileReservedTime": str(_FOREVER_HOURS if age in {None, timedelta.max} else age // _HOUR),
        "listenPort": port,
        "mappedFileSizeConsumeQueue": str(options["consume_queue_file_entries"] * _ENTRY_BYTES),
        "maxDelayTimeMills": in_milliseconds(used["max_delay_time"]),
        "maxInvisibleTimeMills": in_milliseconds(used["max_invisible_time"]),
        "messageDelayLevel": options.get("delay_levels") or "",
        "minInvisibleTimeMillsForRecv": in_milliseconds(used["min_invisible_time"]),
        "msgTraceTopicName": options["trace_topic"] or naming.TRACE_TOPIC,
        "readOnlyCommitLogStorePaths": ",".join(options["read_only_commit_log_paths"]),
        "storePathCommitLog": ",".join(options["commit_log_paths"]) or f"{options['store']}/commitlog",
        "timerMaxDelaySec": str(int(options["timer_max_delay"].total_seconds())),
        "timerPrecisionMs": str(options["timer_precision"] // _MILLISECOND),
        "traceTopicEnable": own_text(bool(options["trace_topic"])),
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


def translate(wanted: Mapping[str, str], shown: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the fields that each key sets. Raises `ConfigError`."""
    meant: dict[str, dict[str, Any]] = {}
    for key, text in wanted.items():
        together = next((keys for keys in BrokerConfig.joined if key in keys), None)
        try:
            if key in BrokerConfig.properties:
                meant[key] = BrokerConfig.properties[key](text)
            elif together is not None:
                # Keys that are not given keep their values.
                given = {name: value for name, value in {**shown, **wanted}.items() if name in together}
                meant[key] = BrokerConfig.joined[together](given)
            elif key in BrokerConfig.names():
                meant[key] = {key: text}
            else:
                _check_known(key)
        except (ValueError, OverflowError) as error:
            if isinstance(error, ConfigError):
                raise
            named = key if BrokerConfig.is_secret(key) else f"{key}={text}"
            raise ConfigError(f"{named}: {error}") from error
    return meant


def _check_known(key: str) -> None:
    if key in BrokerConfig.without_effect:
        raise ConfigError(f"{key} has no effect here: {BrokerConfig.without_effect[key]}; leave it out")
    check_known({key: ""}, [*BrokerConfig.keys_known(), *BrokerConfig.names()], "option")
