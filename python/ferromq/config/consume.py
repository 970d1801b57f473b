"""
The options of a broker for consumers: how much one answer gives, whatever a client asks for.

`config` hands them on as part of a broker's; RocketMQ's keys for them are here.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ferromq.config.reader import Config
from ferromq.config.values import boolean, whole
from ferromq.errors import ConfigError

_MOST_MESSAGES = 4_096
_MOST_BYTES = 4 << 20
_MOST_ENTRIES = 65_536
_ENTRY_BYTES = 20
_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, kw_only=True)
class ConsumeConfig(Config):
    """
    The options of a broker for consumers; each queue that a receive looks at has the limits of a pull.

    The first message of an answer comes whatever its size. A client that asks for large answers, as ferromq's own do,
    has limits that are not options: 4,096 messages, or 16,384 records, and 4 MiB.
    """

    transfer_count: int = 32
    """Most messages of an answer that are near the end of the log."""
    transfer_bytes: int = 256 << 10
    """Most bytes of them."""
    far_transfer_count: int = 8
    """Most messages of an answer that goes on with one far behind the end of the log."""
    far_transfer_bytes: int = 64 << 10
    """Most bytes of it."""
    near_memory_ratio: int = 40
    """How far behind the end a message is near: percent of the machine's memory."""
    filter_scan_entries: int = 800
    """Messages that one look with a filter passes over, or as many as the client asks for where that is more."""
    notify_consumers: bool = True
    """Whether the members of a group are told at once when others come or go; else they find out within 20 s."""

    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "maxTransferCountOnMessageInMemory": lambda text: {"transfer_count": whole(text)},
        "maxTransferBytesOnMessageInMemory": lambda text: {"transfer_bytes": whole(text)},
        "maxTransferCountOnMessageInDisk": lambda text: {"far_transfer_count": whole(text)},
        "maxTransferBytesOnMessageInDisk": lambda text: {"far_transfer_bytes": whole(text)},
        "accessMessageInMemoryMaxRatio": lambda text: {"near_memory_ratio": whole(text)},
        "maxFilterMessageSize": lambda text: {"filter_scan_entries": -(-whole(text) // _ENTRY_BYTES)},
        "notifyConsumerIdsChangedEnable": lambda text: {"notify_consumers": boolean(text)},
    }

    def __post_init__(self) -> None:
        limits = {
            "transfer_count": (1, _MOST_MESSAGES),
            "far_transfer_count": (1, _MOST_MESSAGES),
            "transfer_bytes": (1, _MOST_BYTES),
            "far_transfer_bytes": (1, _MOST_BYTES),
            "near_memory_ratio": (0, 100),
            "filter_scan_entries": (1, _MOST_ENTRIES),
        }
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{name} is {value}; it may be {least} to {most}")

    @property
    def near_span(self) -> int:
        """Bytes before the end of the log up to which a message is near."""
        return _MEMORY * self.near_memory_ratio // 100

    def shown(self) -> dict[str, str]:
        """Return RocketMQ's names and how it writes them."""
        return {
            "maxTransferCountOnMessageInMemory": str(self.transfer_count),
            "maxTransferBytesOnMessageInMemory": str(self.transfer_bytes),
            "maxTransferCountOnMessageInDisk": str(self.far_transfer_count),
            "maxTransferBytesOnMessageInDisk": str(self.far_transfer_bytes),
            "accessMessageInMemoryMaxRatio": str(self.near_memory_ratio),
            "maxFilterMessageSize": str(self.filter_scan_entries * _ENTRY_BYTES),
        }
