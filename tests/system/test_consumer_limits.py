"""How long calls of a consumer take while a broker hangs; both interfaces promise it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from consumer_shells import PATIENCE, SHELLS, Shell
from grpc_proxy import GrpcProxy
from machine import in_load

import ferromq
from ferromq import MessageView

pytestmark = pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
TOTAL = 40


@pytest.fixture
def proxy() -> Iterator[GrpcProxy]:
    """Yield a proxy in front of an embedded broker that has messages of the topic `orders`."""
    with ferromq.embedded() as mq:
        with mq.producer() as producer:
            producer.send_all("orders", [b"%d" % number for number in range(TOTAL)])
        with GrpcProxy(mq.endpoint) as proxy:
            yield proxy


def lasts(call: Callable[[], object]) -> float:
    """Return how many seconds a call takes, which may fail."""
    begin = time.monotonic()
    with suppress(ferromq.OutcomeUnknown):
        call()
    return time.monotonic() - begin


@pytest.mark.parametrize("hung", [(), ("ReceiveMessage",), ("Telemetry",), ("QueryRoute",)])
def test_a_receive_ends_three_seconds_after_its_wait(proxy: GrpcProxy, shell: Shell, hung: tuple[str, ...]) -> None:
    """If everything hangs, or one step."""
    with shell(proxy, "billing", "orders") as consumer:
        proxy.hang(*hung)
        assert lasts(lambda: consumer.receive(wait=0.5)) <= in_load(0.5 + 3.5)
        proxy.release()
        assert consumer.receive(wait=PATIENCE)


def test_acknowledgements_that_hang_do_not_hold_up_a_receive(proxy: GrpcProxy, shell: Shell) -> None:
    """The receive waits a second for them."""
    with shell(proxy, "billing", "orders") as consumer:
        (message,) = consumer.receive(1, wait=PATIENCE)
        proxy.hang("AckMessage")
        consumer.ack_later(message)
        begin = time.monotonic()
        assert consumer.receive(1, wait=0)
        assert time.monotonic() - begin <= in_load(3)
        proxy.release()


@pytest.mark.alone
@pytest.mark.parametrize("call", ["ack", "forward"])
def test_other_calls_end_within_the_timeout(proxy: GrpcProxy, shell: Shell, call: str) -> None:
    """Repetitions included, with `OutcomeUnknown`."""
    with shell(proxy, "billing", "orders", timeout=1) as consumer:
        (message,) = consumer.receive(1, wait=PATIENCE)
        proxy.hang()
        begin = time.monotonic()
        with pytest.raises(ferromq.OutcomeUnknown):
            getattr(consumer, call)(message)
        assert time.monotonic() - begin <= in_load(1.5)
        proxy.release()


@pytest.mark.alone
@pytest.mark.parametrize("state", ["new", "idle", "acknowledges", "iterates", "waits", "runs"])
def test_closing_keeps_its_time(proxy: GrpcProxy, shell: Shell, state: str) -> None:
    """Whatever the consumer does, though no request is answered."""
    consumer = shell(proxy, "billing", "orders")
    begun, go_on = threading.Event(), threading.Event()

    def body(message: MessageView) -> bool:
        if state == "waits":
            consumer.ack(message)
            seen.append(message)
            if len(seen) == TOTAL:
                begun.set()
            return False
        begun.set()
        go_on.wait(PATIENCE)
        return False

    seen: list[MessageView] = []
    working = None
    if state in {"idle", "acknowledges"}:
        (message,) = consumer.receive(1, wait=PATIENCE)
        if state == "acknowledges":
            proxy.hang("AckMessage")
            consumer.ack_later(message)
    elif state in {"iterates", "waits", "runs"}:
        work = consumer.run if state == "runs" else consumer.iterate
        working = threading.Thread(target=lambda: lasts(lambda: work(body)), daemon=True)
        working.start()
        assert begun.wait(PATIENCE)
    proxy.hang()
    begin = time.monotonic()
    consumer.close(0.5)
    assert time.monotonic() - begin <= in_load(0.5 + 0.5)
    go_on.set()
    proxy.release()
    if working is not None:
        working.join(PATIENCE)  # before the end of its event loop
        assert not working.is_alive()
    consumer.__exit__()


def test_run_ends_without_an_error_when_its_consumer_is_closed(proxy: GrpcProxy, shell: Shell) -> None:
    """Also while a handler takes longer than `close` waits: its message is redelivered."""
    begun, go_on = threading.Event(), threading.Event()
    raised: list[Exception] = []

    def body(_message: MessageView) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    def work() -> None:
        try:
            consumer.run(body)
        except Exception as error:  # noqa: BLE001 (that none comes is what is tested)
            raised.append(error)

    with shell(proxy, "billing", "orders") as consumer:
        working = threading.Thread(target=work, daemon=True)
        working.start()
        assert begun.wait(PATIENCE)
        consumer.close(0.1)
        go_on.set()
        working.join(PATIENCE)
        assert not working.is_alive()
    assert raised == []
