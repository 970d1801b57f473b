"""Values travel as bodies, and a body that does not decode becomes a dead letter at once; for both interfaces."""

from collections.abc import Iterator
from typing import Any

import pytest
from consumer_shells import PATIENCE, Shell
from contract import EACH_WAY
from dispatching import dispatched

import ferromq
from ferromq import MessageView

pytestmark = EACH_WAY
BAD = b'{"id": 1'
REASON = "JSONDecodeError: Expecting ',' delimiter: line 1 column 9 (char 8)"


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker with a good message, a bad one and another good one, in one queue."""
    with ferromq.embedded(default_queues=1) as embedded:
        with embedded.producer(encode=dict) as producer:
            producer.send("orders", {"id": 1}, keys="k")
            producer.send("orders", ferromq.Message(BAD, properties={"a": "1"}))
            producer.send_all("orders", [producer.message({"id": 2}, tag="t")])
        yield embedded


def check_dead_letter(mq: ferromq.Embedded) -> None:
    """Check that the bad message is the only dead letter, after its first delivery."""
    with mq.consumer("look", "%DLQ%billing") as consumer:
        (dead,) = consumer.receive(wait=PATIENCE)
    assert (dead.body, dead.properties["a"], dead.properties["DLQ_ATTEMPTS"]) == (BAD, "1", "1")
    assert (dead.properties["DLQ_REASON"], dead.properties["DLQ_EXCEPTION"]) == (REASON, "json.decoder.JSONDecodeError")


def test_a_handler_is_given_values_and_no_bad_body(mq: ferromq.Embedded, shell: Shell) -> None:
    """`run` gives the rest of the message, too."""
    seen: list[Any] = []
    with shell(mq, "billing", "orders", decode=dict) as consumer:

        def handler(message: Any) -> None:
            seen.append((message.value, message.keys, message.tag, message.properties["contentType"]))
            if len(seen) == 2:
                consumer.stop()

        consumer.run(handler)
    assert seen == [({"id": 1}, ("k",), None, "application/json"), ({"id": 2}, (), "t", "application/json")]
    check_dead_letter(mq)


def test_a_loop_goes_on_behind_a_bad_body(mq: ferromq.Embedded, shell: Shell) -> None:
    """It acknowledges what it is given, and is not given the bad one."""
    seen: list[Any] = []
    with shell(mq, "billing", "orders", decode=dict) as consumer:

        def body(message: Any) -> bool:
            seen.append(message.value["id"])
            consumer.ack(message)
            return len(seen) == 2

        consumer.iterate(body)
        assert consumer.receive(wait=0) == []
    assert seen == [1, 2]
    check_dead_letter(mq)


def test_a_receive_leaves_a_bad_body_out(mq: ferromq.Embedded, shell: Shell) -> None:
    """Its messages are acknowledged, changed and forwarded as others are."""
    with shell(mq, "billing", "orders", decode=dict) as consumer:
        messages: list[Any] = []
        while len(messages) < 2:
            messages += consumer.receive(wait=PATIENCE)
        assert [each.value["id"] for each in messages] == [1, 2]
        check_dead_letter(mq)
        consumer.change(messages[1], 60)
        consumer.change_by_consumer(messages[1], 60)
        consumer.forward(messages[1], "because")
        consumer.ack(messages)
        assert messages[0].is_settled


def test_a_receive_of_bad_bodies_alone_waits_for_a_good_one(shell: Shell) -> None:
    """An empty list means that its time is over."""
    with ferromq.embedded() as mq, mq.producer() as producer:

        def decode(body: bytes) -> bytes:
            if body == BAD:
                producer.send("orders", b"good")  # the receive has brought the bad one alone
                raise ValueError(body)
            return body

        producer.send("orders", BAD)
        with shell(mq, "billing", "orders", decode=decode) as consumer:
            (message,) = consumer.receive(wait=PATIENCE)
            assert message.value == b"good"
            assert consumer.receive(wait=0.01) == []


def test_a_decoder_may_postpone_a_message(shell: Shell) -> None:
    """With `RetryAfter` it comes again, and is no dead letter."""
    is_ready = False

    def decode(body: bytes) -> str:
        if not is_ready:
            raise ferromq.RetryAfter(300)
        return body.decode()

    with ferromq.embedded(clock=ferromq.Clock.manual()) as mq, mq.producer() as producer:
        producer.send("orders", b"x")
        dispatched(mq)
        with shell(mq, "billing", "orders", decode=decode) as consumer:
            assert consumer.receive(wait=0.05) == []
            is_ready = True
            mq.clock.advance(seconds=301)
            (message,) = consumer.receive(wait=PATIENCE)
            assert (message.value, message.delivery_attempt) == ("x", 2)


def test_pulled_messages_are_decoded_on_request(mq: ferromq.Embedded, shell: Shell) -> None:
    """They have no lease, so a bad body is an error of the call."""
    dispatched(mq)
    with shell(mq, "billing", "orders", decode=dict) as each:
        consumer = each.consumer
        (queue,) = each.call(consumer.queues())
        messages: list[MessageView] = each.call(consumer.pull(queue, 0)).messages
        assert consumer.decode(messages[0]) == {"id": 1}
        with pytest.raises(ferromq.Undecodable, match="JSONDecodeError"):
            consumer.decode(messages[1])


def test_every_way_to_send_encodes(shell: Shell) -> None:
    """`send`, `send_all`, `submit` and transactions, of both producers."""

    def committed(_: MessageView) -> ferromq.Resolution:
        return ferromq.Resolution.COMMIT

    with ferromq.embedded(default_queues=1) as mq:
        with mq.admin() as admin:
            admin.create_topic("paid", 1, message_type="TRANSACTION")
        with shell.producer(mq, encode=dict, checker=committed) as producer:
            producer.send("orders", {"id": 1})
            producer.send_all("orders", [{"id": 2}])
            producer.submit("orders", {"id": 3}).result(PATIENCE)
            with producer.transaction() as tx:
                tx.send("paid", {"id": 4})
        with mq.consumer("billing", "orders") as consumer, mq.consumer("billing", "paid") as of_paid:
            bodies: list[bytes] = []
            while len(bodies) < 3:
                bodies += [message.body for message in consumer.receive(wait=PATIENCE)]
            (paid,) = of_paid.receive(wait=PATIENCE)
    assert [*bodies, paid.body] == [b'{"id":%d}' % number for number in (1, 2, 3, 4)]


def test_a_value_that_cannot_be_encoded_is_named(mq: ferromq.Embedded, shell: Shell) -> None:
    """Among all that `send_all` was given."""
    values: list[Any] = [{"id": 1}, {"id": object()}]
    with (
        shell.producer(mq, encode=dict) as producer,
        pytest.raises(TypeError, match="object is not JSON serializable") as raised,
    ):
        producer.send_all("orders", values)
    assert raised.value.__notes__ == ["it is the error of message 1", "0 messages of the same call are stored"]
