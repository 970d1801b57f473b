"""A receive that is cancelled on an event loop leases nothing: what its answer held is received at once by the next."""

import asyncio
import threading
import time
from pathlib import Path

import pytest
from tls_files import SHOWN

import ferromq
from ferromq import aio

_WAIT = 5.0


def send(mq: ferromq.Embedded, body: bytes) -> None:
    """Send a message."""
    with mq.producer() as producer:
        producer.send("orders", body)


async def cancelled(receiving: "asyncio.Task[list[ferromq.MessageView]]") -> None:
    """Cancel a receive and wait for its end."""
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving


@pytest.mark.parametrize("before", [0, 3], ids=["first", "after others"])
def test_a_message_whose_answer_comes_with_the_cancellation_is_received_next(before: int, tls: bool | Path) -> None:
    """The loop is blocked when the answer comes, and runs the cancellation first. It counts no attempt."""

    async def receive(mq: ferromq.Embedded) -> None:
        async with aio.Consumer(mq.endpoint, "billing", "orders", invisible_duration=60, tls=tls) as consumer:
            assert await consumer.receive(wait=0.5) == []
            for _ in range(before):
                receiving = asyncio.create_task(consumer.receive(wait=_WAIT))
                await asyncio.sleep(0.01)
                await cancelled(receiving)
            receiving = asyncio.create_task(consumer.receive(wait=_WAIT))
            await asyncio.sleep(0.3)
            sending = threading.Thread(target=send, args=(mq, b"1"))
            sending.start()
            sending.join()
            time.sleep(0.3)  # noqa: ASYNC251 (the answer comes while the loop is blocked)
            await cancelled(receiving)
            messages = await consumer.receive(wait=_WAIT)
            assert [(message.body, message.delivery_attempt) for message in messages] == [(b"1", 1)]

    with ferromq.embedded(**SHOWN) as mq:
        with mq.admin() as admin:
            admin.create_topic("orders", 2)
        asyncio.run(receive(mq))


def test_what_a_closed_consumer_was_sent_is_received_by_the_next_one(tls: bool | Path) -> None:
    """The answer comes when the loop over the messages is cancelled and the consumer is closed."""

    async def receive(mq: ferromq.Embedded) -> None:
        async def iterate(consumer: "aio.Consumer[ferromq.MessageView]") -> None:
            async for message in consumer:
                message.ack()

        async with aio.Consumer(mq.endpoint, "billing", "orders", invisible_duration=60, tls=tls) as consumer:
            assert await consumer.receive(wait=0.5) == []
            iterating = asyncio.create_task(iterate(consumer))
            await asyncio.sleep(1.0)
            sending = threading.Thread(target=send, args=(mq, b"1"))
            sending.start()
            sending.join()
            time.sleep(0.3)  # noqa: ASYNC251 (the answer comes while the loop is blocked)
            iterating.cancel()
            await consumer.close()
        async with aio.Consumer(mq.endpoint, "billing", "orders", tls=tls) as consumer:
            messages = await consumer.receive(wait=_WAIT)
            assert [(message.body, message.delivery_attempt) for message in messages] == [(b"1", 1)]

    with ferromq.embedded(**SHOWN) as mq:
        with mq.admin() as admin:
            admin.create_topic("orders", 2)
        asyncio.run(receive(mq))
