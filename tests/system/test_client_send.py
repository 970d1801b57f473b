"""Producers: the promise of a receipt, batches, sends in the background, and messages that cannot be sent."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from consumer_shells import Shell
from contract import EACH_WAY

import ferromq

SOON = timedelta(seconds=30)


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker."""
    with ferromq.embedded() as embedded:
        yield embedded


def receive_all(mq: ferromq.Embedded, topic: str, count: int) -> dict[str, ferromq.MessageView]:
    """Receive and acknowledge messages until *count* different ones came, and return them by id."""
    received: dict[str, ferromq.MessageView] = {}
    with mq.consumer("all", topic) as consumer:
        while len(received) < count and (messages := consumer.receive(1000, wait=SOON)):
            received |= {message.message_id: message for message in messages}
            consumer.ack(messages)
    return received


@EACH_WAY
def test_a_receipt_says_where_the_message_is(mq: ferromq.Embedded, shell: Shell) -> None:
    """Body, tag, keys and properties are stored under the receipt's queue and offset, and found by its id."""
    with shell.producer(mq) as producer:
        receipt = producer.send("orders", b"hello", keys=["o-1", "o-2"], tag="new", properties={"region": "eu"})
    message = receive_all(mq, "orders", 1)[receipt.message_id]
    assert (message.queue_id, message.queue_offset) == (receipt.queue_id, receipt.queue_offset)
    assert (message.body, message.tag, message.keys) == (b"hello", "new", ("o-1", "o-2"))
    assert message.properties == {"region": "eu"}
    assert message.delivery_attempt == 1
    assert message.born_timestamp <= message.store_timestamp


@EACH_WAY
def test_many_messages_are_sent_once_each_and_their_receipts_are_in_order(mq: ferromq.Embedded, shell: Shell) -> None:
    """Messages and bare bodies mix; every receipt leads to the message at its index."""
    messages = [ferromq.Message(b"%d" % n, keys=f"k-{n}") if n % 2 else b"%d" % n for n in range(5000)]
    progress: list[int] = []
    with shell.producer(mq) as producer:
        summary = producer.send_all("many", iter(messages), on_progress=progress.append)
    assert len(summary) == 5000
    assert progress == sorted(progress)
    assert progress[-1] == 5000
    received = receive_all(mq, "many", 5000)
    assert len(received) == 5000
    for number, receipt in enumerate(summary):
        message = received[receipt.message_id]
        assert message.body == b"%d" % number
        assert (message.queue_id, message.queue_offset) == (receipt.queue_id, receipt.queue_offset)
    assert len({receipt.queue_id for receipt in summary}) > 1


@EACH_WAY
def test_nothing_is_sent_for_an_empty_iterable(mq: ferromq.Embedded, shell: Shell) -> None:
    """No message, no receipt, no error."""
    with shell.producer(mq) as producer:
        assert len(producer.send_all("orders", [])) == 0


@EACH_WAY
def test_a_failure_in_the_middle_names_the_message(mq: ferromq.Embedded, shell: Shell) -> None:
    """The error says which messages failed, the note how many are stored; they are."""
    messages = [b"fine"] * 600
    messages[300] = b"x" * (4 * 1024 * 1024 + 1)
    with shell.producer(mq) as producer:
        with pytest.raises(ferromq.MessageTooLarge, match=r"message 300: .*4194304") as caught:
            producer.send_all("orders", messages)
        (note,) = caught.value.__notes__
        stored = int(note.split()[0])
        assert stored >= 300
        producer.send("orders", b"goes on")
    assert len(receive_all(mq, "orders", stored + 1)) == stored + 1


@pytest.mark.parametrize(("bad", "text"), [("text", "message 300: a message"), (b"", "message 300: the body is empty")])
def test_wrong_messages_are_named_and_the_others_counted(mq: ferromq.Embedded, bad: bytes, text: str) -> None:
    """The index is that of the whole call, and the note is there for every error."""
    with mq.producer() as producer, pytest.raises((TypeError, ValueError), match=f"^{text}") as caught:
        producer.send_all("orders", [b"x"] * 300 + [bad])
    (note,) = caught.value.__notes__
    assert int(note.split()[0]) in {0, 256, 300}


@EACH_WAY
def test_submitted_messages_travel_together(mq: ferromq.Embedded, shell: Shell) -> None:
    """Each future ends with its own receipt, in far fewer requests than messages."""
    with shell.producer(mq, linger=timedelta(hours=1)) as producer:
        producer.send("orders", b"first")
        before = mq.broker._server.stats()["send_requests"]
        futures = [producer.submit("orders", b"%d" % number) for number in range(1000)]
        producer.flush(SOON)
        receipts = [future.result(10) for future in futures]
        assert mq.broker._server.stats()["send_requests"] - before < 100
    received = receive_all(mq, "orders", 1001)
    assert [received[receipt.message_id].body for receipt in receipts] == [b"%d" % number for number in range(1000)]


def test_a_lone_submitted_message_does_not_wait_for_long(mq: ferromq.Embedded) -> None:
    """Linger bounds the wait; `flush` and `close` do not wait at all."""
    with mq.producer() as producer:
        producer.send("orders", b"connected")
        assert producer.submit("orders", b"alone").result(5).queue_offset >= 0
    with mq.producer(linger=timedelta(hours=1)) as producer:
        future = producer.submit("orders", b"flushed")
        assert not future.done()
        assert producer.flush(SOON)
        assert future.done()
        future = producer.submit("orders", b"closed")
    assert future.result(0).message_id


@EACH_WAY
def test_one_bad_message_does_not_spoil_its_neighbours(mq: ferromq.Embedded, shell: Shell) -> None:
    """Of messages in one batch, only the refused one and the one that is too large fail."""
    with shell.producer(mq, linger=timedelta(hours=1)) as producer:
        futures = [producer.submit("orders", b"x", properties={name: "x"}) for name in ("fine", "UNIQ_KEY", "good")]
        producer.flush(SOON)
        with pytest.raises(ferromq.RequestError, match="UNIQ_KEY"):
            futures.pop(1).result(10)
        assert len({future.result(10).message_id for future in futures}) == 2
        futures = [producer.submit("orders", body) for body in (b"one", b"x" * (4 * 1024 * 1024 + 1), b"three")]
        futures += [producer.submit("orders", b"x" * 600_000) for _ in range(3)]
        producer.flush(SOON)
        with pytest.raises(ferromq.MessageTooLarge):
            futures.pop(1).result(10)
        assert len({future.result(10).message_id for future in futures}) == 5


def test_submit_makes_its_caller_wait_instead_of_filling_memory(mq: ferromq.Embedded) -> None:
    """With space for two messages the third waits until one is sent."""
    with mq.producer(linger=timedelta(hours=1), max_pending_bytes=2000) as producer:
        futures = [producer.submit("orders", b"x" * 1000) for _ in range(2)]
        third = threading.Thread(target=lambda: futures.append(producer.submit("orders", b"x" * 1000)))
        third.start()
        third.join(0.2)
        assert third.is_alive()
        assert producer.flush(SOON)  # the third one may be among them
        third.join(5)
        assert not third.is_alive()
        assert producer.flush(SOON)
        assert len({future.result(0).message_id for future in futures}) == 3


def test_wrong_use_is_told_before_anything_is_sent(mq: ferromq.Embedded) -> None:
    """Types, empty bodies, and headers beside a finished message."""
    with mq.producer() as producer:
        with pytest.raises(TypeError, match="encode"):
            producer.send("orders", "text")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="empty"):
            producer.send("orders", b"")
        with pytest.raises(TypeError, match="its own tag"):
            producer.send("orders", ferromq.Message(b"x"), tag="t")
        with pytest.raises(ValueError, match="negative"):
            producer.close(-1)
    with pytest.raises(ferromq.ConfigError, match="attempt"):
        ferromq.Producer("127.0.0.1:1", attempts=0)
