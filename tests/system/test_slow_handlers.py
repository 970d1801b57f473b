"""A consumer prefetches only messages that its handlers soon finish: none expires, idle consumers get the others."""

import threading
from collections.abc import Callable, Iterator

import pytest
from consumer_shells import PATIENCE, SHELLS, AioShell, Shell, SyncShell
from fault_proxy import FaultProxy
from grpc_proxy import GrpcProxy
from ports import kept_port

import ferromq
from ferromq import MessageView
from ferromq.client import renewing

pytestmark = [
    pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind),
    pytest.mark.parametrize("way", ["run", "iterate"]),
]
TOTAL = 40


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker whose time is moved by hand, with messages of the topic `orders`."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as embedded:
        with embedded.producer() as producer:
            producer.send_all("orders", [b"%d" % number for number in range(TOTAL)])
        yield embedded


class Working:
    """Consumes in the background, with a function that is called with each message."""

    def __init__(
        self, consumer: SyncShell | AioShell, way: str, workers: int, body: Callable[[MessageView], None]
    ) -> None:
        self._consumer = consumer
        self._over = threading.Event()
        self._active = 0
        self._changed = threading.Condition()
        if way == "run":
            calls: list[Callable[[], None]] = [lambda: consumer.run(body, workers)]
        else:
            calls = [lambda: consumer.iterate(self._loop(body))] * workers
        self._threads = [threading.Thread(target=call, daemon=True) for call in calls]
        for thread in self._threads:
            thread.start()

    def _loop(self, body: Callable[[MessageView], None]) -> Callable[[MessageView], bool]:
        def use(message: MessageView) -> bool:
            with self._changed:
                self._active += 1
            body(message)
            self._consumer.ack_later(message)
            with self._changed:
                self._active -= 1
                self._changed.notify_all()
            return self._over.is_set()

        return use

    def end(self) -> None:
        """Stop, and wait until it has stopped."""
        self._over.set()
        self._consumer.stop()
        with self._changed:
            assert self._changed.wait_for(lambda: not self._active, PATIENCE)
        self._consumer.close()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def receive_all(mq: ferromq.Embedded, count: int) -> list[MessageView]:
    """Receive as many messages as another member of the group."""
    messages: list[MessageView] = []
    with mq.consumer("billing", "orders", invisible_duration=600) as other:
        while len(messages) < count:
            some = other.receive(count - len(messages), wait=PATIENCE)
            assert some
            messages += some
            other.ack(some)
        assert other.receive(wait=0) == []
    return messages


@pytest.mark.parametrize(("workers", "prefetch"), [(1, None), (4, None), (4, 2)])
def test_one_message_a_worker_is_prefetched_before_there_is_a_rate(
    mq: ferromq.Embedded, shell: Shell, way: str, workers: int, prefetch: int | None
) -> None:
    """Other members get the other messages. `prefetch` is an upper bound."""
    begun, go_on = threading.Semaphore(0), threading.Event()
    held = prefetch or workers

    def body(_message: MessageView) -> None:
        begun.release()
        assert go_on.wait(PATIENCE)

    with shell(mq, "billing", "orders", prefetch=prefetch) as consumer:
        working = Working(consumer, way, workers, body)
        for _ in range(held):
            assert begun.acquire(timeout=PATIENCE)
        others = receive_all(mq, TOTAL - held)
        assert {message.delivery_attempt for message in others} == {1}
        go_on.set()
        working.end()
    assert mq.broker._server.stats()["acked"] == TOTAL


def test_a_message_that_is_worked_on_does_not_expire(
    mq: ferromq.Embedded, shell: Shell, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes: its lease is renewed until the handler returns, or the loop asks for the next message."""
    monkeypatch.setattr(renewing, "_RENEWAL", PATIENCE)
    receive_all(mq, TOTAL)
    with mq.producer() as producer:
        producer.send("orders", b"slow")
    begun, go_on = threading.Event(), threading.Event()
    attempts: list[int] = []

    def body(message: MessageView) -> None:
        attempts.append(message.delivery_attempt)
        begun.set()
        assert go_on.wait(PATIENCE)

    with GrpcProxy(mq.endpoint) as proxy, shell(proxy, "billing", "orders", invisible_duration=0.6) as consumer:
        working = Working(consumer, way, 1, body)
        assert begun.wait(PATIENCE)
        for _ in range(4):
            proxy.wait_for("ChangeInvisibleDuration", 2)  # the first may have begun before time went on
            mq.clock.advance(seconds=0.5)
        go_on.set()
        working.end()
    assert attempts == [1]
    stats = mq.broker._server.stats()
    assert (stats["acked"], stats["stale_receipts"], stats["dead"]) == (TOTAL + 1, 0, 0)


def test_messages_that_wait_for_a_slow_handler_are_given_back(mq: ferromq.Embedded, shell: Shell, way: str) -> None:
    """Without an attempt: time does not move here, so what another member receives has not expired."""
    begun, go_on = threading.Event(), threading.Event()
    seen: list[bytes] = []

    def body(message: MessageView) -> None:
        seen.append(message.body)
        if len(seen) == TOTAL // 2:
            begun.set()
            assert go_on.wait(PATIENCE)

    with shell(mq, "billing", "orders", invisible_duration=3) as consumer:
        working = Working(consumer, way, 1, body)
        assert begun.wait(PATIENCE)
        others = receive_all(mq, TOTAL // 2)
        go_on.set()
        working.end()
    assert {message.delivery_attempt for message in others} == {1}
    assert sorted(seen + [message.body for message in others]) == sorted(b"%d" % number for number in range(TOTAL))


def test_a_message_that_its_handler_gave_up_is_not_renewed(mq: ferromq.Embedded, shell: Shell, way: str) -> None:
    """Its handler gave it back and still runs: another member has it."""
    receive_all(mq, TOTAL)
    with mq.producer() as producer:
        producer.send("orders", b"given back")
    begun, go_on = threading.Event(), threading.Event()

    with shell(mq, "billing", "orders", invisible_duration=0.6) as consumer:

        def body(message: MessageView) -> None:
            consumer.change(message, 0)
            begun.set()
            assert go_on.wait(PATIENCE)

        working = Working(consumer, way, 1, body)
        assert begun.wait(PATIENCE)
        (again,) = receive_all(mq, 1)
        assert again.body == b"given back"
        go_on.set()
        working.end()
    assert mq.broker._server.stats()["acked"] == TOTAL + 1


def test_many_messages_that_wait_for_handlers_that_became_slow_are_given_back(shell: Shell, way: str) -> None:
    """One call each, over a network: one after the other takes longer than half a lease. The broker's time stands."""
    total = 1200
    with kept_port() as address, FaultProxy(address) as proxy:
        options = {"grpc_listen": proxy.target, "grpc_advertise": proxy.address}
        with ferromq.embedded(clock=ferromq.Clock.manual(), **options) as mq:
            with mq.producer() as producer:
                producer.send_all("orders", [b"%d" % number for number in range(total)])
            proxy.delay(0.025)
            seen: list[bytes] = []
            slow, go_on = threading.Event(), threading.Event()
            with shell(mq, "billing", "orders", invisible_duration=6, prefetch=240) as consumer:

                def body(message: MessageView) -> None:
                    seen.append(message.body)
                    if len(seen) == total // 2:
                        slow.set()
                        assert go_on.wait(3 * PATIENCE)

                working = Working(consumer, way, 1, body)
                assert slow.wait(PATIENCE)
                others = receive_all(mq, total - len(seen))
                go_on.set()
                working.end()
        assert {message.delivery_attempt for message in others} == {1}
        assert sorted(seen + [message.body for message in others]) == sorted(b"%d" % number for number in range(total))
