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


NOWHERE = "127.0.0.1:1"
OF_CLIENTS: list[tuple[str, Any, type[Exception], str]] = [
    ("prefetch", "3", TypeError, "prefetch must be a whole number, not '3'"),
    ("prefetch", True, TypeError, "prefetch must be a whole number, not True"),
    ("prefetch", 0, ConfigError, "prefetch must be at least 1, not 0"),
    ("attempts", "3", TypeError, "attempts must be a whole number, not '3'"),
    ("attempts", 0, ConfigError, "attempts must be at least 1, not 0"),
    ("timeout", -1, ValueError, "a duration cannot be negative, this one is -1"),
    ("timeout", True, TypeError, "a duration is a timedelta or a number of seconds, not True"),
    ("timeout", None, TypeError, "a duration is a timedelta or a number of seconds, not None"),
    ("telemetry", 5, TypeError, "telemetry must be a ferromq.telemetry.Telemetry, not 5"),
    ("tls", "/nonexistent/ca.pem", ConfigError, "the TLS file /nonexistent/ca.pem cannot be read"),
    ("tls", 5, TypeError, "tls must be True, False, the path of a file, or a ferromq.Tls, not 5"),
    ("invisible_duration", 0, ConfigError, "invisible_duration must be longer than 0 s"),
    ("checker", 5, TypeError, "checker must be a function, not 5"),
    ("idempotent", "yes", TypeError, "idempotent must be True or False, not 'yes'"),
    ("max_pending_bytes", "1", TypeError, "max_pending_bytes must be a whole number, not '1'"),
    ("clock", 5, TypeError, "clock must be a ferromq.Clock, not 5"),
]
OF_CONNECTIONS = ("attempts", "timeout", "telemetry", "tls")
OF_PRODUCERS = ("checker", "idempotent", "max_pending_bytes", "clock")


@pytest.mark.parametrize("module", [ferromq, aio], ids=lambda module: module.__name__)
@pytest.mark.parametrize(("name", "value", "error", "text"), OF_CLIENTS)
def test_an_option_of_a_wrong_type_or_beyond_its_limit(
    module: Any, name: str, value: Any, error: type[Exception], text: str
) -> None:
    """The error names option, value and limit; those of a connection are refused when it is made."""
    given = {name: value}
    if name not in OF_PRODUCERS:
        with pytest.raises(error, match=re.escape(text)):
            module.Consumer(NOWHERE, "g", "t", **given)
    if name in OF_PRODUCERS + OF_CONNECTIONS:
        with pytest.raises(error, match=re.escape(text)):
            module.Producer(NOWHERE, **given)
    if name in OF_CONNECTIONS:
        for address in ({"endpoint": NOWHERE}, {"namesrv": NOWHERE}):
            with pytest.raises(error, match=re.escape(text)):
                module.connect(**address, **given)


@pytest.mark.parametrize("topics", [None, 5])
def test_topics_that_are_none(topics: Any) -> None:
    """They are named; a mapping, a sequence and a text are topics."""
    for make in (lambda: ferromq.Consumer(NOWHERE, "g", topics), lambda: ferromq.Reader(NOWHERE, topics)):
        with pytest.raises(TypeError, match=f"topics must be a topic, .*, not {topics}"):
            make()


COUNTS: list[tuple[Any, type[Exception], str]] = [
    ("a", TypeError, "must be a whole number, not 'a'"),
    (True, TypeError, "must be a whole number, not True"),
    (1.5, TypeError, "must be a whole number, not 1.5"),
    (0, ConfigError, "must be at least 1, not 0"),
]


@pytest.mark.parametrize(("count", "error", "text"), [*COUNTS, (10**10, ConfigError, "must be at most 2147483647")])
def test_a_number_of_messages_that_is_none(count: Any, error: type[Exception], text: str) -> None:
    """Of every call that takes one."""
    with ferromq.Consumer(NOWHERE, "g", "t") as consumer, ferromq.Reader(NOWHERE, "t") as reader:
        calls = [
            lambda: consumer.receive(count),
            lambda: consumer.pull(ferromq.Queue("broker-a", 0), 0, count),
            lambda: reader.read(count),
        ]
        for call in calls:
            with pytest.raises(error, match=f"max_messages {text}"):
                call()
        if count != 10**10:  # it takes several receives
            with pytest.raises(error, match=f"count {text}"):
                consumer.receive_many(count)
            with pytest.raises(error, match=f"concurrency {text}"):
                consumer.run(print, concurrency=count)
            with pytest.raises(error, match=f"batch {text}"):
                consumer.run(print, batch=count)


@pytest.mark.parametrize(("count", "error", "text"), COUNTS)
def test_numbers_of_an_administrator(count: Any, error: type[Exception], text: str) -> None:
    """Of queues and messages; nothing is asked of a server before."""
    with ferromq.Admin(NOWHERE) as admin:
        with pytest.raises(error, match=f"queues {text}"):
            admin.create_topic("x", count)
        with pytest.raises(error, match=f"max_messages {text}"):
            admin.query_by_key("x", "k", count)


def test_settings_of_a_group_of_a_wrong_type() -> None:
    """Before a server is asked."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"retry_delays": 5}, "retry_delays must be a sequence of durations, not 5"),
        ({"retries": "5"}, "retries must be a whole number, not '5'"),
        ({"fifo": "yes"}, "fifo must be True or False, not 'yes'"),
    ]
    with ferromq.Admin(NOWHERE) as admin:
        for given, text in wrong:
            for call in (admin.create_group, admin.alter_group):
                with pytest.raises(TypeError, match=text):
                    call("g", **given)


@pytest.mark.parametrize("encode", [None, dict])
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("keys", 5, "a str or an iterable of str, not 5"),
        ("tag", 5, "a str, not 5"),
        ("properties", 5, "a mapping of str to str, not 5"),
        ("message_group", b"x", "a str, not b'x'"),
        ("priority", "5", "a whole number, not '5'"),
        ("delay", "5", "a timedelta or seconds, not '5'"),
        ("delay", True, "a timedelta or seconds, not True"),
        ("delivery_timestamp", True, "an aware datetime, or milliseconds since 1970, not True"),
    ],
)
def test_an_option_of_a_message_of_a_wrong_type(name: str, value: Any, expected: str, encode: Any) -> None:
    """It is named, beside others that are right."""
    body: Any = b"x" if encode is None else {}
    with ferromq.Producer(NOWHERE, encode=encode) as producer:
        for call in (producer.send, producer.submit):
            with pytest.raises(TypeError, match=f"^{name} must be {expected}$"):
                call("t", body, **{"keys": "k", name: value})
        unknown: Any = {"key": "k"}
        with pytest.raises(TypeError, match="unexpected keyword argument 'key'"):
            producer.send("t", body, **unknown)


def test_what_is_no_iterable_of_messages() -> None:
    """One message is a list of one."""
    message: Any = object()
    for table in (ferromq.to_arrow, ferromq.to_pandas):
        with pytest.raises(TypeError, match=r"messages must be an iterable of messages, not <object"):
            table(message)


def test_positions_and_reasons_of_a_wrong_type() -> None:
    """A text is no mapping, and a number no text."""
    positions: Any = "a"
    with ferromq.Reader(NOWHERE, "t") as reader, pytest.raises(TypeError, match="positions must be a mapping"):
        reader.seek(positions)
    with ferromq.embedded() as mq, mq.producer() as producer, mq.consumer("g", "t") as consumer:
        producer.send("t", b"x")
        (message,) = consumer.receive(wait=20)
        reason: Any = 5
        with pytest.raises(TypeError, match="reason must be a str, not 5"):
            consumer.forward_to_dead_letter(message, reason)
        consumer.ack(message)
