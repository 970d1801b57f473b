"""Clients survive the brokers: restarts are ridden out, absence is a clear error in time, `close` always returns."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from machine import in_load

import ferromq
import ferromq.aio

SOON = timedelta(seconds=10)


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Yield an endpoint on which a broker can start twice; it stays bound, so no other process gets it."""
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reservation.getsockname()[1]}"


def test_a_waiting_consumer_receives_after_a_restart(tmp_path: Path, endpoint: str) -> None:
    """Receives and iterations that wait while the broker restarts get the first message sent after it."""
    with ferromq.Consumer(endpoint, "once", "orders") as once, ferromq.Consumer(endpoint, "loop", "orders") as loop:
        with ferromq.embedded(tmp_path, grpc_listen=endpoint) as mq, mq.producer() as producer:
            producer.send("orders", b"before")
            once.ack(once.receive(wait=SOON))
            messages = iter(loop)
            message = next(messages)
            message.ack()
            loop.flush()
            received: list[bytes] = []
            waiting = [
                threading.Thread(target=lambda: received.append(next(messages).body)),
                threading.Thread(
                    target=lambda: received.extend(m.body for m in once.receive(wait=timedelta(seconds=40)))
                ),
            ]
            for thread in waiting:
                thread.start()
        with ferromq.embedded(tmp_path, grpc_listen=endpoint) as mq, mq.producer() as producer:
            producer.send("orders", b"after")
            for thread in waiting:
                thread.join(20)
            assert received == [b"after", b"after"]


def test_a_producer_sends_again_after_a_restart(
    tmp_path: Path, endpoint: str, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """While the broker is away sending fails in time; once it is back, the same producer sends."""
    with ferromq.Producer(endpoint, timeout=30) as producer:
        with ferromq.embedded(tmp_path, grpc_listen=endpoint):
            producer.send("orders", b"before")
        begin = time.monotonic()
        with pytest.raises(ferromq.OutcomeUnknown):
            producer.send("orders", b"away", timeout=2)
        assert time.monotonic() - begin < in_load(3 * 2 + 2)
        with ferromq.embedded(tmp_path, grpc_listen=endpoint) as mq:
            producer.send("orders", b"after")
            # The new broker gets the producer's settings, too.
            assert eventually(lambda: mq.broker._server.stats()["telemetry_streams"] == 1)


@pytest.mark.parametrize("verb", ["send", "send_all", "submit"])
def test_a_short_restart_is_ridden_out(tmp_path: Path, endpoint: str, verb: str) -> None:
    """Messages that are sent while the broker is away for a second are stored once it is back."""
    sends: dict[str, Callable[[ferromq.Producer], object]] = {
        "send": lambda producer: producer.send("orders", b"x"),
        "send_all": lambda producer: producer.send_all("orders", [b"x"]),
        "submit": lambda producer: producer.submit("orders", b"x").result(40),
    }
    with ferromq.Producer(endpoint, timeout=30) as producer, ThreadPoolExecutor(1) as sender:
        with ferromq.embedded(tmp_path, grpc_listen=endpoint):
            producer.send("orders", b"before")
        sent = sender.submit(sends[verb], producer)
        assert not wait([sent], timeout=1).done
        with ferromq.embedded(tmp_path, grpc_listen=endpoint):
            assert sent.result(40)


@contextmanager
def silent_server() -> Iterator[str]:
    """Yield the endpoint of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_server_that_never_answers_costs_the_timeout_and_no_more(attempts: int) -> None:
    """The error comes in time and names the unfinished step."""
    with silent_server() as endpoint, ferromq.Producer(endpoint, timeout=0.3, attempts=attempts) as producer:
        begin = time.monotonic()
        with pytest.raises(ferromq.OutcomeUnknown, match="QueryRoute"):
            producer.send("orders", b"x")
        assert time.monotonic() - begin < in_load(5)


def test_a_submitted_message_fails_in_its_own_time() -> None:
    """However many batches wait before it for a broker that does not answer."""
    with silent_server() as endpoint, ferromq.Producer(endpoint, timeout=1) as producer:
        begin = time.monotonic()
        futures = [producer.submit("orders", b"x" * 600_000, message_group="one") for _ in range(30)]
        futures += [producer.submit("orders", b"x", message_group=str(number)) for number in range(100)]
        futures += [producer.submit("orders", b"x" * 600_000) for _ in range(30)]
        assert not wait(futures, in_load(6)).not_done
        assert time.monotonic() - begin >= 1
        for future in futures:
            with pytest.raises(ferromq.OutcomeUnknown, match=endpoint):
                future.result()


def test_a_message_of_an_asyncio_producer_fails_in_its_own_time() -> None:
    """As with the synchronous one."""

    async def submit(endpoint: str) -> None:
        async with ferromq.aio.Producer(endpoint, timeout=1) as producer:
            body = b"x" * 600_000
            futures = [await producer.submit("orders", body, message_group="one") for _ in range(30)]
            assert not (await asyncio.wait(futures, timeout=in_load(6)))[1]
            assert all(isinstance(future.exception(), ferromq.OutcomeUnknown) for future in futures)

    with silent_server() as endpoint:
        asyncio.run(submit(endpoint))


def test_a_refused_connection_is_connection_failed(endpoint: str) -> None:
    """Quickly, with the address."""
    with ferromq.Producer(endpoint, attempts=1) as producer, pytest.raises(ferromq.ConnectionFailed, match=endpoint):
        producer.send("orders", b"x")
    with ferromq.Consumer(endpoint, "g", "orders") as consumer, pytest.raises(ferromq.ConnectionFailed, match=endpoint):
        consumer.receive(wait=timedelta(milliseconds=100))


def test_close_returns_whatever_the_broker_does() -> None:
    """Also with running work, within its timeout; futures of unsent messages end with an error."""
    with silent_server() as endpoint:
        producer = ferromq.Producer(endpoint, timeout=60, attempts=100)
        future = producer.submit("orders", b"x")
        consumer = ferromq.Consumer(endpoint, "g", "orders", timeout=60, attempts=100)
        waiting = threading.Thread(target=lambda: [None for _ in consumer])
        waiting.start()
        begin = time.monotonic()
        producer.close(0.5)
        consumer.close(0.5)
        assert time.monotonic() - begin < in_load(4)
        with pytest.raises(ferromq.ConnectionFailed):
            future.result(5)
        waiting.join(5)
        assert not waiting.is_alive()


def test_a_waiting_client_does_not_stop_other_threads() -> None:
    """The interpreter lock is free while a call waits."""
    with silent_server() as endpoint, ferromq.Producer(endpoint, timeout=60, attempts=1) as producer:
        errors: list[Exception] = []

        def send() -> None:
            try:
                producer.send("orders", b"x")
            except (ferromq.OutcomeUnknown, ferromq.ClientClosed) as error:
                errors.append(error)

        producer._client.common.attempt_timeout = 60.0
        waiting = threading.Thread(target=send)
        waiting.start()
        for _ in range(50):
            waiting.join(0.001)
            assert waiting.is_alive()
        producer.close(0.1)
        waiting.join(10)
        assert len(errors) == 1


BEHIND_A_PROXY = """
import ferromq
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read.pull import queues
from ferromq.spark.topics import Topics
with ferromq.embedded() as mq, mq.producer(attempts=1) as producer, mq.consumer("billing", "orders") as consumer:
    producer.send("orders", b"x")
    assert len(consumer.receive(wait=20)) == 1
    assert sum(queue.max_offset for queue in queues(ClusterAddress(mq.endpoint), Topics(("orders",)))) == 1
"""


def test_a_proxy_for_the_web_is_not_asked() -> None:
    """Brokers are reached whatever `http_proxy` says."""
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), "http://127.0.0.1:9")
    without = {name: value for name, value in os.environ.items() if name.lower() not in {"no_proxy", "no_grpc_proxy"}}
    environment = {**without, **proxies}
    subprocess.run([sys.executable, "-c", BEHIND_A_PROXY], env=environment, timeout=30, check=True)


LEFT_OPEN = """
import threading, ferromq
mq = ferromq.embedded()
producer, consumer = mq.producer(), mq.consumer("g", "orders")
producer.send("orders", b"x")
got_one = threading.Event()

def iterate():
    for message in consumer:
        message.ack()
        got_one.set()

threading.Thread(target=iterate, daemon=True).start()
assert got_one.wait(10)
"""


HELD = """
import sys, ferromq
producer = ferromq.Producer(sys.argv[1], linger=3600)
consumer = ferromq.Consumer(sys.argv[1], "g", "orders")
if sys.argv[2] == "there":
    (message,) = consumer.receive(1, wait=10)
    message.ack()
producer.submit("orders", b"held")
"""


def test_unsent_messages_at_exit_are_sent_or_counted() -> None:
    """Submitted messages and acknowledgements go out when a program ends; a warning says how many did not."""

    def run(endpoint: str, broker: str) -> str:
        command = [sys.executable, "-c", HELD, endpoint, broker]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stderr

    with ferromq.embedded() as mq, mq.producer() as producer, mq.consumer("g", "orders") as consumer:
        producer.send("orders", b"x")
        assert "count=" not in run(mq.endpoint, "there")
        assert mq.broker._server.stats()["acked"] == 1
        assert [message.body for message in consumer.receive(wait=SOON)] == [b"held"]
    with silent_server() as endpoint:
        assert "not sent before the program ended count=1" in run(endpoint, "silent")


def test_a_program_that_closes_nothing_ends_all_the_same() -> None:
    """Quickly; it unregisters from the broker, and clients print nothing on stderr."""
    run = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, timeout=30, check=True)
    assert "telemetry" not in run.stderr
    assert "no messages" not in run.stderr
