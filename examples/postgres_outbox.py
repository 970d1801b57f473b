"""
Orders in PostgreSQL and messages about them: one database transaction writes both, a relay sends the messages.

Needs `pip install 'psycopg[binary]'` and a database: `python examples/postgres_outbox.py dbname=shop`.
"""

import sys
import uuid
from typing import Any

import psycopg

import ferromq

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, item text);
CREATE TABLE IF NOT EXISTS outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text, key text, body bytea)
"""
BATCH = 100

Database = psycopg.Connection[Any]


def place_order(database: Database, number: str, item: str) -> None:
    """Store an order and the message about it: both or none."""
    with database.transaction():
        database.execute("INSERT INTO orders VALUES (%s, %s)", (number, item))
        values = ("orders", number, item.encode())
        database.execute("INSERT INTO outbox (topic, key, body) VALUES (%s, %s, %s)", values)
        database.execute("NOTIFY outbox")  # wakes the relay after the commit


def relay(database: Database, producer: ferromq.Producer) -> int:
    """Send the oldest rows of the outbox, delete them, and return their number. A crash in between sends them again."""
    with database.transaction():
        query = "SELECT id, topic, key, body FROM outbox ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"
        rows = database.execute(query, (BATCH,)).fetchall()
        for sent in [producer.submit(topic, body, keys=key) for _, topic, key, body in rows]:
            sent.result()  # a failure rolls back: the rows stay
        database.execute("DELETE FROM outbox WHERE id = ANY(%s)", ([row[0] for row in rows],))
    return len(rows)


def relay_for_ever(address: str, producer: ferromq.Producer, *, look_again: float = 10.0) -> None:
    """Send what is in the outbox, and what comes; look every few seconds for rows that another relay left."""
    with psycopg.connect(address, autocommit=True) as database:
        database.execute("LISTEN outbox")
        while True:
            while relay(database, producer):
                pass
            for _ in database.notifies(timeout=look_again, stop_after=1):
                pass


if __name__ == "__main__":
    with psycopg.connect(sys.argv[1], autocommit=True) as shop, ferromq.embedded() as mq:
        shop.execute(SCHEMA)
        place_order(shop, uuid.uuid4().hex, "tea")
        print(relay(shop, mq.producer()), [message.body for message in mq.consumer("shipping", "orders").receive()])
