"""Heartbeats of a client: each broker gets its own in time, whatever another one does; for both interfaces."""

import threading
from collections.abc import Callable, Iterator

import pytest
from consumer_shells import PATIENCE, SHELLS, Shell
from grpc_proxy import GrpcProxy

import ferromq
from ferromq.client import session

pytestmark = pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
LONG = 120.0
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def proxies() -> Iterator[tuple[GrpcProxy, GrpcProxy]]:
    """Yield proxies before two brokers with one message each, of which clients see both."""
    with ferromq.embedded() as mq, ferromq.embedded(name="other") as other:
        for each in (mq, other):
            with each.producer() as producer:
                producer.send("orders", b"x")
        with GrpcProxy(mq.endpoint) as proxy, GrpcProxy(other.endpoint) as beside:
            proxy.put_beside(beside)
            yield proxy, beside


def test_a_broker_that_hangs_delays_no_heartbeat_of_another(
    proxies: tuple[GrpcProxy, GrpcProxy], shell: Shell, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """Though its own takes long."""
    monkeypatch.setattr(session, "HEARTBEAT_PERIOD", 0.02)
    monkeypatch.setattr(session, "_HEARTBEAT_TIMEOUT", LONG)
    proxy, hung = proxies
    with shell(proxy, "billing", "orders") as consumer:
        for _ in range(2):
            consumer.ack(consumer.receive(1, wait=PATIENCE))
        hung.hang("Heartbeat")
        assert hung.hanging.acquire(timeout=PATIENCE)
        before = proxy.calls.get("Heartbeat", 0)
        assert eventually(lambda: proxy.calls.get("Heartbeat", 0) >= before + 5)
        assert hung.hung == 1
        hung.release()


def test_a_broker_that_hangs_delays_no_unregistration_from_another(
    proxies: tuple[GrpcProxy, GrpcProxy], shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closing client unregisters from all at once, and ends in its time."""
    monkeypatch.setattr(session, "_FAREWELL", LONG)
    consumer = shell(proxies[0], "billing", "orders")
    for _ in range(2):
        consumer.ack(consumer.receive(1, wait=PATIENCE))
    hung, other = sorted(proxies, key=lambda proxy: consumer.brokers.index(proxy.endpoint))
    hung.hang("NotifyClientTermination")
    closing = threading.Thread(target=consumer.close, args=(PATIENCE,))
    closing.start()
    assert hung.hanging.acquire(timeout=PATIENCE)
    other.wait_for("NotifyClientTermination")
    assert closing.is_alive()
    hung.release()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    consumer.__exit__()
