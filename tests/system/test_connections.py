"""A connection to a broker: the same program runs on a server and an embedded broker, and its end is its clients'."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import ferromq
from ferromq import aio

PATIENCE = 20.0
NEVER = timedelta(hours=1)
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture(scope="module")
def broker() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker that stands for a server."""
    with ferromq.embedded() as embedded:
        yield embedded


def program(mq: ferromq.Connection) -> list[bytes]:
    """Send, receive and administer with whatever connection it gets."""
    with mq, mq.producer() as producer, mq.consumer("billing", "accounts") as consumer, mq.admin() as admin:
        admin.create_topic("accounts", queues=1)
        producer.send_all("accounts", [b"one", b"two"])
        bodies: list[bytes] = []
        while len(bodies) < 2:
            messages = consumer.receive(wait=PATIENCE)
            bodies += [message.body for message in messages]
            consumer.ack(messages)
        return bodies


@pytest.mark.parametrize("kind", ["server", "embedded"])
def test_a_program_runs_on_a_server_and_on_an_embedded_broker(broker: ferromq.Embedded, kind: str) -> None:
    """Unchanged."""
    mq = ferromq.connect(broker.endpoint) if kind == "server" else ferromq.embedded()
    assert program(mq) == [b"one", b"two"]
    assert mq.closed


def test_a_program_for_asyncio_runs_on_the_environments_broker(
    broker: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names no address."""
    monkeypatch.setenv("FERROMQ_ENDPOINT", broker.endpoint)

    async def use() -> None:
        async with aio.connect() as mq:
            await mq.admin().create_topic("reports", queues=1)
            await mq.producer().send("reports", b"one")
            (message,) = await mq.consumer("g", "reports").receive(wait=PATIENCE)
            assert message.body == b"one"
            message.ack()

    asyncio.run(use())
    with ferromq.connect() as mq:
        assert mq.consumer("g", "reports").receive(wait=0) == []


def test_the_end_of_a_connection_sends_what_its_producers_keep(broker: ferromq.Embedded) -> None:
    """Of every one of them."""
    with ferromq.connect(broker.endpoint) as mq:
        futures = [mq.producer(linger=NEVER).submit("kept", b"x") for _ in range(3)]
        assert not any(future.done() for future in futures)
    assert {future.result(0).topic for future in futures} == {"kept"}


def test_an_embedded_broker_closes_its_clients_before_it_stops(tmp_path: Path) -> None:
    """What they keep is stored."""
    with ferromq.embedded(tmp_path) as mq:
        producer, consumer, admin = mq.producer(linger=NEVER), mq.consumer("g", "kept"), mq.admin()
        future = producer.submit("kept", b"x")
    assert future.result(0).queue_offset == 0
    assert all(each.closed for each in (mq, producer, consumer, admin))
    with pytest.raises(ferromq.ClientClosed, match=r"embedded broker is closed; start a new one"):
        mq.producer()
    with ferromq.embedded(tmp_path) as mq, mq.consumer("g", "kept") as again:
        assert [message.body for message in again.receive(wait=PATIENCE)] == [b"x"]


def test_consumers_are_closed_first_so_that_handlers_can_still_send(
    broker: ferromq.Embedded, eventually: Eventually
) -> None:
    """A handler under way sends its result after the connection began to close."""
    entered, go_on = threading.Event(), threading.Event()
    with ferromq.connect(broker.endpoint) as mq:
        producer, consumer = mq.producer(), mq.consumer("steps", "steps")
        producer.send("steps", b"x")

        def handle(_message: ferromq.MessageView) -> None:
            entered.set()
            assert go_on.wait(PATIENCE)
            producer.send("results", b"y")

        running = threading.Thread(target=consumer.run, args=(handle,), daemon=True)
        running.start()
        assert entered.wait(PATIENCE)
        runner = consumer._runner
        assert runner is not None
        closing = threading.Thread(target=mq.close, args=(PATIENCE,), daemon=True)
        closing.start()
        assert eventually(runner._stopping.is_set)
        go_on.set()
        closing.join(PATIENCE)
        running.join(PATIENCE)
        assert not closing.is_alive()
        assert not running.is_alive()
    with broker.consumer("g", "results") as results, broker.consumer("steps", "steps") as steps:
        assert [message.body for message in results.receive(wait=PATIENCE)] == [b"y"]
        assert steps.receive(wait=0) == []


@pytest.mark.parametrize("clients", ["sync", "aio"])
def test_a_handler_that_does_not_end_leaves_producers_the_time_to_send(broker: ferromq.Embedded, clients: str) -> None:
    """Half of it."""
    topic = f"late-{clients}"

    def use_threads() -> None:
        entered, go_on = threading.Event(), threading.Event()

        def handle(_message: ferromq.MessageView) -> None:
            entered.set()
            go_on.wait(PATIENCE)

        mq = ferromq.connect(broker.endpoint)
        consumer, producer = mq.consumer("g", topic), mq.producer(linger=NEVER)
        producer.send(topic, b"x")
        future = producer.submit(topic, b"y")
        threading.Thread(target=consumer.run, args=(handle,), daemon=True).start()
        assert entered.wait(PATIENCE)
        mq.close(2)
        go_on.set()
        assert future.result(0).topic == topic

    async def use_tasks() -> None:
        entered = asyncio.Event()

        async def handle(_message: ferromq.MessageView) -> None:
            entered.set()
            await asyncio.sleep(PATIENCE)

        mq = aio.connect(broker.endpoint)
        consumer, producer = mq.consumer("g", topic), mq.producer(linger=NEVER)
        await producer.send(topic, b"x")
        future = await producer.submit(topic, b"y")
        running = asyncio.create_task(consumer.run(handle, stop_timeout=PATIENCE))
        await entered.wait()
        await mq.close(2)
        assert future.result().topic == topic
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    if clients == "aio":
        asyncio.run(use_tasks())
    else:
        use_threads()


FORK = """
import os, sys, ferromq
mq = ferromq.connect(sys.argv[1])
parents = mq.producer()
parents.send("forked", b"parent")
child = os.fork()
if child == 0:
    assert "forked" in repr(parents), parents
    with mq:
        mq.producer().send("forked", b"child")
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
parents.send("forked", b"parent again")
mq.close()
assert "closed" in repr(parents), parents
"""


def test_a_connection_made_before_a_fork_makes_clients_of_the_child(broker: ferromq.Embedded) -> None:
    """The child closes its own clients alone; those of the parent go on."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", FORK, broker.endpoint]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    with broker.consumer("g", "forked") as consumer:
        bodies: set[bytes] = set()
        while len(bodies) < 3:
            bodies |= {message.body for message in consumer.receive(wait=PATIENCE)}
    assert bodies == {b"parent", b"child", b"parent again"}


def test_a_notebook_shows_an_embedded_broker(tmp_path: Path) -> None:
    """Its addresses, its directory and its clients."""
    with ferromq.embedded(tmp_path / "a<b") as mq:
        mq.consumer("billing", "orders")
        found = mq._repr_html_()
        for text in (mq.endpoint, mq.remoting, mq.namesrv, "a&lt;b", "Embedded (open)", "group=&quot;billing&quot;"):
            assert text in found
        assert repr(mq).startswith(f'<Embedded endpoint="{mq.endpoint}"')
    assert "Embedded (closed)" in mq._repr_html_()
