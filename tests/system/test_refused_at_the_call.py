"""Invalid arguments are refused at the call, with a text that names the given and the expected value."""

import asyncio
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
    "make", [ferromq.Producer, lambda endpoint: ferromq.Consumer(endpoint, "g", "t"), ferromq.Admin]
)
def test_an_invalid_endpoint(make: Any, endpoint: Any) -> None:
    """It is named; no connection is made."""
    with pytest.raises(ConfigError, match="endpoint"):
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
        with pytest.raises(TypeError, match="only received messages can be acknowledged, not "):
            consumer.ack(given)
        with pytest.raises(TypeError, match="only received messages can be acknowledged, not "):
            asyncio.run(aio.Consumer("127.0.0.1:1", "g", "t").ack(given))


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
