"""`aio.Workers`: handlers run as long as an application, end with it gracefully, and end it when one of them dies."""

import asyncio
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

import ferromq
from ferromq import MessageView, aio
from ferromq.errors import TopicNotFound

ROOT = Path(__file__).parents[2]
PATIENCE = 20.0


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker that creates no topics, with the topic `orders`."""
    with ferromq.embedded(default_queues=1, auto_create_topics=False) as embedded:
        with embedded.admin() as admin:
            admin.create_topic("orders", 1)
        yield embedded


def send(mq: ferromq.Embedded, *bodies: bytes) -> None:
    """Send messages to `orders`."""
    with mq.producer() as producer:
        producer.send_all("orders", bodies)


def test_the_example_bills_what_it_was_sent(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """examples/fastapi_worker.py over HTTP; an order that cannot be billed is a dead letter."""
    monkeypatch.setenv("FERROMQ_ENDPOINT", mq.endpoint)
    app = runpy.run_path(str(ROOT / "examples" / "fastapi_worker.py"))["app"]
    for _ in range(2):  # an application may start again, in another loop
        with TestClient(app) as client:
            for name, quantity in (("o-1", 2), ("o-2", 0), ("o-3", 1)):
                answer = client.post("/orders", json={"id": name, "quantity": quantity})
                assert (answer.status_code, len(answer.json()["message_id"])) == (202, 34)
            assert eventually(lambda: client.get("/bills").json() == {"o-1": 10, "o-3": 5})
    with mq.consumer("look", "%DLQ%billing") as consumer:
        dead = consumer.receive(wait=PATIENCE)
    assert {message.properties["DLQ_REASON"] for message in dead} == {"order o-2 has a quantity of 0"}


def test_a_handler_at_work_ends_before_the_application(mq: ferromq.Embedded) -> None:
    """It can still send, and its message is acknowledged."""
    workers = aio.Workers()
    begun, may_end = threading.Event(), threading.Event()

    @workers.handler("billing", "orders")
    async def bill(message: MessageView) -> None:
        begun.set()
        await asyncio.to_thread(may_end.wait, PATIENCE)
        if message.body == b"first":
            await producers[0].send("orders", b"second")

    producers: list[Any] = []
    lifespan = workers.lifespan(mq.endpoint)

    @asynccontextmanager
    async def noting(app: FastAPI) -> AsyncIterator[Any]:
        async with lifespan(app) as state:
            producers.append(state["producer"])
            assert isinstance(state["mq"], aio.Connection)
            yield state
            may_end.set()

    send(mq, b"first")
    with TestClient(FastAPI(lifespan=noting)):
        assert begun.wait(PATIENCE)
    assert producers[0].closed
    with mq.consumer("billing", "orders") as consumer:
        assert [message.body for message in consumer.receive(wait=PATIENCE)] == [b"second"]


def test_a_dying_worker_ends_an_application_without_a_server(
    mq: ferromq.Embedded, caplog: pytest.LogCaptureFixture, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """Its error is in the log, and raised where the application ends."""
    workers = aio.Workers()

    @workers.handler("billing", "no-such-topic")
    async def bill(_: MessageView) -> None:
        pass

    async def main() -> None:
        async with aio.connect(mq.endpoint) as connection, workers.running(connection):
            await asyncio.Event().wait()

    with pytest.raises(TopicNotFound, match="no-such-topic"):
        asyncio.run(asyncio.wait_for(main(), PATIENCE))
    (line,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert line.getMessage() == "worker died group=billing topic=no-such-topic"
    client = TestClient(FastAPI(lifespan=workers.lifespan(mq.endpoint)))
    with pytest.raises(TopicNotFound, match="no-such-topic"), client:
        assert eventually(lambda: caplog.text.count("CRITICAL") == 2)


SERVED = """
import sys
import uvicorn
from fastapi import FastAPI
import ferromq

workers = ferromq.aio.Workers()

@workers.handler("billing", "no-such-topic")
async def bill(message):
    pass

uvicorn.run(FastAPI(lifespan=workers.lifespan(sys.argv[1])), port=0)
"""


def test_a_dying_worker_stops_a_server(mq: ferromq.Embedded) -> None:
    """Uvicorn shuts down gracefully, and its log has the error."""
    program = [sys.executable, "-c", SERVED, mq.endpoint]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=50)
    assert done.returncode != 0
    assert "worker died group=billing topic=no-such-topic" in done.stderr
    assert "Application shutdown failed" in done.stderr
    assert "TopicNotFound" in done.stderr


ALONE = """
import asyncio, sys
import ferromq

workers = ferromq.aio.Workers()

@workers.handler("billing", "orders")
async def bill(message):
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("ended", flush=True)

async def main():
    async with ferromq.aio.connect(sys.argv[1]) as mq:
        await workers.run(mq)

asyncio.run(main())
"""


def test_a_program_of_workers_ends_with_sigterm(mq: ferromq.Embedded) -> None:
    """Once the handlers at work have ended."""
    send(mq, b"x")
    program = [sys.executable, "-c", ALONE, mq.endpoint]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, signal.SIGTERM)
        rest, _ = process.communicate("\n", timeout=50)
    assert (rest, process.returncode) == ("ended\n", 0)


def test_an_error_of_the_application_passes(mq: ferromq.Embedded) -> None:
    """And so does its cancellation: only that of a dying worker becomes its error."""
    workers = aio.Workers()

    @workers.handler("billing", "orders")
    async def bill(_: MessageView) -> None:
        pass

    async def fail(error: BaseException) -> None:
        async with aio.connect(mq.endpoint) as connection, workers.running(connection):
            raise error

    for error in (KeyError("x"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            asyncio.run(fail(error))


def test_a_worker_takes_batches_of_several_topics(mq: ferromq.Embedded) -> None:
    """With values of bodies, as `Consumer.run` does."""
    with mq.admin() as admin:
        admin.create_topic("refunds", 1)
    send(mq, b"1", b"2")
    with mq.producer() as producer:
        producer.send("refunds", b"3")
    workers = aio.Workers()
    seen: list[int] = []

    async def run() -> None:
        ended = asyncio.Event()

        @workers.handler("billing", ["orders", "refunds"], batch=3, linger=PATIENCE, decode=int)
        async def bill(messages: list[ferromq.DecodedMessage[int]]) -> None:
            seen.extend(message.value for message in messages)
            ended.set()

        async with aio.connect(mq.endpoint) as connection, workers.running(connection):
            await asyncio.wait_for(ended.wait(), PATIENCE)

    asyncio.run(run())
    assert sorted(seen) == [1, 2, 3]
    with pytest.raises(ferromq.ConfigError, match="batch must be at least 1"):
        workers.handler("billing", "orders", batch=0)


def test_what_cannot_run_is_refused() -> None:
    """A function that is not asynchronous, wrong names, and no handlers at all."""
    workers = aio.Workers()

    async def start() -> None:
        async with aio.connect("127.0.0.1:1") as connection:
            await workers.run(connection)

    with pytest.raises(ferromq.ConfigError, match="no handler to run"):
        asyncio.run(start())
    with pytest.raises(TypeError, match="is not asynchronous"):

        @workers.handler("billing", "orders")
        def bill(_: MessageView) -> None:
            pass

    @workers.handler("bill ing", "orders")
    async def misnamed(_: MessageView) -> None:
        pass

    with pytest.raises(ferromq.IllegalName, match="bill ing"):
        asyncio.run(start())
