"""A stream whose driver and workers are killed with -9: an idempotent sink has every message once."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from dispatching import dispatched

import ferromq

CHILD = Path(__file__).parent / "stream_child.py"
Begin = Callable[[Any], Any]
ROUNDS = int(os.environ.get("FERROMQ_STREAM_KILLS", "0"))


def send(mq: ferromq.Embedded, numbers: range) -> None:
    """Send a message for each number, and return once Spark can read them."""
    with mq.producer() as producer:
        list(producer.send_all("orders", [ferromq.Message(b"%d" % number) for number in numbers]))
    dispatched(mq)


@contextmanager
def child(mq: ferromq.Embedded, directory: Path, *kill: str) -> Iterator[subprocess.Popen[str]]:
    """Run the driver in a process group of its own, which is killed at the end."""
    command = [sys.executable, str(CHILD), mq.endpoint, str(directory), *kill]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            yield process
        finally:
            _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    # Java is in a group of its own, and ends as soon as its driver does.
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def rest(session: Any, mq: ferromq.Embedded, begin: Begin, directory: Path) -> list[int]:
    """Read the rest in the tests' session, and return every number in the sink."""

    def write(frame: Any, number: int) -> None:
        frame.write.mode("overwrite").parquet(str(directory / "sink" / str(number)))

    options = {"endpoint": mq.endpoint, "topic": "orders"}
    frame = session.readStream.format("ferromq").options(**options).load()
    writer = frame.select("queue_id", "queue_offset", "body").writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    begin(writer.trigger(availableNow=True)).awaitTermination()
    files = [str(file) for file in (directory / "sink").glob("*/*.parquet")]
    return sorted(int(body) for body in ds.dataset(files).to_table()["body"].to_pylist())


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_killed_inside_and_after_a_batch_each_message_is_in_the_sink_once(
    session: Any, mq: ferromq.Embedded, begin: Begin, tmp_path: Path
) -> None:
    """A worker is killed in the middle of a partition, the driver before and after a batch is written."""
    send(mq, range(300))
    for batch, moment in [(3, "written"), (5, "inside")]:
        with child(mq, tmp_path, str(batch), moment) as process:
            assert process.wait() == -signal.SIGKILL
        assert (tmp_path / "sink" / str(batch)).exists() == (moment == "written")
        send(mq, range(300 + batch * 10, 305 + batch * 10))
    assert (tmp_path / "worker-died").exists()
    assert rest(session, mq, begin, tmp_path) == [*range(300), *range(330, 335), *range(350, 355)]


@pytest.mark.crash
@pytest.mark.skipif(not ROUNDS, reason="FERROMQ_STREAM_KILLS says how many rounds")
@pytest.mark.timeout(3600)
def test_killed_at_any_moment_each_message_is_in_the_sink_once(
    session: Any, mq: ferromq.Embedded, begin: Begin, tmp_path: Path
) -> None:
    """Messages arrive all the time, and the moment is random."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 (shown where the test fails)
    chance = random.Random(seed)
    sent = 0
    for _ in range(ROUNDS):
        with child(mq, tmp_path) as process:
            assert process.stdout is not None
            for _ in range(chance.randrange(1, 6)):
                send(mq, range(sent, sent + 200))
                sent += 200
                assert process.stdout.readline(), "the driver ended by itself"
            threading.Event().wait(chance.random() * 2)
    assert rest(session, mq, begin, tmp_path) == list(range(sent))
