"""
The client for asyncio: `Producer` and `Consumer` as in `ferromq`, with `await`, `async with` and `async for`.

    async with ferromq.aio.Producer("127.0.0.1:8081") as producer:
        await producer.send("orders", b"hello")

Plans, batching and leases are those of `ferromq.core`; heartbeats run on a thread of their own, so that a loop that
is busy for a minute does not cost a client its place.
"""

from ferromq.aio.consumer import Consumer
from ferromq.aio.producer import Producer, Transaction

__all__ = ["Consumer", "Producer", "Transaction"]
