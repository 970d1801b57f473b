"""How a session ends and goes on when its broker refuses it, without a broker."""

import threading
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc

from ferromq._proto import messages as pb
from ferromq.client.session import _Stream
from ferromq.errors import FerromqError, GroupNotFound

REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, "process client telemetryCommand failed. group not found: g")
LOST = (grpc.StatusCode.UNAVAILABLE, "Connection refused")


class Failed(grpc.RpcError):
    """An error of grpc with a code and details."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__()
        self.code = lambda: code
        self.details = lambda: details


class Attempts(threading.Event):
    """Notes, in place of each wait between two attempts, what a call would be told; then ends the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[FerromqError | None] = []
        self.stream: Any = None

    def wait(self, timeout: float | None = None) -> bool:
        """Look at the stream between two attempts."""
        known = self.stream.known
        self.told.append(known.exception() if known.done() else None)
        if len(self.told) == 3:
            self.set()
        return self.is_set()


def told_between(*failures: tuple[grpc.StatusCode, str]) -> list[FerromqError | None]:
    """Return what calls are told between attempts that fail; None: they wait for the next attempt."""
    left = list(failures)

    def begin(*_: Any, **__: Any) -> NoReturn:
        assert not attempts.stream.known.done(), "a call that comes now is told of the attempt before"
        raise Failed(*left.pop(0))

    identity = SimpleNamespace(metadata=lambda: ())
    channels: Any = SimpleNamespace(
        method=lambda *_: begin, check_threads=lambda _: None, identity=identity, streaming=set()
    )
    attempts = Attempts()
    attempts.stream = _Stream("127.0.0.1:1", channels, pb.Settings, lambda *_: True, attempts)
    attempts.stream._run()
    return attempts.told


def test_a_refusal_stands_until_the_next_attempt() -> None:
    """RocketMQ's proxy refuses a member of an unknown group: a call in the pause after it is told at once."""
    told = told_between(REFUSED, LOST, REFUSED)
    assert [type(each) for each in told] == [GroupNotFound, type(None), GroupNotFound]
    assert str(told[0]) == f"127.0.0.1:1 refused Telemetry: {REFUSED[1]}"


def test_after_a_lost_connection_a_call_waits_for_the_next_attempt() -> None:
    """The first call is told, those after it may succeed."""
    assert told_between(LOST, LOST, LOST) == [None] * 3
