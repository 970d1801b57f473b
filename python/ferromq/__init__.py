"""
Apache RocketMQ in one wheel: name server, broker, client and PySpark data source.

    with ferromq.embedded() as mq, mq.producer() as producer:
        producer.send("orders", b"hello", keys="o-1", tag="new")

This file only names the public API. `ferromq.aio` has the client for asyncio, `ferromq.spark` the data source, and
`ferromq.cli` the servers' commands. Clients and servers are imported on first use, because Spark's Python processes
import this package and use neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ferromq import _ferromq
from ferromq._ferromq import ExpiredFile, StoredMessage
from ferromq.errors import (
    AlreadyExists,
    ClientClosed,
    ConfigError,
    ConnectionFailed,
    CorruptMessage,
    CorruptStore,
    DataLost,
    FerromqError,
    Forbidden,
    ForkedProcess,
    GroupNotFound,
    IllegalFilter,
    IllegalName,
    LeaseExpired,
    MessageTooLarge,
    NotDurable,
    OutcomeUnknown,
    Reject,
    RequestError,
    RequestTimeout,
    RetryAfter,
    RowError,
    ServerError,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreLocked,
    Throttled,
    TopicNotFound,
    Unsupported,
)
from ferromq.message import Message, MessageView, Resolution, SendReceipt, SendSummary
from ferromq.process.clock import Clock

if TYPE_CHECKING:
    from ferromq.admin import Admin
    from ferromq.client.consumer import Consumer
    from ferromq.client.producer import Producer, Transaction
    from ferromq.client.tls import Tls
    from ferromq.config.broker import BrokerConfig
    from ferromq.config.namesrv import NameServerConfig
    from ferromq.config.store import StoreConfig
    from ferromq.core.filters import Sql
    from ferromq.core.pull_plans import Pulled, Queue
    from ferromq.embedding import Embedded, embedded

    __version__: str

__all__ = [
    "Admin",
    "AlreadyExists",
    "BrokerConfig",
    "ClientClosed",
    "Clock",
    "ConfigError",
    "ConnectionFailed",
    "Consumer",
    "CorruptMessage",
    "CorruptStore",
    "DataLost",
    "Embedded",
    "ExpiredFile",
    "FerromqError",
    "Forbidden",
    "ForkedProcess",
    "GroupNotFound",
    "IllegalFilter",
    "IllegalName",
    "LeaseExpired",
    "Message",
    "MessageTooLarge",
    "MessageView",
    "NameServerConfig",
    "NotDurable",
    "OutcomeUnknown",
    "Producer",
    "Pulled",
    "Queue",
    "Reject",
    "RequestError",
    "RequestTimeout",
    "Resolution",
    "RetryAfter",
    "RowError",
    "SendReceipt",
    "SendSummary",
    "ServerError",
    "Sql",
    "StoreClosed",
    "StoreConfig",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoredMessage",
    "Throttled",
    "Tls",
    "TopicNotFound",
    "Transaction",
    "Unsupported",
    "embedded",
]

_HOMES = {
    "Admin": "admin",
    "BrokerConfig": "config.broker",
    "Consumer": "client.consumer",
    "Embedded": "embedding",
    "NameServerConfig": "config.namesrv",
    "Producer": "client.producer",
    "Pulled": "core.pull_plans",
    "Queue": "core.pull_plans",
    "Sql": "core.filters",
    "StoreConfig": "config.store",
    "Tls": "client.tls",
    "Transaction": "client.producer",
    "embedded": "embedding",
}

_MODULES = frozenset({"admin", "client"})

if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import public names and their modules on first use."""
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name == "__version__":
            return _ferromq.__version__
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    """Return the imported names and the public ones."""
    return sorted({*globals(), *__all__})
