"""Invalid arguments are refused at the call, with a text that names the given and the expected value."""

from typing import Any

import pytest

import ferromq
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


def test_a_closed_embedded_broker_makes_no_clients() -> None:
    """They would wait for it in vain."""
    mq = ferromq.embedded()
    mq.close()
    for make in (mq.producer, lambda: mq.consumer("g", "t"), mq.admin):
        with pytest.raises(ClientClosed, match="this embedded broker is closed"):
            make()
