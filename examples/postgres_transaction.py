"""
Orders in PostgreSQL and messages about them, without an outbox: a check-back reads what became of the order.

Needs `pip install 'psycopg[binary]'` and a database: `python examples/postgres_transaction.py dbname=shop`.
"""

import sys
import uuid
from collections.abc import Callable
from typing import Any

import psycopg

import ferromq
from ferromq import MessageView, Resolution

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, item text NOT NULL);
CREATE TABLE IF NOT EXISTS outcomes (id text PRIMARY KEY, is_placed boolean NOT NULL);
"""

Database = psycopg.Connection[Any]


def place_order(database: Database, producer: ferromq.Producer, number: str, item: str) -> None:
    """Store an order and send the message about it: both or none, even if the process dies at any line."""
    with producer.transaction() as transaction:
        transaction.send("orders", item.encode(), keys=number)
        with database.transaction():
            # Fails if a check-back has decided meanwhile that there is no order.
            database.execute("INSERT INTO outcomes VALUES (%s, true)", (number,))
            database.execute("INSERT INTO orders VALUES (%s, %s)", (number, item))


def checker(address: str) -> Callable[[MessageView], Resolution]:
    """Return the function that the broker asks about a message whose end it did not get."""

    def check(message: MessageView) -> Resolution:
        with psycopg.connect(address, autocommit=True) as database:
            number = message.keys[0]
            # Waits for an open transaction that writes the same row. After this INSERT, no other one can commit it.
            database.execute("SET lock_timeout = '3s'")
            database.execute("INSERT INTO outcomes VALUES (%s, false) ON CONFLICT DO NOTHING", (number,))
            row = database.execute("SELECT is_placed FROM outcomes WHERE id = %s", (number,)).fetchone()
            return Resolution.COMMIT if row and row[0] else Resolution.ROLLBACK

    return check


if __name__ == "__main__":
    with psycopg.connect(sys.argv[1], autocommit=True) as shop, ferromq.embedded() as mq:
        shop.execute(SCHEMA)
        orders = mq.producer("orders", checker=checker(sys.argv[1]))
        place_order(shop, orders, uuid.uuid4().hex, "tea")
        print([message.body for message in mq.consumer("shipping", "orders").receive()])
