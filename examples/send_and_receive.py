"""Send a few messages and receive them in a group: name server, broker and clients in one process."""

from datetime import timedelta

import ferromq

COUNT = 3


def main() -> list[bytes]:
    """Return the bodies that were received, in the order of their queues."""
    bodies = []
    with ferromq.embedded() as mq:
        with mq.producer() as producer:
            for number in range(COUNT):
                receipt = producer.send("orders", b"order %d" % number, keys=f"o-{number}", tag="new")
                print(f"sent {receipt.message_id} to queue {receipt.queue_id} at queue offset {receipt.queue_offset}")

        with mq.consumer("billing", "orders") as consumer:
            while len(bodies) < COUNT:
                # A message that is not acknowledged within its invisible duration comes again.
                for message in consumer.receive(wait=timedelta(seconds=5)):
                    print(f"received {message.body!r}, tag {message.tag}, keys {message.keys}")
                    bodies.append(message.body)
                    message.ack()

        with mq.admin() as admin:
            found = admin.query_by_key("orders", "o-1")
            print(f"key o-1: {[message.body for message in found]}")
    return bodies


if __name__ == "__main__":
    main()
