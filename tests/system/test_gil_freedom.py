"""Sends and receives go on while the serving process holds its interpreter lock."""

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import pytest

import ferromq

T = TypeVar("T")

SERVER = """
import ctypes, sys, time
import ferromq

sleep_holding_the_lock = ctypes.PyDLL(None).sleep  # PyDLL, unlike CDLL, keeps the interpreter lock
with ferromq.embedded() as mq:
    print(mq.endpoint, flush=True)
    sys.stdin.readline()
    begin = time.monotonic()
    sleep_holding_the_lock(2)
    print(begin, time.monotonic(), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.alone
def test_hot_verbs_need_no_interpreter_lock() -> None:
    """In two seconds of a held lock at least 1,000 sends and receives complete, none over 500 ms."""
    calls: list[tuple[float, float]] = []

    def timed(call: Callable[[], T]) -> T:
        begin = time.monotonic()
        result = call()
        calls.append((begin, time.monotonic()))
        return result

    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        with ferromq.Producer(endpoint) as producer, ferromq.Consumer(endpoint, "gil", "gil") as consumer:
            producer.send("gil", b"the topic exists before the lock is held")
            consumer.ack(consumer.receive(1, wait=timedelta(seconds=5)))
            server.stdin.write("hold\n")
            server.stdin.flush()
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                timed(lambda: producer.send("gil", b"x" * 1024))
                consumer.ack(timed(lambda: consumer.receive(1, wait=timedelta(seconds=5))))
        held_from, held_until = map(float, server.stdout.readline().split())
        server.stdin.write("stop\n")
        server.stdin.flush()
    inside = [end - begin for begin, end in calls if begin >= held_from and end <= held_until]
    overlapping = [end - begin for begin, end in calls if end >= held_from and begin <= held_until]
    assert held_until - held_from >= 1.9
    assert max(overlapping) < 0.5
    assert len(inside) >= 1000
