"""
The options of a broker's store for messages with a time of delivery of their own.

`config` hands them on as part of a broker's; RocketMQ's keys for them are here. None: the default, which lives in the
Rust core, as do the limits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from ferromq._ferromq import Store
from ferromq.config.reader import Config
from ferromq.config.values import boolean, from_zero, whole

_PRECISIONS_MS = (100, 200, 500, 1000)


def _precision(text: str) -> dict[str, Any]:
    """Return the span of a slot; RocketMQ takes the next lower of four for any other."""
    milliseconds = whole(text)
    if milliseconds not in _PRECISIONS_MS:
        nearest = max((known for known in _PRECISIONS_MS if known <= milliseconds), default=_PRECISIONS_MS[0])
        known = ", ".join(map(str, _PRECISIONS_MS))
        raise ValueError(f"RocketMQ takes {text} for {nearest}; use one of {known}, which its store directory has, too")
    return {"timer_precision": timedelta(milliseconds=milliseconds)}


@dataclass(frozen=True, kw_only=True)
class TimerConfig(Config):
    """The options of a broker's store for times of delivery."""

    timer_enabled: bool | None = None
    """Whether messages may have a time of delivery of their own."""
    timer_max_delay: timedelta | None = None
    """How far ahead such a time may be."""
    timer_precision: timedelta | None = None
    """The span of a slot in the file `timerwheel`; a Java broker that opens the directory must have the same."""
    timer_roll_window: int | None = None
    """Slots ahead beyond which a message with a time of delivery is stored anew on its way."""
    timer_wheel_slots: int | None = None
    """Half the slots of a new `timerwheel`; Java opens no other than the default."""
    timer_log_file_size: int | None = None
    """Size of a new file in `timerlog`, bytes."""

    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "timerWheelEnable": lambda text: {"timer_enabled": boolean(text)},
        "timerMaxDelaySec": lambda text: {"timer_max_delay": timedelta(seconds=from_zero(text))},
        "timerPrecisionMs": _precision,
        "timerRollWindowSlot": lambda text: {"timer_roll_window": from_zero(text)},
        "mappedFileSizeTimerLog": lambda text: {"timer_log_file_size": whole(text)},
    }

    def __post_init__(self) -> None:
        Store.check(**self.overrides())

    def overrides(self) -> dict[str, Any]:
        """Return the options that were given."""
        return {name: value for name, value in self.given().items() if value is not None}
