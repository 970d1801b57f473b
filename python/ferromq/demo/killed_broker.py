"""
The demo's last step: a broker in a child process, killed with -9 while it takes rows.

The child sends to its own broker, which flushes before it answers, and writes each acknowledgement to a pipe.
The store must therefore hold every row whose acknowledgement came out of the pipe.
"""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import ferromq
from ferromq.demo import flights as data

TOPIC = "flights"
BATCH = 50
"""Rows sent before their acknowledgements are written to the pipe."""

Acknowledged = dict[tuple[int, int], tuple[int, str]]
"""(queue id, queue offset) → (row, message id)."""


def send_and_kill(directory: Path, rows: int, on_progress: Callable[[int], None]) -> tuple[Acknowledged, float]:
    """
    Start the child and kill it at a random moment after some acknowledgements.

    Returns its acknowledgements, and the seconds from the first to the last.
    """
    acknowledged: Acknowledged = {}
    first = last = 0.0
    enough = random.randint(rows // 10, rows * 8 // 10)  # noqa: S311 (no secret)
    program = "import sys; from ferromq.demo.killed_broker import send; send(sys.argv[1], int(sys.argv[2]))"
    command = [sys.executable, "-c", program, str(directory), str(rows)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603
        assert child.stdout is not None
        for line in child.stdout:  # to the end of the pipe: acknowledgements before the kill count
            if not line.endswith("\n"):
                break  # torn by the kill
            row, queue_id, queue_offset, message_id = line.split()
            acknowledged[int(queue_id), int(queue_offset)] = (int(row), message_id)
            on_progress(len(acknowledged))
            last = time.monotonic()
            first = first or last
            if len(acknowledged) == enough:
                child.kill()
        code = child.wait()
    data.expect("exit code of the killed child", code, -9)
    return acknowledged, last - first


def compare(
    flights: data.Flights, acknowledged: Acknowledged, found: Mapping[tuple[int, int], ferromq.MessageView]
) -> None:
    """Compare every acknowledged row with the message at its offset, and the order of the rows in each queue."""
    for place, (row, message_id) in acknowledged.items():
        message = found.get(place)
        if message is None:
            raise data.Mismatch(f"row {row} was acknowledged at (queue, offset) {place}, but is missing")
        data.expect(f"message id at {place}", message.message_id, message_id)
        data.expect(f"row {row}", message.body, flights.bodies[row])
    for queue_id in {queue_id for queue_id, _ in found}:
        offsets = sorted(offset for queue, offset in found if queue == queue_id)
        data.expect(f"queue offsets of queue {queue_id}", offsets, list(range(len(offsets))))
        rows = [int(found[queue_id, offset].properties["row"]) for offset in offsets]
        if any(earlier >= later for earlier, later in pairwise(rows)):
            raise data.Mismatch(f"the rows of queue {queue_id} are not in the order of sending")


def send(directory: str, rows: int) -> None:
    """Run the child: send all rows, write their acknowledgements to stdout, then wait to be killed."""
    flights = data.load(rows)
    messages = [
        ferromq.Message(message.body, keys=message.keys, tag=message.tag, properties={"row": str(row)})
        for row, message in enumerate(flights.messages())
    ]
    with ferromq.embedded(directory, flush="group") as mq, mq.producer() as producer:
        for start in range(0, rows, BATCH):
            receipts = producer.send_all(TOPIC, messages[start : start + BATCH])
            lines = [
                f"{row} {receipt.queue_id} {receipt.queue_offset} {receipt.message_id}\n"
                for row, receipt in enumerate(receipts, start)
            ]
            sys.stdout.write("".join(lines))
            sys.stdout.flush()
        sys.stdin.read()
