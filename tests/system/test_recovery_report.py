"""How a broker reports an unclosed or damaged store: in its log, and to administrators."""

import logging
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import ferromq
from ferromq._ferromq import RecoveryProgress
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.embedding import SMALL_FILES

FREE = "127.0.0.1:0"

KILLED = """
import sys, ferromq
with ferromq.embedded(sys.argv[1], flush="group", default_queues=1) as mq, mq.producer() as producer:
    for number in range(100):
        producer.send("orders", b"%d" % number, keys="k")
    print("sent", flush=True)
    sys.stdin.readline()
"""


def kill(directory: Path) -> None:
    """Let a process send 100 messages, and kill it."""
    command = [sys.executable, "-c", KILLED, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        process.send_signal(signal.SIGKILL)


def test_a_recovery_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the walked and cut ranges; after a clean stop nothing is reported."""
    kill(tmp_path)
    for is_clean in (False, True):
        caplog.clear()
        with ferromq.embedded(tmp_path) as mq:
            assert mq.store.recovery()["is_clean"] is is_clean
            assert mq.store.damages() == []
            assert mq.store.max_offset("orders", 0) == 100
        warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert [text.startswith("store was not closed, recovered walked_bytes=") for text in warned] == (
            [] if is_clean else [True]
        )


def test_a_recovery_can_be_watched(tmp_path: Path) -> None:
    """By another thread than the one that opens the store: at its end all bytes of the walk are done."""
    kill(tmp_path)
    recovery = RecoveryProgress()
    assert recovery.bytes() == (0, 0)
    options = BrokerConfig.load(flags={"store": str(tmp_path), "listen": FREE, "grpc_listen": FREE, **SMALL_FILES})
    with closing(BrokerController(options, recovery=recovery)) as broker:
        walked = broker.store.recovery()["walked_bytes"]
    done, total = recovery.bytes()
    assert 0 < done == walked <= total


def test_damage_in_the_middle_is_named_and_never_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Other messages of the queue are served; `damages` and the log of every start name the range."""
    with ferromq.embedded(tmp_path, default_queues=1) as mq, mq.producer() as producer:
        for number in range(100):
            producer.send("orders", b"%d" % number)
    log = tmp_path / "commitlog" / ("0" * 20)
    # The length of the body stands before it.
    at = log.read_bytes().index(b"\0\0\0\x0250") + 4
    with log.open("r+b") as file:
        file.seek(at)
        file.write(b"XX")
    with ferromq.embedded(tmp_path) as mq:
        with mq.consumer("billing", "orders") as consumer:
            served: list[bytes] = []
            while len(served) < 99:
                batch = consumer.receive(64, wait=20)
                assert batch
                served += (message.body for message in batch)
                consumer.ack(batch)
            assert consumer.receive(wait=0) == []
        assert served == [b"%d" % number for number in range(100) if number != 50]
        ((path, begin, end, _reason),) = mq.store.damages()
        assert (path, begin <= at < end) == (log, True)
    with ferromq.embedded(tmp_path) as mq:
        assert [damage[:3] for damage in mq.store.damages()] == [(log, begin, end)]
    (error,) = (
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.ERROR and record.name == "ferromq.broker"
    )
    assert f"file={log} begin={begin} end={end}" in error


def test_failed_puts_and_missed_gets_are_counted(tmp_path: Path) -> None:
    """By reason and by status."""
    with ferromq.embedded(tmp_path, default_queues=1) as mq:
        with pytest.raises(ferromq.MessageTooLarge):
            mq.store.append("orders", 0, bytes((4 << 20) + 1))
        assert mq.store.get("nowhere", 0, 0)[0] == "NO_MATCHED_LOGIC_QUEUE"
        stats = mq.store.stats()
    assert stats["failed_puts_too_large"] == 1
    assert stats["missed_gets_no_matched_logic_queue"] == 1
