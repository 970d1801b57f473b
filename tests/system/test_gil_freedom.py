"""Sends and receives go on while the serving process holds its interpreter lock."""

import functools
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass
class Calls:
    """When calls of one verb began and ended, on the clock both processes share."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    def time(self, call: Callable[[], T]) -> T:
        """Do *call* and note when it began and ended."""
        begin = time.monotonic()
        result = call()
        self.spans.append((begin, time.monotonic()))
        return result

    def inside(self, begin: float, end: float) -> int:
        """Count the calls that lie wholly between *begin* and *end*."""
        return sum(begin <= called and answered <= end for called, answered in self.spans)

    def longest(self, begin: float, end: float) -> float:
        """Return how long the slowest call took that was under way between *begin* and *end*."""
        return max(answered - called for called, answered in self.spans if answered >= begin and called <= end)


@pytest.mark.alone
def test_hot_verbs_need_no_interpreter_lock() -> None:
    """While the lock is held for two seconds 1,000 sends and receives complete, half of each, none over 500 ms."""
    sends, receives, acks = Calls(), Calls(), Calls()
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
                sends.time(lambda: producer.send("gil", b"x" * 1024))
                received = receives.time(lambda: consumer.receive(1, wait=timedelta(seconds=5)))
                assert len(received) == 1
                acks.time(functools.partial(consumer.ack, received))
        held = [float(moment) for moment in server.stdout.readline().split()]
        server.stdin.write("stop\n")
        server.stdin.flush()
    assert held[1] - held[0] >= 1.9
    assert max(calls.longest(*held) for calls in (sends, receives, acks)) < 0.5
    assert min(sends.inside(*held), receives.inside(*held)) >= 500
