"""
The options of a broker for messages: of which kind they must be, what they are stamped with, how they may be chosen.

`config` hands them on as part of a broker's; RocketMQ's keys for them are here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ferromq.config.reader import Config
from ferromq.config.values import boolean
from ferromq.errors import ConfigError

_TYPE_CHECKS = ("none", "grpc", "all")


@dataclass(frozen=True, kw_only=True)
class SendConfig(Config):
    """The options of a broker for messages that are sent to it."""

    check_types: str = "grpc"
    """Over which protocols a message must be of the kind its topic takes: `none`, `grpc` (as RocketMQ) or `all`."""
    mixed_topics: bool = False
    """Whether an administrator may make a topic MIXED, which takes messages of every kind."""
    recall: bool = True
    """Whether messages that wait for their time may be taken back."""
    region: str = "DefaultRegion"
    """What messages of remoting clients are stamped with as the region they were sent in."""
    sql_filters: bool = True
    """Whether pull and push consumers over remoting may choose messages by SQL92; RocketMQ has it off."""
    store_replies: bool = True
    """Whether replies to messages are stored as well as passed on to the client that asked."""
    trace: bool = True
    """Whether the traces of messages are worth keeping, which their senders are told."""

    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]] = {
        "enableMixedMessageType": lambda text: {"mixed_topics": boolean(text)},
        "enablePropertyFilter": lambda text: {"sql_filters": boolean(text)},
        "enableTopicMessageTypeCheck": lambda text: {"check_types": "all" if boolean(text) else "none"},
        "recallMessageEnable": lambda text: {"recall": boolean(text)},
        "regionId": lambda text: {"region": text},
        "storeReplyMessageEnable": lambda text: {"store_replies": boolean(text)},
        "traceOn": lambda text: {"trace": boolean(text)},
    }

    def __post_init__(self) -> None:
        if self.check_types not in _TYPE_CHECKS:
            raise ConfigError(f"check_types is {self.check_types!r}; it may be {', '.join(_TYPE_CHECKS)}")
        if not self.region:
            raise ConfigError("region is empty")
