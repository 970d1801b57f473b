"""
The client for asyncio: the names of `ferromq`, with `await`, `async with` and `async for`.

    async with ferromq.aio.connect("127.0.0.1:8081") as mq, mq.producer() as producer:
        await producer.send("orders", b"hello")

Plans, batching and leases are those of `ferromq.core`; heartbeats run on a thread of their own, so that a loop that
is busy for a minute does not cost a client its place.
"""

from ferromq.aio.admin import Admin
from ferromq.aio.connecting import Connection, connect
from ferromq.aio.consumer import Consumer
from ferromq.aio.producer import Producer, Transaction
from ferromq.aio.reader import Reader
from ferromq.aio.workers import Workers

__all__ = ["Admin", "Connection", "Consumer", "Producer", "Reader", "Transaction", "Workers", "connect"]
