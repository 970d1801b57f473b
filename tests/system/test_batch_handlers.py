"""Handlers of batches: what they get, what is acknowledged, and what fails; for both interfaces."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from consumer_shells import PATIENCE, SHELLS, Shell
from dispatching import dispatched

import ferromq
from ferromq import Failed, Message, MessageView, Reject, RetryAfter

pytestmark = pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker."""
    with ferromq.embedded() as embedded:
        yield embedded


def send(mq: ferromq.Embedded, count: int) -> None:
    """Send numbered messages."""
    with mq.producer() as producer:
        producer.send_all("orders", [b"%d" % number for number in range(count)])
    dispatched(mq)


def left(mq: ferromq.Embedded, count: int, topic: str = "orders", group: str = "billing") -> list[tuple[int, int]]:
    """Return numbers and attempts of the messages that a group has left, which are *count*."""
    with mq.consumer(group, topic) as consumer:
        found = consumer.receive_many(count, wait=PATIENCE / 2) if count else []
        assert consumer.receive(wait=0.2) == []
        consumer.ack(found)
    return sorted((int(message.body), message.delivery_attempt) for message in found)


def test_batches_are_filled_within_the_linger_and_acknowledged(mq: ferromq.Embedded, shell: Shell) -> None:
    """Each message is in one batch, and nothing is left to receive."""
    send(mq, 250)
    batches: list[list[int]] = []
    with shell(mq, "billing", "orders") as consumer:

        def handler(messages: Any) -> None:
            batches.append([int(message.body) for message in messages])
            if sum(map(len, batches)) == 250:
                consumer.stop()

        consumer.run(handler, batch=100, linger=1)
    assert [len(batch) for batch in batches] == [100, 100, 50]
    assert sorted(number for batch in batches for number in batch) == list(range(250))
    assert left(mq, 0) == []


def test_a_batch_fails_by_message(mq: ferromq.Embedded, shell: Shell) -> None:
    """A rejected one is a dead letter, another one is redelivered, and the others are acknowledged."""
    send(mq, 6)
    batches: list[list[tuple[int, int]]] = []
    with shell(mq, "billing", "orders") as consumer:

        def handler(messages: Any) -> None:
            by_number = {int(message.body): message for message in messages}
            batches.append(sorted((int(message.body), message.delivery_attempt) for message in messages))
            if len(batches) == 1:
                raise Failed({by_number[1]: Reject("no customer"), by_number[4]: RetryAfter(0)})
            consumer.stop()

        consumer.run(handler, batch=6, linger=1)
    assert batches == [[(number, 1) for number in range(6)], [(4, 2)]]
    assert left(mq, 0) == []
    with mq.consumer("look", "%DLQ%billing") as looking:
        (dead,) = looking.receive(wait=PATIENCE)
        assert (dead.body, dead.properties["DLQ_REASON"]) == (b"1", "no customer")


def test_what_else_a_handler_raises_holds_for_each_message(
    mq: ferromq.Embedded, shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """All are redelivered; the log has its traceback once."""
    with mq.admin() as admin:
        admin.create_group("billing", retry_delays=[0.1])
    send(mq, 5)
    with shell(mq, "billing", "orders") as consumer:

        def handler(messages: Any) -> None:
            consumer.stop()
            raise OSError(f"no disk for {len(messages)}")

        consumer.run(handler, batch=5, linger=PATIENCE / 4)
    assert left(mq, 5) == [(number, 2) for number in range(5)]
    assert caplog.text.count("Traceback") == 1


def test_a_group_that_keeps_order_keeps_it_in_batches(mq: ferromq.Embedded, shell: Shell) -> None:
    """A batch has one message group; what follows a failed message comes behind it, in one batch with it."""
    with mq.admin() as admin:
        admin.create_group("billing", fifo=True, retry_delays=[0.05])
    with mq.producer() as producer:
        for number in range(20):
            producer.send("orders", Message(b"%d" % number, message_group="ab"[number % 2]))
    handled: dict[str, list[int]] = {"a": [], "b": []}
    failed: list[tuple[int, int]] = []
    with shell(mq, "billing", "orders") as consumer:

        def handler(messages: list[MessageView]) -> None:
            (group,) = {str(message.message_group) for message in messages}
            for message in messages:
                if int(message.body) in {6, 7} and (int(message.body), 1) not in failed:
                    failed.append((int(message.body), 1))
                    raise Failed({message: "once"})
                handled[group].append(int(message.body))
            if sum(map(len, handled.values())) == 20:
                consumer.stop()

        consumer.run(handler, workers=2, batch=8)
    assert handled == {"a": list(range(0, 20, 2)), "b": list(range(1, 20, 2))}
    assert left(mq, 0) == []


def test_a_message_that_is_rejected_in_order_does_not_hold_its_followers(mq: ferromq.Embedded, shell: Shell) -> None:
    """They are handed out once more, without it."""
    with mq.admin() as admin:
        admin.create_group("billing", fifo=True)
    with mq.producer() as producer:
        for number in range(5):
            producer.send("orders", Message(b"%d" % number, message_group="a"))
    dispatched(mq)
    batches: list[list[int]] = []
    with shell(mq, "billing", "orders") as consumer:

        def handler(messages: Any) -> None:
            batches.append([int(message.body) for message in messages])
            if len(batches) == 1:
                raise Failed({messages[1]: Reject(), messages[3]: Reject()})
            consumer.stop()

        consumer.run(handler, batch=5)
    assert batches == [[0, 1, 2, 3, 4], [2, 3, 4]]
    assert left(mq, 0) == []


def test_what_follows_an_undecodable_message_in_order_is_handled_once(mq: ferromq.Embedded, shell: Shell) -> None:
    """The batch ends before it, and it becomes a dead letter before the handler gets what follows it."""
    with mq.admin() as admin:
        admin.create_topic("orders", 1)
        admin.create_group("billing", fifo=True)
    with mq.producer() as producer:
        for body in (b"0", b"1", b"bad", b"3", b"bad", b"5"):
            producer.send("orders", Message(body, message_group="a"))
    seen: list[int] = []
    with shell(mq, "billing", "orders", decode=int) as consumer:

        def handler(messages: Any) -> None:
            seen.extend(message.value for message in messages)
            if 5 in seen:
                consumer.stop()

        consumer.run(handler, batch=10)
    assert seen == [0, 1, 3, 5]
    with mq.consumer("look", "%DLQ%billing") as dead:
        assert [message.body for message in dead.receive_many(2, wait=PATIENCE / 2)] == [b"bad", b"bad"]


def test_what_no_batch_took_is_given_back_at_the_end(mq: ferromq.Embedded, shell: Shell) -> None:
    """It costs no attempt."""
    send(mq, 30)
    handled: list[int] = []
    with shell(mq, "billing", "orders") as consumer:

        def handler(messages: Any) -> None:
            consumer.stop()
            handled.extend(int(message.body) for message in messages)

        consumer.run(handler, batch=10, linger=PATIENCE / 4)
    assert len(handled) == 10
    assert left(mq, 20) == [(number, 1) for number in range(30) if number not in handled]


def test_batches_that_cannot_be_are_refused(mq: ferromq.Embedded, shell: Shell) -> None:
    """Before anything is received; the error names the way out."""
    with shell(mq, "billing", "orders", prefetch=10) as consumer:
        with pytest.raises(ferromq.ConfigError, match="prefetch of at least 20"):
            consumer.run(print, batch=20)
        with pytest.raises(ferromq.ConfigError, match="batch must be at least 1, not 0"):
            consumer.run(print, batch=0)
        with pytest.raises(ferromq.ConfigError, match="give batch="):
            consumer.run(print, linger=1)
    with pytest.raises(ValueError, match="names no message"):
        Failed({})


def test_a_failure_of_a_message_of_no_batch_ends_run(mq: ferromq.Embedded, shell: Shell) -> None:
    """Nothing is acknowledged."""
    send(mq, 2)
    with shell(mq, "other", "orders") as other, shell(mq, "billing", "orders") as consumer:
        stranger = other.receive(wait=PATIENCE)[0]

        def handler(messages: Any) -> None:
            raise Failed({stranger: "not mine"})

        with pytest.raises(ValueError, match="not in the handler's batch"):
            consumer.run(handler, batch=2, linger=0.5)
    assert left(mq, 2) == [(0, 1), (1, 1)]


def test_a_batch_that_is_no_number_is_refused_at_the_call(mq: ferromq.Embedded, shell: Shell) -> None:
    """It would end the receiving behind the handlers."""
    with shell(mq, "billing", "orders") as consumer:
        for batch in (1.5, "10", True):
            with pytest.raises(TypeError, match="batch must be a whole number"):
                consumer.run(print, batch=batch)


def test_a_reply_that_nothing_takes_is_no_failure_of_a_batch(
    mq: ferromq.Embedded, shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and its message is acknowledged with those that are handled."""
    mq.admin().create_topic("orders", queues=1)
    send(mq, 3)
    with shell(mq, "billing", "orders") as consumer:

        def handler(messages: list[MessageView]) -> None:
            consumer.stop()
            gone = ferromq.RequesterGone("the requester is gone")
            raise Failed({messages[0]: gone, messages[1]: RetryAfter(0)})

        consumer.run(handler, batch=3, linger=PATIENCE)
    assert "reply dropped" in caplog.text
    assert left(mq, 1) == [(1, 2)]


def test_an_outage_at_the_start_is_logged_at_once(
    mq: ferromq.Embedded, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when the first wait for messages is over."""
    said = threading.Event()
    logger = logging.getLogger("ferromq.client")

    def warning(text: str, *_args: object, **_options: object) -> None:
        if text.startswith("no messages"):
            said.set()

    monkeypatch.setattr(logger, "warning", warning)
    with shell(_Nowhere(), "billing", "orders", timeout=0.5, attempts=1) as consumer:
        running = threading.Thread(target=consumer.run, args=(print,))
        running.start()
        assert said.wait(PATIENCE / 3)
        consumer.stop()
        running.join()


class _Nowhere:
    endpoint = "127.0.0.1:1"
