"""The options of a broker as a member of its cluster: its role, its registration, its protected options."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from ferromq.config.keys import BOOLEAN, LIST, MILLISECONDS, WHOLE, JoinedKeys, Key, Keys
from ferromq.config.reader import Config
from ferromq.config.values import check_positive, whole, written
from ferromq.errors import ConfigError

_MILLISECOND = timedelta(milliseconds=1)
_PERMISSIONS = {0: "neither", 2: "write", 4: "read", 6: "both"}
_SLAVE = "SLAVE"
_MASTERS = ("ASYNC_MASTER", "SYNC_MASTER")
LONGEST_DRAIN = timedelta(days=1)
_MAX_ID = (1 << 31) - 1


def _role(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the broker id. RocketMQ's two keys must agree."""
    role, broker_id = given.get("brokerRole", _MASTERS[0]), whole(given.get("brokerId", "0"))
    if role not in {_SLAVE, *_MASTERS}:
        raise ValueError(f"brokerRole is {role}; it may be ASYNC_MASTER or SLAVE")
    if role == _SLAVE and broker_id <= 0:
        raise ValueError("a slave needs a brokerId above 0; add brokerId=1, or the next free one")
    if role != _SLAVE and broker_id:
        raise ValueError(
            f"brokerId {broker_id} is for a slave, but brokerRole is {role}; set brokerRole=SLAVE or brokerId=0"
        )
    if role == "SYNC_MASTER":
        raise ValueError(
            "SYNC_MASTER is not supported: messages are not replicated yet, so no send waits for a slave; "
            "use ASYNC_MASTER"
        )
    return {"broker_id": broker_id}


@dataclass(frozen=True, kw_only=True)
class MembershipConfig(Config):
    """The options of a broker as a member of its cluster."""

    broker_id: int = 0
    """0 for a master. Higher for a slave of the master with the same broker name; a slave takes no messages."""
    permission: int = 6
    """Upper limit for the permissions of every topic: 4 read, 2 write, 6 both, 0 none."""
    register_interval: timedelta = timedelta(seconds=30)
    """How often the broker registers with every name server; between 10 s and 60 s."""
    register_timeout: timedelta = timedelta(seconds=3)
    """How long the broker waits for a name server's answer."""
    force_register: bool = True
    """Whether the broker always sends its whole registration; if off, only if the name server's version differs."""
    compress_registration: bool = False
    """Whether registrations are compressed."""
    sync_interval: timedelta = timedelta(seconds=10)
    """How often a slave fetches topics, groups and offsets from its master."""
    drain: timedelta = timedelta()
    """How long SIGTERM lets senders leave, at most, before the broker stops; 0: it stops at once."""
    drain_quiet: timedelta = timedelta(seconds=30)
    """A drain ends when no send has come for this time. RocketMQ's remoting clients look for routes every 30 s."""
    remote_stop: bool = False
    """Whether other machines may drain, stop and reload the broker where no policy is checked."""
    watch_config: bool = False
    """Whether changes of the configuration file are taken over while the broker runs, within 20 s."""
    protected_keys: tuple[str, ...] = ()
    """Options, by RocketMQ's keys or their names here, that no request can change while the broker runs."""

    properties: ClassVar[Keys] = {
        "brokerPermission": Key("permission", WHOLE),
        "registerNameServerPeriod": Key("register_interval", MILLISECONDS),
        "registerBrokerTimeoutMills": Key("register_timeout", MILLISECONDS),
        "configBlackList": Key("protected_keys", LIST),
        "forceRegister": Key("force_register", BOOLEAN),
        "compressedRegister": Key("compress_registration", BOOLEAN),
    }
    joined: ClassVar[JoinedKeys] = {
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
        for name in ("drain", "drain_quiet"):
            if not timedelta() <= getattr(self, name) <= LONGEST_DRAIN:
                raise ConfigError(f"{name} is {written(getattr(self, name))}; it may be 0 to 24h")

    @property
    def is_slave(self) -> bool:
        """Whether the broker is a slave."""
        return self.broker_id > 0
