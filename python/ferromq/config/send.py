"""The options of a broker for messages that producers send, and for filters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ferromq.config.keys import BOOLEAN, JoinedKeys, Key, Keys
from ferromq.config.reader import Config
from ferromq.config.values import boolean
from ferromq.errors import ConfigError, IllegalName
from ferromq.protocol import naming

_TYPE_CHECKS = ("none", "grpc", "all")
# RocketMQ's joined keys, and their defaults there.
_TRACE = {"traceTopicEnable": "false", "msgTraceTopicName": naming.TRACE_TOPIC}


def _trace(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the topic of traces, if it is enabled."""
    asked, name = (given.get(key, default) for key, default in _TRACE.items())
    return {"trace_topic": name if boolean(asked) else ""}


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
    trace_topic: str = ""
    """Topic for the traces of clients, created at the start. Empty: none."""

    properties: ClassVar[Keys] = {
        "enableMixedMessageType": Key("mixed_topics", BOOLEAN),
        "enablePropertyFilter": Key("sql_filters", BOOLEAN),
        "enableTopicMessageTypeCheck": lambda text: {"check_types": "all" if boolean(text) else "none"},
        "recallMessageEnable": Key("recall", BOOLEAN),
        "regionId": Key("region"),
        "storeReplyMessageEnable": Key("store_replies", BOOLEAN),
        "traceOn": Key("trace", BOOLEAN),
    }

    joined: ClassVar[JoinedKeys] = {tuple(_TRACE): _trace}

    def __post_init__(self) -> None:
        if self.check_types not in _TYPE_CHECKS:
            raise ConfigError(f"check_types is {self.check_types!r}; it may be {', '.join(_TYPE_CHECKS)}")
        if not self.region:
            raise ConfigError("region is empty")
        self._check_trace_topic()

    def _check_trace_topic(self) -> None:
        if not self.trace_topic:
            return
        try:
            naming.check_topic(self.trace_topic)
        except IllegalName as error:
            raise ConfigError(f"trace_topic: {error}") from error
        if naming.is_internal_topic(self.trace_topic):
            raise ConfigError(
                f"trace_topic is {self.trace_topic}, which clients cannot write; use {naming.TRACE_TOPIC}, a name "
                f"that begins with {naming.TRACE_PREFIX}, or one that is no system topic"
            )
