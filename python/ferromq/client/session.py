"""
Makes a client known to the brokers it talks to: settings over a telemetry stream, a heartbeat every 10 seconds.

It runs on threads of its own with a synchronous channel, for `ferromq.aio`, too: a blocked event loop must not cost a
client its life signs. Streams that break are opened again for as long as the client lives.
"""

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue

import grpc

from ferromq._proto import messages as pb
from ferromq.client.at_once import at_once
from ferromq.client.connection import Channels, failure, remaining
from ferromq.core.requests import backoff, check
from ferromq.core.routes import endpoints_message
from ferromq.errors import ClientClosed, ConnectionFailed, FerromqError, RequestError

_log = logging.getLogger("ferromq.client")

HEARTBEAT_PERIOD = 10.0
_FAREWELL = 1.0
_HEARTBEAT_TIMEOUT = 3.0


class Session:
    """The life of one client at all its brokers; thread-safe."""

    def __init__(self, channels: Channels, settings: pb.Settings, on_settings: Callable[[pb.Settings], None]) -> None:
        self._channels = channels
        self._settings = settings
        self._on_settings = on_settings
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self._closed = threading.Event()
        self._topics: set[str] = set()
        self.is_wanted: Callable[[str], bool] = lambda _endpoint: True
        """Says whether a broker is in a route; one that is in none and silent is left."""
        self.on_left: Callable[[str], object] = lambda _endpoint: None
        """Called with each broker that was left, on a thread of the session."""
        self.on_change: Callable[[], object] = lambda: None
        """Called when a broker sent settings that were not asked for: something has changed there."""
        self.on_orphan: Callable[[str, pb.RecoverOrphanedTransactionCommand], None] | None = None
        """Called with the broker and what it asks when it wants to know what became of a transaction."""

    def publish(self, topic: str) -> None:
        """Tell the brokers, all there are and will be, that this producer sends to *topic*."""
        if topic in self._topics:
            return
        with self._lock:
            if topic in self._topics:
                return
            self._topics.add(topic)
            for stream in self._streams.values():
                stream.tell()

    def _told(self) -> pb.Settings:
        """Return what a broker is told now."""
        settings = pb.Settings()
        settings.CopyFrom(self._settings)
        with self._lock:
            topics = sorted(self._topics)
        if topics:
            settings.publishing.topics.extend(pb.Resource(name=topic) for topic in topics)
        return settings

    def join(self, endpoint: str) -> "Future[None]":
        """Begin to make the client known at *endpoint*; the future ends when the broker has answered."""
        stream = self._streams.get(endpoint)
        if stream is None:
            with self._lock:
                if self._closed.is_set():
                    raise ClientClosed("the client is closed; make a new one")
                stream = self._streams.get(endpoint)
                if stream is None:
                    stream = _Stream(endpoint, self._channels, self._told, self._on_command, self._closed)
                    stream.on_change = self.on_change
                    self._streams[endpoint] = stream
                    stream.start()
                    beat = threading.Thread(target=self._beat, args=(endpoint,), name="ferromq-heartbeat", daemon=True)
                    beat.start()
        return stream.promise()

    def has(self, endpoint: str) -> bool:
        """Say whether the client is known at a broker, or is about to be."""
        return endpoint in self._streams

    def is_known(self, endpoint: str) -> bool:
        """Say whether the broker has answered once."""
        stream = self._streams.get(endpoint)
        return stream is not None and stream.was_known

    def _on_command(self, endpoint: str, command: pb.TelemetryCommand) -> bool:
        """Follow a command of a broker; says whether it was followed."""
        match command.WhichOneof("command"):
            case "settings":
                self._on_settings(command.settings)
            case "recover_orphaned_transaction_command" if self.on_orphan is not None:
                self.on_orphan(endpoint, command.recover_orphaned_transaction_command)
            case "print_thread_stack_trace_command":
                nonce = command.print_thread_stack_trace_command.nonce
                self._answer(
                    endpoint, pb.TelemetryCommand(status=pb.Status(code=pb.OK), thread_stack_trace=_stacks(nonce))
                )
            case "verify_message_command":
                # As RocketMQ's simple consumers, which are not called with messages either.
                refused = pb.Status(code=pb.Code.NOT_IMPLEMENTED, message="this client verifies no messages")
                result = pb.VerifyMessageResult(nonce=command.verify_message_command.nonce)
                self._answer(endpoint, pb.TelemetryCommand(status=refused, verify_message_result=result))
            case _:
                return False
        return True

    def _answer(self, endpoint: str, command: pb.TelemetryCommand) -> None:
        stream = self._streams.get(endpoint)
        if stream is not None:
            stream.answer(command)

    def _beat(self, endpoint: str) -> None:
        """Beat at one broker until it is left, on a thread of its own: a broker that hangs delays no other's beats."""
        request = pb.HeartbeatRequest(client_type=self._settings.client_type)
        if self._settings.subscription.HasField("group"):
            request.group.CopyFrom(self._settings.subscription.group)
        data = request.SerializeToString()
        is_silent = False
        while not self._closed.wait(HEARTBEAT_PERIOD):
            try:
                answer = self._channels.call(endpoint, "Heartbeat", data, _HEARTBEAT_TIMEOUT)
                check(pb.HeartbeatResponse.FromString(answer).status)
            except FerromqError as error:
                if not is_silent and not self._closed.is_set():
                    _log.warning("broker %s does not answer heartbeats: %s", endpoint, error)
                is_silent = True
                if not self.is_wanted(endpoint):
                    self._leave(endpoint)
                    return
            else:
                if is_silent:
                    _log.warning("broker %s answers heartbeats again", endpoint)
                is_silent = False

    def _leave(self, endpoint: str) -> None:
        """Forget a broker that is gone from the routes; whoever sends there once more joins it anew."""
        with self._lock:
            stream = self._streams.pop(endpoint, None)
        if stream is not None:
            stream.end()
            self._channels.forget(endpoint)
            self.on_left(endpoint)
            _log.info("broker left, it is in no route and does not answer endpoint=%s", endpoint)

    def close(self, until: float) -> None:
        """Say good-bye to all brokers at once and end the streams, all before *until* (monotonic)."""
        with self._lock:
            self._closed.set()
            streams = list(self._streams.values())
        farewell = pb.NotifyClientTerminationRequest()
        if self._settings.subscription.HasField("group"):
            farewell.group.CopyFrom(self._settings.subscription.group)
        data = farewell.SerializeToString()

        def say(stream: _Stream) -> None:
            try:
                timeout = min(_FAREWELL, remaining(until))
                self._channels.call(stream.endpoint, "NotifyClientTermination", data, timeout)
            except FerromqError as error:
                _log.debug("farewell not heard endpoint=%s: %s", stream.endpoint, error)

        at_once(say, (stream for stream in streams if stream.was_known), len(streams), until)
        for stream in streams:
            stream.end()


class _Stream:
    """The telemetry stream to one broker."""

    def __init__(
        self,
        endpoint: str,
        channels: Channels,
        settings: Callable[[], pb.Settings],
        on_command: Callable[[str, pb.TelemetryCommand], bool],
        closed: threading.Event,
    ) -> None:
        self.endpoint = endpoint
        self.known: Future[None] = Future()
        self.was_known = False
        self._is_lost = False
        """Whether the log says that the connection was lost."""
        self._channels = channels
        self._on_command = on_command
        self._closed = closed
        self._outgoing: SimpleQueue[Callable[[], bytes] | None] = SimpleQueue()
        self._telling = threading.Lock()
        self._settings = settings
        self._ended = threading.Event()
        self._again = threading.Event()
        """Ends the pause before the next attempt."""
        self._is_told = False
        """Whether the settings are on their way: those of the moment when they are sent."""
        self._unanswered = 0
        """How often the settings were sent on this stream without an answer so far."""
        self.on_change: Callable[[], object] = lambda: None

    def _encoded(self) -> bytes:
        with self._telling:
            self._is_told = False  # who changes them after this tells again
            self._unanswered += 1
        command = pb.TelemetryCommand(settings=self._settings())
        command.settings.access_point.CopyFrom(endpoints_message([self.endpoint]))
        data: bytes = command.SerializeToString()
        return data

    def tell(self) -> None:
        """Send the settings, which are others now; once, however often they change before they are sent."""
        with self._telling:
            if not self._is_told:
                self._is_told = True
                self._outgoing.put(self._encoded)

    def answer(self, command: pb.TelemetryCommand) -> None:
        """Send what the broker asked for; lost where the stream ends just now."""
        self._outgoing.put(command.SerializeToString)

    def start(self) -> None:
        threading.Thread(target=self._live, name="ferromq-telemetry", daemon=True).start()

    def promise(self) -> "Future[None]":
        """Return the future of the broker's answer; after a refusal that of another attempt, which begins at once."""
        with self._telling:
            if self.known.done() and self.known.exception() is not None:
                self.known = Future()
                self._again.set()
            return self.known

    def end(self) -> None:
        self._ended.set()
        self._again.set()
        self._outgoing.put(None)

    def _live(self) -> None:
        self._run()
        if self._ended.is_set() and not self._channels.use.is_needed(self.endpoint):
            self._channels.forget(self.endpoint)  # an attempt may have made a channel after the broker was left

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set() and not self._ended.is_set():
            try:
                self._read()
                error: FerromqError = ConnectionFailed(f"broker {self.endpoint} ended the session")
            except FerromqError as failed:
                error = failed
            failures = 1 if self.known.done() and not self.known.exception() else failures + 1
            self._lost(error)
            if self._ended.is_set():
                return
            self._again.wait(backoff(min(failures, 4)))
            self._again.clear()

    def _read(self) -> None:
        outgoing: SimpleQueue[Callable[[], bytes] | None] = SimpleQueue()
        with self._telling:
            if self.known.done():  # refused
                self.known = Future()
            self._outgoing, self._is_told, self._unanswered = outgoing, True, 0
        outgoing.put(self._encoded)
        metadata = self._channels.identity.metadata()
        try:
            if self._closed.is_set():
                return
            stream = self._channels.start(
                self.endpoint,
                "Telemetry",
                "stream_stream",
                lambda method: method(_until_none(outgoing), metadata=metadata),
            )
            for number, answer in enumerate(stream):
                self._channels.streaming.add(self.endpoint)
                if number == 0:
                    # Before the broker counts as known: the first call goes in frames, too.
                    reason = self._channels.announced(self.endpoint, stream.initial_metadata())
                    if reason is not None:
                        _log.warning("calls of broker %s go over HTTP/2, which is slower: %s", self.endpoint, reason)
                self._take(pb.TelemetryCommand.FromString(answer))
        except grpc.RpcError as error:
            raise failure(error, self.endpoint, "Telemetry", 0) from None
        except ValueError:  # what grpc says of a channel closed meanwhile
            raise ClientClosed("the client was closed meanwhile") from None
        finally:
            self._channels.streaming.discard(self.endpoint)
            outgoing.put(None)

    def _take(self, command: pb.TelemetryCommand) -> None:
        if command.HasField("status"):
            check(command.status)
        kind = command.WhichOneof("command")
        if not self._on_command(self.endpoint, command):
            _log.debug("command not followed endpoint=%s command=%s", self.endpoint, kind)
        elif kind == "settings":
            self.was_known = True
            if self._is_lost:
                self._is_lost = False
                _log.warning("connected to broker %s again", self.endpoint)
            if not self.known.done():
                self.known.set_result(None)
            with self._telling:
                is_asked, self._unanswered = self._unanswered > 0, max(0, self._unanswered - 1)
            if not is_asked:
                self.on_change()

    def _lost(self, error: FerromqError) -> None:
        """Tell who waits, and make a new promise for those who come now; a refusal stands until `promise` is called."""
        with self._telling:
            waited = self.known
            if waited.done() or not isinstance(error, RequestError):
                self.known = Future()
        if not waited.done():
            waited.set_exception(error)
        elif not self._closed.is_set():
            self._is_lost = True
            _log.warning("lost connection to broker %s, reconnecting: %s", self.endpoint, error)


def _stacks(nonce: str) -> pb.ThreadStackTrace:
    """Return where each thread of this process is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines = []
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 (there is no other way to ask)
        lines += [f"thread {names.get(ident, ident)}\n", *traceback.format_stack(frame), "\n"]
    return pb.ThreadStackTrace(nonce=nonce, thread_stack_trace="".join(lines))


def _until_none(queue: "SimpleQueue[Callable[[], bytes] | None]") -> Iterator[bytes]:
    while (encoded := queue.get()) is not None:
        yield encoded()
