"""Bad input gets a clear, typed error, and the broker goes on."""

import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import ferromq


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ferromq.Embedded]:
    """Start an embedded broker for one test."""
    with ferromq.embedded(tmp_path) as embedded:
        yield embedded


def assert_goes_on(mq: ferromq.Embedded) -> None:
    """Send and receive one message, as before the bad input."""
    with mq.producer() as producer:
        receipt = producer.send("goes-on", b"still here")
    with mq.consumer("after", "goes-on") as consumer:
        received = consumer.receive(1, wait=timedelta(seconds=5))
        consumer.ack(received)
    assert [message.message_id for message in received] == [receipt.message_id]


def test_a_body_over_the_limit_is_named_with_the_limit(mq: ferromq.Embedded) -> None:
    """A body of 4 MiB and one byte is refused with size and limit; 4 MiB pass."""
    with mq.producer() as producer:
        with pytest.raises(ferromq.MessageTooLarge, match="4194304"):
            producer.send("orders", b"x" * (4 * 1024 * 1024 + 1))
        producer.send("orders", b"x" * (4 * 1024 * 1024))
    assert_goes_on(mq)


@pytest.mark.parametrize("topic", ["with space", "ümlaut", "a" * 128, "slash/y", ""])
def test_an_illegal_topic_name_is_refused(mq: ferromq.Embedded, topic: str) -> None:
    """The error names the topic; nothing is created."""
    with mq.producer() as producer, pytest.raises(ferromq.IllegalName):
        producer.send(topic, b"hello")
    assert topic not in mq.admin().topics()
    assert_goes_on(mq)


def test_an_unknown_topic_with_auto_creation_off_is_refused(tmp_path: Path) -> None:
    """Off means off: the error names the topic and the way out, and the topic is not made."""
    with ferromq.embedded(tmp_path, auto_create_topics=False) as mq:
        mq.admin().create_topic("goes-on")
        with mq.producer() as producer, pytest.raises(ferromq.TopicNotFound, match="nowhere"):
            producer.send("nowhere", b"hello")
        assert "nowhere" not in mq.admin().topics()
        assert_goes_on(mq)


@pytest.mark.parametrize(
    "frame",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", 0),
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">ii", 8, 0x00FFFFFF) + b"half",
        struct.pack(">ii", 10, 6) + b"{nope}",
        random.Random(7).randbytes(512),
    ],
    ids=["http", "zero", "negative", "huge", "header-past-end", "no-json", "random"],
)
def test_a_corrupt_frame_ends_only_its_own_connection(mq: ferromq.Embedded, frame: bytes) -> None:
    """On remoting and gRPC ports; other connections notice nothing."""
    for address in (mq.namesrv, mq.remoting, mq.endpoint):
        host, port = address.rsplit(":", 1)
        # The server may answer before it closes, or close with our bytes unread, which is a reset: OSError.
        with socket.create_connection((host, int(port)), timeout=5) as connection, contextlib.suppress(OSError):
            connection.sendall(frame)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    assert_goes_on(mq)


def test_a_second_process_on_the_same_store_is_refused(mq: ferromq.Embedded, tmp_path: Path) -> None:
    """The error says which directory is open elsewhere."""
    code = (
        f"import ferromq\ntry:\n    ferromq.embedded({str(tmp_path)!r})\nexcept ferromq.StoreLocked as e:\n    print(e)"
    )
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert str(tmp_path) in second.stdout
    with pytest.raises(ferromq.StoreLocked):
        ferromq.embedded(tmp_path)
    assert_goes_on(mq)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
@pytest.mark.parametrize("flush", ["interval", "group"])
def test_a_full_disk_is_an_error_until_there_is_space(tmp_path: Path, flush: str) -> None:
    """StoreFull has the numbers, acknowledged sends stay, and sends pass again once space is free."""
    mount = tmp_path / "small"
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(mount)], check=False, capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        ballast = mount / "ballast"
        ballast.write_bytes(b"b" * (16 << 20))
        with ferromq.embedded(mount / "store", flush=flush, commit_log_file_size=4 << 20, disk_reserve=4 << 20) as mq:
            sent: list[ferromq.SendReceipt] = []
            with mq.producer(attempts=1) as producer:
                with pytest.raises(ferromq.StoreFull, match=r"free"):
                    sent.extend(producer.send("full", os.urandom(100_000)) for _ in range(1000))
                ballast.unlink()
                sent.append(producer.send("full", b"space is back"))
            with mq.consumer("full", "full") as consumer:
                received = []
                while batch := consumer.receive(32, wait=timedelta(seconds=1)):
                    received += batch
                    consumer.ack(batch)
        assert {m.message_id for m in received} >= {r.message_id for r in sent}
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)
