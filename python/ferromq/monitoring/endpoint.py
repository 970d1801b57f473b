"""
The HTTP endpoint of a server: `/metrics` for Prometheus, `/healthz` and `/readyz` for supervisors.

It is there from the beginning of the start to the end of the stop, so that both can be seen from outside.
"""

import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Final

from prometheus_client import Metric, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from ferromq import _ferromq
from ferromq.monitoring.http_server import HttpServer, Page
from ferromq.monitoring.metrics import Families

_log = logging.getLogger("ferromq.monitoring")

AUTO: Final = "auto"
OFF: Final = "off"
_LOOPBACK: Final = "127.0.0.1"

Reasons = Callable[[], Sequence[str]]
"""Returns why a server cannot do its work now; empty if it can."""


def _nothing() -> Iterable[Metric]:
    return ()


def _reason(text: str) -> Reasons:
    return lambda: (text,)


class Endpoint(Collector):
    """
    Serves the pages of one server, at *listen*. With `off` it has the metrics for `Pusher` alone.

    `auto` is 127.0.0.1 with *auto_port*; if another process has that port, a warning says so, and there is no endpoint.
    Raises `OSError` if a given address is in use.
    """

    def __init__(self, listen: str, auto_port: int) -> None:
        self._collect: Callable[[], Iterable[Metric]] = _nothing
        self._reasons = _reason("the server is starting: it opens its files and recovers what a crash left")
        self._is_stopping = False
        self._process = ProcessCollector(registry=None)
        pages = {"/metrics": self._metrics, "/readyz": self._ready}
        self._server: HttpServer | None = None
        if listen == OFF:
            return
        try:
            address = f"{_LOOPBACK}:{auto_port}" if listen == AUTO else listen
            self._server = HttpServer(address, pages, {"/healthz": _alive})
        except OSError as error:
            if listen != AUTO or error.errno != errno.EADDRINUSE:
                text = f"{error.strerror}; set metrics_listen (--metrics-listen) to another address, or to off"
                raise OSError(error.errno, text) from error
            _log.warning(
                "metrics and health checks are not served: port %d of %s is taken; set metrics_listen to another "
                "address, or to off",
                auto_port,
                _LOOPBACK,
            )
        else:
            _log.info("metrics listener open address=%s", self._server.address)

    @property
    def address(self) -> str | None:
        """The bound `host:port`; None if the port was taken, and with `off`."""
        return self._server.address if self._server else None

    def started(self, collect: Callable[[], Iterable[Metric]], reasons: Reasons) -> None:
        """Serve the metrics of *collect*; the server is ready while *reasons* returns none."""
        self._collect, self._reasons = collect, reasons

    def stopping(self) -> None:
        """Tell that the server stops; its own metrics end, as the parts that count are closed."""
        self._collect, self._reasons = _nothing, _reason("the server is stopping")
        self._is_stopping = True

    def close(self) -> None:
        """End. Idempotent."""
        if self._server is not None:
            self._server.close()
        self._collect = _nothing

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; called by `generate_latest`."""
        families = Families({})
        yield families.gauge("ferromq_info", "The version of ferromq", [((_ferromq.__version__,), 1)], ("version",))
        is_ready = not self._reasons()
        yield families.gauge("ferromq_ready", "Whether the server can do its work, as /readyz says", [((), is_ready)])
        yield from self._collect()
        yield from self._process.collect()

    def _metrics(self) -> Page:
        return self._unless_stopping(lambda: Page(generate_latest(self), content_type=CONTENT_TYPE_PLAIN_0_0_4))

    def _ready(self) -> Page:
        return self._unless_stopping(self._readiness)

    def _unless_stopping(self, make: Callable[[], Page]) -> Page:
        """Return a page; if what it shows is closed meanwhile, the page of a server that stops."""
        try:
            return make()
        except Exception:
            if not self._is_stopping:
                raise
            return make()

    def _readiness(self) -> Page:
        reasons = self._reasons()
        if not reasons:
            return Page(b"ready\n")
        text = "".join(f"not ready: {reason}\n" for reason in reasons)
        return Page(text.encode(), HTTPStatus.SERVICE_UNAVAILABLE)


def _alive() -> Page:
    return Page(b"alive\n")
