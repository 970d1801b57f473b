"""
Stops many servers with one signal each, sent as soon as they report that they are ready.

    python benches/faults/sigterm.py --name-servers 1000 --brokers 300

It prints how many did not stop within 20 seconds, and ends with exit code 1 if there was one.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FREE = "127.0.0.1:0"
PATIENCE = 20.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def stops(arguments: list[str], number: int) -> tuple[bool, float]:
    """Start a server and stop it by one signal; return whether that worked, and how long it took."""
    environment = {**os.environ, "FERROMQ_LOG": "warn", "FERROMQ_BROKER_COMMIT_LOG_FILE_SIZE": "1MiB"}
    command = [sys.executable, "-m", "ferromq", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as server:
        assert server.stdout is not None
        try:
            if not any(line.startswith(b"ready") for line in server.stdout):
                return False, 0.0
            begin = time.monotonic()
            server.send_signal(number)
            return server.wait(PATIENCE) == 0, time.monotonic() - begin
        except subprocess.TimeoutExpired:
            return False, PATIENCE
        finally:
            server.kill()


def name_server(number: int) -> tuple[bool, float]:
    """Stop a name server; every second one as Ctrl-C does."""
    return stops(["namesrv", "--listen", FREE], SIGNALS[number % 2])


def broker(number: int) -> tuple[bool, float]:
    """Stop a broker on a new directory; every second one as Ctrl-C does."""
    with tempfile.TemporaryDirectory(prefix="ferromq-sigterm-") as directory:
        store = str(Path(directory) / "store")
        arguments = ["broker", "--listen", FREE, "--grpc-listen", FREE, "--store", store]
        return stops(arguments, SIGNALS[number % 2])


def main() -> int:
    """Run as many of each as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-servers", type=int, default=1000)
    parser.add_argument("--brokers", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    failed = 0
    for what, run, count in (("name servers", name_server, options.name_servers), ("brokers", broker, options.brokers)):
        with ThreadPoolExecutor(options.at_once) as pool:
            ended = list(pool.map(run, range(count)))
        failures = sum(not is_stopped for is_stopped, _ in ended)
        longest = max((seconds for _, seconds in ended), default=0.0)
        print(f"{what}: {failures} of {count} did not stop; the slowest took {longest:.2f} s", flush=True)
        failed += failures
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
