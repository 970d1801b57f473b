"""The options of a broker for consumers, above all the limits of one answer, and for what it keeps for clients."""

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from ferromq.config.keys import BOOLEAN, MILLISECONDS, WHOLE, Key, Keys, divided, written_keys
from ferromq.config.reader import Config
from ferromq.config.values import check_positive
from ferromq.errors import ConfigError
from ferromq.process.memory import usable_memory

_ENTRY_BYTES = 20
_RANGES = {
    "transfer_count": (1, 4_096),
    "far_transfer_count": (1, 4_096),
    "transfer_bytes": (1, 4 << 20),
    "far_transfer_bytes": (1, 4 << 20),
    "near_memory_ratio": (0, 100),
    "filter_scan_entries": (1, 65_536),
    "client_memory": (1 << 20, 1 << 40),
    "client_memory_by_connection": (1 << 20, 1 << 40),
    "lock_memory": (1 << 20, 1 << 40),
}
_LEAST_OF_CLIENTS, _MOST_OF_CLIENTS = 256 << 20, 1 << 30
_LIMIT_KEYS: Keys = {
    "maxTransferCountOnMessageInMemory": Key("transfer_count", WHOLE),
    "maxTransferBytesOnMessageInMemory": Key("transfer_bytes", WHOLE),
    "maxTransferCountOnMessageInDisk": Key("far_transfer_count", WHOLE),
    "maxTransferBytesOnMessageInDisk": Key("far_transfer_bytes", WHOLE),
    "accessMessageInMemoryMaxRatio": Key("near_memory_ratio", WHOLE),
    "maxFilterMessageSize": Key("filter_scan_entries", divided(_ENTRY_BYTES)),
}


@dataclass(frozen=True, kw_only=True)
class ConsumeConfig(Config):
    """
    The options of a broker for consumers. A receive has the limits of a pull for each queue it reads.

    An answer has at least one message, whatever its size. Clients that ask for large answers, as ferromq's own do,
    have fixed limits: 4,096 messages, or 16,384 records, and 4 MiB.
    """

    transfer_count: int = 32
    """Most messages of an answer with messages near the end of the log."""
    transfer_bytes: int = 256 << 10
    """Most bytes of such an answer."""
    far_transfer_count: int = 8
    """Most messages of an answer with a message far behind the end of the log."""
    far_transfer_bytes: int = 64 << 10
    """Most bytes of such an answer."""
    near_memory_ratio: int = 40
    """A message is near if it is less than this percentage of the machine's memory behind the end of the log."""
    filter_scan_entries: int = 800
    """Messages that one filtered read may skip; or the number the client asks for, if that is larger."""
    notify_consumers: bool = True
    """Whether a group's members are notified when a member joins or leaves; otherwise they notice within 20 s."""
    client_lease: timedelta = timedelta(seconds=120)
    """A client without a heartbeat for this long is forgotten."""
    client_memory: int | None = None
    """
    Bytes of memory for the groups, subscriptions and settings of all clients. None: a quarter of the memory that the
    process may use, at least 256 MiB and at most 1 GiB.
    """
    client_memory_by_connection: int = 8 << 20
    """The same for the clients of one connection. 8 MiB are about 5,000 groups of an ordinary client."""
    lock_memory: int = 64 << 20
    """Bytes of memory for the locks of queues that clients consume in order. 64 MiB are more than 100,000 locks."""

    properties: ClassVar[Keys] = {
        **_LIMIT_KEYS,
        "notifyConsumerIdsChangedEnable": Key("notify_consumers", BOOLEAN),
        "channelExpiredTimeout": Key("client_lease", MILLISECONDS),
        "client_memory": Key("client_memory"),
        "client_memory_by_connection": Key("client_memory_by_connection"),
        "lock_memory": Key("lock_memory"),
    }

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"{name} is {value}; it may be {least} to {most}")
        check_positive("client_lease", self.client_lease, timedelta())

    def check_together(self) -> None:
        """Raise `ConfigError` if a connection may take more memory than all together."""
        if self.client_memory_by_connection > self.memory_of_clients:
            raise ConfigError(
                f"client_memory_by_connection is {self.client_memory_by_connection} bytes, but all connections "
                f"together may take {self.memory_of_clients}; lower it or raise client_memory"
            )

    @property
    def memory_of_clients(self) -> int:
        """The most bytes of memory for what is kept for all clients."""
        if self.client_memory is not None:
            return self.client_memory
        return min(max(usable_memory() // 4, _LEAST_OF_CLIENTS), _MOST_OF_CLIENTS)

    @property
    def near_span(self) -> int:
        """The distance from the end of the log, in bytes, within which a message is near."""
        return usable_memory() * self.near_memory_ratio // 100

    def shown(self) -> dict[str, str]:
        """Return the limits as RocketMQ's keys and values."""
        return written_keys(_LIMIT_KEYS, self.given())
