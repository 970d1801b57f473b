"""
The options of a broker as a member of its cluster: its role, how it registers, what administrators may not change.

`config` hands them on as part of a broker's; RocketMQ's keys for them are here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from ferromq.config.reader import Config
from ferromq.config.values import boolean, check_positive, split_list, whole
from ferromq.errors import ConfigError

_MILLISECOND = timedelta(milliseconds=1)
_PERMISSIONS = {0: "neither", 2: "write", 4: "read", 6: "both"}
_SLAVE = "SLAVE"
_MASTERS = ("ASYNC_MASTER", "SYNC_MASTER")
_MAX_ID = (1 << 31) - 1


def _role(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the broker id of RocketMQ's two keys; which of them counts there, the file may not leave open."""
    role, broker_id = given.get("brokerRole", _MASTERS[0]), whole(given.get("brokerId", "0"))
    if role not in {_SLAVE, *_MASTERS}:
        raise ValueError(f"{role} is no brokerRole; it may be ASYNC_MASTER or SLAVE")
    if role == _SLAVE and broker_id <= 0:
        raise ValueError("a slave needs a brokerId above 0; add brokerId=1, or the next one that is free")
    if role != _SLAVE and broker_id:
        raise ValueError(
            f"brokerId {broker_id} is a slave's, and the brokerRole is {role}; add brokerRole=SLAVE, or say brokerId=0"
        )
    if role == "SYNC_MASTER":
        raise ValueError(
            "SYNC_MASTER is asked, but logs are not replicated yet and no send would wait for a slave; use ASYNC_MASTER"
        )
    return {"broker_id": broker_id}


@dataclass(frozen=True, kw_only=True)
class MembershipConfig(Config):
    """The options of a broker as a member of its cluster."""

    broker_id: int = 0
    """0: a master. Above: a slave of the master with the same broker name; it takes no messages."""
    permission: int = 6
    """What the broker allows of what its topics allow: 4 read, 2 write, 6 both, 0 neither."""
    register_interval: timedelta = timedelta(seconds=30)
    """How often the broker registers with every name server; between 10 s and 60 s."""
    register_timeout: timedelta = timedelta(seconds=3)
    """How long one name server may take to answer."""
    force_register: bool = True
    """Whether a whole registration is sent every time; off: only where the name server has another version of it."""
    compress_registration: bool = False
    """Whether registrations are deflated."""
    sync_interval: timedelta = timedelta(seconds=10)
    """How often a slave asks its master for topics, groups and offsets."""
    protected_keys: tuple[str, ...] = ()
    """Options, by RocketMQ's keys or by these names, that may not be changed from outside while the broker runs."""

    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "brokerPermission": lambda text: {"permission": whole(text)},
        "registerNameServerPeriod": lambda text: {"register_interval": whole(text) * _MILLISECOND},
        "registerBrokerTimeoutMills": lambda text: {"register_timeout": whole(text) * _MILLISECOND},
        "configBlackList": lambda text: {"protected_keys": split_list(text)},
        "forceRegister": lambda text: {"force_register": boolean(text)},
        "compressedRegister": lambda text: {"compress_registration": boolean(text)},
    }
    joined: ClassVar[Mapping[tuple[str, ...], Callable[[Mapping[str, str]], dict[str, Any]]]] = {
        ("brokerRole", "brokerId"): _role,
    }

    def __post_init__(self) -> None:
        if not 0 <= self.broker_id <= _MAX_ID:
            raise ConfigError(f"broker_id is {self.broker_id}; 0 is a master, 1 to {_MAX_ID} are slaves")
        if self.permission not in _PERMISSIONS:
            known = ", ".join(f"{bits} {meaning}" for bits, meaning in sorted(_PERMISSIONS.items()))
            raise ConfigError(f"permission is {self.permission}; it may be {known}")
        for name in ("register_interval", "register_timeout", "sync_interval"):
            check_positive(name, getattr(self, name), timedelta())

    @property
    def is_slave(self) -> bool:
        """Says whether the broker is a slave."""
        return self.broker_id > 0
