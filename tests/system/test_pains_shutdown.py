"""Calls release the interpreter lock, shutdown never deadlocks, and no callback outlives its client."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fault_proxy import FaultProxy
from machine import in_load
from ports import kept_port

import ferromq
from ferromq import MessageView, SendReceipt

if TYPE_CHECKING:
    from concurrent.futures import Future

PATIENCE = 30.0
TIMEOUT = 0.5
PASSES = 10


class Hung:
    """A broker that hangs, and clients that used it before: they hold a message that is not acknowledged."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.producer = ferromq.Producer(proxy.address, timeout=TIMEOUT, linger=0)
        self.consumer = ferromq.Consumer(proxy.address, "billing", "orders", timeout=TIMEOUT)
        self.producer.send("orders", b"x", timeout=PATIENCE)
        (self.message,) = self.consumer.receive(1, wait=PATIENCE)
        self.queue = self.consumer.queues()[0]
        proxy.hang()


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """Yield a proxy before a broker, which advertises it."""
    with (
        kept_port() as address,
        FaultProxy(address) as proxy,
        ferromq.embedded(grpc_listen=address, grpc_advertise=proxy.address),
    ):
        yield proxy


@pytest.fixture
def hung(proxy: FaultProxy) -> Iterator[Hung]:
    """Yield clients of a broker that hangs."""
    hung = Hung(proxy)
    yield hung
    hung.producer.close(0)
    hung.consumer.close(0)


VERBS: dict[str, Callable[[Hung], object]] = {
    "send": lambda hung: hung.producer.send("orders", b"x"),
    "submit": lambda hung: hung.producer.submit("orders", b"x").result(PATIENCE),
    "send_all": lambda hung: hung.producer.send_all("orders", [b"x"] * 10),
    "receive": lambda hung: hung.consumer.receive(wait=0.1),
    "pull": lambda hung: hung.consumer.pull(hung.queue, 0),
    "ack": lambda hung: hung.consumer.ack(hung.message),
    "flush": lambda hung: (hung.message.ack(), hung.consumer.flush(TIMEOUT)),
    "close": lambda hung: (hung.message.ack(), hung.consumer.close(TIMEOUT)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_pain_9_a_call_that_waits_for_a_hung_broker_releases_the_interpreter_lock(hung: Hung, verb: str) -> None:
    """Another thread makes its steps while the call waits."""
    ended: list[BaseException | None] = []

    def call() -> None:
        try:
            VERBS[verb](hung)
        except ferromq.FerromqError as error:
            ended.append(error)
        else:
            ended.append(None)

    waiting = threading.Thread(target=call, daemon=True)
    waiting.start()
    passes, until = 0, time.monotonic() + PATIENCE
    while waiting.is_alive() and time.monotonic() < until:
        waiting.join(0.001)
        passes += 1
    assert passes >= PASSES, f"{verb} did not wait: {ended}"
    assert len(ended) == 1


def test_pain_9_a_client_is_made_and_submits_without_waiting_for_a_hung_broker(hung: Hung) -> None:
    """Neither connects in the calling thread."""
    begin = time.monotonic()
    producer = ferromq.Producer(hung.proxy.address, timeout=PATIENCE)
    consumer = ferromq.Consumer(hung.proxy.address, "billing", "orders", timeout=PATIENCE)
    producer.submit("orders", b"x")
    assert time.monotonic() - begin < in_load(1.0)
    producer.close(0)
    consumer.close(0)


def ends(call: Callable[[], object]) -> None:
    """Call in a thread, and fail unless it ends."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it hangs"


@pytest.mark.parametrize("is_hung", [False, True], ids=["up", "hung"])
def test_pain_10_a_handler_closes_its_consumer(no_thread_left: None, proxy: FaultProxy, *, is_hung: bool) -> None:
    """`close` returns to the handler, and `run` ends after it."""
    with ferromq.Producer(proxy.address) as producer:
        producer.send("orders", b"x")
    consumer, handled = ferromq.Consumer(proxy.address, "billing", "orders", timeout=TIMEOUT), list[bytes]()

    def handle(message: MessageView) -> None:
        if is_hung:
            proxy.hang()
        consumer.close(TIMEOUT if is_hung else 2 * PATIENCE)
        handled.append(message.body)

    ends(lambda: consumer.run(handle, stop_timeout=2 * PATIENCE))
    proxy.resume()
    assert handled == [b"x"]
    assert consumer.closed


@pytest.mark.parametrize("is_hung", [False, True], ids=["up", "hung"])
def test_pain_10_a_callback_of_a_send_closes_its_producer(
    no_thread_left: None, proxy: FaultProxy, *, is_hung: bool
) -> None:
    """`close` returns to the callback at once, with a receipt as with an error: it does not wait for the callback."""
    producer, closed = ferromq.Producer(proxy.address, timeout=TIMEOUT), threading.Event()
    producer.send("orders", b"x", timeout=PATIENCE)
    if is_hung:
        proxy.hang()

    def close(_future: "Future[SendReceipt]") -> None:
        producer.close(TIMEOUT if is_hung else 2 * PATIENCE)
        closed.set()

    producer.submit("orders", b"x").add_done_callback(close)
    assert closed.wait(PATIENCE)
    assert producer.closed
    proxy.resume()


def test_pain_10_a_callback_of_a_send_sends_the_next_one(no_thread_left: None, proxy: FaultProxy) -> None:
    """Also at the limit of pending bytes: the callback's own message counts until the callback has ended."""
    last = threading.Event()
    with ferromq.Producer(proxy.address, max_pending_bytes=1) as producer:

        def send_next(left: int, _future: "Future[SendReceipt] | None" = None) -> None:
            if left:
                producer.submit("orders", b"xx").add_done_callback(partial(send_next, left - 1))
            else:
                last.set()

        send_next(5)
        assert last.wait(PATIENCE)


def test_pain_10_a_callback_that_exits_takes_no_thread(no_thread_left: None, proxy: FaultProxy) -> None:
    """Later messages need it."""

    def leave(_future: "Future[SendReceipt]") -> None:
        raise SystemExit

    with ferromq.Producer(proxy.address) as producer:
        for _ in range(5):
            future = producer.submit("orders", b"x")
            future.add_done_callback(leave)
            assert producer.flush(PATIENCE)
        assert future.result().queue_offset >= 0


def test_pain_10_close_returns_in_its_time_while_a_callback_runs(proxy: FaultProxy) -> None:
    """Callbacks and handlers that do not return delay no other thread's `close`."""
    producer, consumer = ferromq.Producer(proxy.address), ferromq.Consumer(proxy.address, "billing", "orders")
    entered, go_on = threading.Semaphore(0), threading.Event()

    def block(_what: object) -> None:
        entered.release()
        assert go_on.wait(PATIENCE)

    producer.submit("orders", b"x").add_done_callback(block)
    running = threading.Thread(target=consumer.run, args=(block,), kwargs={"stop_timeout": PATIENCE})
    running.start()
    for _ in range(2):
        assert entered.acquire(timeout=PATIENCE)
    begin = time.monotonic()
    ends(lambda: producer.close(TIMEOUT))
    ends(lambda: consumer.close(TIMEOUT))
    assert time.monotonic() - begin < in_load(4 * TIMEOUT + 1)
    go_on.set()
    running.join(PATIENCE)
    assert not running.is_alive()


IN_DEL = """
import gc, sys, threading
import ferromq
from fault_proxy import FaultProxy
from ports import kept_port

class Service:
    def __init__(self, endpoint):
        self.itself = self  # the collector finds it, in whichever thread it runs
        self.producer = ferromq.Producer(endpoint, timeout=2)
        self.consumer = ferromq.Consumer(endpoint, "billing", "orders", timeout=2)

    def __del__(self):
        self.producer.close(0.2)
        self.consumer.close(0.2)
        deleted.release()

deleted = threading.Semaphore(0)
with kept_port() as address, FaultProxy(address) as proxy:
    with ferromq.embedded(grpc_listen=address, grpc_advertise=proxy.address):
        service = Service(proxy.address)
        service.producer.send("orders", b"x", timeout=20)
        for message in service.consumer:
            message.ack()
            break
        if sys.argv[1] == "hung":
            proxy.hang()
        del message
        if sys.argv[2] == "callback":
            service.producer.submit("orders", b"y").add_done_callback(lambda _future: gc.collect())
            del service
        else:
            service.producer.submit("orders", b"y")
            del service
            gc.collect()
        while not deleted.acquire(timeout=0.05):
            gc.collect()
        proxy.resume()
print("ended", flush=True)
"""


def in_program(code: str, *words: str) -> str:
    """Run a program that uses the kit for talks between processes, and return its output; a crash shows all threads."""
    kit = str(Path(__file__).parents[1] / "faults")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([kit, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-X", "faulthandler", "-c", code, *words]
    run = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    assert "Fatal" not in run.stderr
    return run.stdout


@pytest.mark.parametrize("where", ["main", "callback"])
@pytest.mark.parametrize("broker", ["up", "hung"])
def test_pain_10_clients_are_closed_by_the_garbage_collector(broker: str, where: str) -> None:
    """`__del__` may close them, in the main thread and in a thread of theirs."""
    assert in_program(IN_DEL, broker, where) == "ended\n"


AT_EXIT = """
import sys, threading
import ferromq
from fault_proxy import FaultProxy
from ports import kept_port

address = kept_port().__enter__()
proxy = FaultProxy(address)
mq = ferromq.embedded(grpc_listen=address, grpc_advertise=proxy.address)
producer = ferromq.Producer(proxy.address, timeout=1)
consumer = ferromq.Consumer(proxy.address, "billing", "orders", timeout=1)
entered = threading.Event()
producer.send("orders", b"x", timeout=20)
producer.send_all("orders", [b"x"] * 9)

def handle(message):
    entered.set()
    producer.submit("orders", b"more").add_done_callback(lambda _future: producer.close(0.5))

threading.Thread(target=consumer.run, args=(handle,), daemon=True).start()
assert entered.wait(20)
if sys.argv[1] == "hung":
    proxy.hang()
print("ends", flush=True)
"""


@pytest.mark.parametrize("broker", ["up", "hung"])
def test_pain_10_a_program_ends_while_handlers_and_callbacks_run(broker: str) -> None:
    """Without a `close`."""
    assert in_program(AT_EXIT, broker) == "ends\n"


COLLECTED = """
import asyncio, gc, threading
import ferromq, ferromq.aio

seen = 0

def note(_what):
    global seen
    seen += 1
    gc.collect(0)

async def awaited(endpoint):
    producer, consumer = ferromq.aio.Producer(endpoint), ferromq.aio.Consumer(endpoint, "aio", "orders")
    for _ in range(20):
        (await producer.submit("orders", b"x")).add_done_callback(note)
    async for message in consumer:
        message.ack()
        break
    del producer, consumer, message
    gc.collect()

with ferromq.embedded() as mq:
    for _ in range(15):
        producer, consumer = ferromq.Producer(mq.endpoint), ferromq.Consumer(mq.endpoint, "sync", "orders")
        futures = [producer.submit("orders", b"x") for _ in range(50)]
        for future in futures:
            future.add_done_callback(note)
        running = threading.Thread(target=consumer.run, args=(note,), daemon=True)
        running.start()
        while not seen:
            gc.collect(0)
        stop = consumer.stop
        del producer, consumer, futures, future
        gc.collect()
        stop()
        del stop, running
        gc.collect()
        asyncio.run(awaited(mq.endpoint))
        gc.collect()
print("alive", flush=True)
"""


def test_pain_11_collecting_clients_with_callbacks_under_way_crashes_nothing() -> None:
    """Synchronous ones and those of event loops that have ended, while sends and handlers are under way."""
    assert in_program(COLLECTED) == "alive\n"
