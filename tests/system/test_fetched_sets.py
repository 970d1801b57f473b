"""Messages that are received as a set, and given back as a set; for both interfaces."""

from collections.abc import Iterator
from typing import Any

import pytest
from consumer_shells import PATIENCE, Shell
from contract import EACH_WAY

import ferromq
from ferromq import MessageView

pytestmark = EACH_WAY
TOTAL = 2500


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker whose time is moved by hand."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as embedded:
        yield embedded


def call(consumer: Any, name: str, *arguments: Any, **options: Any) -> Any:
    """Call a method of the consumer, awaited where it is asynchronous."""
    result = getattr(consumer.consumer, name)(*arguments, **options)
    return consumer.call(result)


def bodies(messages: list[MessageView]) -> list[int]:
    """Return the numbers in the bodies, sorted."""
    return sorted(int(message.body) for message in messages)


def send(mq: ferromq.Embedded, count: int) -> None:
    """Send numbered messages."""
    with mq.producer() as producer:
        producer.send_all("orders", [b"%d" % number for number in range(count)])


def test_a_set_larger_than_one_receive_is_received_whole(mq: ferromq.Embedded, shell: Shell) -> None:
    """Several receives fill it; the wait ends with the last message, and one more receive brings the rest."""
    send(mq, TOTAL)
    with shell(mq, "billing", "orders", invisible_duration=3 * PATIENCE) as consumer:
        first = call(consumer, "receive_many", TOTAL - 100, wait=PATIENCE)
        assert len(first) == TOTAL - 100
        rest = call(consumer, "receive_many", 200, wait=0.2)
        assert bodies(first + rest) == list(range(TOTAL))


def test_the_wait_for_many_spares_half_of_their_leases(mq: ferromq.Embedded, shell: Shell) -> None:
    """The error names the way out; a set needs at least one message."""
    with shell(mq, "billing", "orders", invisible_duration=10) as consumer:
        with pytest.raises(ValueError, match="invisible_duration of at least 12 s"):
            call(consumer, "receive_many", 5, wait=6)
        with pytest.raises(ValueError, match="count must be at least 1"):
            call(consumer, "receive_many", 0, wait=1)


def test_a_set_that_is_given_back_is_received_again_as_it_was(mq: ferromq.Embedded, shell: Shell) -> None:
    """At once, though the broker's time stands still, and without an attempt; acknowledged messages are left out."""
    send(mq, 60)
    with shell(mq, "billing", "orders") as consumer:
        messages = call(consumer, "receive_many", 60, wait=PATIENCE / 4)
        consumer.ack(messages[:10])
        call(consumer, "give_back", messages)
        again = call(consumer, "receive_many", 50, wait=PATIENCE / 4)
        assert bodies(again) == bodies(messages[10:])
        assert {message.delivery_attempt for message in again} == {1}
        call(consumer, "give_back", messages[10:])  # their leases are others' now, which is no error
        call(consumer, "give_back", again[0])


def test_an_expired_lease_is_given_back_without_an_error(mq: ferromq.Embedded, shell: Shell) -> None:
    """Its message is redelivered anyway."""
    send(mq, 1)
    with shell(mq, "billing", "orders") as consumer:
        (message,) = consumer.receive(wait=PATIENCE)
        mq.clock.advance(seconds=60)
        call(consumer, "give_back", [message])
        (again,) = consumer.receive(wait=PATIENCE)
        assert again.delivery_attempt == 2
