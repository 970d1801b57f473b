"""
Calls of clients to a broker that hangs, is gone, or answers half: every verb ends in time, and nothing is lost.

Between client and broker is a `FaultProxy`, which the broker advertises as its own address, for gRPC or for remoting
behind a name server. All verbs are under way at
once, so one that holds up another shows, too.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from fault_proxy import FAULTS, Fault, FaultProxy
from machine import in_load
from ports import kept_port

import ferromq
from ferromq import OutcomeUnknown, aio

TIMEOUT, PATIENCE = 2.0, 20.0
WAITS = (0.2, 10)
# On an idle machine; a call without a bound takes much longer.
SLACK = 1.5
ONCE = {"transaction", "commit", "rollback", "change"}
REPEATED = {
    *("send", "send_all", "submit", "recall", "receive", "ack", "forward"),
    *("queues", "pull", "offset_at", "committed", "commit_offset"),
}
TOPICS = {"orders": "NORMAL", "later": "DELAY", "deals": "TRANSACTION"}
TRIED = ("hang", "refuse", "cut", "half_answer")
Call = Callable[[], Any]
Eventually = Callable[[Callable[[], bool]], bool]


@dataclass
class Scene:
    """Clients that the broker knows, and their messages and receipts."""

    kind: ModuleType
    mq: ferromq.Embedded
    proxy: FaultProxy
    producer: Any
    consumer: Any
    reader: Any
    queue: Any = None
    delayed: list[Any] = field(default_factory=list)
    taken: dict[str, list[ferromq.MessageView]] = field(default_factory=dict)
    deals: dict[str, list[Any]] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)
    """Sent and acknowledged by the broker."""

    def be_patient(self) -> None:
        """Give calls more time: those that begin now must succeed, on a busy machine, too."""
        for client in (self.producer, self.consumer, self.reader):
            client._client.common.timeout = PATIENCE

    def verbs(self, number: int) -> dict[str, Call]:
        """Return each verb of the clients; *number* is 0 while the broker is away, 1 after that."""
        producer, consumer, reader, queue = self.producer, self.consumer, self.reader, self.queue
        taken = {name: messages[number] for name, messages in self.taken.items()}
        body = [b"send %d" % number, b"send_all %d" % number, b"submit %d" % number]
        return {
            "send": lambda: producer.send("orders", body[0]),
            "send_all": lambda: producer.send_all("orders", [body[1]]),
            "submit": lambda: producer.submit("orders", body[2]),
            "recall": lambda: producer.recall(self.delayed[number]),
            "transaction": lambda: producer.transaction().send("deals", b"half"),
            "commit": self.deals["commit"][number].commit,
            "rollback": self.deals["rollback"][number].rollback,
            "receive": lambda: consumer.receive(1, wait=WAITS[number]),
            "ack": lambda: consumer.ack(taken["ack"]),
            "change": lambda: consumer.change_invisible_duration(taken["change"], 60),
            "forward": lambda: consumer.forward_to_dead_letter(taken["forward"]),
            "queues": reader.queues,
            "pull": lambda: reader.pull(queue, 0, 1),
            "offset_at": lambda: reader.offset_at(queue, "end"),
            "committed": lambda: reader.committed_offset(queue),
            "commit_offset": lambda: reader.commit_offset(queue, 1),
        }


async def value(kind: ModuleType, call: Call) -> Any:
    """Return what a verb returns: a synchronous one on a thread of its own, and futures by their result."""
    found = call() if kind is aio else await asyncio.to_thread(call)
    if isinstance(found, Future):
        found = asyncio.wrap_future(found)
    while inspect.isawaitable(found):
        found = await found
    return found


async def ends(kind: ModuleType, call: Call) -> tuple[Any, float]:
    """Return what a verb returns or raises, and how long it took."""
    begin = time.monotonic()
    try:
        result = await value(kind, call)
    except Exception as error:  # noqa: BLE001 (it is what the test looks at)
        result = error
    return result, time.monotonic() - begin


async def all_end(scene: Scene, number: int, names: Iterable[str]) -> dict[str, tuple[Any, float]]:
    """Run verbs at once and return how each ended."""
    verbs = scene.verbs(number)
    running = [ends(scene.kind, verbs[name]) for name in names]
    ended = dict(zip(names, await asyncio.gather(*running), strict=True))
    for name in {"send", "send_all", "submit"} & ended.keys():
        if not isinstance(ended[name][0], Exception):
            scene.sent.add(f"{name} {number}".encode())
    return ended


def undecided(_message: ferromq.MessageView) -> ferromq.Resolution:
    """Leave a transaction to the test."""
    return ferromq.Resolution.UNKNOWN


async def undecided_later(message: ferromq.MessageView) -> ferromq.Resolution:
    """Leave it to the test, as a checker of `ferromq.aio`."""
    return undecided(message)


def made(kind: ModuleType, name: str, *arguments: str, **options: Any) -> Any:
    """Return a client, with a telling timeout."""
    return getattr(kind, name)(*arguments, timeout=TIMEOUT, attempts=2, **options)


@asynccontextmanager
async def prepared(kind: ModuleType, way: str) -> AsyncIterator[Scene]:
    """Make clients of a broker behind a proxy, each with a message, a lease and an open transaction."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))
    with kept_port() as address, FaultProxy(address) as proxy:
        prefix = "grpc_" if way == "grpc" else ""
        options: dict[str, Any] = {
            f"{prefix}listen": address,
            f"{prefix}advertise": proxy.address,
            "fast_listen": "off",
        }
        with ferromq.embedded(clock=ferromq.Clock.manual(), **options) as mq:
            where = proxy.address if way == "grpc" else f"namesrv://{mq.namesrv}"
            with mq.admin() as admin:
                for topic, message_type in TOPICS.items():
                    admin.create_topic(topic, 1, message_type=message_type)
            checker = undecided if kind is ferromq else undecided_later
            producer = made(kind, "Producer", where, *TOPICS, checker=checker)
            consumer = made(kind, "Consumer", where, "billing", "orders")
            reader = made(kind, "Consumer", where, "readers", "orders")
            try:
                yield await filled(Scene(kind, mq, proxy, producer, consumer, reader))
            finally:
                for client in (producer, consumer, reader):
                    await ends(kind, client.close)


async def filled(scene: Scene) -> Scene:
    """Give each client a message, a lease and an open transaction."""
    kind, producer = scene.kind, scene.producer
    for name in ("ack", "change", "forward"):
        some = [f"{name} {number}".encode() for number in range(2)]
        await value(kind, lambda some=some: producer.send_all("orders", some))
    for message in await value(kind, lambda: scene.consumer.receive_many(6, wait=10)):
        scene.taken.setdefault(message.body.decode().split()[0], []).append(message)
    for _ in range(2):
        scene.delayed.append(await value(kind, lambda: producer.send("later", b"later", delay=timedelta(hours=1))))
    for name in ("commit", "rollback"):
        for number in range(2):
            deal, body = producer.transaction(), f"{name} {number}".encode()
            await value(kind, lambda deal=deal, body=body: deal.send("deals", body))
            scene.deals.setdefault(name, []).append(deal)
    (scene.queue,) = await value(kind, scene.reader.queues)
    await value(kind, lambda: scene.reader.commit_offset(scene.queue, 0))
    return scene


def bodies(mq: ferromq.Embedded, topic: str) -> list[bytes]:
    """Return the messages in the queues of a topic."""
    found: list[bytes] = []
    for queue_id in mq.store.queues().get(topic, []):
        end = mq.store.max_offset(topic, queue_id)
        _, messages, _ = mq.store.get(topic, queue_id, 0, end)
        found += [message.body for message in messages]
    return found


@pytest.mark.parametrize("fault", [FAULTS[name] for name in TRIED], ids=TRIED)
@pytest.mark.parametrize("kind", [ferromq, aio], ids=["sync", "aio"])
@pytest.mark.parametrize("way", ["grpc", "remoting"])
def test_every_verb_ends_in_time_and_works_again(
    way: str, kind: ModuleType, fault: Fault, no_thread_left: None, eventually: Eventually
) -> None:
    """Each raises `OutcomeUnknown`, calls after `resume` succeed, and every success is true."""

    async def test() -> None:
        async with prepared(kind, way) as scene:
            fault(scene.proxy)
            away = await all_end(scene, 0, sorted(REPEATED | ONCE))
            late = {name: seconds for name, (_, seconds) in away.items() if seconds > TIMEOUT + in_load(SLACK)}
            assert late == {}
            answered = {name: repr(got) for name, (got, _) in away.items() if not isinstance(got, OutcomeUnknown)}
            assert set(answered) <= {"queues"}, answered  # of the route that is known
            scene.proxy.resume()
            scene.be_patient()
            # What is not repeated by itself finds the connection that the others have made again.
            for names in (sorted(REPEATED), sorted(ONCE)):
                back = await all_end(scene, 1, names)
                assert {name: repr(got) for name, (got, _) in back.items() if isinstance(got, Exception)} == {}
            await everything_is_so(scene)
        assert eventually(lambda: scene.proxy.connections == 0)

    async def everything_is_so(scene: Scene) -> None:
        mq = scene.mq
        # What is answered lies in the log; a moment later, in the queues.
        assert eventually(lambda: scene.sent <= set(bodies(mq, "orders")))
        assert eventually(lambda: b"forward 1" in bodies(mq, "%DLQ%billing"))
        assert eventually(lambda: b"commit 1" in bodies(mq, "deals"))
        assert b"rollback 1" not in bodies(mq, "deals")
        assert mq.store.committed_offset("readers", "orders", 0) == 1
        mq.clock.advance(minutes=2)
        again = {message.body for message in await value(kind, lambda: scene.consumer.receive(32, wait=10))}
        assert again & {b"ack 1", b"forward 1"} == set()
        assert b"change 1" in again

    asyncio.run(test())
