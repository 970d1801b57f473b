"""
A FastAPI service that takes orders over HTTP and bills them in the background.

Run it with `uvicorn fastapi_worker:app`, and a broker at 127.0.0.1:8081 (`ferromq dev`) or at FERROMQ_ENDPOINT.
"""

import os
from dataclasses import dataclass

from fastapi import FastAPI, Request

import ferromq


@dataclass
class Order:
    """What a client orders."""

    id: str
    quantity: int


workers = ferromq.aio.Workers()
bills: dict[str, int] = {}  # stands for your database


@workers.handler("billing", "orders", decode=Order, concurrency=8)
async def bill(message: ferromq.DecodedMessage[Order]) -> None:
    """Bill an order; billing it again changes nothing."""
    order = message.value
    if order.quantity < 1:
        raise ferromq.Reject(f"order {order.id} has a quantity of {order.quantity}")
    bills[order.id] = order.quantity * 5


app = FastAPI(lifespan=workers.lifespan(os.environ.get("FERROMQ_ENDPOINT", "127.0.0.1:8081"), encode=Order))


@app.post("/orders", status_code=202)
async def order(request: Request, order: Order) -> dict[str, str]:
    """Answer once the broker has stored the order."""
    receipt = await request.state.producer.send("orders", order, keys=order.id)
    return {"message_id": receipt.message_id}


@app.get("/bills")
async def all_bills() -> dict[str, int]:
    """Return the amount of each bill."""
    return bills
