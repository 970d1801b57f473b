"""
Apache RocketMQ in one wheel: name server, broker, client and PySpark data source.

    with ferromq.embedded() as mq, mq.producer() as producer:
        producer.send("orders", b"hello", keys="o-1", tag="new")

`ferromq.connect("127.0.0.1:8081")`, in place of `embedded`, uses a broker that runs already.

Every duration is a `timedelta` or a number of seconds. Every time is a `datetime` with a time zone, or milliseconds
since 1970 as an `int`; times in results are milliseconds.

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
    Failed,
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
    PolicyNotFound,
    Reject,
    RequesterGone,
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
    Undecodable,
    Unsupported,
    UserNotFound,
)
from ferromq.message import Message, MessageView, Reply, Resolution, SendReceipt, SendSummary
from ferromq.process.clock import Clock

if TYPE_CHECKING:
    from ferromq import admin as admin
    from ferromq import aio as aio
    from ferromq import client as client
    from ferromq import telemetry as telemetry
    from ferromq.admin import Admin, DeadLetter, ResentLetter
    from ferromq.client.consumer import Consumer
    from ferromq.client.producer import Producer, Transaction
    from ferromq.client.reader import Reader
    from ferromq.client.tls import Tls
    from ferromq.config.broker import BrokerConfig
    from ferromq.config.namesrv import NameServerConfig
    from ferromq.config.store import StoreConfig
    from ferromq.connecting import Connection, connect
    from ferromq.core.filters import Sql
    from ferromq.core.payloads import DecodedMessage
    from ferromq.core.progress import Progress, QueueProgress
    from ferromq.core.pull_plans import Pulled, Queue
    from ferromq.embedding import Embedded, embedded
    from ferromq.tables import MessageTable, PulledTable, to_arrow, to_pandas

    __version__: str

__all__ = [
    "Admin",
    "AlreadyExists",
    "BrokerConfig",
    "ClientClosed",
    "Clock",
    "ConfigError",
    "Connection",
    "ConnectionFailed",
    "Consumer",
    "CorruptMessage",
    "CorruptStore",
    "DataLost",
    "DeadLetter",
    "DecodedMessage",
    "Embedded",
    "ExpiredFile",
    "Failed",
    "FerromqError",
    "Forbidden",
    "ForkedProcess",
    "GroupNotFound",
    "IllegalFilter",
    "IllegalName",
    "LeaseExpired",
    "Message",
    "MessageTable",
    "MessageTooLarge",
    "MessageView",
    "NameServerConfig",
    "NotDurable",
    "OutcomeUnknown",
    "PolicyNotFound",
    "Producer",
    "Progress",
    "Pulled",
    "PulledTable",
    "Queue",
    "QueueProgress",
    "Reader",
    "Reject",
    "Reply",
    "RequestError",
    "RequestTimeout",
    "RequesterGone",
    "ResentLetter",
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
    "Undecodable",
    "Unsupported",
    "UserNotFound",
    "connect",
    "embedded",
    "to_arrow",
    "to_pandas",
]

_HOMES = {
    "Admin": "admin",
    "BrokerConfig": "config.broker",
    "Connection": "connecting",
    "DeadLetter": "admin",
    "Consumer": "client.consumer",
    "DecodedMessage": "core.payloads",
    "Embedded": "embedding",
    "NameServerConfig": "config.namesrv",
    "Producer": "client.producer",
    "Progress": "core.progress",
    "Pulled": "core.pull_plans",
    "Queue": "core.pull_plans",
    "QueueProgress": "core.progress",
    "Reader": "client.reader",
    "ResentLetter": "admin",
    "Sql": "core.filters",
    "StoreConfig": "config.store",
    "Tls": "client.tls",
    "Transaction": "client.producer",
    "connect": "connecting",
    "embedded": "embedding",
    "MessageTable": "tables",
    "PulledTable": "tables",
    "to_arrow": "tables",
    "to_pandas": "tables",
}

_MODULES = frozenset({"admin", "aio", "client", "telemetry"})

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
