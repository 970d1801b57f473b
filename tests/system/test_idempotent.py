"""An idempotent producer: a message with a receipt is in the log exactly once, although sends are repeated."""

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import kept_port

import ferromq
import ferromq.aio
from ferromq._ferromq import Clock, Store

KILLS = int(os.environ.get("FERROMQ_IDEMPOTENT_KILLS", "3"))
TOPIC = "killed"
PATIENCE = 60

SERVER = """
import sys, ferromq
with ferromq.embedded(sys.argv[1], flush="group", grpc_listen=sys.argv[2]) as mq:
    print(mq.endpoint, flush=True)
    sys.stdin.readline()
"""


class Load:
    """Counts receipts of messages, and ends the senders."""

    def __init__(self) -> None:
        self.receipts: dict[bytes, ferromq.SendReceipt] = {}
        self._changed = threading.Condition()
        self.is_over = threading.Event()

    def note(self, bodies: list[bytes], receipts: list[ferromq.SendReceipt]) -> None:
        """Note the receipts of messages."""
        with self._changed:
            self.receipts.update(zip(bodies, receipts, strict=True))
            self._changed.notify_all()

    def await_more(self, count: int) -> None:
        """Wait for *count* more receipts."""
        with self._changed:
            goal = len(self.receipts) + count
            assert self._changed.wait_for(lambda: len(self.receipts) >= goal, PATIENCE), "the senders stopped"

    def bodies(self, name: str, count: int) -> Iterator[list[bytes]]:
        """Yield messages of a sender, *count* at once, until the end."""
        number = 0
        while not self.is_over.is_set():
            yield [b"%s/%d" % (name.encode(), number + each) for each in range(count)]
            number += count


def send(load: Load, producer: ferromq.Producer) -> None:
    """Send one message after the other."""
    for bodies in load.bodies(f"send {threading.get_ident()}", 1):
        load.note(bodies, [producer.send(TOPIC, bodies[0])])


def submit(load: Load, producer: ferromq.Producer) -> None:
    """Submit many messages."""
    for bodies in load.bodies("submit", 300):
        futures = [producer.submit(TOPIC, body) for body in bodies]
        load.note(bodies, [future.result() for future in futures])


def send_all(load: Load, producer: ferromq.Producer) -> None:
    """Send many messages."""
    for bodies in load.bodies("send_all", 600):
        load.note(bodies, list(producer.send_all(TOPIC, bodies)))


def on_a_loop(load: Load, producer: ferromq.Producer) -> None:
    """Send by the producer for asyncio, all three ways."""

    async def run() -> None:
        async with ferromq.aio.Producer(
            producer._client.common.endpoints[0], idempotent=True, timeout=PATIENCE
        ) as ours:
            for bodies in load.bodies("aio", 200):
                async with asyncio.TaskGroup() as tasks:
                    sent = [tasks.create_task(ours.send(TOPIC, body)) for body in bodies[:10]]
                    futures = [await ours.submit(TOPIC, body) for body in bodies[10:100]]
                    many = await ours.send_all(TOPIC, bodies[100:])
                load.note(bodies, [*(task.result() for task in sent), *[await each for each in futures], *many])

    asyncio.run(run())


@contextmanager
def broker(directory: Path, endpoint: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a broker in a process of its own, and kill it at the end."""
    command = [sys.executable, "-c", SERVER, str(directory), endpoint]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline(), "the server did not start on the store of the round before"
            yield server
        finally:
            server.kill()


@pytest.mark.crash
@pytest.mark.timeout(120 + 20 * KILLS)
def test_every_receipt_is_in_the_log_exactly_once(tmp_path: Path) -> None:
    """Kill -9 under load at random moments: no message twice, and none with a receipt is missing."""
    seed = random.randrange(1 << 32)
    print(f"seed={seed}")  # noqa: T201 (shown when the test fails)
    moments = random.Random(seed)
    load = Load()
    errors: list[BaseException] = []

    def run(sender: Callable[[Load, ferromq.Producer], None]) -> None:
        try:
            sender(load, producer)
        except BaseException as error:  # noqa: BLE001 (the test raises it)
            errors.append(error)

    senders = [threading.Thread(target=run, args=(each,)) for each in (send, send, submit, send_all, on_a_loop)]
    with kept_port() as endpoint, ferromq.Producer(endpoint, idempotent=True, timeout=PATIENCE) as producer:
        for number in range(KILLS):
            with broker(tmp_path, endpoint):
                if number == 0:
                    for sender in senders:
                        sender.start()
                load.await_more(moments.randrange(300, 3000))
        with broker(tmp_path, endpoint):
            load.await_more(1)
            load.is_over.set()
            for sender in senders:
                sender.join()
    assert not errors, errors
    stored = read(tmp_path)
    counts = Counter(stored.values())
    assert not [body for body, count in counts.items() if count > 1]
    assert counts.keys() == load.receipts.keys()
    for body, receipt in load.receipts.items():
        # The receipt of a repetition does not know the offset.
        assert receipt.queue_offset == -1 or stored[receipt.queue_id, receipt.queue_offset] == body
    print(f"kills={KILLS} receipts={len(counts)} repeated={sum(r.queue_offset < 0 for r in load.receipts.values())}")  # noqa: T201


def read(directory: Path) -> dict[tuple[int, int], bytes]:
    """Return queue id and offset of each body of the store."""
    store = Store(str(directory), Clock.system(), commit_log_file_size=64 << 20)
    try:
        stored: dict[tuple[int, int], bytes] = {}
        for queue_id in store.queues().get(TOPIC, []):
            end, offset = store.max_offset(TOPIC, queue_id), 0
            while offset < end:
                _, messages, offset = store.get(TOPIC, queue_id, offset, 1000)
                stored.update({(queue_id, message.queue_offset): message.body for message in messages})
        return stored
    finally:
        store.close()
