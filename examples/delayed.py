"""A reminder in three days, another one recalled; the clock of the embedded broker makes three days pass."""

from datetime import timedelta

import ferromq


def main() -> list[bytes]:
    """Return the reminders that came."""
    came: list[bytes] = []
    with ferromq.embedded(clock=ferromq.Clock.manual()) as mq:
        with mq.admin() as admin:
            admin.create_topic("reminders", message_type="DELAY")

        with mq.producer() as producer, mq.consumer("desk", "reminders") as consumer:
            producer.send("reminders", b"pay the invoice", delay=timedelta(days=2, hours=23))
            receipt = producer.send("reminders", b"cancelled meeting", delay=timedelta(hours=1))
            producer.recall(receipt)

            print("now:", consumer.receive(wait=0))
            mq.clock.advance(days=2, hours=23, seconds=1)
            while not came:
                for message in consumer.receive(wait=timedelta(seconds=5)):
                    print("in three days:", message.body)
                    came.append(message.body)
                    message.ack()
    return came


if __name__ == "__main__":
    main()
