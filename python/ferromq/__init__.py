"""
Apache RocketMQ in one wheel: name server, broker, client and PySpark data source.

    with ferromq.embedded() as mq, mq.producer() as producer:
        producer.send("orders", b"hello", keys="o-1", tag="new")

This file only names what is public.
"""

from importlib import import_module
from typing import Any

from ferromq.errors import *  # noqa: F403

_WHERE = {
    "Admin": "ferromq.admin",
    "BrokerConfig": "ferromq.config",
    "Clock": "ferromq._ferromq",
    "Consumer": "ferromq.client.consumer",
    "Embedded": "ferromq.embedded",
    "Message": "ferromq.message",
    "MessageView": "ferromq.message",
    "NameServerConfig": "ferromq.config",
    "Producer": "ferromq.client.producer",
    "SendReceipt": "ferromq.message",
    "SendSummary": "ferromq.message",
    "embedded": "ferromq.embedded",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'ferromq' has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
