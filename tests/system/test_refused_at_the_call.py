"""Invalid arguments are refused at the call, with a text that names the given and the expected value."""

import asyncio
import re
from datetime import UTC, datetime
from typing import Any

import pytest

import ferromq
from ferromq import aio
from ferromq.errors import ClientClosed, ConfigError, IllegalName


@pytest.mark.parametrize(
    "endpoint",
    [
        ["host:1"],
        None,
        8081,
        b"host:1",
        "http://127.0.0.1:8081",
        "a:1,b:2",
        "a:1 b:2",
        "a",
        "a:",
        "a:0",
        "a:x",
        "",
        ";",
    ],
)
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (ferromq.Producer, "endpoint"),
        (lambda endpoint: ferromq.Consumer(endpoint, "g", "t"), "endpoint"),
        (ferromq.Admin, r"name server.*9876|expected a string|several are joined by ;"),
    ],
)
def test_an_invalid_endpoint(make: Any, what: str, endpoint: Any) -> None:
    """It is named; no connection is made."""
    with pytest.raises(ConfigError, match=what):
        make(endpoint)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:8081", "[::1]:8081", "a_b.c-d:1;e:2", "größe.example:1"])
def test_a_valid_endpoint(endpoint: str) -> None:
    """Names, addresses, several."""
    ferromq.Producer(endpoint).close()


@pytest.mark.parametrize("topic", [None, 5, b"orders"])
def test_a_topic_that_is_not_a_string(topic: Any) -> None:
    """Before anything is sent."""
    with ferromq.Producer("127.0.0.1:1", timeout=60) as producer:
        for call in (producer.send, producer.submit):
            with pytest.raises(IllegalName, match="expected a string"):
                call(topic, b"x")
        with pytest.raises(IllegalName, match="expected a string"):
            producer.send_all(topic, [b"x"])


@pytest.mark.parametrize("given", ["0102FC", [b"x"], ferromq.SendReceipt("0102FC", 0, 0)])
def test_an_acknowledgement_of_what_was_not_received(given: Any) -> None:
    """An id, a body, a receipt."""
    with ferromq.Consumer("127.0.0.1:1", "g", "t") as consumer:
        with pytest.raises(TypeError, match="a received message is expected, not "):
            consumer.ack(given)
        with pytest.raises(TypeError, match="a received message is expected, not "):
            asyncio.run(aio.Consumer("127.0.0.1:1", "g", "t").ack(given))


@pytest.mark.parametrize("given", [None, "0102FC", b"x"])
def test_a_call_for_what_was_not_received(given: Any) -> None:
    """Every call that takes a received message names what it was given instead."""
    expected = pytest.raises(TypeError, match=f"a received message is expected, not {given!r}")
    consumer = ferromq.Consumer("127.0.0.1:1", "g", "t", decode=dict)
    calls = [
        lambda each: each.ack(given),
        lambda each: each.give_back(given),
        lambda each: each.reply(given, b"x"),
        lambda each: each.forward_to_dead_letter(given),
        lambda each: each.change_invisible_duration(given, 1),
        lambda each: each.decode(given),
    ]

    async def awaited(call: Any) -> None:
        async with aio.Consumer("127.0.0.1:1", "g", "t", decode=dict) as each:
            result = call(each)
            await result

    with consumer:
        for call in calls:
            with expected:
                call(consumer)
            with expected:
                asyncio.run(awaited(call))


@pytest.mark.parametrize("given", [None, ("broker-a", 0)])
def test_a_queue_that_is_none(given: Any) -> None:
    """A queue is one of those that `queues` returned."""
    expected = pytest.raises(
        TypeError, match=re.escape(f"a ferromq.Queue is expected, as queues() returns them, not {given!r}")
    )
    with ferromq.Consumer("127.0.0.1:1", "g", "t") as consumer, ferromq.Reader("127.0.0.1:1", "t") as reader:
        for call in (
            lambda: consumer.pull(given, 0),
            lambda: consumer.offset_at(given, "end"),
            lambda: consumer.committed_offset(given),
            lambda: consumer.commit_offset(given, 0),
            lambda: reader.seek({given: 0}),
        ):
            with expected:
                call()


@pytest.mark.parametrize("given", [None, "5", 5.0, True])
def test_an_offset_that_is_no_whole_number(given: Any) -> None:
    """`None` is no offset 0."""
    queue = ferromq.Queue("broker-a", 0)
    expected = pytest.raises(TypeError, match=re.escape(f"a queue offset is a whole number, not {given!r}"))
    with ferromq.Consumer("127.0.0.1:1", "g", "t") as consumer, ferromq.Reader("127.0.0.1:1", "t") as reader:
        for call in (
            lambda: consumer.pull(queue, given),
            lambda: consumer.commit_offset(queue, given),
            lambda: reader.seek({queue: given}),
        ):
            with expected:
                call()


def test_a_recall_without_a_receipt() -> None:
    """The recall handle alone is none either."""
    with ferromq.Producer("127.0.0.1:1") as producer:
        for given in (None, "handle"):
            wrong: Any = given
            with pytest.raises(TypeError, match=f"the receipt of a delayed message is expected, .* not {given!r}"):
                producer.recall(wrong)


def test_dead_letters_that_are_none() -> None:
    """Before one of them is sent."""
    wrong: Any = [None]
    with (
        ferromq.Admin("127.0.0.1:1") as admin,
        pytest.raises(TypeError, match=r"a dead letter is expected, .* not None"),
    ):
        admin.resend_dead_letters(wrong)


def test_a_duration_that_is_a_text() -> None:
    """It is a `timedelta`, or seconds."""
    text: Any = "5"
    expected = pytest.raises(TypeError, match="a duration is a timedelta or a number of seconds, not '5'")
    with ferromq.Consumer("127.0.0.1:1", "g", "t") as consumer, expected:
        consumer.receive(wait=text)


def test_a_closed_embedded_broker_makes_no_clients() -> None:
    """They would wait for it in vain."""
    mq = ferromq.embedded()
    mq.close()
    for make in (mq.producer, lambda: mq.consumer("g", "t"), mq.admin):
        with pytest.raises(ClientClosed, match="this embedded broker is closed"):
            make()


@pytest.mark.parametrize("when", [1_763_942_400, 1_763_942_400_000_000, -1, 1])
def test_a_number_that_is_no_time_in_milliseconds(when: int) -> None:
    """Seconds for milliseconds would read everything, microseconds nothing; the error says how to convert it."""
    queue = ferromq.Queue("broker-a", 0)
    with ferromq.Consumer("127.0.0.1:1", "g", "t") as consumer, ferromq.Reader("127.0.0.1:1", "t") as reader:
        for call in (
            lambda: ferromq.Consumer("127.0.0.1:1", "g", "t", begin=when),
            lambda: ferromq.Reader("127.0.0.1:1", "t", begin=when),
            lambda: consumer.offset_at(queue, when),
            lambda: consumer.messages(until=when),
            lambda: reader.messages(until=when),
            lambda: reader.restart(when),
        ):
            with pytest.raises(ValueError, match=rf"; {when} may be (micro)?seconds: (multiply|divide) them by 1000"):
                call()


def test_times_that_are_taken() -> None:
    """The beginning of all times, the first and the last number in milliseconds, and every aware datetime."""
    for when in (0, 10**12, 253_402_300_799_999, datetime(1999, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)):
        with ferromq.Reader("127.0.0.1:1", "t", begin=when) as reader:
            reader.restart(when)
