"""
Pushes metrics and spans of a server to a collector of OpenTelemetry, by OTLP over gRPC.

`pushed_metrics` and `pushed_spans` make the requests.
"""

import importlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import grpc

from ferromq import _ferromq
from ferromq.errors import ConfigError
from ferromq.process.clock import Clock, Timer
from ferromq.telemetry import PIP_LINE

_log = logging.getLogger("ferromq.monitoring")
_PROTO: Final = "opentelemetry.proto"
_FILES: Final = tuple(f"OTEL_EXPORTER_OTLP_{what}" for what in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"))
"""Environment variables of OpenTelemetry's exporters with PEM files for `https`."""
_LONGEST_END: Final = 5.0
"""Seconds of the last push at most: a server that stops waits for it."""


class Collector(NamedTuple):
    """Where to push, and how often."""

    target: str
    """`http://host:port` or `https://host:port`."""
    headers: Sequence[tuple[str, str]]
    interval: timedelta
    timeout: timedelta


class Messages(NamedTuple):
    """The modules that OpenTelemetry has for a kind of what is pushed."""

    data: Any
    requests: Any
    services: Any


class Source(Protocol):
    """Makes requests from what was counted or recorded."""

    what: str
    """The plural, for the log."""
    stub: Any
    """The class of the collector's service."""
    rejected: str
    """The field of its answer with the number that it did not take."""

    def requests(self, now_ms: int) -> Iterator[Any]:
        """Yield requests with what there is now."""


class Pusher:
    """
    Pushes the requests of *source* to a collector, on a thread of its own.

    A collector that does not answer costs one line of the log, and the next push comes after the interval.
    """

    def __init__(self, collector: Collector, clock: Clock, source: Source) -> None:
        self._to = collector
        self._source = source
        self._identity = _identity(collector.target)
        self._open()
        self._clock = clock
        self._pushing = threading.Lock()
        self._is_failing = self._is_closed = False
        self._timer = Timer(f"ferromq-{source.what}", clock, collector.interval, self._push)
        self._timer.start()
        _log.info("%s are pushed target=%s interval=%s", source.what, collector.target, collector.interval)

    def close(self) -> None:
        """
        Push what came since the last push, and end. Idempotent.

        The last push takes the timeout of a push or 5 seconds. It is left out if the collector did not take the one
        before; a push that still waits for the collector ends at once.
        """
        if self._is_closed:
            return
        self._timer.stop()
        if not self._is_failing and not self._pushing.locked():
            self._push(self._clock.now_ms(), min(self._timeout, _LONGEST_END))
        self._is_closed = True
        self._channel.close()

    def _open(self) -> None:
        scheme, _, address = self._to.target.rstrip("/").partition("://")
        if scheme == "http":
            self._channel = grpc.insecure_channel(address)
        else:
            self._channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(*self._identity))
        self._stub = self._source.stub(self._channel)

    def _renew(self) -> None:
        """Open another channel if certificates are other ones than when the last one was opened."""
        try:
            identity = _identity(self._to.target)
        except ConfigError:  # half written: the failure that led here goes on, and the next push looks again
            return
        if identity != self._identity:
            self._identity = identity
            self._channel.close()
            self._open()
            if self._is_closed:  # meanwhile, by `close`
                self._channel.close()

    @property
    def _timeout(self) -> float:
        return self._to.timeout.total_seconds()

    def _push(self, now_ms: int, longest: float | None = None) -> None:
        """Push all requests; *longest*: seconds of all of them together."""
        ends = float("inf") if longest is None else time.monotonic() + longest
        try:
            with self._pushing:
                if self._is_failing:
                    self._renew()
                why = self._export_all(now_ms, ends)
        except Exception:
            # What is read, or the channel, was closed meanwhile.
            if not self._is_closed:
                raise
            return
        what, target = self._source.what, self._to.target
        if why and not self._is_failing and not self._is_closed:
            _log.warning("%s not pushed target=%s: %s", what, target, why)
        if self._is_failing and not why:
            _log.info("%s are pushed again target=%s", what, target)
        self._is_failing = bool(why)

    def _export_all(self, now_ms: int, ends: float) -> str | None:
        """Send requests until one has no answer; return why the collector did not take all, if it did not."""
        refused = None
        for request in self._source.requests(now_ms):
            try:
                refused = self._export(request, min(self._timeout, max(0.0, ends - time.monotonic()))) or refused
            except grpc.RpcError as error:
                return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)
        return refused

    def _export(self, request: Any, timeout: float) -> str | None:
        """Send a request; return why the collector did not take all of it. Raises `RpcError`."""
        answer = self._stub.Export(request, timeout=timeout, metadata=self._to.headers)
        count: int = getattr(answer.partial_success, self._source.rejected)
        if not count:
            return None
        why = answer.partial_success.error_message or "it gives no reason"
        return f"the collector refused {count} {self._source.what}: {why}"


def messages(kind: str) -> Messages:
    """Return the modules for `metrics` or `trace`. Raises `ModuleNotFoundError` with the pip command without them."""
    service = f"{_PROTO}.collector.{kind}.v1.{kind}_service_pb2"
    try:
        names = f"{_PROTO}.{kind}.v1.{kind}_pb2", service, f"{service}_grpc"
        return Messages(*(importlib.import_module(name) for name in names))
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"metrics_push and spans_push need opentelemetry-proto, which is not installed: {PIP_LINE}",
            name="opentelemetry",
        ) from None


def describe(of_server: Any) -> Any:
    """Fill in who sends, in the message of a resource; return the message of its scope."""
    for name, value in (("service.name", "ferromq"), ("service.version", _ferromq.__version__)):
        add_label(of_server.resource, name, value)
    (scope,) = [field for field in of_server.DESCRIPTOR.fields if field.name.startswith("scope_")]
    found = getattr(of_server, scope.name).add()
    found.scope.name = "ferromq"
    return found


def add_label(to: Any, name: str, value: str) -> None:
    """Add an attribute to a point, a span or a resource."""
    to.attributes.add(key=name).value.string_value = value


def _identity(target: str) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Return the trusted authorities, and the client's key and certificate, as gRPC takes them; None without one."""
    if target.startswith("http://"):
        return None, None, None
    authorities, key, certificate = (_content(name) for name in _FILES)
    if (key is None) != (certificate is None):
        raise ConfigError(f"{_FILES[1]} and {_FILES[2]} belong together: set both or none")
    return authorities, key, certificate


def _content(variable: str) -> bytes | None:
    path = os.environ.get(variable)
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"the file of {variable} cannot be read: {error}") from error
