"""Clients and embedded brokers that a program forgets to close: a warning, as of files, and no threads for ever."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ferromq
from ferromq import aio
from ferromq.client import links, session

Eventually = Callable[[Callable[[], bool]], bool]
PATIENCE = 20.0
CLIENTS = tuple(f"ferromq-{each}" for each in ("ack", "heartbeat", "links", "receive", "renew", "submit", "telemetry"))


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker."""
    with ferromq.embedded() as embedded:
        yield embedded


def forgotten(use: Callable[[], None]) -> list[str]:
    """Return the warnings after *use* has left objects to the garbage collector."""
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
        gc.collect()
    return [str(each.message) for each in caught if issubclass(each.category, ResourceWarning)]


def _produces(producer: ferromq.Producer[Any]) -> None:
    producer.send("orders", b"x")
    producer.submit("orders", b"x").result(PATIENCE)


def _iterates(consumer: ferromq.Consumer[Any]) -> None:
    next(iter(consumer)).ack()


USES: dict[str, tuple[Callable[[str], Any], Callable[[Any], None]]] = {
    "Producer": (lambda where: ferromq.connect(where).producer(), _produces),
    "Consumer": (lambda where: ferromq.connect(where).consumer("billing", "orders"), _iterates),
    "Reader": (lambda where: ferromq.connect(where).reader("orders"), lambda reader: reader.read(wait=PATIENCE)),
}


@pytest.mark.parametrize("kind", USES)
@pytest.mark.parametrize("address", ["endpoint", "namesrv"])
def test_a_client_that_was_used_and_not_closed_warns_and_its_threads_end(
    kind: str, address: str, mq: ferromq.Embedded, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning says which client it was; one that was never used, or was closed, is silent."""
    if address == "namesrv" and kind == "Reader":
        pytest.skip("a client behind name servers without a group has no heartbeats")
    monkeypatch.setattr(session, "HEARTBEAT_PERIOD", 0.1)
    monkeypatch.setattr(links, "_PERIOD", 0.1)
    make, begin = USES[kind]
    where = mq.endpoint if address == "endpoint" else f"namesrv://{mq.namesrv}"
    sender = mq.producer()
    sender.send("orders", b"x")
    before = set(threading.enumerate())

    def use() -> None:
        begin(make(where))

    (text,) = forgotten(use)
    assert text.startswith(f"<{kind} endpoint=")
    assert text.endswith("was never closed: use it in a with statement, or call close()")
    assert eventually(lambda: not _own(before)), _own(before)

    sender.send("orders", b"x")

    def silent() -> None:
        make(where)
        with make(where) as client:
            begin(client)

    assert forgotten(silent) == []


def _own(before: set[threading.Thread]) -> list[str]:
    """Return the names of the threads of clients that were not there *before*."""
    return [each.name for each in threading.enumerate() if each not in before and each.name.startswith(CLIENTS)]


def test_what_was_submitted_to_a_forgotten_producer_is_sent(
    mq: ferromq.Embedded, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was acknowledged to a forgotten consumer."""
    monkeypatch.setattr(session, "HEARTBEAT_PERIOD", 0.1)
    futures = []

    def use() -> None:
        producer = ferromq.Producer(mq.endpoint, linger=3600)
        producer.send("orders", b"x")
        futures.append(producer.submit("orders", b"late"))

    assert len(forgotten(use)) == 1
    assert eventually(futures[0].done)
    assert futures[0].result().topic == "orders"


def test_clients_of_asyncio_warn_too(
    mq: ferromq.Embedded, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their threads are those of heartbeats."""
    monkeypatch.setattr(session, "HEARTBEAT_PERIOD", 0.1)
    before = set(threading.enumerate())

    async def program() -> None:
        await aio.Producer(mq.endpoint).send("orders", b"x")

    (text,) = forgotten(lambda: asyncio.run(program()))
    assert text.startswith("<aio.Producer endpoint=")
    assert eventually(lambda: not _own(before)), _own(before)


def test_an_embedded_broker_that_was_not_closed_warns_and_its_clients_go_on() -> None:
    """As `ferromq.embedded().producer()`: nothing else refers to the broker."""
    producers = []

    def use() -> None:
        producers.append(ferromq.embedded().producer())

    (text,) = forgotten(use)
    assert text.startswith("<Embedded endpoint=")
    assert "was never closed, and runs on" in text
    assert producers[0].send("orders", b"x").topic == "orders"
    producers[0].close()


PROGRAM = """
import gc, os, sys, ferromq
directory = sys.argv[1]
mq = ferromq.embedded(directory)
producer = ferromq.Producer(mq.endpoint)
producer.send("orders", b"x")
if sys.argv[2] == "fork":
    pid = os.fork()
    if pid == 0:
        del producer, mq
        gc.collect()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    producer.close()
    mq.close()
"""


@pytest.mark.parametrize("way", ["exit", "fork"])
def test_neither_the_end_of_a_program_nor_a_forked_child_warns(way: str, tmp_path: Any) -> None:
    """At the end the clients are closed; a child has none to close. The store is closed in either case."""
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", PROGRAM, str(tmp_path), way],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "GRPC_VERBOSITY": "ERROR"},
    )
    assert run.returncode == 0, run.stderr
    assert "ResourceWarning" not in run.stderr
    with ferromq.embedded(tmp_path) as again, again.reader("orders") as reader:
        assert [message.body for message in reader.messages(until="end")] == [b"x"]
