"""Runs the application on a thread of its own."""

import contextlib
import contextvars
import logging
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn

from ferromq.config.listener import RELOAD_INTERVAL
from ferromq.dashboard.app import App
from ferromq.dashboard.cluster import Connect
from ferromq.dashboard.connections import Connection
from ferromq.dashboard.load import Load
from ferromq.dashboard.sessions import Now
from ferromq.dashboard.settings import Settings, split
from ferromq.errors import ConfigError
from ferromq.process.clock import Clock, Timer

_LARGEST_HEAD = 16 * 1024
_BACKLOG = 128
_STOP_SECONDS = 5.0
_KEEP_ALIVE_SECONDS = 3600
"""No limit: `Connection` ends those without a request."""
_LARGEST_FILE = 1 << 20
"""Of a certificate or key, as of servers."""
_log = logging.getLogger("ferromq.dashboard")


class Dashboard:
    """
    Serves the pages of a cluster until `close`.

    *connect* makes administrators; *timeout*: seconds that each of their calls takes at most. Raises `OSError` if the
    address cannot be bound, `ConfigError` for a certificate that cannot be used, and what *connect* raises.
    """

    def __init__(self, settings: Settings, connect: Connect, *, timeout: float, now: Now = time.monotonic) -> None:
        self._load = Load()
        self._app = App(settings, connect, timeout, now, self._load)
        host, port = split(settings.listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise OSError(error.errno, f"the dashboard cannot listen on {settings.listen}: {error.strerror}") from error
        bound = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{settings.scheme}://{shown}:{bound}"
        """Its address for a browser."""
        try:
            certificate = self._certificate = _Certificate.of(settings)

            def connection(*given: Any, **options: Any) -> Connection:
                return Connection(self._load, None if certificate is None else certificate.context, *given, **options)

            config = uvicorn.Config(
                self._app.application(bound),
                http=connection,  # type: ignore[arg-type] # it is called like a class
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                # A proxy on this machine tells whether browsers speak HTTPS with it.
                proxy_headers=True,
                forwarded_allow_ips=["127.0.0.1", "::1"],
                h11_max_incomplete_event_size=_LARGEST_HEAD,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=1,
            )
            config.load()
        except OSError as error:
            self._socket.close()
            files = f"{settings.certificate} and {settings.key}"
            raise ConfigError(f"the certificate and its key, {files}, cannot be used: {error}") from error
        self._server = uvicorn.Server(config)
        # The context has the namespace by which pages tell errors.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="ferromq-dashboard", daemon=True)
        self._thread.start()
        try:
            self._app.started.result()
        except Exception:
            self._thread.join()
            self._socket.close()
            raise
        if certificate is not None:
            certificate.watch.start()

    @property
    def held(self) -> int:
        """About how many bytes of forms and answers it holds now."""
        return self._load.held

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except SystemExit:  # a start that failed; `started` has the reason
            pass
        finally:
            if not self._app.started.done():
                self._app.started.set_exception(OSError("the HTTP server of the dashboard ended before it served"))

    def close(self) -> None:
        """End. Open pages get no further event. Idempotent."""
        self._server.should_exit = True
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._app.loop.call_soon_threadsafe(self._app.feeds.stopping.set)
        self._thread.join(_STOP_SECONDS)
        self._socket.close()
        if self._certificate is not None:
            self._certificate.watch.stop()


class _Certificate:
    """
    The certificate of HTTPS. New connections get changed files, once the certificate fits its key.

    Files that cannot be used change nothing. Raises `OSError` for such files at the start.
    """

    def __init__(self, certificate: str, key: str) -> None:
        self._files = (certificate, key)
        self._contents = self._read()
        self._rejected = ""
        """Why changed files were rejected, so that each reason is logged once."""
        self.context = self._loaded()
        """What handshakes need."""
        self.watch = Timer("ferromq-dashboard-tls", Clock.system(), RELOAD_INTERVAL, lambda _now: self._reload())

    @classmethod
    def of(cls, settings: Settings) -> "_Certificate | None":
        """Return that of the settings; None for HTTP."""
        if settings.certificate is None or settings.key is None:
            return None
        return cls(settings.certificate, settings.key)

    def _read(self) -> list[bytes]:
        for file in self._files:
            if (size := Path(file).stat().st_size) > _LARGEST_FILE:
                raise OSError(f"{file} has {size:,} bytes; a PEM file may have up to {_LARGEST_FILE:,}")
        return [Path(file).read_bytes() for file in self._files]

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self._files, password=_refuse_to_ask)
        return context

    def _reload(self) -> None:
        try:
            found = self._read()
            if found != self._contents:
                self.context = self._loaded()
                self._contents = found
                _log.info("tls certificate changed certificate=%s", self._files[0])
            self._rejected = ""
        except OSError as error:
            if self._rejected != str(error):
                self._rejected = str(error)
                _log.warning("new tls certificate rejected, the old one stays in use error=%s", error)


def _refuse_to_ask() -> str:
    raise ssl.SSLError("the key is encrypted; write it without a password")
