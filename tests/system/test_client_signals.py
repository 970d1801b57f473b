"""Programs whose handler of a signal stops their consumer: the first signal does it, whichever thread receives it."""

import subprocess
import sys

import pytest

# The main thread blocks the signal, so another thread receives it: no wait for a lock is interrupted then. That shows
# on every run what a signal shows now and then that comes just before the main thread begins to wait.
PROGRAM = """
import os, signal, threading, time, ferromq

with ferromq.embedded() as mq:
    with mq.admin() as admin:
        admin.create_topic("orders", 1)
    with mq.consumer("billing", "orders") as consumer:
        signal.signal(signal.SIGTERM, lambda *_: stop(consumer))
        def receive():
            while not mq.broker._server.stats()["parked"]:
                time.sleep(0.01)
            time.sleep(0.2)  # the main thread begins to wait, too
            os.kill(os.getpid(), signal.SIGTERM)
        threading.Thread(target=receive).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        {work}
print("stopped")
"""
RUN = """
        stop = lambda consumer: consumer.stop()
        consumer.run(lambda message: None)
"""
ITERATE = """
        def stop(consumer):
            raise KeyboardInterrupt
        try:
            for message in consumer:
                pass
        except KeyboardInterrupt:
            pass
"""


@pytest.mark.parametrize("work", [RUN, ITERATE], ids=["run", "iterate"])
def test_the_first_signal_is_noticed(work: str) -> None:
    """By `run` and by an iteration that wait for messages."""
    program = PROGRAM.replace("        {work}\n", work)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


FIRST = """
import os, signal, threading, ferromq

start = threading.Thread.start
def signalled(thread):
    start(thread)
    if thread.name.startswith("ferromq-handler"):
        os.kill(os.getpid(), signal.SIGTERM)
threading.Thread.start = signalled
with ferromq.embedded() as mq, mq.consumer("billing", "orders") as consumer:
    consumer.run(lambda message: None)
print("stopped")
"""


def test_a_signal_ends_a_run_whose_threads_have_just_started() -> None:
    """A handler may be at work already, whose message a death of the process would delay."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
