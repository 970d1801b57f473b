"""A client that cannot begin says so in its time, with the step; after a kill of the broker every loop goes on."""

import asyncio
import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from consumer_shells import PATIENCE, SHELLS, AioShell, Shell, SyncShell
from fault_proxy import FaultProxy
from grpc_proxy import GrpcProxy
from machine import in_load
from ports import kept_port

import ferromq
from ferromq import FerromqError, MessageView, OutcomeUnknown, aio
from ferromq.core import plans

TIMEOUT = 0.6
LONGER, LEAST = 1.6, 1.0


class Endpoint(NamedTuple):
    """The address of a broker that may be down."""

    endpoint: str


SLACK = 0.5


@contextmanager
def unknown_host() -> Iterator[str]:
    """Yield an address whose name does not resolve (RFC 6761)."""
    yield "no-such-host.invalid:8081"


@contextmanager
def silent() -> Iterator[str]:
    """Yield the address of a server that takes connections, and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def black_hole() -> Iterator[str]:
    """Yield an address at which connecting does not end: the queue of its listener is full."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for each in (first, second):
            each.settimeout(0)
            each.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def half_route() -> Iterator[str]:
    """Yield the address of a broker whose answer about the route ends in its middle."""
    with ferromq.embedded() as mq, FaultProxy(mq.endpoint) as proxy:
        proxy.half_answer(60)
        yield proxy.address


@contextmanager
def no_settings() -> Iterator[str]:
    """Yield the address of a broker that answers about the route, and not to settings."""
    with ferromq.embedded() as mq, GrpcProxy(mq.endpoint) as proxy:
        proxy.hang("Telemetry")
        yield proxy.endpoint


ROUTE = r"asking for the route of orders: no answer from broker 127.0.0.1:\d+ within .* s \(QueryRoute\): "
SILENT = r"connected, but 127.0.0.1:\d+ answers nothing; is this a broker's gRPC port \(8081\)\?"
BEGINNINGS = {
    "resolve": (unknown_host, r"no-such-host.invalid:8081 \(unknown host\)", LONGER),
    "connect, refused": (kept_port, r"127.0.0.1:\d+ \(connection refused\)", LONGER),
    "connect, black hole": (black_hole, ROUTE + r"no connection was opened", TIMEOUT),
    "connect, silent": (silent, ROUTE + SILENT, TIMEOUT),
    "settings": (no_settings, r"waiting for the settings of 127.0.0.1:\d+ did not end within", LONGER),
    "route, half an answer": (half_route, ROUTE + SILENT, TIMEOUT),
}


def send(address: str, timeout: float) -> None:
    """Send with a new producer."""
    with ferromq.Producer(address, timeout=timeout) as producer:
        producer.send("orders", b"x")


def queues(address: str, timeout: float) -> None:
    """Ask with a new consumer."""
    with ferromq.Consumer(address, "billing", "orders", timeout=timeout) as consumer:
        consumer.queues()


def receive(address: str, timeout: float) -> None:
    """Receive with a new consumer."""
    with ferromq.Consumer(address, "billing", "orders", timeout=timeout) as consumer:
        consumer.receive(wait=TIMEOUT)


def await_send(address: str, timeout: float) -> None:
    """Send with a new producer of an event loop."""

    async def use() -> None:
        async with aio.Producer(address, timeout=timeout) as producer:
            await producer.send("orders", b"x")

    asyncio.run(use())


# A receive has three seconds for what is around its wait.
STARTS = {"send": (send, 0), "pull": (queues, 0), "receive": (receive, 3), "aio": (await_send, 0)}


# Queues are read without settings.
@pytest.mark.parametrize(
    ("beginning", "start"),
    [each for each in itertools.product(BEGINNINGS, STARTS) if each != ("settings", "pull")],
)
def test_pain_12_a_client_that_cannot_begin_says_in_its_time_at_which_step(
    beginning: str, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It resolves, connects, asks for the route, and makes its settings known."""
    place, step, timeout = BEGINNINGS[beginning]
    use, more = STARTS[start]
    if timeout == LONGER:  # the last attempt, too, has time to learn the reason on a busy machine
        monkeypatch.setattr(plans, "LEAST", LEAST)
    if step.endswith(SILENT):
        monkeypatch.setattr(plans, "_CONNECT", PATIENCE)
    with place() as address:
        begin = time.monotonic()
        with pytest.raises(OutcomeUnknown, match=step):
            use(address, timeout)
        assert time.monotonic() - begin < timeout + more + in_load(SLACK)


SERVER = """
import sys, ferromq
with ferromq.embedded(sys.argv[1], grpc_listen=sys.argv[2], flush="group") as mq:
    print("ready", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def server(directory: Path, address: str) -> Iterator[None]:
    """Run a broker in a process of its own, and kill it at the end."""
    words = [sys.executable, "-c", SERVER, str(directory), address]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.kill()


def ask(consumer: SyncShell | AioShell, name: str, *arguments: Any, **options: Any) -> Any:
    """Call a method that the shells do not have."""
    answer = getattr(consumer.consumer, name)(*arguments, **options)
    return consumer.call(answer) if isinstance(consumer, AioShell) else answer


class Seen:
    """The bodies that one way of consuming has got."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._bodies: list[bytes] = []

    def add(self, message: MessageView) -> None:
        """Note a message."""
        with self._changed:
            self._bodies.append(message.body)
            self._changed.notify_all()

    def wait_for(self, body: bytes) -> bool:
        """Return whether a message comes in time."""
        with self._changed:
            return self._changed.wait_for(lambda: body in self._bodies, PATIENCE)


@pytest.mark.crash
@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
def test_pain_14_after_a_kill_of_the_broker_every_loop_goes_on_by_itself(tmp_path: Path, shell: Shell) -> None:
    """Those of `run` and of iteration: none raises, and each gets what is sent after the restart."""
    raised: list[BaseException] = []

    def go_on(loop: Callable[[], None]) -> None:
        try:
            loop()
        except FerromqError as error:
            raised.append(error)

    with kept_port() as address, ferromq.Producer(address, timeout=PATIENCE) as producer, ExitStack() as stack:
        ways: dict[str, Seen] = {"run": Seen(), "iterate": Seen()}
        consumers = {way: stack.enter_context(shell(Endpoint(address), way, "orders")) for way in ways}

        def iterate(message: MessageView) -> bool:
            ways["iterate"].add(message)
            consumers["iterate"].ack_later(message)
            return False

        loops = {
            "run": lambda: consumers["run"].run(ways["run"].add),
            "iterate": lambda: consumers["iterate"].iterate(iterate),
        }
        threads = [threading.Thread(target=go_on, args=(loop,), daemon=True) for loop in loops.values()]
        for number in range(3):
            with server(tmp_path, address):
                if not number:
                    for thread in threads:
                        thread.start()
                body = b"%d" % number
                producer.send("orders", body)
                for way, seen in ways.items():
                    assert seen.wait_for(body), f"{way}, round {number}: {raised}"
        for consumer in consumers.values():
            consumer.stop()
            consumer.close(0.5)
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert raised == []


@pytest.mark.crash
@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.kind)
def test_pain_14_waiting_fetches_survive_a_kill_and_an_empty_one_is_an_empty_list(tmp_path: Path, shell: Shell) -> None:
    """A receive and a pull that wait during the kill get the first message after it."""
    with kept_port() as address, shell(Endpoint(address), "billing", "orders") as consumer, ExitStack() as stack:
        puller = stack.enter_context(shell(Endpoint(address), "pulling", "orders"))
        got: dict[str, list[bytes]] = {}
        with ferromq.Producer(address, timeout=PATIENCE) as producer:
            with server(tmp_path, address):
                producer.send("orders", b"before")
                consumer.ack(consumer.receive(1, wait=PATIENCE))
                queue = next(each for each in ask(puller, "queues") if ask(puller, "pull", each, 0).messages)
                assert consumer.receive(wait=0) == []
                assert ask(puller, "pull", queue, 1).messages == []

                def receive() -> list[bytes]:
                    # A kill loses acknowledgements of the last second, so the first message may come again.
                    bodies = [each.body for each in consumer.receive(wait=2 * PATIENCE)]
                    while bodies and b"after" not in bodies:
                        bodies += [each.body for each in consumer.receive(wait=2 * PATIENCE)]
                    return bodies

                calls = {
                    "receive": receive,
                    "pull": lambda: [each.body for each in ask(puller, "pull", queue, 1, wait=2 * PATIENCE).messages],
                }
                threads = [
                    threading.Thread(target=lambda name=name, call=call: got.update({name: call()}), daemon=True)
                    for name, call in calls.items()
                ]
                for thread in threads:
                    thread.start()
            with server(tmp_path, address):
                while producer.send("orders", b"after").queue_id != queue.queue_id:
                    pass
                for thread in threads:
                    thread.join(PATIENCE)
                assert [b"after" in got.get(name, []) for name in calls] == [True, True], got
