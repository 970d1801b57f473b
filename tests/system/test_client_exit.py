"""A program that ends without closing its clients: they end in their time, with and without a broker."""

import logging
import subprocess
import sys

import pytest

from ferromq.client.client import Client, Options

PATIENCE = 50
CODE = """
import atexit, logging, sys, threading, ferromq
from ferromq.client import client

logging.basicConfig()
if sys.argv[1] == "down":
    client._AT_EXIT = 0.5
mq = ferromq.embedded()
producer, consumer = ferromq.Producer(mq.endpoint, timeout=5), ferromq.Consumer(mq.endpoint, "g", "t")
producer.send_all("t", [b"a"] * 3)
messages = []
for message in consumer:
    messages.append(message)
    if len(messages) == 3:
        break
if sys.argv[1] == "down":
    mq.close()
    messages[0].ack()
producer.submit("t", b"late")

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

# As the interpreter does from Python 3.12 on.
atexit.register(setattr, threading.Thread, "start", refuse)
atexit.register(lambda: print("ends", flush=True))
"""


@pytest.mark.parametrize("broker", ["up", "down"])
def test_a_program_ends_in_its_time_where_no_thread_starts_any_more(broker: str) -> None:
    """Clients unregister on the existing threads; the interpreter shows no error."""
    run = subprocess.run(
        [sys.executable, "-c", CODE, broker], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (run.returncode, run.stdout) == (0, "ends\n"), run.stderr
    assert "RuntimeError" not in run.stderr
    assert ("submitted messages were not sent" in run.stderr) == (broker == "down")


REFUSED = """
import sys, threading, grpc, ferromq
from ferromq.client.connection import Channels

start, refused, beside = threading.Thread.start, [], []

def refuse(thread):
    if "_run_with_context" in repr(thread._target) and not refused:
        refused.append(thread)
        for other in beside:
            start(other)
            other.join(0.5)
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = refuse
if sys.argv[1] == "http2":
    Channels.is_framed = lambda _channels, _step: False
mq = ferromq.embedded()
producer = ferromq.Producer(mq.endpoint, timeout=20)
producer.send("t", b"a")
assert refused
if sys.argv[1] == "http2":
    producer.send_all("t", [b"b", b"c"])
    consumer = ferromq.Consumer(mq.endpoint, "g", "t", timeout=20)
    beside.append(threading.Thread(target=consumer.receive, args=(1,)))
    refused.clear()
    consumer.receive(1)
    assert refused
    beside[0].join()
print("ends", flush=True)
"""


@pytest.mark.parametrize("way", ["frames", "http2"])
def test_a_call_whose_thread_cannot_be_started_is_repeated_and_holds_no_exit(way: str) -> None:
    """As at the limit of a container's processes, or while the interpreter ends: grpcio waits for the call for ever."""
    run = subprocess.run(
        [sys.executable, "-c", REFUSED, way], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (run.returncode, run.stdout) == (0, "ends\n"), run.stderr


def test_a_failing_finisher_at_exit_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The error is in the log; the other finishers run, and the client is closed."""

    class Work:
        ended = False

        def fail(self, _until: float) -> None:
            raise RuntimeError("can't create new thread")

        def end(self, _until: float) -> None:
            self.ended = True

    work, client = Work(), Client("producer", Options("127.0.0.1:1", 1, 1))
    client.before_exit(work.fail)
    client.before_exit(work.end)
    with caplog.at_level(logging.ERROR):
        client._close_at_exit()
    assert work.ended
    assert client.is_closed
    assert ["can't create new thread" in (record.exc_text or "") for record in caplog.records] == [True]
