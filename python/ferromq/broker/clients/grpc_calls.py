"""
Calls to gRPC clients: commands on a telemetry stream, matched with their answers by nonce.

`client_calls` decides which client to call.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count

from ferromq._proto import messages as pb
from ferromq.errors import ConnectionFailed, RequestTimeout


class GrpcCalls:
    """
    Calls gRPC clients, and waits for their answers; thread-safe.

    *send* writes an encoded command to a stream, and returns whether it could.
    """

    def __init__(self, send: Callable[[int, bytes], bool]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._nonces = count(1)
        self._open: dict[str, tuple[int, Future[pb.TelemetryCommand]]] = {}

    def print_threads(self, stream: int, timeout: float) -> pb.TelemetryCommand:
        """Ask a client for the stacks of its threads. Raises `ConnectionFailed` or `RequestTimeout`."""

        def command(nonce: str) -> pb.TelemetryCommand:
            return pb.TelemetryCommand(print_thread_stack_trace_command=pb.PrintThreadStackTraceCommand(nonce=nonce))

        return self._call(stream, command, timeout)

    def verify(self, stream: int, message: pb.Message, timeout: float) -> pb.TelemetryCommand:
        """Make a client consume a message. Raises `ConnectionFailed` or `RequestTimeout`."""

        def command(nonce: str) -> pb.TelemetryCommand:
            return pb.TelemetryCommand(verify_message_command=pb.VerifyMessageCommand(nonce=nonce, message=message))

        return self._call(stream, command, timeout)

    def complete(self, stream: int, nonce: str, answer: pb.TelemetryCommand) -> bool:
        """Complete a call with its answer; returns whether this client was called and the call still waits."""
        with self._lock:
            called, waiting = self._open.get(nonce, (None, None))
            if waiting is None or called != stream:
                return False
            del self._open[nonce]
        waiting.set_result(answer)
        return True

    def fail_stream(self, stream: int) -> None:
        """Fail the calls that wait for an answer on an ended stream."""
        with self._lock:
            lost = [(nonce, waiting) for nonce, (called, waiting) in self._open.items() if called == stream]
            for nonce, _ in lost:
                del self._open[nonce]
        for _, waiting in lost:
            waiting.set_exception(ConnectionFailed("the client ended its telemetry stream before it answered"))

    def _call(self, stream: int, command: Callable[[str], pb.TelemetryCommand], timeout: float) -> pb.TelemetryCommand:
        waiting: Future[pb.TelemetryCommand] = Future()
        nonce = str(next(self._nonces))
        with self._lock:
            self._open[nonce] = stream, waiting
        try:
            if not self._send(stream, command(nonce).SerializeToString()):
                raise ConnectionFailed("the client's telemetry stream is closed, or it does not read")
            return waiting.result(timeout)
        except TimeoutError as error:
            raise RequestTimeout(f"the client did not answer within {timeout:g} s") from error
        finally:
            with self._lock:
                self._open.pop(nonce, None)
