"""
Shows the effect of wall clock steps on a broker, by libfaketime (Debian: `apt install faketime`).

    python benches/faults/clock_steps.py

A broker and its clients see the same wall clock; their monotonic clocks are real. Ten years ahead for ten seconds
change nothing. Eight hours ahead are followed, so that a message due in five seconds arrives. Eight hours back stop
nothing. The exit code is 1 otherwise.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
HOUR = 3600
YEARS = 3650 * 24 * HOUR

CLIENT = """
import datetime, sys, time
import ferromq
group, topic = sys.argv[2], sys.argv[2]
with ferromq.Producer(sys.argv[1]) as producer, ferromq.Consumer(sys.argv[1], group, topic) as consumer:
    due = time.time() + 5
    producer.send(topic, b"x", delivery_timestamp=datetime.datetime.fromtimestamp(due, datetime.UTC))
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for message in consumer.receive(1, wait=datetime.timedelta(seconds=2)):
            message.ack()
            print(f"{time.time() - due:.2f} {message.store_timestamp / 1000 - time.time():.2f}")
            sys.exit()
print("never never")
"""


def environment(rc: Path) -> dict[str, str]:
    """Return the environment of a process whose wall clock follows the file *rc*."""
    fake = {"LD_PRELOAD": str(LIBRARIES[0]), "FAKETIME_TIMESTAMP_FILE": str(rc), "FAKETIME_NO_CACHE": "1"}
    return {**os.environ, **fake, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@contextlib.contextmanager
def broker(store: Path, rc: Path) -> Iterator[str]:
    """Start a broker and give its endpoint."""
    command = [sys.executable, "-m", "ferromq", "broker", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"]
    command += ["--store", str(store), "--set", "check_types=none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(rc)) as process:
        try:
            assert process.stdout is not None
            endpoint = ""
            for line in process.stdout:
                if line.startswith("gRPC"):
                    endpoint = line.split()[1]
                if line.startswith("ready"):
                    break
            yield endpoint
            process.send_signal(signal.SIGTERM)
        finally:
            process.wait(20)


def main() -> int:
    """Step the clock and let a client send a message for five seconds later after each step."""
    if not LIBRARIES:
        print("libfaketime is not there: apt install faketime")
        return 0
    is_good = True
    with tempfile.TemporaryDirectory(prefix="clock-steps-") as directory:
        rc = Path(directory) / "rc"

        def step(seconds: int) -> None:
            rc.write_text(f"+{seconds}s\n")
            time.sleep(2.0)

        def check(what: str, number: int) -> bool:
            command = [sys.executable, "-c", CLIENT, endpoint, f"steps-{number}"]
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment(rc)).stdout
            late, ahead = said.split()
            print(f"{what}: a message due in 5 s came {late} s late, its store time is {ahead} s ahead", flush=True)
            return late != "never" and -1.0 < float(late) < 3.0

        step(0)
        with broker(Path(directory) / "store", rc) as endpoint:
            is_good &= check("at the start", 0)
            step(YEARS)
            time.sleep(8.0)
            step(0)
            is_good &= check("after ten years ahead for ten seconds", 1)
            step(8 * HOUR)
            is_good &= check("eight hours ahead", 2)
            step(0)
            check("taken back, so that time stays eight hours ahead", 3)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
