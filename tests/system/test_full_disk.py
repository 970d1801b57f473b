"""A disk that another program fills: a broker is killed on it, starts, serves, refuses sends, and stops."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import ferromq

TOPICS = [f"topic-{number}" for number in range(8)]
OPTIONS = ["--set", "disk_reserve=4194304", "--set", "commit_log_file_size=33554432", "--set", "check_types=none"]
SMALL_INDEX = ["--set", "index_slots=100000", "--set", "index_entries=400000"]
GROUPS = ["first", "second"]
"""They exist before the disk is full: a new group would have to be written."""
FREE = "127.0.0.1:0"


@contextlib.contextmanager
def mounted(tmp_path: Path, kind: str) -> Iterator[Path]:
    """Mount a small file system; skip the test where that is not possible."""
    mount = tmp_path / "small"
    mount.mkdir()
    if kind == "tmpfs":
        commands = [["mount", "-t", "tmpfs", "-o", "size=150m", "tmpfs", str(mount)]]
    else:
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(150 << 20)
        make = ["mkfs.ext4", "-q", "-m", "0", str(image)]
        commands = [make, ["mount", "-o", "loop", str(image), str(mount)]]
    for command in commands:
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip(f"no {command[0]} here")
        if done.returncode != 0:
            pytest.skip(f"cannot mount a small {kind} here: {done.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)


@contextlib.contextmanager
def broker(store: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a broker; give its process and its endpoint."""
    command = [sys.executable, "-m", "ferromq", "broker", "--listen", FREE, "--grpc-listen", FREE]
    command += ["--store", str(store), *OPTIONS, *SMALL_INDEX]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            endpoint = ""
            for line in process.stdout:
                if line.startswith("gRPC"):
                    endpoint = line.split()[1]
                if line.startswith("ready"):
                    break
            else:
                assert process.stderr is not None
                pytest.fail(f"not started, exit code {process.wait()}: {process.stderr.read()[-600:]}")
            yield process, endpoint
        finally:
            process.kill()


def fill(ballast: Path) -> None:
    """Take the last byte of a file system."""
    with ballast.open("wb", buffering=0) as file:
        for piece in (64 << 10, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"b" * piece)


def received(endpoint: str, group: str, topic: str, count: int) -> set[str]:
    """Receive *count* messages of a topic, or as many as come, and return their ids."""
    with ferromq.Consumer(endpoint, group, topic) as consumer:
        found: set[str] = set()
        while len(found) < count and (batch := consumer.receive(32, wait=timedelta(seconds=5))):
            found |= {message.message_id for message in batch}
            consumer.ack(batch)
        return found


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_broker_starts_serves_and_stops_on_a_full_disk(tmp_path: Path, kind: str) -> None:
    """After a kill and after a stop; SIGTERM ends it with exit code 0, and nothing that was acknowledged is missing."""
    with mounted(tmp_path, kind) as mount:
        store, ballast = mount / "store", mount / "ballast"
        with broker(store) as (process, endpoint), ferromq.Producer(endpoint, attempts=1) as producer:
            sent = {topic: [producer.send(topic, b"x" * 5000) for _ in range(20)] for topic in TOPICS}
            later = datetime.now(UTC) + timedelta(minutes=10)
            producer.send("delayed", b"waits", delivery_timestamp=later)
            for group, topic in zip(GROUPS, TOPICS, strict=False):
                with ferromq.Consumer(endpoint, group, topic) as consumer:
                    consumer.receive(1, wait=timedelta(0))
            fill(ballast)
            for topic in TOPICS:
                with contextlib.suppress(ferromq.FerromqError):
                    sent[topic].append(producer.send(topic, b"x" * 5000))
            process.send_signal(signal.SIGKILL)
            process.wait()
        for group, topic in zip(GROUPS, TOPICS, strict=False):
            with broker(store) as (process, endpoint):
                assert len(received(endpoint, group, topic, 19)) >= 19
                with ferromq.Producer(endpoint, attempts=1) as producer, pytest.raises(ferromq.StoreFull):
                    producer.send(TOPICS[0], b"no room")
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0
        ballast.unlink()
        with broker(store) as (process, endpoint):
            for topic in TOPICS[:4]:
                ids = {receipt.message_id for receipt in sent[topic]}
                assert received(endpoint, "after", topic, len(ids)) >= ids
            with ferromq.Producer(endpoint) as producer:
                producer.send(TOPICS[0], b"space is back")
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
