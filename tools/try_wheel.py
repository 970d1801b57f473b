"""
Install a wheel in a fresh virtual environment, and send and receive a message: `python tools/try_wheel.py WHEEL`.

Works outside the source tree, so that only what the wheel holds and requires can be imported.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PROGRAM = """
import ferromq
with ferromq.embedded() as mq:
    with mq.producer() as producer:
        producer.send("orders", b"hello")
    with mq.consumer("billing", "orders") as consumer:
        message = next(iter(consumer))
        assert message.body == b"hello", message
        message.ack()
"""


def main() -> int:
    """Try each wheel of the command line with the Python that runs this program."""
    for wheel in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as directory:
            venv.create(directory, with_pip=True)
            python = Path(directory, "bin", "python")
            for arguments in (
                ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel.resolve())],
                ["-c", PROGRAM],
                ["-m", "ferromq", "--version"],
            ):
                subprocess.run([python, *arguments], check=True, cwd=directory, timeout=300)
        sys.stdout.write(f"{wheel.name} works with Python {sys.version.split()[0]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
