"""How long a receive over gRPC waits: RocketMQ's clients as behind its proxy, our own client as long as it asks for."""

import contextlib
import queue
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

import ferromq
from ferromq._proto import messages as pb

_SERVICE = "/apache.rocketmq.v2.MessagingService/"
_PATH = f"{_SERVICE}ReceiveMessage"
_SHORTEST = 5.0
_DEADLINE = 30.0
_TOO_SHORT = 4.9
# Half of it is left for the answer: of the deadline, what is left to wait is less than the shortest wait.
_PATIENT, _PATIENCE = "patient", 52.0


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker with one message of the topic `full`, and none of `orders`."""
    with ferromq.embedded() as embedded:
        with embedded.producer() as producer:
            producer.send("full", b"x")
            producer.send("orders", b"x")
        with embedded.consumer("billing", "orders") as consumer:
            consumer.ack(consumer.receive(wait=20))
        yield embedded


def receive(
    mq: ferromq.Embedded,
    *metadata: tuple[str, str],
    wait: float | None,
    deadline: float | None,
    topic: str = "orders",
    client: str = "rocket",
) -> tuple[int, float]:
    """Return the code, and how long it took."""
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name="billing"), message_queue=pb.MessageQueue(topic=pb.Resource(name=topic)), batch_size=1
    )
    if wait is not None:
        request.long_polling_timeout.FromMilliseconds(int(wait * 1000))
    with grpc.insecure_channel(mq.endpoint) as channel:
        call = channel.unary_stream(_PATH)
        begin = time.monotonic()
        answers = list(
            call(request.SerializeToString(), metadata=(("x-mq-client-id", client), *metadata), timeout=deadline)
        )
        took = time.monotonic() - begin
    return pb.ReceiveMessageResponse.FromString(answers[0]).status.code, took


@contextlib.contextmanager
def settings(mq: ferromq.Embedded, client: str, request_timeout: float) -> Iterator[None]:
    """Have the broker know the settings of a client."""
    subscription = pb.Subscription(group=pb.Resource(name="billing"))
    wanted = pb.Settings(client_type=pb.ClientType.SIMPLE_CONSUMER, subscription=subscription)
    wanted.request_timeout.FromMilliseconds(int(request_timeout * 1000))
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    outgoing.put(pb.TelemetryCommand(settings=wanted).SerializeToString())
    with grpc.insecure_channel(mq.endpoint) as channel:
        call = channel.stream_stream(f"{_SERVICE}Telemetry")
        incoming = call(iter(outgoing.get, None), metadata=(("x-mq-client-id", client),), timeout=50)
        next(incoming)
        yield
        outgoing.put(None)


def test_rocketmqs_clients_wait_five_seconds_at_least(mq: ferromq.Embedded) -> None:
    """With any wait, or none; a client without a deadline is served, too."""
    asked = (
        ("rocket", 0.0, _DEADLINE),
        ("rocket", 1.0, _DEADLINE),
        ("rocket", 1.0, None),
        (_PATIENT, None, _DEADLINE),
    )
    with settings(mq, _PATIENT, _PATIENCE), ThreadPoolExecutor(len(asked)) as pool:
        calls = [
            pool.submit(receive, mq, client=client, wait=wait, deadline=deadline) for client, wait, deadline in asked
        ]
        answers = [call.result() for call in calls]
    assert [code for code, _ in answers] == [pb.Code.MESSAGE_NOT_FOUND] * len(asked)
    assert all(took >= _SHORTEST for _, took in answers)


@pytest.mark.parametrize(
    ("version", "code"),
    [("5.0.7", pb.Code.ILLEGAL_POLLING_TIME), ("5.0.2", pb.Code.BAD_REQUEST), (None, pb.Code.BAD_REQUEST)],
)
def test_a_deadline_that_leaves_less_is_refused_though_messages_wait(
    mq: ferromq.Embedded, version: str | None, code: int
) -> None:
    """Java's clients before 5.0.3 know no code for it; the topic is not checked."""
    metadata = [("x-mq-client-version", version)] if version else []
    for topic in ("full", "no topic"):
        assert receive(mq, *metadata, wait=1, deadline=_TOO_SHORT, topic=topic)[0] == code


def test_the_own_client_waits_as_long_as_it_asks_for(mq: ferromq.Embedded) -> None:
    """Its request for packed answers identifies it."""
    with mq.consumer("billing", "orders") as consumer:
        begin = time.monotonic()
        assert consumer.receive(wait=0) == []
        assert consumer.receive(wait=0.1) == []
        assert time.monotonic() - begin < _SHORTEST
