"""
A running name server: its sockets, timers and life cycle.

`requests` has its handlers, `route_info` and `kv_config` its state.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ferromq._ferromq import RemotingClient, Server
from ferromq.access.exposure import warn_of_open_listeners
from ferromq.access.opening import FILE, open_users
from ferromq.access.own_machine import OwnMachine
from ferromq.access.requests import AccessRequests
from ferromq.access.users import UserTable
from ferromq.config.listener import RELOAD_INTERVAL, naming
from ferromq.config.monitoring import NAME_SERVER_PORT, OFF
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.kv_config import KvConfig
from ferromq.namesrv.min_broker_id_notifier import MinBrokerIdNotifier
from ferromq.namesrv.order_configurations import OrderConfigurationUpdater
from ferromq.namesrv.requests import Requests
from ferromq.namesrv.route_info import RouteInfoManager
from ferromq.namesrv.route_types import MinBrokerIdChange
from ferromq.namesrv.settings import Settings
from ferromq.process.clock import Clock, Timer
from ferromq.process.fork import Owner
from ferromq.protocol import audit, remoting
from ferromq.protocol.codes import RequestCode

if TYPE_CHECKING:
    from ferromq.monitoring.endpoint import Endpoint
    from ferromq.monitoring.otlp import Pusher

_log = logging.getLogger("ferromq.namesrv")
_MILLISECOND = timedelta(milliseconds=1)
_WATCH = timedelta(seconds=10)
_LOG_INTERVAL = timedelta(minutes=10)


class NamesrvController:
    """
    A running name server, ready when the constructor returns.

    Raises `OSError` if the address is in use, and `ConfigError` if the file of the key-value table cannot be replaced.

    It writes options that change while it runs to *config_file*, if given.
    """

    def __init__(
        self,
        config: NameServerConfig | None = None,
        *,
        config_file: Path | None = None,
        load: Callable[[], NameServerConfig] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """*load* reads *config* again, from *config_file* and the like, when it is reloaded."""
        config = config or NameServerConfig()
        self._owner = Owner("name server")
        self._clock = clock or Clock.system()
        self.settings = Settings(config, config_file)
        self.settings.read_from(load)
        self.kv_config = KvConfig(Path(config.kv_config_path) if config.kv_config_path else None)
        # Callbacks refer to the parts, not to this object, so that it is freed as soon as it is closed.
        server = self._server = Server(
            self._clock.raw, handler_threads=config.handler_threads, **config.connections.limits()
        )
        users = self._open_users(config)
        settings = self.settings
        notices = MinBrokerIdNotifier(RemotingClient(**config.outgoing()))

        def minimum_changed(change: MinBrokerIdChange) -> None:
            if settings.config.notify_minimum:
                notices.notify(change)

        orders = OrderConfigurationUpdater(self.kv_config, server.drop_routes)
        self.routes = RouteInfoManager(
            config.lease // _MILLISECOND,
            on_change=lambda topics: server.drop_routes(list(topics)),
            on_minimum=minimum_changed,
            on_order=orders.follow,
            in_order_configurations=orders.brokers,
        )
        self._notices = notices
        requests = self._requests = Requests(self._server, self.routes, self.kv_config, self.settings, self._clock)
        handlers = {
            **requests.table(),
            **AccessRequests(users, config.access).handlers(),
            RequestCode.RELOAD_CONFIG: OwnMachine(users, config.access).guarded(requests.reload),
        }
        for code, handler in handlers.items():
            self._server.register(code, audit.audited(code, remoting.guarded(handler), requests.is_routine))
        self._server.on_close(self.routes.close_connection)
        self._scan = Timer("ferromq-namesrv", self._clock, config.scan_interval, self.expire)
        self._watch = Timer("ferromq-config", self._clock, _WATCH, lambda _now: settings.look())
        self._print = Timer("ferromq-kv-config", self._clock, _LOG_INTERVAL, lambda _now: self.kv_config.log())
        self._reload = Timer("ferromq-tls", self._clock, RELOAD_INTERVAL, lambda _now: self._server.reload_tls())
        self.settings.listen(self._configure)
        self._pusher: Pusher | None = None
        self._endpoint = self._open_endpoint(config)
        try:
            self._listen(config)
            self._report(config)
        except BaseException:
            self._close_endpoint()
            self._server.stop(timeout=0.5)
            self._notices.close()
            raise
        self._scan.start()
        self._print.start()
        if load is not None:
            self._watch.start()
        if config.connections.mode != "disabled":
            self._reload.start()
        _log.info("name server ready address=%s", self.address)

    def _open_users(self, config: NameServerConfig) -> UserTable | None:
        """Open the users before anything else runs. A failure ends the threads of the server."""
        try:
            # A name server belongs to no cluster, so policies for `Cluster:*` count. No cluster has this name.
            path = Path(config.access_directory) / FILE
            return open_users(config.access, self._server, path, cluster="(name server)")
        except BaseException:
            self._server.stop(timeout=0.5)
            raise

    def _open_endpoint(self, config: NameServerConfig) -> "Endpoint | None":
        """Serve health checks from now on, if there is an endpoint."""
        if config.monitoring.metrics_listen == OFF and not config.monitoring.metrics_push:
            return None
        from ferromq.monitoring import endpoint  # noqa: PLC0415 (most embedded name servers have none)

        return endpoint.Endpoint(config.monitoring.metrics_listen, NAME_SERVER_PORT)

    def _listen(self, config: NameServerConfig) -> None:
        config.connections.set_up(self._server)
        host, _, _ = config.listen.rpartition(":")
        with naming("set listen (--listen; of ferromq dev --namesrv-listen) to another address"):
            port = self._server.listen_remoting(config.listen)
        self.address = f"{host}:{port}"
        """`host:port` of the listener."""
        warn_of_open_listeners([self.address], config.access)

    def _report(self, config: NameServerConfig) -> None:
        """Serve the metrics from now on, if there is an endpoint, and push them, if there is a collector."""
        if self._endpoint is not None:
            from ferromq.namesrv.metrics import NameServerMetrics  # noqa: PLC0415 (as in `_open_endpoint`)

            requests = self._requests

            def reasons() -> Sequence[str]:
                return (
                    ("routes are refused until brokers had time to register",) if requests.waits_for_brokers() else ()
                )

            self._endpoint.started(NameServerMetrics(self.address, self._server, self.routes).collect, reasons)
            if config.monitoring.metrics_push:
                from ferromq.monitoring import otlp, pushed_metrics  # noqa: PLC0415 (as in `_open_endpoint`)

                monitoring = config.monitoring
                source = pushed_metrics.PushedMetrics(self._endpoint.collect, self._clock.now_ms())
                to = otlp.Collector(
                    monitoring.metrics_push, monitoring.headers(), monitoring.push_interval, monitoring.push_timeout
                )
                self._pusher = otlp.Pusher(to, self._clock, source)

    def _close_endpoint(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()

    @property
    def metrics_address(self) -> str | None:
        """The `host:port` of the HTTP endpoint for metrics and health checks; None without one."""
        return None if self._endpoint is None else self._endpoint.address

    def expire(self, now: int) -> None:
        """Remove the brokers whose lease ended before *now* (milliseconds), and close their connections."""
        for connection in self.routes.expire(now):
            self._server.close_connection(connection)

    def close(self) -> None:
        """Stop. The key-value file stays. Idempotent; does nothing in a forked child."""
        if self._owner.is_here:
            if self._pusher is not None:
                self._pusher.close()
            if self._endpoint is not None:
                self._endpoint.stopping()
            self._scan.stop()
            self._print.stop()
            self._watch.stop()
            self._reload.stop()
            self._server.stop(timeout=0.5)
            self._notices.close()
            self.settings.clear_listeners()
            self._close_endpoint()

    def _configure(self, config: NameServerConfig) -> None:
        self.routes.lease_ms = config.lease // _MILLISECOND
        self.routes.acting_master = config.acting_master
        self.routes.delete_missing_topics = config.delete_missing_topics
        self._scan.every(config.scan_interval)
        self._server.drop_routes(None)
