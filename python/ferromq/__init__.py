"""
Apache RocketMQ in one wheel: name server, broker, client and PySpark data source.

    with ferromq.embedded() as mq, mq.producer() as producer:
        producer.send("orders", b"hello", keys="o-1", tag="new")

This file only names what is public.
"""

from importlib import import_module
from typing import Any

from ferromq._time import Clock
from ferromq.config import BrokerConfig, NameServerConfig
from ferromq.embedded import Embedded, embedded
from ferromq.errors import *  # noqa: F403

_WHERE = {
    "Admin": "ferromq.admin",
    "Consumer": "ferromq.client.consumer",
    "Message": "ferromq.message",
    "MessageView": "ferromq.message",
    "Producer": "ferromq.client.producer",
    "SendReceipt": "ferromq.message",
    "SendSummary": "ferromq.message",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'ferromq' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
