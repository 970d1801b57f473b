"""Framed calls: hot methods without HTTP/2, in plaintext and over TLS, and what becomes of them under faults."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dispatching import dispatched
from fault_proxy import FAULTS, Fault, FaultProxy
from tls_files import SHOWN

import ferromq
from ferromq import aio

Eventually = Callable[[Callable[[], bool]], bool]
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def patient_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the first frame time on a busy machine: tests tell whether calls go in frames."""
    monkeypatch.setattr("ferromq.client.connection.PROBE", 10.0)


@pytest.fixture
def mq(proxy: FaultProxy) -> Iterator[ferromq.Embedded]:
    """Yield a broker that clients reach by the proxy alone."""
    with ferromq.embedded(grpc_listen=proxy.target, grpc_advertise=proxy.address, default_queues=2, **SHOWN) as mq:
        yield mq


def framed_producer(
    endpoint: str,
    eventually: Eventually,
    tls: bool | Path,
    *,
    timeout: float = 10.0,
    attempts: int = 3,
    group: str | None = None,
) -> ferromq.Producer:
    """Return a producer whose next messages go in frames; *group* is that of its first ones."""
    producer = ferromq.Producer(endpoint, timeout=timeout, attempts=attempts, tls=tls)
    producer.send("orders", b"first", message_group=group)
    assert eventually(lambda: endpoint in producer._client.channels.framed)
    producer.send("orders", b"second", message_group=group)
    return producer


def in_frames(mq: ferromq.Embedded) -> int:
    """Return how many requests came in frames to the broker."""
    return mq.broker._server.stats()["remoting_requests"]


def stored(mq: ferromq.Embedded) -> list[bytes]:
    """Return the bodies of all messages, in no particular order."""
    dispatched(mq)
    with mq.consumer("auditors", "orders") as consumer:
        return [
            message.body
            for queue in consumer.queues()
            for message in consumer.pull(queue, 0, max_messages=10_000, wait=0).messages
        ]


def test_sends_and_acknowledgements_go_in_frames_once_the_broker_announced_them(
    mq: ferromq.Embedded, eventually: Eventually, tls: bool | Path
) -> None:
    """The first message goes over gRPC, and finds out."""
    with framed_producer(mq.endpoint, eventually, tls) as producer:
        before = in_frames(mq)
        receipts = [producer.send("orders", b"%d" % n, keys="k", tag="t") for n in range(20)]
        assert in_frames(mq) - before == 20
    with mq.consumer("billing", "orders") as consumer:
        seen = {}
        while len(seen) < 22:
            for message in consumer.receive(wait=5):
                seen[message.message_id] = message
                consumer.ack(message)
        assert {receipt.message_id for receipt in receipts} <= seen.keys()
        for number, receipt in enumerate(receipts):
            message = seen[receipt.message_id]
            assert (message.body, message.keys, message.tag) == (b"%d" % number, ("k",), "t")
            assert (message.queue_id, message.queue_offset) == (receipt.queue_id, receipt.queue_offset)
        assert consumer.receive(wait=0) == []


def test_a_proxy_that_passes_http2_alone_is_enough(mq: ferromq.Embedded, proxy: FaultProxy) -> None:
    """The client tries a frame once, and goes on over gRPC."""
    proxy.http2_only = True
    with ferromq.Producer(proxy.address, timeout=PATIENCE) as producer:
        for _ in range(10):
            producer.send("orders", b"x")
        assert proxy.address not in producer._client.channels.framed
    assert in_frames(mq) == 0
    assert len(stored(mq)) == 10


def test_messages_of_waiting_threads_share_requests_and_keep_their_receipts(
    mq: ferromq.Embedded, eventually: Eventually, tls: bool | Path
) -> None:
    """Each thread sends one message after the other; those of a message group keep their order."""
    with framed_producer(mq.endpoint, eventually, tls, group="g") as producer:
        before = mq.broker._server.stats()["send_requests"]

        def send(thread: int) -> list[ferromq.SendReceipt]:
            return [producer.send("orders", b"%d-%d" % (thread, n), message_group=f"g{thread}") for n in range(100)]

        with ThreadPoolExecutor(16) as threads:
            receipts = list(threads.map(send, range(16)))
        assert mq.broker._server.stats()["send_requests"] - before < 1600
    sent = [b"%d-%d" % (thread, n) for thread in range(16) for n in range(100)]
    assert sorted(stored(mq)) == sorted([b"first", b"second", *sent])
    for of_thread in receipts:
        assert len({receipt.queue_id for receipt in of_thread}) == 1
        offsets = [receipt.queue_offset for receipt in of_thread]
        assert offsets == sorted(offsets)


def test_a_refused_message_fails_its_own_sender_alone(
    mq: ferromq.Embedded, eventually: Eventually, tls: bool | Path
) -> None:
    """Others that shared its request are sent again, with their ids."""
    with framed_producer(mq.endpoint, eventually, tls) as producer:
        long = {"p": "x" * 40_000}

        def send(number: int) -> ferromq.SendReceipt | ferromq.FerromqError:
            try:
                return producer.send("orders", b"%d" % number, properties=long if number % 8 == 0 else {})
            except ferromq.FerromqError as error:
                return error

        with ThreadPoolExecutor(16) as threads:
            outcomes = list(threads.map(send, range(400)))
    for number, outcome in enumerate(outcomes):
        expected = ferromq.MessageTooLarge if number % 8 == 0 else ferromq.SendReceipt
        assert isinstance(outcome, expected), (number, outcome)
    assert sorted(stored(mq)) == sorted([b"first", b"second", *(b"%d" % n for n in range(400) if n % 8)])


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_send_is_repeated_with_its_id_when_the_broker_answers_again(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, fault: Fault, tls: bool | Path
) -> None:
    """Whatever was wrong before; the message may be stored twice, and never under two ids."""
    with framed_producer(proxy.address, eventually, tls, timeout=PATIENCE) as producer:
        fault(proxy)
        timer = threading.Timer(1, proxy.resume)
        timer.start()
        receipt = producer.send("orders", b"x")
        timer.join()
        producer.send("orders", b"after")
    dispatched(mq)
    with mq.consumer("auditors", "orders") as consumer:
        ids = {
            message.message_id
            for queue in consumer.queues()
            for message in consumer.pull(queue, 0, wait=0).messages
            if message.body == b"x"
        }
    assert ids == {receipt.message_id}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_send_ends_in_its_time_whatever_the_broker_does(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, fault: Fault, tls: bool | Path
) -> None:
    """With an error that says that the message may be stored."""
    with framed_producer(proxy.address, eventually, tls) as producer:
        fault(proxy)
        begun = time.monotonic()
        with pytest.raises(ferromq.OutcomeUnknown):
            producer.send("orders", b"x", timeout=0.5)
        assert time.monotonic() - begun < PATIENCE / 3
        proxy.resume()


def test_one_attempt_means_one(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, tls: bool | Path
) -> None:
    """Nothing is repeated over gRPC either."""
    with framed_producer(proxy.address, eventually, tls, attempts=1) as producer:
        proxy.cut()
        with pytest.raises(ferromq.ConnectionFailed):
            producer.send("orders", b"x")
        proxy.resume()
        assert eventually(lambda: stored(mq).count(b"x") == 1)


def test_a_signal_ends_a_send_that_waits(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, tls: bool | Path
) -> None:
    """Its handler's exception comes out of the call, long before the time limit."""

    class Stopped(Exception):  # noqa: N818 (what happened)
        pass

    def stop(*_: object) -> None:
        raise Stopped

    with framed_producer(proxy.address, eventually, tls, timeout=10 * PATIENCE) as producer:
        producer._client.common.attempt_timeout = 10 * PATIENCE
        proxy.hang()
        before = signal.signal(signal.SIGUSR1, stop)
        try:
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))

            def send() -> None:
                timer.start()
                producer.send("orders", b"x")

            begun = time.monotonic()
            with pytest.raises(Stopped):
                send()
            assert time.monotonic() - begun < PATIENCE
            timer.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        proxy.resume()


def test_a_broker_that_restarts_is_called_in_frames_again(
    tmp_path: Path, proxy: FaultProxy, eventually: Eventually, tls: bool | Path
) -> None:
    """A new connection; no message that was acknowledged is lost."""
    options = {"grpc_listen": proxy.target, "grpc_advertise": proxy.address, "flush": "group", **SHOWN}
    with contextlib.ExitStack() as stack:
        first = ferromq.embedded(tmp_path, **options)
        producer = stack.enter_context(framed_producer(proxy.address, eventually, tls, timeout=PATIENCE))
        producer.send("orders", b"before")
        first.close()
        mq = stack.enter_context(ferromq.embedded(tmp_path, **options))
        producer.send("orders", b"between")

        def sends_in_frames() -> bool:
            before = in_frames(mq)
            producer.send("orders", b"after")
            return in_frames(mq) > before

        assert eventually(sends_in_frames)
        assert {b"before", b"between", b"after"} <= set(stored(mq))


def test_a_producer_that_is_closed_ends_sends_that_wait(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, tls: bool | Path
) -> None:
    """In another thread, with an error of its own."""
    producer = framed_producer(proxy.address, eventually, tls, timeout=10 * PATIENCE)
    proxy.hang()
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(producer.send, "orders", b"x")
        assert eventually(sending.running)
        producer.close(0.1)
        error = sending.exception(PATIENCE)
    assert isinstance(error, (ferromq.ClientClosed, ferromq.ConnectionFailed)), error
    proxy.resume()


async def begin(producer: aio.Producer, endpoint: str, group: str | None = None) -> None:
    """Send until the next messages go in frames."""
    await producer.send("orders", b"first", message_group=group)
    async with asyncio.timeout(PATIENCE):
        while endpoint not in producer._client.base.channels.framed:  # noqa: ASYNC110 (a thread finds out)
            await asyncio.sleep(0.01)
    await producer.send("orders", b"second", message_group=group)


def test_tasks_share_requests_and_keep_their_receipts(mq: ferromq.Embedded, tls: bool | Path) -> None:
    """An event loop with 64 tasks needs far fewer requests than messages."""

    async def use() -> list[ferromq.SendReceipt]:
        async with aio.Producer(mq.endpoint, tls=tls) as producer:
            await begin(producer, mq.endpoint, group="g")
            before = mq.broker._server.stats()["send_requests"]

            async def send(task: int) -> list[ferromq.SendReceipt]:
                group = f"g{task}"
                return [await producer.send("orders", b"%d-%d" % (task, n), message_group=group) for n in range(20)]

            receipts = await asyncio.gather(*(send(task) for task in range(64)))
            assert mq.broker._server.stats()["send_requests"] - before < 640
            return [receipt for of_task in receipts for receipt in of_task]

    receipts = asyncio.run(use())
    sent = [b"%d-%d" % (task, n) for task in range(64) for n in range(20)]
    assert sorted(stored(mq)) == sorted([b"first", b"second", *sent])
    assert len({(receipt.queue_id, receipt.queue_offset) for receipt in receipts}) == len(receipts)
    for task in range(64):
        of_task = receipts[20 * task : 20 * task + 20]
        assert [receipt.queue_offset for receipt in of_task] == sorted(receipt.queue_offset for receipt in of_task)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_an_awaited_send_ends_in_its_time_and_goes_on_with_the_broker(
    mq: ferromq.Embedded, proxy: FaultProxy, fault: Fault, tls: bool | Path
) -> None:
    """A task that is cancelled meanwhile harms no other."""

    async def use() -> None:
        async with aio.Producer(proxy.address, tls=tls) as producer, asyncio.timeout(PATIENCE):
            await begin(producer, proxy.address)
            fault(proxy)
            sends = [asyncio.ensure_future(producer.send("orders", b"lost", timeout=0.5)) for _ in range(5)]
            await asyncio.sleep(0)
            sends[2].cancel()
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
            assert isinstance(outcomes[2], asyncio.CancelledError)
            assert all(isinstance(outcome, ferromq.OutcomeUnknown) for i, outcome in enumerate(outcomes) if i != 2)
            proxy.resume()
            await producer.send("orders", b"after", timeout=PATIENCE)

    asyncio.run(use())
    assert b"after" in stored(mq)
