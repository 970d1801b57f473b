"""The checks of `make matrix` for the gRPC client for Python: one program for all its versions."""

import asyncio
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import rocketmq
from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.client.connection.rpc_client import RpcClient

RUN = os.environ["MATRIX_RUN"]
INVISIBLE_S = 10
WAIT_S = 5
SIX = [f"m{number}" for number in range(6)]


class Room:
    """A check's topic, its group, and clients that are closed at its end."""

    def __init__(self, name: str) -> None:
        self.topic = f"{name}_{RUN}"
        self.open: list[Any] = []

    def start(self, client: Any) -> Any:
        """Start a client; its oldest version opens streams on the loop of the calling thread."""
        asyncio.set_event_loop(RpcClient.get_channel_io_loop())
        client.startup()
        self.open.append(client)
        return client

    def producer(self, checker: TransactionChecker | None = None, *, topics: bool = True) -> Any:
        """Start a producer."""
        return self.start(Producer(configuration(), (self.topic,) if topics else None, checker))

    def simple(self, expression: FilterExpression | None = None, *, topic: str = "", group: str = "") -> Any:
        """Start a simple consumer."""
        subscription = {topic or self.topic: expression or FilterExpression()}
        consumer = self.start(SimpleConsumer(configuration(), group or self.topic, subscription, WAIT_S))
        # RocketMQ refuses a receive before the client's settings, which it sends every 5 s.
        time.sleep(6)
        return consumer

    def push(self, fails: Callable[[Any], bool] = lambda _: False) -> list[Any]:
        """Start a push consumer, and return the list of its messages."""
        taken: list[Any] = []

        class Listener(rocketmq.MessageListener):  # type: ignore[misc,name-defined]
            def consume(self, message: Any) -> Any:
                failed = fails(message)
                taken.append((body(message), message.delivery_attempt))
                return rocketmq.ConsumeResult.FAILURE if failed else rocketmq.ConsumeResult.SUCCESS

        subscription = {self.topic: FilterExpression()}
        rocketmq.PushConsumer(configuration(), self.topic, Listener(), subscription).startup()
        return taken

    def message(self, text: str, **fields: Any) -> Message:
        """Return a message to send; *fields* are properties of `Message`."""
        message = Message()
        message.topic = self.topic
        message.body = text.encode()
        for name, value in fields.items():
            setattr(message, name, value)
        return message

    def close(self) -> None:
        """Close the clients."""
        for client in self.open:
            try:
                client.shutdown()
            except Exception:  # (it is no part of the check)
                traceback.print_exc()


def configuration() -> ClientConfiguration:
    """Return the configuration of every client; the default of 3 s is short on a busy machine."""
    keys = Credentials(os.environ.get("MATRIX_ACCESS_KEY", ""), os.environ.get("MATRIX_SECRET_KEY", ""))
    return ClientConfiguration(os.environ["MATRIX_ENDPOINT"], keys, request_timeout=10)


def body(message: Any) -> str:
    """Return the body as text."""
    return bytes(message.body).decode()


def bodies(messages: Iterable[Any]) -> list[str]:
    """Return the bodies in their order."""
    return [body(message) for message in messages]


def receive(consumer: Any, count: int, seconds: float = 30, *, acknowledges: bool = True) -> list[Any]:
    """Receive until there are so many, for so long at most, and acknowledge each at once."""
    got: list[Any] = []
    end = time.monotonic() + seconds
    while len(got) < count and time.monotonic() < end:
        for message in consumer.receive(count - len(got), INVISIBLE_S) or []:
            if acknowledges:
                consumer.ack(message)
            got.append(message)
    return got


def peek(consumer: Any, count: int, seconds: float = 30) -> list[Any]:
    """Receive as `receive`, without an acknowledgement."""
    return receive(consumer, count, seconds, acknowledges=False)


def nothing_more(consumer: Any) -> None:
    """Check that one more receive gets nothing."""
    more = bodies(consumer.receive(16, INVISIBLE_S) or [])
    assert not more, f"received also {more}"


def wait_for(taken: list[Any], fits: Callable[[list[Any]], bool], seconds: int) -> None:
    """Wait until the list fits."""
    for _ in range(seconds * 10):
        if fits(taken):
            return
        time.sleep(0.1)
    raise AssertionError(f"given after {seconds} s: {taken}")


def refused(call: Callable[[], object], *signs: object) -> None:
    """Check that a call is refused with a code, or by the client itself, with a text."""
    try:
        answer = call()
    except Exception as error:  # (the classes differ between versions)
        assert any(str(sign) in str(error) for sign in signs), str(error)
        return
    raise AssertionError(f"accepted: {answer}")


def check_send(room: Room) -> None:
    """Synchronous and asynchronous."""
    producer = room.producer()
    message = room.message("sync", tag="tag")
    message.keys = "key"
    message.add_property("color", "azure")
    sent = {producer.send(message).message_id: "sync"}
    sent[producer.send_async(room.message("async")).result(20).message_id] = "async"
    got = receive(room.simple(), 2)
    # The oldest client leaves the version out of the ids that it received.
    received = {each.message_id.removeprefix("01"): body(each) for each in got}
    assert received == {key.removeprefix("01"): text for key, text in sent.items()}, f"sent {sent}, received {received}"
    for each in got:
        seen = (each.topic, each.tag, list(each.keys), dict(each.properties), each.delivery_attempt)
        plain = (room.topic, None, [], {}, 1)
        full = (room.topic, "tag", ["key"], {"color": "azure"}, 1)
        expected = full if body(each) == "sync" else plain
        assert seen[:2] == (room.topic, expected[1]) or not seen[1], str(seen)
        assert seen[2:] == expected[2:], str(seen)


def check_consume(room: Room) -> None:
    """Ten messages, each once."""
    taken = room.push()
    producer = room.producer()
    sent = [f"m{number}" for number in range(10)]
    for text in sent:
        producer.send(room.message(text))
    wait_for(taken, lambda given: len(given) >= len(sent), 60)
    time.sleep(3)
    assert sorted(text for text, _ in taken) == sent, str(taken)


def check_acknowledge(room: Room) -> None:
    """One is acknowledged, one is not."""
    consumer, producer = room.simple(), room.producer()
    producer.send(room.message("done"))
    producer.send(room.message("open"))
    got = peek(consumer, 2)
    received = time.monotonic()
    assert sorted(bodies(got)) == ["done", "open"], str(bodies(got))
    consumer.ack(next(message for message in got if body(message) == "done"))
    for attempt in (2, 3):
        again = peek(consumer, 1, 40)
        after = time.monotonic() - received
        assert bodies(again) == ["open"], f"came again: {bodies(again)}"
        assert again[0].delivery_attempt == attempt, f"attempt {again[0].delivery_attempt}"
        assert 8 < after < 30, f"came again after {after:.1f} s"
        received = time.monotonic()
        if attempt == 2:
            consumer.change_invisible_duration(again[0], 12)
    consumer.ack(again[0])


def check_tags(room: Room) -> None:
    """Two of four."""
    consumer, producer = room.simple(FilterExpression("a || b")), room.producer()
    for tag in ("a", "b", "c"):
        producer.send(room.message(tag, tag=tag))
    producer.send(room.message("none"))
    got = bodies(receive(consumer, 2))
    assert sorted(got) == ["a", "b"], str(got)
    nothing_more(consumer)


def check_sql(room: Room) -> None:
    """Numbers and texts."""
    expression = FilterExpression("size > 1 AND color IS NOT NULL", FilterType.SQL)
    consumer, producer = room.simple(expression), room.producer()
    for size in (1, 2, 3):
        message = room.message(f"s{size}")
        message.add_property("size", str(size))
        message.add_property("color", "blue")
        producer.send(message)
    producer.send(room.message("none"))
    got = bodies(receive(consumer, 2))
    assert sorted(got) == ["s2", "s3"], str(got)
    nothing_more(consumer)


def send_six(room: Room) -> None:
    """Send six messages of one group."""
    producer = room.producer()
    for text in SIX:
        producer.send(room.message(text, message_group="group"))


def check_order(room: Room) -> None:
    """A simple consumer."""
    consumer = room.simple()
    send_six(room)
    got: list[str] = []
    for _ in range(10):
        got += bodies(receive(consumer, 2, 1))
        if len(got) >= len(SIX):
            break
    assert got == SIX, str(got)


def check_order_push(room: Room) -> None:
    """A push consumer."""
    taken = room.push()
    send_six(room)
    wait_for(taken, lambda given: [text for text, _ in given] == SIX, 40)


def check_delay(room: Room) -> None:
    """Six seconds."""
    consumer, producer = room.simple(), room.producer()
    due = int(time.time()) + 6
    producer.send(room.message("later", delivery_timestamp=due))
    got = receive(consumer, 1, 40)
    late = time.time() - due
    assert len(got) == 1, "not received in 40 s"
    assert -0.1 <= late < 6, f"received {late:.2f} s after it was due"


def check_recall(room: Room) -> None:
    """One of two."""
    consumer, producer = room.simple(), room.producer()
    due = int(time.time()) + 8
    receipt = producer.send(room.message("recalled", delivery_timestamp=due))
    producer.send(room.message("stays", delivery_timestamp=due))
    recalled = producer.recall_message(room.topic, receipt.recall_handle)
    assert receipt.message_id in str(getattr(recalled, "message_id", recalled)), f"recalled {recalled}"
    got = bodies(receive(consumer, 1, 40))
    assert got == ["stays"], str(got)
    nothing_more(consumer)


def check_priority(room: Room) -> None:
    """Sent from the lowest up."""
    producer = room.producer()
    for priority in range(3):
        producer.send(room.message(f"p{priority}", priority=priority))
    consumer = room.simple()
    got = [text for _ in range(3) for text in bodies(receive(consumer, 1))]
    assert got == ["p2", "p1", "p0"], str(got)


def check_transaction(room: Room) -> None:
    """One is committed, one rolled back, one left open."""
    asked = []

    class Checker(TransactionChecker):  # type: ignore[misc]
        def check(self, message: Any) -> Any:
            asked.append(body(message))
            return TransactionResolution.COMMIT

    producer = room.producer(Checker())
    for end in ("commit", "rollback", "unknown"):
        transaction = producer.begin_transaction()
        producer.send(room.message(end), transaction)
        if end != "unknown":
            getattr(transaction, end)()
    consumer = room.simple()
    got = bodies(receive(consumer, 2, 100))
    assert sorted(got) == ["commit", "unknown"], f"received {got}, asked {asked}"
    nothing_more(consumer)


def check_retry(room: Room) -> None:
    """One of two fails once."""
    taken = room.push(lambda message: body(message) == "bad" and message.delivery_attempt == 1)
    producer = room.producer()
    producer.send(room.message("bad"))
    producer.send(room.message("good"))
    wait_for(taken, lambda given: len(given) >= 3, 90)
    time.sleep(4)
    assert sorted(taken) == [("bad", 1), ("bad", 2), ("good", 1)], str(taken)


def check_dead_letter(room: Room) -> None:
    """It fails twice."""
    taken = room.push(lambda _: True)
    receipt = room.producer().send(room.message("bad"))
    wait_for(taken, lambda given: len(given) >= 2, 60)
    for attempt in range(4):
        # The original's proxy remembers for 20 s that there is no such topic.
        time.sleep(12)
        try:
            consumer = room.simple(topic=f"%DLQ%{room.topic}", group=f"undertaker_{room.topic}")
            break
        except Exception as error:
            assert attempt < 3, f"no dead letters: {error}"
    dead = receive(consumer, 1, 40)
    assert bodies(dead) == ["bad"], f"dead letters {bodies(dead)}, given {taken}"
    assert dead[0].message_id == receipt.message_id, "another message id"
    assert len(taken) == 2, f"given {taken}"


def received_one(room: Room) -> tuple[Any, Any]:
    """Send a message and receive it."""
    consumer = room.simple()
    room.producer().send(room.message("body"))
    got = peek(consumer, 1)
    assert len(got) == 1, f"received {len(got)}"
    return consumer, got[0]


def check_late_ack(room: Room) -> None:
    """Two seconds late."""
    consumer, message = received_one(room)
    time.sleep(INVISIBLE_S + 2)
    refused(lambda: consumer.ack(message), 40013)


def check_second_ack(room: Room) -> None:
    """Both in time."""
    consumer, message = received_one(room)
    consumer.ack(message)
    consumer.ack(message)


def check_short_invisible(room: Room) -> None:
    """A second."""
    consumer = room.simple()
    room.producer().send(room.message("body"))
    refused(lambda: consumer.receive(1, 1), 40011)


def check_long_delay(room: Room) -> None:
    """Two days."""
    producer = room.producer()
    due = int(time.time()) + 2 * 86_400
    refused(lambda: producer.send(room.message("late", delivery_timestamp=due)), 40012)


def check_unknown_topic(room: Room) -> None:
    """A topic that was never created."""
    producer = room.producer(topics=False)
    # The newest client hides the code.
    refused(lambda: producer.send(room.message("body")), 40402, "failed to fetch topic")


def check_wrong_type(room: Room) -> None:
    """A message of a group to a topic for normal messages."""
    producer = room.producer()
    refused(lambda: producer.send(room.message("body", message_group="group")), "message type not match with queue")


def check_big_body(room: Room) -> None:
    """3 MiB pass; more than 4 MiB do not."""
    producer = room.producer()
    message = room.message("-")
    big = random.Random(1).randbytes(3 << 20)
    message.body = big
    producer.send(message)
    got = receive(room.simple(), 1)
    assert len(got) == 1, f"received {len(got)}"
    assert bytes(got[0].body) == big, "another body"
    refused(lambda: producer.send(room.message("x" * ((4 << 20) + 1))), "Message body size exceeds the threshold")


def report(name: str) -> None:
    """Run a check and print its verdict."""
    room = Room(name)
    try:
        globals()[f"check_{name}"](room)
        verdict = "ok"
    except Exception as error:  # (whatever it saw)
        traceback.print_exc()
        verdict = "FAILED " + " ".join(
            f"{'' if isinstance(error, AssertionError) else repr(error)[:60]} {error}".split()
        )
    # One write: `print` writes the end of the line on its own, and another thread's line may come between.
    sys.stdout.write(f"CHECK {name} {verdict}\n")
    sys.stdout.flush()
    room.close()


def main() -> None:
    """Run the checks beside each other."""
    for _ in range(3):
        try:
            Room("send").producer()
            break
        except Exception:  # (the first client of a server waits longest)
            traceback.print_exc()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(report, os.environ["MATRIX_CHECKS"].split()))
    sys.stdout.flush()
    # Threads of clients live on.
    os._exit(0)


main()
