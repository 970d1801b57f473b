"""A service that takes orders and announces each of them once; `test_order_service.py` tests it."""

import json
from dataclasses import asdict, dataclass

import ferromq


@dataclass(frozen=True)
class Order:
    """What a customer wants."""

    number: str
    customer: str
    items: tuple[str, ...]


class OrderService:
    """Announces orders in a topic."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self._topic = topic
        self._producer = ferromq.Producer(endpoint, timeout=5)

    def place(self, order: Order) -> str:
        """Announce an order, and return the id of its message. Raises `ValueError` for an order without items."""
        if not order.items:
            raise ValueError(f"order {order.number} has no items")
        kind = "large" if len(order.items) > 2 else "small"  # noqa: PLR2004 (what the shop calls large)
        body = json.dumps(asdict(order)).encode()
        receipt = self._producer.send(
            self._topic, body, keys=order.number, tag=kind, properties={"customer": order.customer}
        )
        return receipt.message_id

    def close(self) -> None:
        """Close the connection."""
        self._producer.close()
