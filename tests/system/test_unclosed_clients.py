"""Clients and embedded brokers that a program forgets to close: a warning, as of files."""

import asyncio
import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ferromq
from ferromq import aio

PATIENCE = 20.0


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
def test_a_client_that_was_used_and_not_closed_warns(kind: str, address: str, mq: ferromq.Embedded) -> None:
    """The warning says which client it was; one that was never used, or was closed, is silent."""
    make, begin = USES[kind]
    where = mq.endpoint if address == "endpoint" else f"namesrv://{mq.namesrv}"
    sender = mq.producer()
    sender.send("orders", b"x")

    def use() -> None:
        begin(make(where))

    (text,) = forgotten(use)
    assert text.startswith(f"<{kind} endpoint=")
    assert text.endswith("was never closed: use it in a with statement, or call close()")
    sender.send("orders", b"x")

    def silent() -> None:
        make(where)
        with make(where) as client:
            begin(client)

    assert forgotten(silent) == []


def test_what_is_left_of_a_client_goes_on(mq: ferromq.Embedded) -> None:
    """A loop, a transaction and the acknowledgement of a message work on; only the client itself is out of reach."""
    with mq.admin() as admin:
        admin.create_topic("payments", message_type="TRANSACTION")
        admin.create_group("billing")
    mq.producer().send_all("orders", [b"1", b"2", b"3"])
    left: list[Any] = []

    def use() -> None:
        left.append(iter(ferromq.Consumer(mq.endpoint, "billing", "orders")))
        next(left[0])
        left.append(ferromq.Producer(mq.endpoint, checker=lambda _: ferromq.Resolution.UNKNOWN).transaction())
        left[1].send("payments", b"x")
        left.extend(ferromq.Consumer(mq.endpoint, "audit", "orders").receive(1, wait=PATIENCE))

    assert forgotten(use)
    loop, transaction, message = left
    next(loop).ack()
    next(loop).ack()
    transaction.commit()
    message.ack()


def test_clients_of_asyncio_warn_too(mq: ferromq.Embedded) -> None:
    """With their name."""

    async def program() -> None:
        await aio.Producer(mq.endpoint).send("orders", b"x")

    (text,) = forgotten(lambda: asyncio.run(program()))
    assert text.startswith("<aio.Producer endpoint=")


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
