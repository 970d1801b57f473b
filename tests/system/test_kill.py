"""Kill -9 in the middle of sends: under synchronous flush every acknowledged message is there."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import eventually

import ferromq
from ferromq._ferromq import Clock, Store

ROUNDS = int(os.environ.get("FERROMQ_KILL_ROUNDS", "20"))
SENDERS = 4
PATIENCE = 30.0

SERVER = """
import sys, ferromq
with ferromq.embedded(sys.argv[1], flush="group") as mq:
    print(mq.endpoint, flush=True)
    sys.stdin.readline()
"""


Acknowledged = dict[tuple[int, int], bytes]
"""(queue id, queue offset) → body."""


def send_until_killed(endpoint: str, name: str, sizes: random.Random, acknowledged: Acknowledged) -> None:
    """Send one message after the other; note each acknowledged one."""
    with ferromq.Producer(endpoint, timeout=PATIENCE, attempts=1) as producer:
        for number in range(1_000_000):
            body = b"%b/%d " % (name.encode(), number) + b"x" * sizes.randrange(3000)
            try:
                receipt = producer.send("killed", body)
            except ferromq.FerromqError:
                return
            acknowledged[receipt.queue_id, receipt.queue_offset] = body


@pytest.mark.crash
@pytest.mark.timeout(300 + 10 * ROUNDS)
def test_no_acknowledged_message_is_lost(tmp_path: Path) -> None:
    """Kills at random moments: every acknowledged message at its queue offset, no gap, nothing torn."""
    acknowledged: Acknowledged = {}
    seed = random.randrange(1 << 32)
    print(f"seed={seed}")  # noqa: T201 (shown when the test fails)
    moments = random.Random(seed)
    for round_number in range(ROUNDS):
        before = len(acknowledged)
        command = [sys.executable, "-c", SERVER, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            endpoint = server.stdout.readline().strip()
            assert endpoint, "the server did not start on the store of the round before"
            names = [f"{round_number}/{thread}" for thread in range(SENDERS)]
            senders = [
                threading.Thread(
                    target=send_until_killed, args=(endpoint, name, random.Random(f"{seed}/{name}"), acknowledged)
                )
                for name in names
            ]
            for sender in senders:
                sender.start()
            assert eventually(lambda: len(acknowledged) > before, PATIENCE, 0.01)  # noqa: B023 (it runs in this round)
            threading.Event().wait(moments.uniform(0, 0.6))
            server.send_signal(signal.SIGKILL)
            for sender in senders:
                sender.join()
        check(tmp_path, acknowledged)


def check(directory: Path, acknowledged: Acknowledged) -> None:
    """Open the store and compare it with what was acknowledged."""
    store = Store(str(directory), Clock.system(), commit_log_file_size=64 << 20)
    try:
        stored: dict[tuple[int, int], bytes] = {}
        for queue_id in store.queues().get("killed", []):
            end = store.max_offset("killed", queue_id)
            offset = store.min_offset("killed", queue_id)
            while offset < end:
                status, messages, offset = store.get("killed", queue_id, offset, 1000)
                assert status == "FOUND"
                for message in messages:
                    stored[queue_id, message.queue_offset] = message.body
            offsets = sorted(o for q, o in stored if q == queue_id)
            assert offsets == list(range(end)), f"queue {queue_id} has a gap"
        lost = [where for where, body in acknowledged.items() if stored.get(where) != body]
        assert not lost, (
            f"{len(lost)} of {len(acknowledged)} acknowledged messages are lost or changed, first {lost[0]}"
        )
    finally:
        store.close()
