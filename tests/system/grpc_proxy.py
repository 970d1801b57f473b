"""
A gRPC proxy in front of a broker, for tests of clients whose answers are late or lost.

It carries bytes and names itself in routes, so that clients send everything through it. Calls of a method can hang
until they are released, and their answers can be lost after the broker has done its work. With another proxy beside it
clients see a topic on two brokers.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import grpc

from ferromq._proto import messages as pb
from ferromq.core.routes import endpoints_message

_STREAMS = {"ReceiveMessage", "PullMessage"}
_PATIENCE = 30.0


class GrpcProxy(grpc.GenericRpcHandler):
    """One proxy; `endpoint` is its own address."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target)
        self._lock = threading.Lock()
        self._released = threading.Event()
        self._released.set()
        self._hung: set[str] | None = set()
        self._lost: dict[str, int] = {}
        self._beside: GrpcProxy | None = None
        self._talks: list[Any] = []
        self.calls: dict[str, int] = {}
        """How often each method was called."""
        self._answered: dict[str, threading.Semaphore] = {}
        self.hanging = threading.Semaphore(0)
        """Released for each call that begins to hang."""
        self.hung = 0
        """How many calls hang now: a cancellation arrives a moment later."""
        self._server = grpc.server(ThreadPoolExecutor(64), handlers=[self])
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def hang(self, *methods: str) -> None:
        """Let calls of these methods hang, of all methods if none is named, until `release`."""
        self._hung = set(methods) or None
        self._released.clear()

    def release(self) -> None:
        """Release the hanging calls."""
        self._hung = set()
        self._released.set()

    def drop_streams(self) -> None:
        """End the open telemetry streams."""
        for call in self._talks:
            call.cancel()

    def lose(self, method: str, count: int = 1) -> None:
        """Lose the answers to the next *count* calls of a method."""
        self._lost[method] = count

    def wait_for(self, method: str, count: int = 1) -> None:
        """Wait until the broker has answered as many calls of a method since those waited for before."""
        with self._lock:
            answered = self._answered.setdefault(method, threading.Semaphore(0))
        for _ in range(count):
            assert answered.acquire(timeout=_PATIENCE)

    def put_beside(self, other: "GrpcProxy") -> None:
        """Show the queues of the broker behind *other*, too."""
        self._beside = other

    def _route(self, path: str, request: bytes, context: Any) -> list[Any]:
        answer = self._passed(context, self._channel.unary_unary(path), request)
        queues = list(pb.QueryRouteResponse.FromString(answer).message_queues)
        for queue in queues:
            queue.broker.endpoints.CopyFrom(endpoints_message([self.endpoint]))
        return queues

    def service(self, handler_call_details: Any) -> Any:
        """Serve any method."""
        path = handler_call_details.method
        method = path.rpartition("/")[2]
        with self._lock:
            self.calls[method] = self.calls.get(method, 0) + 1
        if method == "Telemetry":
            return grpc.stream_stream_rpc_method_handler(lambda requests, context: self._talk(path, requests, context))
        if method in _STREAMS:
            return grpc.unary_stream_rpc_method_handler(lambda request, context: self._stream(path, request, context))
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._call(path, request, context))

    def _wait(self, method: str, context: Any) -> None:
        if self._hung is None or method in self._hung:
            with self._lock:
                self.hung += 1
            self.hanging.release()
            while not self._released.wait(0.05) and context.is_active():
                pass
            with self._lock:
                self.hung -= 1

    def _call(self, path: str, request: bytes, context: Any) -> bytes:
        method = path.rpartition("/")[2]
        self._wait(method, context)
        if not context.is_active():
            return b""  # cancelled while it hung: the broker never gets it
        answer: bytes = self._passed(context, self._channel.unary_unary(path), request)
        with self._lock:
            lost = self._lost.get(method, 0)
            self._lost[method] = max(0, lost - 1)
            answered = self._answered.setdefault(method, threading.Semaphore(0))
        context.add_callback(answered.release)
        if lost:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        if method != "QueryRoute":
            return answer
        route = pb.QueryRouteResponse.FromString(answer)
        del route.message_queues[:]
        for proxy in (self, self._beside):
            route.message_queues.extend(proxy._route(path, request, context) if proxy else ())
        return bytes(route.SerializeToString())

    def _passed(self, context: Any, call: Any, request: bytes) -> Any:
        try:
            return call(request, _PATIENCE, context.invocation_metadata())
        except grpc.RpcError as error:
            failed: Any = error
            context.abort(failed.code(), failed.details())

    def _stream(self, path: str, request: bytes, context: Any) -> Iterator[bytes]:
        method = path.rpartition("/")[2]
        self._wait(method, context)
        if not context.is_active():
            return
        call = self._channel.unary_stream(path)(request, _PATIENCE, context.invocation_metadata())
        context.add_callback(call.cancel)
        try:
            context.send_initial_metadata(call.initial_metadata())
            yield from call
        except grpc.RpcError as error:
            failed: Any = error
            context.abort(failed.code(), failed.details())

    def _talk(self, path: str, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self._wait("Telemetry", context)
        call = self._channel.stream_stream(path)(requests, metadata=context.invocation_metadata())
        self._talks.append(call)
        context.add_callback(call.cancel)
        try:
            yield from call
        except grpc.RpcError as error:
            failed: Any = error
            context.abort(failed.code(), failed.details())

    def close(self) -> None:
        """Stop."""
        self.release()
        self._server.stop(0).wait()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
