"""
Apache RocketMQ in one wheel: name server, broker, client and PySpark data source.

    with ferromq.embedded() as mq, mq.producer() as producer:
        producer.send("orders", b"hello", keys="o-1", tag="new")

This file only names what is public. Servers are started by `ferromq.cli`, Spark's side is `ferromq.spark`, and
`ferromq.aio` has the client with `await`.
"""

from ferromq._ferromq import ExpiredFile, StoredMessage
from ferromq._time import Clock
from ferromq.admin import Admin
from ferromq.client._filters import Sql
from ferromq.client._pull_plans import Pulled, Queue
from ferromq.client._tls import Tls
from ferromq.client.consumer import Consumer
from ferromq.client.producer import Producer, Transaction
from ferromq.config import BrokerConfig, NameServerConfig, StoreConfig
from ferromq.embedded import Embedded, embedded
from ferromq.errors import (
    ConfigError,
    ConnectionFailed,
    CorruptStore,
    DataLost,
    FerromqError,
    Forbidden,
    ForkedProcess,
    GroupNotFound,
    IllegalFilter,
    IllegalName,
    MessageTooLarge,
    NotDurable,
    OutcomeUnknown,
    ReceiptHandleExpired,
    RequestError,
    RequestTimeout,
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

__all__ = [
    "Admin",
    "BrokerConfig",
    "Clock",
    "ConfigError",
    "ConnectionFailed",
    "Consumer",
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
    "Message",
    "MessageTooLarge",
    "MessageView",
    "NameServerConfig",
    "NotDurable",
    "OutcomeUnknown",
    "Producer",
    "Pulled",
    "Queue",
    "ReceiptHandleExpired",
    "RequestError",
    "RequestTimeout",
    "Resolution",
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
