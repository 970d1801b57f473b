"""
Measures how long a broker with many queues takes to be ready: after kill -9 and a clean stop, warm and cold.

    python benches/faults/many_queues.py --topics 10000

It stores one message in each queue, in files of the default sizes. Each start prints its seconds and the peak of the
process' memory. A cold page cache needs root. 10,000 topics of 8 queues take some minutes, and about 4 GiB of disk.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FREE = "127.0.0.1:0"
PATIENCE = 900.0
BROKER = [sys.executable, "-m", "ferromq", "broker", "--listen", FREE, "--grpc-listen", FREE, "--store"]

FILL = """
import os, signal, sys, time
from ferromq._ferromq import Clock, Store
store = Store(sys.argv[1], Clock.system())
for topic in range(int(sys.argv[2])):
    for queue in range(int(sys.argv[3])):
        store.append(f"topic-{topic:05}", queue, b"x" * 100)
while store.stats()["dispatched_offset"] < store.stats()["max_physical_offset"]:
    time.sleep(0.1)
store.close()
"""


def write_topics(store: Path, topics: int, queues: int) -> None:
    """Write the broker's table of topics."""
    config = {"perm": 6, "readQueueNums": queues, "writeQueueNums": queues, "topicFilterType": "SINGLE_TAG"}
    names = [f"topic-{number:05}" for number in range(topics)]
    table = {name: {"topicName": name, "topicSysFlag": 0, "order": False, **config} for name in names}
    version = {"counter": 1, "stateVersion": 0, "timestamp": 0}
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "topics.json").write_text(json.dumps({"dataVersion": version, "topicConfigTable": table}))


def drop_caches() -> bool:
    """Empty the page cache; return whether that was allowed."""
    os.sync()
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return True
    return False


def cached_mib() -> int:
    """Return the size of the page cache."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Cached:")) // 1024


def start(store: Path, what: str, signal_number: int) -> None:
    """Start the broker, say how long it took, and end it by a signal."""
    cached = cached_mib()
    begin = time.monotonic()
    with subprocess.Popen([*BROKER, str(store)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as broker:
        assert broker.stdout is not None
        try:
            is_ready = any(line.startswith(b"ready") for line in broker.stdout)
            seconds = time.monotonic() - begin
            status = Path(f"/proc/{broker.pid}/status").read_text().splitlines()
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) // 1024
            said = "ready" if is_ready else "NOT ready"
            print(
                f"{what}: {said} in {seconds:.1f} s, peak RSS {peak} MiB, cache +{cached_mib() - cached} MiB",
                flush=True,
            )
            time.sleep(3.0)
            begin = time.monotonic()
            broker.send_signal(signal_number)
            broker.wait(PATIENCE)
            print(f"  ended by {signal.Signals(signal_number).name} in {time.monotonic() - begin:.1f} s", flush=True)
        finally:
            broker.kill()


def main() -> None:
    """Fill a store, or take one that was filled, and start a broker on it four times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="a directory that is filled where it is not there, and kept")
    options = parser.parse_args()
    with contextlib.ExitStack() as temporary:
        store = (
            options.keep or Path(temporary.enter_context(tempfile.TemporaryDirectory(prefix="ferromq-many-"))) / "store"
        )
        if not store.exists():
            begin = time.monotonic()
            arguments = [str(store), str(options.topics), str(options.queues)]
            subprocess.run([sys.executable, "-c", FILL, *arguments], check=True)
            write_topics(store, options.topics, options.queues)
            print(f"filled {options.topics * options.queues} queues in {time.monotonic() - begin:.0f} s", flush=True)
        start(store, "clean stop, warm", signal.SIGKILL)
        start(store, "kill -9, warm", signal.SIGKILL)
        if not drop_caches():
            print("no cold starts: emptying the page cache needs root")
            return
        start(store, "kill -9, cold", signal.SIGTERM)
        drop_caches()
        start(store, "clean stop, cold", signal.SIGTERM)


if __name__ == "__main__":
    main()
