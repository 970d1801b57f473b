"""
The options of `spark.readStream.format("ferromq")`: those of a batch read, and these.

maxOffsetsPerTrigger  maximum queue offsets of a batch, shared among queues in proportion to their waiting messages
minOffsetsPerTrigger  a batch begins once this many queue offsets wait, or
maxTriggerDelay       this long after the first of them was seen, such as `30s`; default 15m
failOnDataLoss        `true` (default): the query fails if messages that it should read are gone;
                      `false`: it continues with what is left, and logs the number of lost rows
unreachableTimeout    time to wait for brokers that do not answer, and queues that no route names; default 60s
group                 a consumer group to which the next offsets are written after a batch, so that consumerProgress
                      shows them; they are never read

The first three need PySpark 4.2, which passes read limits to data sources. startingOffsets and startingTimestamp apply
to a new query; a restarted query continues from its checkpoint. A stream has no end: endingOffsets and endingTimestamp
are for batch reads.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ferromq.errors import ConfigError, IllegalName
from ferromq.protocol import naming
from ferromq.spark.options import OPTIONS, STREAM_OPTIONS, OptionReader, ReadOptions

_BATCH_ONLY = ("endingOffsets", "endingTimestamp")
_ADMISSION = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_DELAY = 900.0
_UNREACHABLE_TIMEOUT = 60.0
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h)")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The parsed options of a stream, not yet compared with a broker."""

    read: ReadOptions
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay: float = _MAX_DELAY
    """Seconds."""
    fail_on_data_loss: bool = True
    unreachable_timeout: float = _UNREACHABLE_TIMEOUT
    """Seconds to wait for unreachable brokers."""
    group: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, pyspark: str, has_admission: bool) -> "StreamOptions":
        """
        Parse Spark's *options*. ConfigError names the option, its value and the allowed values.

        *pyspark* is the installed version; *has_admission* is whether it passes read limits.
        """
        read = ReadOptions.parse(options, also=STREAM_OPTIONS)
        given = OptionReader(options, (*OPTIONS, *STREAM_OPTIONS))
        for name in _BATCH_ONLY:
            if given.get(name) is not None:
                raise ConfigError(
                    f"option {name!r} is {given.get(name)!r}, but a stream has no end; allowed: in spark.read, or "
                    "trigger(availableNow=True), which ends at the max offsets when the query starts"
                )
        for name in () if has_admission else _ADMISSION:
            if given.get(name) is not None:
                raise ConfigError(
                    f"option {name!r} is {given.get(name)!r} and needs PySpark 4.2 or later, which passes read limits "
                    f"to data sources; this is PySpark {pyspark}: install a later one, or remove the option"
                )
        most, least = _count(given, "maxOffsetsPerTrigger"), _count(given, "minOffsetsPerTrigger")
        if most is not None and least is not None and least > most:
            raise ConfigError(
                f"option 'minOffsetsPerTrigger' is {least}; allowed: up to 'maxOffsetsPerTrigger', {most}"
            )
        if least is None and given.get("maxTriggerDelay") is not None:
            raise ConfigError(
                f"option 'maxTriggerDelay' is {given.get('maxTriggerDelay')!r} without 'minOffsetsPerTrigger', whose "
                "wait it ends; set both, or remove it"
            )
        return cls(
            read=read,
            max_offsets=most,
            min_offsets=least,
            max_delay=_duration(given, "maxTriggerDelay", _MAX_DELAY),
            fail_on_data_loss=given.flag("failOnDataLoss", default=True),
            unreachable_timeout=_duration(given, "unreachableTimeout", _UNREACHABLE_TIMEOUT),
            group=given.parsed("group", _group, "the name of a consumer group"),
        )


def _count(given: OptionReader, name: str) -> int | None:
    return None if given.get(name) is None else given.positive(name, 1)


def _duration(given: OptionReader, name: str, default: float) -> float:
    found = given.parsed(name, _seconds, "a time with its unit, such as 500ms, 30s, 15m or 1h")
    return default if found is None else found


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text.strip().lower().replace(" ", ""))
    if match is None:
        raise ValueError
    return int(match[1]) * _UNITS[match[2]]


def _group(name: str) -> str:
    try:
        naming.check_group(name)
    except IllegalName as error:
        raise ValueError(str(error)) from error
    return name
