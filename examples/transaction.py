"""A row in a database and a message about it: both or none, even if the producer dies between the two."""

import sqlite3

import ferromq
from ferromq import MessageView, Resolution

ORDERS = 2


def main() -> list[str]:
    """Return the orders that a consumer received."""
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")

    def checker(message: MessageView) -> Resolution:
        """Decide about a transaction whose end the broker did not get: the row is there, or it is not."""
        # With several processes another one may be about to write it: see postgres_transaction.py.
        row = database.execute("SELECT 1 FROM orders WHERE id = ?", message.keys).fetchone()
        return Resolution.COMMIT if row else Resolution.ROLLBACK

    heard: list[str] = []
    # A virtual clock, so that the check-back comes without a wait.
    with ferromq.embedded(clock=ferromq.Clock.manual()) as mq:
        with mq.admin() as admin:
            admin.create_topic("orders", message_type="TRANSACTION")

        with mq.producer("orders", checker=checker) as producer, mq.consumer("shipping", "orders") as consumer:
            with producer.transaction() as tx:  # commits at its end, rolls back on an exception
                tx.send("orders", b"tea", keys="o-1")
                database.execute("INSERT INTO orders VALUES ('o-1')")
                database.commit()

            lost = producer.transaction()
            lost.send("orders", b"coffee", keys="o-2")
            database.execute("INSERT INTO orders VALUES ('o-2')")
            database.commit()
            del lost  # as if the process had died here: the row is there, the broker knows nothing

            while len(heard) < ORDERS:
                for message in consumer.receive(wait=1):
                    print(f"ship {message.keys[0]}: {message.body.decode()}")
                    heard.append(message.keys[0])
                    message.ack()
                mq.clock.advance(seconds=10)  # later the broker asks the checker about o-2
    return heard


if __name__ == "__main__":
    main()
