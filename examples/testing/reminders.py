"""A service that reminds customers of their appointments, days later, unless they cancel."""

from datetime import datetime, timedelta

import ferromq

BEFORE = timedelta(hours=24)


class Reminders:
    """Sends a message that arrives a day before each appointment."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self._producer = ferromq.Producer(endpoint)
        self._topic = topic
        self._planned: dict[str, ferromq.SendReceipt] = {}

    def plan(self, customer: str, appointment: datetime) -> None:
        """Plan the reminder of a customer's appointment."""
        self._planned[customer] = self._producer.send(
            self._topic, f"{customer}: {appointment:%d %B %H:%M}".encode(), delivery_timestamp=appointment - BEFORE
        )

    def cancel(self, customer: str) -> None:
        """Take the reminder back. Raises `KeyError` if none is planned."""
        self._producer.recall(self._planned.pop(customer))

    def close(self) -> None:
        """Close the connection."""
        self._producer.close()
