"""A consumer gives back its unused messages, each separately: none waits for another one's failure."""

import threading
from collections.abc import Iterator

import pytest
from consumer_shells import PATIENCE, SHELLS, Shell
from dispatching import dispatched
from grpc_proxy import GrpcProxy

import ferromq
from ferromq import Message, MessageView

pytestmark = pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
TOTAL = 32
CHANGE = "ChangeInvisibleDuration"


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker whose time is moved by hand: no lease ends by itself."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as embedded:
        yield embedded


@pytest.mark.parametrize("lost", [1, 3])
def test_a_failing_give_back_stops_no_other(mq: ferromq.Embedded, shell: Shell, lost: int) -> None:
    """Of a group that keeps order `run` holds many messages; all are given back at its end."""
    with mq.admin() as admin:
        admin.create_topic("steps", 1, message_type="FIFO")
        admin.create_group("walker", fifo=True)
    with mq.producer() as producer:
        producer.send_all("steps", [Message(b"%d" % number, message_group=f"{number}") for number in range(TOTAL)])
    dispatched(mq)
    begun, go_on = threading.Semaphore(0), threading.Event()
    seen: list[bytes] = []

    def handler(message: MessageView) -> None:
        seen.append(message.body)
        begun.release()
        assert go_on.wait(PATIENCE)

    with GrpcProxy(mq.endpoint) as proxy, shell(proxy, "walker", "steps", invisible_duration=600) as consumer:
        running = threading.Thread(target=consumer.run, args=(handler, 2), daemon=True)
        running.start()
        for _ in range(2):
            assert begun.acquire(timeout=PATIENCE)
        proxy.lose(CHANGE, lost)
        consumer.stop()
        go_on.set()
        running.join(PATIENCE)
        assert not running.is_alive()
    with mq.consumer("walker", "steps", invisible_duration=600) as other:
        while len(seen) < TOTAL:
            some = other.receive(wait=PATIENCE)
            assert {message.delivery_attempt for message in some} == {1}
            seen += [message.body for message in some]
            other.ack(some)
    assert sorted(seen) == sorted(b"%d" % number for number in range(TOTAL))


def test_no_give_back_waits_for_a_hanging_broker(mq: ferromq.Embedded, shell: Shell) -> None:
    """Other consumers get another broker's messages at once."""
    with ferromq.embedded(name="other") as other:
        for each in (mq, other):
            with each.producer() as producer:
                producer.send("orders", b"x")
        with GrpcProxy(mq.endpoint) as proxy, GrpcProxy(other.endpoint) as hung:
            proxy.put_beside(hung)
            with shell(proxy, "billing", "orders", timeout=60, invisible_duration=600) as consumer:
                consumer.consumer._client.common.attempt_timeout = 60.0
                messages: list[MessageView] = []
                while len(messages) < 2:
                    messages += consumer.receive(wait=PATIENCE)
                messages.sort(key=lambda message: message.endpoint == proxy.endpoint)
                hung.hang(CHANGE)
                giving = threading.Thread(target=consumer.give_back, args=(messages, 2 * PATIENCE))
                giving.start()
                with mq.consumer("billing", "orders") as member:
                    (again,) = member.receive(wait=PATIENCE / 2)
                    assert again.delivery_attempt == 1
                hung.release()
                giving.join(PATIENCE)
                assert not giving.is_alive()
