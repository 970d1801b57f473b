"""
The options where ferromq allows more than RocketMQ, and `compat`, which sets all of them to RocketMQ's values.

Most of RocketMQ's keys for them belong to its proxy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from ferromq.config.keys import Key, Keys
from ferromq.config.reader import Config
from ferromq.config.values import duration, from_zero, or_none, truth, written
from ferromq.errors import ConfigError

_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = timedelta.max // _MILLISECOND
# How RocketMQ writes that there is no limit.
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
    """Return a limit in RocketMQ's form."""
    return str(_NO_LIMIT if time == timedelta.max else time // _MILLISECOND)


@dataclass(frozen=True, kw_only=True)
class CompatConfig(Config):
    """The options where RocketMQ has stricter limits. None: the value that `compat` selects."""

    compat: str = "generous"
    """The defaults of the options below: `generous`, or RocketMQ's: `rocketmq`."""
    min_invisible_time: timedelta | None = None
    """Shortest invisible duration of a receive over gRPC without renewal; at least 1 ms."""
    max_invisible_time: timedelta | None = None
    """Longest invisible duration that a gRPC client may ask for."""
    max_delay_time: timedelta | None = None
    """Longest time from sending to delivery over gRPC; `timer_max_delay` limits both protocols."""
    grpc_creates_topics: bool | None = None
    """Whether gRPC clients create topics on first use, if `auto_create_topics` is on."""
    ordered_redelivery: str | None = None
    """What an ordered group redelivers: `unacknowledged` messages, or all messages from the first such on."""

    properties: ClassVar[Keys] = {
        "compat": Key("compat"),
        "minInvisibleTimeMillsForRecv": lambda text: {"min_invisible_time": _milliseconds(text)},
        "maxInvisibleTimeMills": lambda text: {"max_invisible_time": _milliseconds(text)},
        "maxDelayTimeMills": lambda text: {"max_delay_time": _milliseconds(text)},
        "grpc_creates_topics": Key("grpc_creates_topics"),
        "ordered_redelivery": Key("ordered_redelivery"),
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
        """Raise `ConfigError` if no invisible duration is allowed."""
        least, most = (self.used[name] for name in ("min_invisible_time", "max_invisible_time"))
        if least > most:
            raise ConfigError(
                f"min_invisible_time is {written(least)}, above max_invisible_time, {written(most)}; change one of them"
            )

    @property
    def used(self) -> dict[str, Any]:
        """The options in effect: the given ones, and the values that `compat` selects for the others."""
        return effective(self.given())


def effective(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `CompatConfig` in effect; *options* contains them by name."""
    said = _SETS[options["compat"]]
    return {name: value if options[name] is None else options[name] for name, value in said.items()}
