"""
Consumers that run and iterate while their broker is slow, hangs, is gone, or answers half.

Between consumers and broker is a `FaultProxy`, which the broker advertises as its own address. The broker's time is
moved by hand: the test ends a lease, and a message that comes twice before that was handled twice.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
from consumer_shells import PATIENCE, SHELLS, AioShell, Shell, SyncShell
from fault_proxy import FAULTS, Fault, FaultProxy
from grpc_peer import GrpcPeer
from machine import in_load
from ports import kept_port

import ferromq
from ferromq import ClientClosed, MessageView, OutcomeUnknown

SOME = 20
LEASE = 600
# On an idle machine.
BACK = 8.0
SLACK = 0.7
Eventually = Callable[[Callable[[], bool]], bool]


def slow(proxy: FaultProxy) -> None:
    """Answer late."""
    proxy.delay(0.3)


ALL = {**FAULTS, "slow": slow}


class Broker:
    """A broker behind a proxy with faults; messages are sent without the proxy."""

    def __init__(self, mq: ferromq.Embedded, proxy: FaultProxy) -> None:
        self.mq = mq
        self.proxy = proxy
        self.endpoint = proxy.address
        """The proxy."""
        self.sent: set[str] = set()

    def send(self) -> set[str]:
        """Send some messages to the broker, and return their bodies."""
        bodies = {str(len(self.sent) + number) for number in range(SOME)}
        with GrpcPeer(self.proxy.target) as peer:
            for body in bodies:
                peer.send("orders", body)
        self.sent |= bodies
        return bodies


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Yield a broker behind a proxy."""
    with kept_port() as address, FaultProxy(address) as proxy:
        options = {"grpc_listen": address, "grpc_advertise": proxy.address}
        with ferromq.embedded(clock=ferromq.Clock.manual(), **options) as mq:
            with mq.admin() as admin:
                admin.create_topic("orders", 2)
            yield Broker(mq, proxy)


class Loop:
    """A consumer that runs, or iterates, in the background, in a group of its own."""

    def __init__(self, shell: Shell, broker: Broker, way: str) -> None:
        self.way = way
        self.consumer: SyncShell | AioShell = shell(broker, way, "orders", invisible_duration=LEASE, timeout=2)
        self.seen: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.entered = threading.Semaphore(0)
        self.raised: list[BaseException] = []
        work = self._run if way == "run" else self._iterate
        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.consumer.run(self._use, 2)
        except Exception as error:  # noqa: BLE001 (that none comes is what is tested)
            self.raised.append(error)

    def _iterate(self) -> None:
        def body(message: MessageView) -> bool:
            self._use(message)
            with suppress(ClientClosed):  # it was closed meanwhile
                self.consumer.ack_later(message)
            return False

        try:
            self.consumer.iterate(body)
        except Exception as error:  # noqa: BLE001
            self.raised.append(error)

    def _use(self, message: MessageView) -> None:
        self.seen.append(message.body.decode())
        self.entered.release()
        assert self.go_on.wait(2 * PATIENCE)

    def has(self, bodies: set[str]) -> bool:
        """Return whether all of these were handled, or are being handled."""
        return bodies <= {*self.seen}

    def close(self, timeout: float) -> float:
        """Close the consumer, wait until its loop has ended, and return how long the closing took."""
        begin = time.monotonic()
        self.consumer.close(timeout)
        took = time.monotonic() - begin
        self.go_on.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), self.way
        assert self.raised == [], self.way
        return took


@pytest.fixture
def loops(no_thread_left: None, broker: Broker, shell: Shell) -> Iterator[list[Loop]]:
    """Yield a consumer that runs and one that iterates, each in the middle of a message, with others sent already."""
    with ExitStack() as stack:
        loops = [Loop(shell, broker, way) for way in ("run", "iterate")]
        for each in loops:
            stack.callback(each.consumer.__exit__)
            stack.callback(each.go_on.set)
        first = broker.send()
        for each in loops:
            give_up = time.monotonic() + PATIENCE
            while not each.has(first):
                assert each.entered.acquire(timeout=max(0.0, give_up - time.monotonic())), each.way
            assert each.consumer.flush(PATIENCE)
            each.go_on.clear()
        broker.send()
        for each in loops:
            assert each.entered.acquire(timeout=PATIENCE)
        yield loops


@pytest.mark.parametrize("fault", ALL.values(), ids=ALL)
@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
def test_loops_go_on_after_a_fault(loops: list[Loop], broker: Broker, fault: Fault, eventually: Eventually) -> None:
    """Soon; nothing is handled twice before its lease ends, and nothing is lost."""
    fault(broker.proxy)
    for each in loops:
        each.go_on.set()
    broker.send()
    for each in loops:
        # The fault is active: acknowledgements are not answered, or late.
        with suppress(OutcomeUnknown):
            each.consumer.flush(1)
    broker.proxy.resume()
    begin = time.monotonic()
    later = broker.send()
    for each in loops:
        assert eventually(lambda each=each: not later.isdisjoint(each.seen)), each.way
        assert time.monotonic() - begin < in_load(BACK), each.way
    for each in loops:
        twice = {body for body, count in Counter(each.seen).items() if count > 1}
        assert twice == set(), each.way
    # What was on its way to them when the answer was lost, and what they could not acknowledge, is redelivered.
    broker.mq.clock.advance(seconds=LEASE + 1)
    for each in loops:
        assert eventually(lambda each=each: each.has(broker.sent)), (each.way, broker.sent - {*each.seen})
        assert each.thread.is_alive()
        assert each.raised == []
        assert each.close(PATIENCE) < PATIENCE


@pytest.mark.parametrize("fault", ALL.values(), ids=ALL)
@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
def test_a_loop_that_is_closed_during_a_fault_ends_in_time(loops: list[Loop], broker: Broker, fault: Fault) -> None:
    """Though a handler works, and acknowledgements wait. Other consumers get its unhandled messages."""
    fault(broker.proxy)
    for each in loops:
        assert each.close(1) < 1 + in_load(SLACK), each.way
    broker.proxy.resume()
    broker.mq.clock.advance(seconds=LEASE + 1)
    for each in loops:
        rest = broker.sent - {*each.seen}
        with GrpcPeer(broker.proxy.target) as peer:
            give_up = time.monotonic() + PATIENCE
            while rest:
                assert time.monotonic() < give_up, each.way
                for message in peer.receive(each.way, "orders", wait=1, invisible=LEASE):
                    rest.discard(message.body)
