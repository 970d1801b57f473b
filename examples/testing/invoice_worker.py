"""A worker that books invoices: it retries while the books are closed, and gives up what it can never book."""

import json
from collections.abc import Callable
from typing import Any

import ferromq

Book = Callable[[str, int], None]
"""Writes a customer and an amount in cents into the books; raises `OSError` while they cannot be reached."""


class InvoiceWorker:
    """Books the invoices of a topic, each once, on behalf of a consumer group."""

    def __init__(self, endpoint: str, group: str, topic: str, book: Book) -> None:
        self._consumer = ferromq.Consumer(endpoint, group, topic)
        self._book = book
        self._booked: set[str] = set()

    def run(self) -> None:
        """Work until `stop`."""
        self._consumer.run(self._handle)

    def stop(self) -> None:
        """End `run` after the invoice at hand."""
        self._consumer.stop()

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _handle(self, message: ferromq.MessageView) -> None:
        if message.message_id in self._booked:
            return  # a duplicate
        invoice: dict[str, Any] = json.loads(message.body)
        if invoice["cents"] <= 0:
            raise ferromq.Reject(f"an invoice of {invoice['cents']} cents")
        self._book(invoice["customer"], invoice["cents"])
        self._booked.add(message.message_id)
