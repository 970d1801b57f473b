"""The options of a broker's store for timed messages. None: the default, which the Rust core has."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from ferromq._ferromq import Store
from ferromq.config.keys import BOOLEAN, NATURAL, WHOLE, Key, Keys
from ferromq.config.reader import Config
from ferromq.config.values import from_zero, whole

_PRECISIONS_MS = (100, 200, 500, 1000)


def _precision(text: str) -> dict[str, Any]:
    """Return the span of a slot. RocketMQ silently takes the next lower of four values."""
    milliseconds = whole(text)
    if milliseconds not in _PRECISIONS_MS:
        nearest = max((known for known in _PRECISIONS_MS if known <= milliseconds), default=_PRECISIONS_MS[0])
        known = ", ".join(map(str, _PRECISIONS_MS))
        raise ValueError(f"RocketMQ replaces {text} by {nearest}; use one of {known}, so that both can open the store")
    return {"timer_precision": timedelta(milliseconds=milliseconds)}


@dataclass(frozen=True, kw_only=True)
class TimerConfig(Config):
    """The options of a broker's store for timed messages."""

    timer_enabled: bool | None = None
    """Whether messages may have a delivery time."""
    timer_max_delay: timedelta | None = None
    """The longest time from sending to delivery."""
    timer_precision: timedelta | None = None
    """The span of a slot in the file `timerwheel`. A Java broker that opens the directory needs the same value."""
    timer_roll_window: int | None = None
    """A message whose delivery is more slots ahead is stored again on its way."""
    timer_wheel_slots: int | None = None
    """Half the slots of a new `timerwheel`. Java opens only the default."""
    timer_log_file_size: int | None = None
    """Size of a new file in `timerlog`, bytes."""

    properties: ClassVar[Keys] = {
        "timerWheelEnable": Key("timer_enabled", BOOLEAN),
        "timerMaxDelaySec": lambda text: {"timer_max_delay": timedelta(seconds=from_zero(text))},
        "timerPrecisionMs": _precision,
        "timerRollWindowSlot": Key("timer_roll_window", NATURAL),
        "mappedFileSizeTimerLog": Key("timer_log_file_size", WHOLE),
    }

    def __post_init__(self) -> None:
        Store.check(**self.overrides())

    def overrides(self) -> dict[str, Any]:
        """Return the given options."""
        return {name: value for name, value in self.given().items() if value is not None}
