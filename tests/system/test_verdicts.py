"""Verdicts of failing handlers, and the properties of dead letters; for both interfaces."""

from collections.abc import Iterator

import pytest
from consumer_shells import PATIENCE, Shell
from contract import EACH_WAY
from grpc_peer import GrpcPeer

import ferromq
from ferromq import Message, MessageView

pytestmark = EACH_WAY


class NoSuchCustomerError(ValueError):
    """An exception of the tests."""


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker."""
    with ferromq.embedded() as embedded:
        yield embedded


def dead_letter(mq: ferromq.Embedded) -> MessageView:
    """Return the dead letter of the group."""
    with mq.consumer("look", "%DLQ%billing") as consumer:
        (message,) = consumer.receive(wait=PATIENCE)
        consumer.ack(message)
        return message


def told(message: MessageView) -> tuple[str | None, ...]:
    """Return why it is dead, and the exception, and the attempts."""
    return tuple(message.properties.get(name) for name in ("DLQ_REASON", "DLQ_EXCEPTION", "DLQ_ATTEMPTS"))


def test_a_rejected_message_is_a_dead_letter_now(
    mq: ferromq.Embedded, shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """After one attempt of many, with its reason; the log has a line and no traceback."""
    with mq.producer() as producer:
        receipt = producer.send("orders", b"x", properties={"a": "1"})
    calls = []
    with shell(mq, "billing", "orders") as consumer:

        def handler(message: MessageView) -> None:
            calls.append(message)
            consumer.stop()
            raise ferromq.Reject("unbekannt: Müller\x01, 100 %")

        consumer.run(handler)
    dead = dead_letter(mq)
    assert told(dead) == ("unbekannt: Müller , 100 %", "ferromq.errors.Reject", "1")
    assert dead.properties["a"] == "1"
    assert dead.properties["DLQ_SOURCE_TOPIC"] == "orders"
    assert dead.properties["DLQ_SOURCE_MESSAGE_ID"] == receipt.message_id
    assert len(calls) == 1
    assert "Traceback" not in caplog.text


def test_a_message_that_fails_too_often_names_the_exception(mq: ferromq.Embedded, shell: Shell) -> None:
    """Class and text, and how often it was tried."""
    with mq.admin() as admin:
        admin.create_group("billing", retries=1, retry_delays=[0.01])
    with mq.producer() as producer:
        producer.send("orders", b"x")
    with shell(mq, "billing", "orders") as consumer:

        def handler(message: MessageView) -> None:
            if message.delivery_attempt == 2:
                consumer.stop()
            raise NoSuchCustomerError("17")

        consumer.run(handler)
    name = f"{NoSuchCustomerError.__module__}.NoSuchCustomerError"
    assert told(dead_letter(mq)) == ("NoSuchCustomerError: 17", name, "2")


def test_a_message_is_retried_at_its_handlers_time(shell: Shell) -> None:
    """Not before, with any retry policy of the group; it counts as an attempt, up to the last one."""
    attempts = []
    with ferromq.embedded(clock=ferromq.Clock.manual()) as mq:
        with mq.admin() as admin:
            admin.create_group("billing", retries=1, retry_delays=[1])
        with mq.producer() as producer:
            producer.send("orders", b"x")
        with shell(mq, "billing", "orders", invisible_duration=10) as consumer:

            def handler(message: MessageView) -> None:
                attempts.append(message.delivery_attempt)
                consumer.stop()
                raise ferromq.RetryAfter(300)

            consumer.run(handler)
            mq.clock.advance(seconds=299)
            assert consumer.receive(wait=0) == []
            mq.clock.advance(seconds=2)
            consumer.run(handler)
        assert attempts == [1, 2]
        reason, exception, count = told(dead_letter(mq))
        assert (exception, count) == ("ferromq.errors.RetryAfter", "2")
        assert reason == "RetryAfter: 300.0"


def test_in_order_a_handler_acts_in_place(mq: ferromq.Embedded, shell: Shell) -> None:
    """The next message waits for a retry, and begins once a rejected message is a dead letter."""
    with mq.admin() as admin:
        admin.create_topic("orders", 1, message_type="FIFO")
        admin.create_group("billing", fifo=True, retries=3, retry_delays=[600])
    with mq.producer() as producer:
        producer.send_all("orders", [Message(body, message_group="a") for body in (b"again", b"never", b"last")])
    seen: list[bytes] = []
    with shell(mq, "billing", "orders") as consumer:

        def handler(message: MessageView) -> None:
            seen.append(message.body)
            if message.body == b"again" and len(seen) < 3:
                raise ferromq.RetryAfter(0.01)
            if message.body == b"never":
                raise ferromq.Reject("why")
            if message.body == b"last":
                consumer.stop()

        consumer.run(handler)
    assert seen == [b"again", b"again", b"again", b"never", b"last"]
    assert told(dead_letter(mq))[0] == "why"


def test_in_order_tries_in_place_are_counted(mq: ferromq.Embedded, shell: Shell) -> None:
    """Though the broker delivered the message once."""
    with mq.admin() as admin:
        admin.create_topic("orders", 1, message_type="FIFO")
        admin.create_group("billing", fifo=True, retries=2, retry_delays=[0.01])
    with mq.producer() as producer:
        producer.send_all("orders", [Message(b"bad", message_group="a"), Message(b"last", message_group="a")])
    with shell(mq, "billing", "orders") as consumer:

        def handler(message: MessageView) -> None:
            if message.body == b"last":
                consumer.stop()
            else:
                raise ValueError("no")

        consumer.run(handler)
    assert told(dead_letter(mq)) == ("ValueError: no", "ValueError", "3")


def test_a_message_that_is_forwarded_has_the_reason_it_was_given(mq: ferromq.Embedded, shell: Shell) -> None:
    """One that expired too often has that reason; clients of other languages see the same."""
    with mq.admin() as admin:
        admin.create_group("billing", retries=0)
    with mq.producer() as producer:
        producer.send("orders", b"forwarded")
    with shell(mq, "billing", "orders", invisible_duration=0.01) as consumer:
        (message,) = consumer.receive(wait=PATIENCE)
        consumer.forward(message, "because")
        assert told(dead_letter(mq)) == ("because", None, "1")
        with mq.producer() as producer:
            producer.send("orders", b"expired")
        consumer.receive(wait=PATIENCE)
        consumer.receive(wait=0.5)
    with GrpcPeer(mq.endpoint) as peer:
        expired = next(each for each in peer.receive("other", "%DLQ%billing", wait=PATIENCE) if each.body == "expired")
        properties = expired.properties
    assert properties["DLQ_REASON"] == "not acknowledged in its last delivery attempt"
    assert (properties["DLQ_SOURCE_TOPIC"], properties["DLQ_ATTEMPTS"]) == ("orders", "1")


def test_dead_letters_are_received_as_often_as_other_messages(mq: ferromq.Embedded, shell: Shell) -> None:
    """Deliveries to the group that rejected them do not count in the group that reads them."""
    with mq.admin() as admin:
        admin.create_group("billing", retries=3, retry_delays=[0.01])
        admin.create_group("look", retries=1)
    with mq.producer() as producer:
        producer.send("orders", b"x")
    with shell(mq, "billing", "orders") as consumer:

        def handler(message: MessageView) -> None:
            if message.delivery_attempt == 4:
                consumer.stop()
            raise NoSuchCustomerError("17")

        consumer.run(handler)
    letter = dead_letter(mq)
    assert (letter.delivery_attempt, letter.properties["DLQ_ATTEMPTS"]) == (1, "4")


@pytest.mark.parametrize("seconds", [12 * 3600 + 1, -1, float("nan")])
def test_a_retry_longer_than_any_lease_is_refused_where_it_is_raised(shell: Shell, seconds: float) -> None:
    """A broker leases a message for 12 hours at most."""
    assert shell.kind
    with pytest.raises(ValueError, match="0 s to 43200 s"):
        ferromq.RetryAfter(seconds)
