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


class Pauses(threading.Event):
    """Stands for the pauses between attempts: notes what calls find in each; ends the stream in the third."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[FerromqError | None, bool]] = []
        self.stream: Any = None

    def wait(self, timeout: float | None = None) -> bool:
        """Call in place of a pause: note what ended the attempt for its callers, and whether a call ends the pause."""
        known = self.stream.known
        told = known.exception() if known.done() else None
        assert not self.stream.promise().done(), "a call now waits for the next attempt"
        self.found.append((told, self.is_set()))
        if len(self.found) == 3:
            self.stream._ended.set()
        return True


def found_between(*failures: tuple[grpc.StatusCode, str]) -> list[tuple[FerromqError | None, bool]]:
    """Return what ended each of the attempts that fail, if it was a refusal, and whether a call ends the pause."""
    left = list(failures)

    def begin(*_: Any, **__: Any) -> NoReturn:
        assert not pauses.stream.known.done(), "a call that comes now is told of the attempt before"
        raise Failed(*left.pop(0))

    identity = SimpleNamespace(metadata=lambda: ())
    channels: Any = SimpleNamespace(start=begin, identity=identity, streaming=set())
    pauses = Pauses()
    stream = pauses.stream = _Stream("127.0.0.1:1", channels, pb.Settings, lambda *_: True, threading.Event())
    stream._again = pauses
    stream._run()
    return pauses.found


def test_a_call_after_a_refusal_begins_another_attempt_at_once() -> None:
    """RocketMQ's proxy refuses a member of an unknown group, which an administrator may have created since."""
    found = found_between(REFUSED, LOST, REFUSED)
    assert [(type(told), is_over) for told, is_over in found] == [
        (GroupNotFound, True),
        (type(None), False),
        (GroupNotFound, True),
    ]
    assert str(found[0][0]) == f"127.0.0.1:1 refused Telemetry: {REFUSED[1]}"


def test_after_a_lost_connection_a_call_waits_for_the_next_attempt() -> None:
    """The first call is told, those after it may succeed; they do not shorten the pause."""
    assert found_between(LOST, LOST, LOST) == [(None, False)] * 3
