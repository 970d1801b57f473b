"""
The options where ferromq allows more than RocketMQ, and the one that takes RocketMQ's side in all of them: `compat`.

`config` hands them on as part of a broker's; RocketMQ's keys for them, most of them its proxy's, are here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from ferromq.config.reader import Config
from ferromq.config.values import duration, from_zero, or_none, truth, written
from ferromq.errors import ConfigError

_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = timedelta.max // _MILLISECOND
# What RocketMQ's 64 bits hold where there is no limit.
_NO_LIMIT = (1 << 63) - 1
_REDELIVERIES = ("unacknowledged", "from_first")
_SETS: Mapping[str, Mapping[str, Any]] = {
    "generous": {
        "min_invisible_time": _MILLISECOND,
        "max_invisible_time": timedelta(hours=12),
        "max_delay_time": timedelta.max,
        "grpc_creates_topics": True,
        "ordered_redelivery": "unacknowledged",
    },
    "rocketmq": {
        "min_invisible_time": timedelta(seconds=10),
        "max_invisible_time": timedelta(hours=12),
        "max_delay_time": timedelta(days=1),
        "grpc_creates_topics": False,
        "ordered_redelivery": "from_first",
    },
}
_OF_COMPAT = or_none(duration)


def _milliseconds(text: str) -> timedelta:
    wanted = from_zero(text)
    return timedelta.max if wanted > _LONGEST else wanted * _MILLISECOND


def in_milliseconds(time: timedelta) -> str:
    """Return a limit as RocketMQ writes it."""
    return str(_NO_LIMIT if time == timedelta.max else time // _MILLISECOND)


@dataclass(frozen=True, kw_only=True)
class CompatConfig(Config):
    """The options that say whose side is taken where RocketMQ refuses what could be done. None: as `compat` says."""

    compat: str = "generous"
    """What the options below are unless they are given: `generous`, or as with `rocketmq`."""
    min_invisible_time: timedelta | None = None
    """Shortest invisible duration of a receive over gRPC that is not renewed; at least 1 ms."""
    max_invisible_time: timedelta | None = None
    """Longest invisible duration that a receive or a change over gRPC may ask for."""
    max_delay_time: timedelta | None = None
    """How far ahead a time of delivery over gRPC may be; `timer_max_delay` holds for both protocols."""
    grpc_creates_topics: bool | None = None
    """Whether gRPC clients create topics on first use, where `auto_create_topics` is on."""
    ordered_redelivery: str | None = None
    """What comes again in an ordered group: what is `unacknowledged`, or all messages `from_first` of those on."""

    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "compat": lambda text: {"compat": text},
        "minInvisibleTimeMillsForRecv": lambda text: {"min_invisible_time": _milliseconds(text)},
        "maxInvisibleTimeMills": lambda text: {"max_invisible_time": _milliseconds(text)},
        "maxDelayTimeMills": lambda text: {"max_delay_time": _milliseconds(text)},
        "grpc_creates_topics": lambda text: {"grpc_creates_topics": text},
        "ordered_redelivery": lambda text: {"ordered_redelivery": text},
    }
    own_converters: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "min_invisible_time": _OF_COMPAT,
        "max_invisible_time": _OF_COMPAT,
        "max_delay_time": _OF_COMPAT,
        "grpc_creates_topics": or_none(truth),
        "ordered_redelivery": or_none(str),
    }

    def __post_init__(self) -> None:
        if self.compat not in _SETS:
            raise ConfigError(f"compat is {self.compat!r}; it may be {', '.join(_SETS)}")
        if self.ordered_redelivery not in {None, *_REDELIVERIES}:
            raise ConfigError(
                f"ordered_redelivery is {self.ordered_redelivery!r}; it may be {', '.join(_REDELIVERIES)}"
            )
        for name, value in self.used.items():
            if isinstance(value, timedelta) and value < _MILLISECOND:
                raise ConfigError(f"{name} is {written(value)}; it must be 1 ms or more, or forever")

    def check_together(self) -> None:
        """Raise `ConfigError` where no invisible duration is allowed."""
        least, most = (self.used[name] for name in ("min_invisible_time", "max_invisible_time"))
        if least > most:
            raise ConfigError(
                f"min_invisible_time is {written(least)}, above max_invisible_time, {written(most)}; change one of them"
            )

    @property
    def used(self) -> dict[str, Any]:
        """The named options as they count: what was given, and for the others what `compat` says."""
        return effective(self.given())


def effective(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `CompatConfig` as they count, found by name in *options*."""
    said = _SETS[options["compat"]]
    return {name: value if options[name] is None else options[name] for name, value in said.items()}
