"""
Measures how soon messages are delivered beside a queue of another topic that cannot be written.

An embedded broker stores messages of two topics; a consumer waits for those of one. After `--seconds` a directory is
put where the next file of the other one's queue belongs, so that the store sets that queue aside; `--seconds` later it
is taken away.

    python benches/faults/set_aside.py

It prints the milliseconds from the send to the handler, before, while the queue is set aside, and after it was
completed. Exit code 1 where the queue was not set aside, or not completed.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import ferromq

ENTRIES = 20
PAUSE = 0.02
PATIENCE = 30


def eventually(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds, and return whether it did in time."""
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(PAUSE)
    return True


class Probe:
    """Sends messages of the topic `others`, and notes how long each was on its way."""

    def __init__(self, mq: ferromq.Embedded) -> None:
        self._producer = mq.producer()
        self._consumer = mq.consumer("readers", "others")
        self._took: list[float] = []
        self._sent = 0
        self._thread = threading.Thread(target=self._consumer.run, args=(self._note,))
        self._thread.start()

    def _note(self, message: ferromq.MessageView) -> None:
        self._took.append(time.monotonic() - float(message.body))

    def measure(self, name: str, seconds: float) -> None:
        """Send for so long, and print a line."""
        begin = len(self._took)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._producer.send("others", str(time.monotonic()).encode())
            self._sent += 1
            time.sleep(PAUSE)
        came = eventually(lambda: len(self._took) >= self._sent)
        took = sorted(1000 * each for each in self._took[begin:])
        shown = " ".join(f"p{part}={took[len(took) * part // 100]:.1f}" for part in (50, 99)) if took else ""
        print(f"{name}: count={len(took)} all_came={came} ms {shown} most={took[-1] if took else 0:.1f}", flush=True)

    def close(self) -> None:
        """End it."""
        self._consumer.stop()
        self._thread.join()
        self._consumer.close()
        self._producer.close()


def run(directory: Path, seconds: float) -> bool:
    """Measure, and return whether the queue was set aside and completed."""
    options = {"default_queues": 1, "consume_queue_file_entries": ENTRIES, "disk_reserve": 1 << 20}
    with ferromq.embedded(directory, **options) as mq, mq.producer(attempts=1) as producer:
        producer.send("orders", b"x")
        probe = Probe(mq)
        probe.measure("before", seconds)
        in_the_way = directory / "consumequeue" / "orders" / "0" / f"{20 * ENTRIES:020}"
        in_the_way.mkdir()
        (in_the_way / "file").touch()
        for _ in range(ENTRIES):
            producer.send("orders", b"x")
        set_aside = eventually(lambda: mq.store.stats()["set_aside_queues"] == 1)
        probe.measure("set aside", seconds)
        (in_the_way / "file").unlink()
        in_the_way.rmdir()
        completed = eventually(lambda: mq.store.stats()["set_aside_queues"] == 0)
        probe.measure("completed", seconds)
        probe.close()
    return set_aside and completed


def main() -> int:
    """Measure in a directory of its own."""
    parser = argparse.ArgumentParser(description="measures deliveries beside a queue that cannot be written")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each part (default: 10)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        return 0 if run(Path(directory), options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
