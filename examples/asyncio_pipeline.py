"""Read orders, price them concurrently, and write the results to another topic: none is lost, and none piles up."""

import asyncio
import json

import ferromq
from ferromq import aio

COUNT = 200
AT_ONCE = 20


async def price(order: dict[str, str]) -> dict[str, object]:
    """Ask for the price of an order. Stands for a call of another service."""
    await asyncio.sleep(0.01)
    return {**order, "cents": 100 * len(order["item"])}


async def pipeline(consumer: aio.Consumer, producer: aio.Producer, target: str) -> None:
    """Work until `consumer.stop()`: at most *AT_ONCE* orders are under way, the others wait at the broker."""

    async def handle(message: ferromq.MessageView) -> None:
        priced = await price(json.loads(message.body))
        # The order is acknowledged when this function returns: by then its result is stored. After a crash between
        # the two it is priced again, and the key tells readers of the results which are the same.
        await producer.send(target, json.dumps(priced).encode(), keys=message.message_id)

    await consumer.run(handle, concurrency=AT_ONCE)


async def main(count: int = COUNT) -> dict[str, int]:
    """Return the prices by order, as a reader of the results knows them."""
    prices: dict[str, int] = {}
    with ferromq.embedded() as broker:
        async with (
            aio.connect(broker.endpoint) as mq,
            mq.producer() as producer,
            mq.consumer("pricing", "orders") as orders,
            mq.consumer("accounting", "priced") as results,
        ):
            await producer.send_all(
                "orders", [json.dumps({"id": f"o-{n}", "item": "tea"}).encode() for n in range(count)]
            )
            working = asyncio.create_task(pipeline(orders, producer, "priced"))
            async for message in results:
                priced = json.loads(message.body)
                prices[priced["id"]] = priced["cents"]
                message.ack()
                if len(prices) == count:
                    break
            orders.stop()
            await working
    print(f"{len(prices)} orders priced")
    return prices


if __name__ == "__main__":
    asyncio.run(main())
