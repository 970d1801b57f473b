"""The options of a broker for messages that producers send, and for filters."""

from dataclasses import dataclass
from typing import ClassVar

from ferromq.config.keys import BOOLEAN, Key, Keys
from ferromq.config.reader import Config
from ferromq.config.values import boolean
from ferromq.errors import ConfigError

_TYPE_CHECKS = ("none", "grpc", "all")


@dataclass(frozen=True, kw_only=True)
class SendConfig(Config):
    """The options of a broker for messages that are sent to it."""

    check_types: str = "grpc"
    """Protocols over which a message must have its topic's type: `none`, `grpc` (as in RocketMQ) or `all`."""
    mixed_topics: bool = False
    """Whether an administrator may give a topic the type MIXED, which takes messages of every type."""
    recall: bool = True
    """Whether producers may recall messages that wait for their delivery time."""
    region: str = "DefaultRegion"
    """The region written into messages of remoting clients."""
    sql_filters: bool = True
    """Whether remoting consumers may filter messages by SQL92; off in RocketMQ."""
    store_replies: bool = True
    """Whether replies are stored, in addition to being sent to the requesting client."""
    trace: bool = True
    """Whether producers are told that traces of their messages are kept."""

    properties: ClassVar[Keys] = {
        "enableMixedMessageType": Key("mixed_topics", BOOLEAN),
        "enablePropertyFilter": Key("sql_filters", BOOLEAN),
        "enableTopicMessageTypeCheck": lambda text: {"check_types": "all" if boolean(text) else "none"},
        "recallMessageEnable": Key("recall", BOOLEAN),
        "regionId": Key("region"),
        "storeReplyMessageEnable": Key("store_replies", BOOLEAN),
        "traceOn": Key("trace", BOOLEAN),
    }

    def __post_init__(self) -> None:
        if self.check_types not in _TYPE_CHECKS:
            raise ConfigError(f"check_types is {self.check_types!r}; it may be {', '.join(_TYPE_CHECKS)}")
        if not self.region:
            raise ConfigError("region is empty")
