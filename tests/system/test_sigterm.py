"""SIGTERM ends `run` in the main thread: handlers finish, the rest is given back, and the program goes on."""

import subprocess
import sys

import pytest

_COMMON = """
import asyncio, os, signal, sys
import ferromq
from ferromq import aio

def term():
    os.kill(os.getpid(), signal.SIGTERM)

with ferromq.embedded() as mq:
    with mq.producer() as producer:
        producer.send_all("orders", [b"%d" % number for number in range(20)])
    handled = []
    own = []
    OWN
    before = signal.getsignal(signal.SIGTERM)
    RUN
    assert signal.getsignal(signal.SIGTERM) is before
    assert len(handled) == 2, handled
    left = []
    with mq.consumer("billing", "orders") as other:
        while len(left) < 18:
            messages = other.receive(wait=20)
            assert messages
            left += messages
            other.ack(messages)
    assert {message.delivery_attempt for message in left} == {1}
    assert sorted(handled + [message.body for message in left]) == sorted(b"%d" % number for number in range(20))
print("ended", own)
"""
_AIO = """
    async def main():
        began = []
        async with aio.Consumer(mq.endpoint, "billing", "orders", prefetch=2) as consumer:
            async def handler(message):
                began.append(message)
                if len(began) == 2:
                    term()
                while len(began) < 2:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                handled.append(message.body)

            OWN_STOP
            await consumer.run(handler, concurrency=2)

    asyncio.run(main())
"""


def run(script: str) -> str:
    """Run a program and return what it printed."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(body: str, own: str) -> str:
    """Return a program that runs a consumer."""
    return _COMMON.replace("    OWN\n", own).replace("    RUN\n", body)


_SYNC_BODY = """
    import threading, time
    begun = threading.Barrier(2)

    def handler(message):
        if begun.wait(20) == 0:
            term()
        time.sleep(0.2)
        handled.append(message.body)

    with mq.consumer("billing", "orders", prefetch=2) as consumer:
        consumer.run(handler, concurrency=2)
"""
_OWN = """
    def on_term(*_):
        own.append("term")
        stop()

    signal.signal(signal.SIGTERM, on_term)
"""


@pytest.mark.parametrize("body", [_SYNC_BODY, _AIO.replace("            OWN_STOP\n", "")], ids=["sync", "aio"])
def test_run_ends_at_sigterm_and_restores_it(body: str) -> None:
    """Started messages are handled; the program decides how it ends."""
    assert run(program(body, "")) == "ended []\n"


@pytest.mark.parametrize(
    "body",
    [
        _SYNC_BODY.replace("        consumer.run", "        stop = consumer.stop\n        consumer.run"),
        _AIO.replace("            OWN_STOP\n", "            global stop\n            stop = consumer.stop\n"),
    ],
    ids=["sync", "aio"],
)
def test_a_handler_of_the_program_stays(body: str) -> None:
    """It is called, and `run` goes on until it is stopped."""
    assert run(program(body, _OWN)) == "ended ['term']\n"


def test_several_consumers_of_one_loop_end_together() -> None:
    """One signal ends them all; the last one to end restores it."""
    body = """
    async def main():
        async with aio.Consumer(mq.endpoint, "a", "orders") as one, aio.Consumer(mq.endpoint, "b", "orders") as two:
            began = []
            async def handler(message):
                began.append(message)
                if len(began) == 1:
                    await asyncio.sleep(0.2)
                    term()
            await asyncio.gather(one.run(handler), two.run(handler))

    asyncio.run(main())
    assert signal.getsignal(signal.SIGTERM) is before
    print("ended")
    sys.exit(0)
"""
    assert run(program(body, "")) == "ended\n"
