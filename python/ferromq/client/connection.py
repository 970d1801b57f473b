"""
Channels of grpcio that carry bytes, and what ends a plan early; `runner` runs plans over them.

What is sent, and what an answer means, is decided by plans; who makes the client known is `session`.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

import grpc

from ferromq import _ferromq
from ferromq.client.tls import Credentials
from ferromq.core.payloads import ZLIB
from ferromq.core.requests import (
    ACK_RECORDS,
    COMPRESSION,
    FRAMED,
    PACKED,
    SERVICE,
    Call,
    Identity,
    Metadata,
    Packets,
    Stream,
    grpc_code,
    seconds,
    transport_error,
)
from ferromq.errors import ClientClosed, ConnectionFailed, FerromqError

Answer = TypeVar("Answer")

_MESSAGE_LIMIT = 130 * 1024 * 1024
PROBE = 1.0
"""Seconds that a broker has to answer its first frame; else it is called over HTTP/2."""
REOPEN = 1.0
"""Seconds between attempts to connect to a broker again that takes framed calls."""
LOOK_UP = 0.5
"""Seconds after which a wait of a user's thread looks up: the main thread runs handlers of signals then."""
OPTIONS = (
    ("grpc.max_send_message_length", _MESSAGE_LIMIT),
    ("grpc.max_receive_message_length", _MESSAGE_LIMIT),
    # An `http_proxy` of the environment is meant for the web; it would be asked even for loopback.
    ("grpc.enable_http_proxy", 0),
    # Plans retry, with other brokers, too.
    ("grpc.enable_retries", 0),
    # A connection of its own for each client, so that closing one ends what it has under way.
    ("grpc.use_local_subchannel_pool", 1),
    # A broker that restarts is found again within a second, not within two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Also how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5000),
    # A connection that dies without a word is noticed while calls wait on it.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.write_buffer_size", 1 << 20),
)


def target(endpoint: str) -> str:
    """Return an endpoint as grpc wants it: literal addresses bypass the resolver."""
    host = endpoint.rpartition(":")[0]
    if host.startswith("["):
        return f"ipv6:{endpoint}"
    return f"ipv4:{endpoint}" if host.replace(".", "").isdecimal() else f"dns:///{endpoint}"


def open_channel(module: Any, endpoint: str, tls: Credentials | None) -> Any:
    """Make a channel of `grpc` or `grpc.aio`; it connects when it is first used."""
    if tls is None:
        return module.insecure_channel(target(endpoint), OPTIONS)
    return module.secure_channel(target(endpoint), tls.channel, (*OPTIONS, *tls.options))


def failure(error: Any, endpoint: str, method: str, timeout: float) -> FerromqError:
    """Return our exception for one of grpc, synchronous or not."""
    return transport_error(error.code().name, error.details(), endpoint, method, timeout)


_LONGEST_CLOSE = 1.0
"""Seconds; closing a channel takes some milliseconds."""


def is_ending() -> bool:
    """Say whether the interpreter ends: from Python 3.12 on it starts no more threads then, and forks no more."""
    return not threading.main_thread().is_alive()


def close_all(channels: "Iterable[grpc.Channel]") -> None:
    """
    Close channels, and wait a while for their end.

    A call that Ctrl-C interrupted inside grpcio never ends for it, and its channel waits for that.
    """
    closing: list[threading.Thread] = []
    for channel in channels:
        thread = threading.Thread(target=channel.close, name="ferromq-close", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread starts any more
            channel.close()
        else:
            closing.append(thread)
    until = time.monotonic() + _LONGEST_CLOSE
    for thread in closing:
        thread.join(remaining(until))


def check_known(step: Call | Stream) -> None:
    """Raise `ConnectionFailed` for a method that goes in frames alone: the connection for them was lost."""
    if step.method == ACK_RECORDS:
        raise ConnectionFailed(f"the connection to broker {step.endpoint} was lost ({step.method})")


def has_packed(metadata: Any) -> bool:
    """Say whether the server confirmed packed streams."""
    return any(key == PACKED for key, _ in metadata or ())


class Use:
    """Which endpoints calls may still be under way to, and which are needed no more; thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}
        self.is_needed: Callable[[str], bool] = lambda _endpoint: True
        """Says whether an endpoint is in a route, or has a session."""

    def begin(self, endpoint: str, timeout: float) -> None:
        """Note a call that lasts *timeout* seconds at most, before its channel is looked up."""
        with self._lock:
            self._until[endpoint] = max(self._until.get(endpoint, 0.0), self._now() + timeout)

    def idle(self, endpoints: Iterable[str], take: Callable[[str], object] = bool) -> list[str]:
        """
        Return those of *endpoints* that are needed no more, and to which no call is under way.

        *take* is called with each, and takes its channel away before another call begins.
        """
        with self._lock:
            now = self._now()
            idle = [each for each in endpoints if self._until.get(each, 0.0) < now and not self.is_needed(each)]
            for each in idle:
                self._until.pop(each, None)
                take(each)
        return idle


class Channels:
    """One channel an endpoint, made when first needed; thread-safe."""

    def __init__(self, identity: Identity, tls: Credentials | None) -> None:
        self.identity = identity
        self._tls = tls
        self._framed_tls = None if tls is None else tls.frames
        self._lock = threading.Lock()
        self._starting = threading.RLock()
        """Held while a call begins: no other thread begins one on a channel that must be given up."""
        self._channels: dict[str, Any] = {}
        self._methods: dict[tuple[str, str], Any] = {}
        self._closed = False
        self.use = Use()
        self.framed: dict[str, set[str]] = {}
        """The brokers that take framed calls, with what they announced."""
        self.compressions: dict[str, set[str]] = {}
        """The compressions of bodies that brokers announced, beside zlib."""
        self.sends: _ferromq.Sends | None = None
        """Sends single messages to them."""
        self.here: dict[str, _ferromq.Server] = {}
        """Brokers of this process, by endpoint: their framed calls need no connection."""
        self._frames: _ferromq.FramedCalls | None = None
        self._arrivals: _ferromq.Arrivals | None = None
        self._reopening = False
        self._reopened = 0.0
        self.streaming: set[str] = set()
        """To which the session's stream is open: the thread of grpcio that serves it serves other calls, too."""

    @property
    def frames(self) -> _ferromq.FramedCalls | None:
        """What calls brokers that take framed calls; None: there are none."""
        return self._frames

    @property
    def is_begun(self) -> bool:
        """Says whether any channel was made."""
        return bool(self._channels)

    def method(self, endpoint: str, method: str, kind: str = "unary_unary") -> Any:
        """Return the callable of a method; it takes and gives bytes."""
        found = self._methods.get((endpoint, method))
        if found is None:
            idle: list[Any] = []
            with self._lock:
                if self._closed:
                    raise ClientClosed("the client is closed; make a new one")
                channel = self._channels.get(endpoint)
                if channel is None:
                    self.use.idle(list(self._channels), lambda each: idle.append(self._take(each)))
                    channel = self._channels[endpoint] = open_channel(grpc, endpoint, self._tls)
                found = self._methods[endpoint, method] = getattr(channel, kind)(SERVICE + method)
            for each in idle:
                each.close()
        return found

    def start(self, endpoint: str, method: str, kind: str, start: Callable[[Any], Any]) -> Any:
        """
        Return the call that *start* makes of a method.

        Raises `ConnectionFailed` where grpcio can start no thread for it, at the limit of the system or as the program
        ends: the call would never end.
        """
        try:
            if endpoint not in self.streaming:
                threading.Thread(target=bool, daemon=True).start()
            with self._starting:
                found = self.method(endpoint, method, kind)
                try:
                    return start(found)
                except (RuntimeError, KeyboardInterrupt, SystemExit):
                    self._abandon(endpoint)
                    raise
        except RuntimeError as error:
            raise ConnectionFailed(f"no thread for calls of broker {endpoint} can be started: {error}") from None

    def _abandon(self, endpoint: str) -> None:
        """
        Give up the channel of a call that grpcio did not begin as a whole, so that it never ends.

        Later calls of the channel would wait for it. So would `close` and the garbage collector, which therefore never
        gets the channel.
        """
        with self._lock:
            channel = self._take(endpoint)
        if channel is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel))

    def call(self, endpoint: str, method: str, request: bytes, timeout: float, metadata: Metadata = ()) -> bytes:
        """Call a method and return the bytes of its answer."""
        call: Any = None
        self.use.begin(endpoint, timeout)
        step = Call(endpoint, method, request, timeout, metadata)
        if self._frames is not None and self.is_framed(step):
            answered = self._frames.call(endpoint, method, request, timeout, self.identity.client_id)
            return self.framed_answer(step, answered)
        check_known(step)
        sent = (*self.identity.metadata(), *metadata)
        try:
            if is_ending():  # a future may need a new thread of grpcio
                last: bytes = self.method(endpoint, method)(request, timeout, sent)
                return last
            # Not a call that waits inside gRPC's core: a fork meanwhile would never return in the child.
            call = self.start(endpoint, method, "unary_unary", lambda found: found.future(request, timeout, sent))
            answer: bytes = call.result()
        except grpc.RpcError as error:
            raise failure(error, endpoint, method, timeout) from None
        except grpc.FutureCancelledError:
            raise ConnectionFailed(f"the call of broker {endpoint} was cancelled ({method})") from None
        except ValueError:  # what grpc says of a channel closed meanwhile
            raise self._gone(endpoint, method) from None
        except BaseException:  # interrupted
            if call is not None:
                call.cancel()
            raise
        return answer

    def is_framed(self, step: Call | Stream) -> bool:
        """Return whether a call goes in frames."""
        announced = self.framed.get(step.endpoint)
        if announced is None or self._frames is None:
            return False
        is_taken = "2" in announced if isinstance(step, Stream) else not step.metadata
        return is_taken and _ferromq.FramedCalls.takes(step.method, step.request)

    @property
    def has_here(self) -> bool:
        """Whether brokers of this process are called without a connection; a client with TLS connects to them, too."""
        return bool(self.here) and self._tls is None

    def is_here(self, endpoint: str) -> bool:
        """Return whether a broker is called without a connection."""
        return endpoint in self.here and self._tls is None

    def takes_records(self, endpoint: str) -> bool:
        """Return whether a broker takes acknowledgements of records just now."""
        return "2" in self.framed.get(endpoint, ()) and self._frames is not None and self._frames.is_open(endpoint)

    def takes_compression(self, endpoint: str, compression: str) -> bool:
        """Return whether a broker takes bodies that are compressed so."""
        return compression == ZLIB or compression in self.compressions.get(endpoint, ())

    def takes_batches(self, endpoint: str) -> bool:
        """Return whether a broker takes batches of any messages, as those do that announce compressions."""
        return bool(self.compressions.get(endpoint))

    def start_framed(self, step: Call | Stream, completions: _ferromq.Completions, number: int) -> bool:
        """Start a call in frames, whose outcome comes to *completions*. Return False if no connection is open."""
        if self._frames is None:
            return False
        identity = self.identity.client_id
        return self._frames.start(step.endpoint, step.method, step.request, step.timeout, identity, completions, number)

    def reopen(self) -> None:
        """Connect again to brokers that take framed calls, on a thread: for event loops, which do not wait for it."""
        frames = self._frames
        with self._lock:
            if frames is None or self._closed or self._reopening or time.monotonic() < self._reopened + REOPEN:
                return
            closed = [endpoint for endpoint in self.framed if not frames.is_open(endpoint)]
            if not closed:
                return
            self._reopening = True

        def connect() -> None:
            try:
                for endpoint in closed:
                    frames.probe(endpoint, PROBE)
            finally:
                self._reopened, self._reopening = time.monotonic(), False

        threading.Thread(target=connect, name="ferromq-frames", daemon=True).start()

    def reconnect(self, endpoint: str) -> "Future[bool]":
        """Connect to a broker again on a thread; the result says whether it takes framed calls."""
        connected: Future[bool] = Future()
        frames = self._frames

        def connect() -> None:
            connected.set_result(frames is not None and frames.probe(endpoint, PROBE) is None)

        try:
            threading.Thread(target=connect, name="ferromq-frames", daemon=True).start()
        except RuntimeError:  # the interpreter ends: it starts no more threads
            connected.set_result(False)
        return connected

    def release(self, endpoint: str) -> None:
        """Let a broker answer receives under way at once."""
        if self._frames is not None:
            self._frames.release(endpoint)

    def framed_answer(self, step: Call | Stream, answered: tuple[int, str | None, Answer]) -> Answer:
        """Return the response of a framed call, or raise the error of its status."""
        status, text, answer = answered
        if status == 0:
            return answer
        raise transport_error(grpc_code(status), text, step.endpoint, step.method, step.timeout)

    def announced(self, endpoint: str, metadata: Any) -> str | None:
        """Note what *metadata* announces, and try a frame: a proxy may pass HTTP/2 alone. Return why it failed."""
        taken = {value for key, value in metadata or () if key == COMPRESSION}
        before, self.compressions[endpoint] = self.compressions.get(endpoint), taken
        if before is not None and not before <= taken and self.sends is not None:
            self.sends.drop_routes(endpoint)  # an older broker came in its place: the next send looks at it again
        announced = {value for key, value in metadata or () if key == FRAMED}
        if "1" not in announced or (self._tls is not None and self._framed_tls is None):
            self.framed.pop(endpoint, None)
            return None
        with self._lock:
            if self._closed:
                return None
            if self._frames is None:
                identity = self.identity
                self._frames = _ferromq.FramedCalls(self._framed_tls, identity.of_frames())
                # A client that is given TLS speaks it, to brokers of this process, too.
                for address, server in self.here.items() if self.has_here else ():
                    self._frames.attach(address, server)
                self.sends = _ferromq.Sends(self._frames, identity.client_id, identity.process, identity.host)
        reason = self._frames.probe(endpoint, PROBE)
        if reason is None:
            is_new = endpoint not in self.framed
            self.framed[endpoint] = announced
            if is_new and self.sends is not None:
                self.sends.drop_routes(endpoint)  # the next send puts one with this broker
        return None if endpoint in self.framed else reason

    def stream(
        self, endpoint: str, method: str, request: bytes, timeout: float, cancel: "Cancel | None" = None
    ) -> Packets | _ferromq.Records:
        """Call a method that answers with a stream and return all of it."""
        step = Stream(endpoint, method, request, timeout)
        if self._frames is not None and self.is_framed(step):
            cancellation = _ferromq.Cancellation() if cancel is None else cancel.framed
            answered = self._frames.poll(endpoint, method, request, timeout, self.identity.client_id, cancellation)
            return self.framed_answer(step, answered)
        metadata = (*self.identity.metadata(), (PACKED, "1"))
        self.use.begin(endpoint, timeout)
        try:
            call = self.start(endpoint, method, "unary_stream", lambda found: found(request, timeout, metadata))
            if cancel is not None:
                cancel.watch(call)
            return Packets(list(call), has_packed(call.initial_metadata()))
        except grpc.RpcError as error:
            raise failure(error, endpoint, method, timeout) from None
        except ValueError:
            raise self._gone(endpoint, method) from None

    def begin(self, step: Stream) -> _ferromq.BegunCall | None:
        """Send a request without waiting for its answer; None where it does not go in frames."""
        if self._frames is None or not self.is_framed(step):
            return None
        return self._frames.begin(step.endpoint, step.method, step.request, step.timeout, self.identity.client_id)

    def end(self, step: Stream, begun: _ferromq.BegunCall, cancel: "Cancel | None") -> _ferromq.Records:
        """Wait for the answer of a request that was sent."""
        return self.framed_answer(step, begun.wait(_ferromq.Cancellation() if cancel is None else cancel.framed))

    @property
    def arrivals(self) -> _ferromq.Arrivals:
        """What waits for messages at several brokers."""
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed; make a new one")
            if self._arrivals is None:
                self._arrivals = _ferromq.Arrivals(self.identity.client_id, self._framed_tls, self.identity.of_frames())
            return self._arrivals

    def arrive(self, watched: list[tuple[str, str, bytes]], timeout: float, cancel: "Cancel | None") -> list[str]:
        """Wait until brokers have messages, and return the names of those that have. Raises `Cancelled`."""
        arrivals = self.arrivals
        if cancel is not None:
            cancel.watch(arrivals)
            cancel.check()
        names = arrivals.wait(watched, timeout)
        if cancel is not None:
            cancel.check()
        return names

    def avoid(self, endpoint: str, seconds: float) -> None:
        """Let the core's sends go to other brokers for a time."""
        if self.sends is not None:
            self.sends.avoid(endpoint, seconds)

    def trust(self, endpoint: str) -> None:
        """Let the core send to a broker again."""
        if self.sends is not None:
            self.sends.trust(endpoint)

    def drop_routes(self, endpoints: Iterable[str]) -> None:
        """Let the core's next sends to topics at these brokers take the routes of now."""
        if self.sends is not None:
            for endpoint in endpoints:
                self.sends.drop_routes(endpoint)

    def forget(self, endpoint: str) -> None:
        """Close the channel to *endpoint*; it is made anew where it is needed again."""
        with self._lock:
            channel = self._take(endpoint)
        self.framed.pop(endpoint, None)
        if self.sends is not None:
            self.sends.drop_routes(endpoint)
        if self._frames is not None:
            self._frames.forget(endpoint)
        if channel is not None:
            channel.close()

    def _take(self, endpoint: str) -> Any:
        for key in [key for key in self._methods if key[0] == endpoint]:
            del self._methods[key]
        return self._channels.pop(endpoint, None)

    def _gone(self, endpoint: str, method: str) -> FerromqError:
        """Return why a channel was closed between its look-up and a call; nothing was sent."""
        if self._closed:
            return ClientClosed("the client was closed meanwhile; make a new one")
        return ConnectionFailed(f"the connection to broker {endpoint} was given up, the broker left ({method})")

    def close(self) -> None:
        """End everything under way."""
        with self._lock:
            self._closed = True
            channels = list(self._channels.values())
            self._channels.clear()
            self._methods.clear()
        self.framed.clear()
        if self.sends is not None:
            self.sends.drop_routes(None)
        if self._frames is not None:
            self._frames.close()
        if self._arrivals is not None:
            self._arrivals.close()
        close_all(channels)


class Cancelled(Exception):  # noqa: N818 (what happened, on purpose)
    """A plan was given up by its own `Cancel`."""


class Cancel:
    """Ends one plan from another thread, at once where it waits for a stream."""

    def __init__(self) -> None:
        self.framed = _ferromq.Cancellation()
        """Ends framed calls."""
        self._lock = threading.Lock()
        self._call: Any = None
        self._is_set = False

    def set(self) -> None:
        """End the plan; it raises `Cancelled`."""
        with self._lock:
            self._is_set = True
            call = self._call
        self.framed.set()
        if call is not None:
            call.cancel()

    def check(self) -> None:
        """Raise `Cancelled` if it was set."""
        if self._is_set:
            raise Cancelled

    def watch(self, call: Any) -> None:
        """Note the call to end."""
        with self._lock:
            self._call = call
        if self._is_set:
            call.cancel()


def end_of(timeout: timedelta | float | None) -> float:
    """
    Return the time (monotonic) at which a wait of *timeout* ends; None waits without an end.

    Raises `ValueError` for a negative duration.
    """
    longest = threading.TIMEOUT_MAX / 2  # a lock refuses more, and rounding may add some
    return time.monotonic() + (longest if timeout is None else min(seconds(timeout), longest))


def remaining(until: float) -> float:
    """Return the seconds left, at least 0."""
    return max(0.0, until - time.monotonic())
