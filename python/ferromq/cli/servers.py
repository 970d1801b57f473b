"""The commands that run servers: `ferromq dev`, `broker`, `namesrv`, and RocketMQ's `mqbroker` and `mqnamesrv`."""

import contextlib
import functools
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import click

from ferromq._ferromq import RecoveryProgress, Store
from ferromq.broker.administration import rocketmq_options
from ferromq.broker.cluster.drain import DRAINED, RETIRED
from ferromq.broker.controller import BrokerController
from ferromq.cli import flags
from ferromq.cli.output import say
from ferromq.cli.parsing import Command
from ferromq.config.broker import BrokerConfig
from ferromq.config.monitoring import AUTO
from ferromq.config.namesrv import NameServerConfig
from ferromq.config.properties_file import Place
from ferromq.config.source import reload_logged
from ferromq.embedding import SMALL_FILES
from ferromq.errors import ConfigError
from ferromq.namesrv.server import NamesrvController
from ferromq.namesrv.settings import Settings
from ferromq.process import logs
from ferromq.process.service_manager import READY, STOPPING, notify
from ferromq.process.stop_signals import StopSignals
from ferromq.protocol.endpoints import DASHBOARD
from ferromq.terminal.progress import watching

_log = logging.getLogger("ferromq.server")
_Server = TypeVar("_Server", NamesrvController, BrokerController)
DEV_NAMESRV = "127.0.0.1:9876"
# A server that runs alone exports its metrics, unless it is told otherwise.
_MONITORED = {"metrics_listen": AUTO}
_DEV = {**_MONITORED, "listen": "127.0.0.1:10911", "grpc_listen": "127.0.0.1:8081", **SMALL_FILES}
_FLAGS = (
    *("store", "listen", "grpc_listen", "advertise", "grpc_advertise", "name", "cluster", "namesrv"),
    *("flush", "retention_age", "retention_total_bytes", "fast_boot", "auto_create_topics", "auto_create_groups"),
    *("compat", "metrics_listen", "drain"),
)


@contextlib.contextmanager
def _server_process(options: SimpleNamespace) -> Iterator[StopSignals]:
    """Set up the process of a server: limits, signals and logs."""
    _raise_open_files()
    # A server without a file has nothing to read again, so SIGHUP ends it.
    with StopSignals(takes_hangup=options.config is not None) as stop:
        level = options.log_level or os.environ.get("FERROMQ_LOG", "info")
        logs.install(level, options.log_format or os.environ.get("FERROMQ_LOG_FORMAT", "text"))
        yield stop


@contextlib.contextmanager
def _closing(name: str, server: _Server, stop: StopSignals) -> Iterator[_Server]:
    """Close *server* at the end, and log what stopped it and how long that took, with a drain."""
    with contextlib.closing(server):
        yield server
    if stop.asked is not None:
        reason, begin = stop.asked
        _log.info("%s stopped reason=%s seconds=%.3f", name, reason, time.monotonic() - begin)


_log_options = (
    click.option(
        "--log-level",
        metavar="LEVEL",
        help="trace, debug, info, warn, error, off; also of parts: info,ferromq_store=debug (or $FERROMQ_LOG).",
    ),
    click.option("--log-format", metavar="FORMAT", help="text, or json: one object a line (or $FERROMQ_LOG_FORMAT)."),
)
_config_option = click.option("-c", "--config", metavar="FILE", help="TOML, or RocketMQ's .conf.")
_broker_options = (
    _config_option,
    click.option("--store", metavar="DIR", help="The store directory (./store)."),
    click.option("--listen", metavar="HOST:PORT", help="Address for remoting clients, RocketMQ 4 (port 10911)."),
    click.option("--grpc-listen", metavar="HOST:PORT", help="Address for gRPC clients, RocketMQ 5 (port 8081)."),
    click.option("--advertise", metavar="HOST[:PORT]", help="The remoting address that clients connect to."),
    click.option("--grpc-advertise", metavar="HOST[:PORT]", help="The gRPC address that clients connect to."),
    click.option("--name", metavar="NAME", help="Name of the broker (broker-a)."),
    click.option("--cluster", metavar="NAME", help="Name of the cluster (DefaultCluster)."),
    click.option(
        "--flush",
        metavar="POLICY",
        help="Answer a send once it is on disk: group, each; or once it is written: 'every 1000', interval, "
        "'interval 200ms'.",
    ),
    click.option("--retention-age", metavar="AGE", help="Delete files with older messages only: 72h, 30d, forever."),
    click.option(
        "--retention-total-bytes", metavar="SIZE", help="Delete the oldest files above this size of the log: 500GiB."
    ),
    click.option("--fast-boot/--no-fast-boot", default=None, help="After a kill, open without checking records."),
    click.option(
        "--drain", metavar="TIME", help="At SIGTERM, let senders leave for at most this time: 60s (0: stop at once)."
    ),
    click.option(
        "--compat", metavar="SIDE", help="Limits: generous (the default), or those of Apache RocketMQ: rocketmq."
    ),
    click.option("--set", multiple=True, metavar="NAME=VALUE", help="Set any option; may be repeated."),
    click.option("--auto-create-topics/--no-auto-create-topics", default=None, help="Create topics on first use."),
    click.option(
        "--auto-create-groups/--no-auto-create-groups", default=None, help="Create consumer groups on first use."
    ),
    click.option(
        "--metrics-listen",
        metavar="HOST:PORT",
        help="Address for metrics and health checks (127.0.0.1:5557); off: none.",
    ),
    *_log_options,
)


def _with(options: Sequence[Callable[[Any], Any]]) -> Callable[[Callable[[SimpleNamespace], int]], Callable[..., int]]:
    """Add *options*, and pass all options as one object."""

    def decorate(command: Callable[[SimpleNamespace], int]) -> Callable[..., int]:
        @functools.wraps(command)
        def run(**given: Any) -> int:
            return command(SimpleNamespace(**given))

        return functools.reduce(lambda made, option: option(made), reversed(options), run)

    return decorate


def _raise_open_files() -> None:
    """
    Raise the soft limit of open files to the hard one, before connections and store take their shares of it.

    Service managers and shells set 1,024 for the sake of old programs; a server needs a descriptor for each
    connection. An embedded broker leaves the limit of its process alone.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # The system may allow less than the hard limit; then the limit stays.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@click.command("dev", cls=Command)
@click.option("--namesrv-listen", metavar="HOST:PORT", help=f"Address of the name server ({DEV_NAMESRV}).")
@click.option(
    "--dashboard-listen",
    metavar="HOST:PORT",
    help=f"Address of the dashboard, of this machine alone ({DASHBOARD}).",
)
@click.option("--no-dashboard", is_flag=True, help="Serve no dashboard.")
@_with(_broker_options)
def dev(options: SimpleNamespace) -> int:
    """Run a name server and a broker in one process, on 127.0.0.1."""
    from ferromq.cli.administration.dashboard import beside, check_beside  # noqa: PLC0415 (others need no clients)

    check_beside(options.dashboard_listen)
    with _server_process(options) as stop, contextlib.ExitStack() as started:
        name_server_config = NameServerConfig.load(
            defaults={"listen": DEV_NAMESRV, **_MONITORED}, flags={"listen": options.namesrv_listen}
        )
        name_server = started.enter_context(_closing("name server", NamesrvController(name_server_config), stop))

        def load() -> BrokerConfig:
            return replace(_broker_config(options, _DEV), namesrv=(name_server.address,))

        broker = started.enter_context(_closing("broker", _start(load(), options, load, stop), stop))
        say(f"name server  {name_server.address}")
        if not options.no_dashboard:
            modes = {name_server_config.connections.tls_mode, broker.config.connections.tls_mode}
            shown = beside(name_server.address, options.dashboard_listen, is_tls_needed="enforcing" in modes)
            say(f"dashboard    {started.enter_context(shown)}")
        _show(broker)
        _wait(broker, stop)
    return 0


_namesrv_options = (
    click.option(
        "-c", "--config", "--configFile", "config", metavar="FILE", help="TOML, or RocketMQ's .conf or .properties."
    ),
    click.option("-p", "--printConfigItem", "only_print", is_flag=True, help="Print the configuration and exit."),
    click.option(
        "-n", "--namesrvAddr", "others", metavar="A;B", help="Ignored: name servers do not talk to each other."
    ),
    click.option("--kv-config", metavar="FILE", help="Same as --kv-config-path."),
    *_log_options,
)


@click.command("namesrv", cls=flags.ConfigCommand, kind=NameServerConfig)
@_with(_namesrv_options)
def namesrv(options: SimpleNamespace) -> int:
    """Run a name server."""
    return _run_namesrv(options, None)


@click.command("mqnamesrv", cls=flags.ConfigCommand, kind=NameServerConfig)
@_with(_namesrv_options)
def mqnamesrv(options: SimpleNamespace) -> int:
    """Run a name server, with RocketMQ's path of the key-value table."""
    return _run_namesrv(options, str(Path.home() / "namesrv" / "kvConfig.json"))


def _run_namesrv(options: SimpleNamespace, kv_config: str | None) -> int:
    keys, named = _given(options)
    file = None if options.config is None else Path(options.config)
    with _server_process(options) as stop:
        given = {"kv_config_path": options.kv_config, **named}
        defaults = {"kv_config_path": kv_config, **_MONITORED}

        def load() -> NameServerConfig:
            return NameServerConfig.load(file, defaults=defaults, keys=keys, flags=given)

        config = load()
        if options.only_print:
            say(Settings(config).text().rstrip())
            return 0
        with _closing("name server", NamesrvController(config, config_file=file, load=load), stop) as name_server:
            if file is not None:
                stop.on_hangup(lambda: reload_logged(name_server.settings.reload))
            say(f"The Name Server boot success. serializeType=JSON, address {name_server.address}")
            say(f"name server  {name_server.address}")
            _ready()
            _until_stopped(stop)
    return 0


def _given(options: SimpleNamespace) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the flags of the running command: RocketMQ's keys, and ferromq's options."""
    command = click.get_current_context().command
    assert isinstance(command, flags.ConfigCommand)
    return command.given(vars(options))


@click.command("broker", cls=Command)
@click.option("--namesrv", metavar="A;B", help="Addresses of the name servers, HOST:PORT each.")
@_with(_broker_options)
def broker(options: SimpleNamespace) -> int:
    """Run a broker."""

    def load() -> BrokerConfig:
        return _broker_config(options, _MONITORED)

    with (
        _server_process(options) as stop,
        _closing("broker", _start(load(), options, load, stop), stop) as broker,
    ):
        _show(broker)
        _wait(broker, stop)
    return 0


def _start(
    config: BrokerConfig, options: SimpleNamespace, load: Callable[[], BrokerConfig], stop: StopSignals
) -> BrokerController:
    """Start a broker. A terminal shows how far the recovery of its store is."""
    recovery = RecoveryProgress()
    with watching("recovery", recovery.bytes) as is_shown:
        return BrokerController(
            config,
            config_file=options.config,
            load=load,
            on_stop=stop.request,
            recovery=recovery if is_shown else None,
        )


def _broker_config(options: SimpleNamespace, defaults: Mapping[str, Any]) -> BrokerConfig:
    pairs = [pair.partition("=") for pair in options.set]
    for name, separator, _ in pairs:
        if not name or not separator:
            raise ConfigError(f"--set takes NAME=VALUE, not {name}")
    given: dict[str, Any] = {name.strip(): value.strip() for name, _, value in pairs}
    # An option's own flag overrides --set.
    given |= {name: getattr(options, name, None) for name in _FLAGS if getattr(options, name, None) is not None}
    return BrokerConfig.load(options.config, defaults=defaults, flags=given)


def _wait(broker: BrokerController, stop: StopSignals) -> None:
    """Return when the broker shall stop: after a signal or a request and, if the options say so, a drain."""
    if broker.settings.has_file:
        stop.on_hangup(lambda: reload_logged(broker.settings.reload))
    if (
        _until_stopped(stop) == signal.SIGTERM
        and broker.config.membership.drain
        and broker.state not in {DRAINED, RETIRED}
    ):
        stop.take_another()
        broker.drain(is_final=True)
        stop.wait()


def _show(broker: BrokerController) -> None:
    say(f"broker       {broker.address}")
    say(f"gRPC         {broker.endpoint}")
    if broker.metrics_address:
        say(f"metrics      http://{broker.metrics_address}/metrics")
    say(f"store        {os.path.abspath(broker.config.store)}")  # noqa: PTH100 (shown, not used)
    _ready()


def _ready() -> None:
    """Tell people and the service manager that the server is ready."""
    say("ready; stop with Ctrl-C")
    notify(READY)


def _until_stopped(stop: StopSignals) -> int:
    """Wait for the end, tell the service manager, and return the signal; 0 for a request."""
    number = stop.wait()
    notify(STOPPING)
    return number


@click.command("mqbroker", cls=flags.ConfigCommand, kind=BrokerConfig)
@_with(
    (
        click.option(
            *("-c", "--config", "--configFile", "-bc", "--brokerConfigPath", "config"),
            metavar="FILE",
            help="TOML, or RocketMQ's .conf or .properties.",
        ),
        click.option(
            *("-n", "--namesrv", "--namesrvAddr", "namesrv"),
            metavar="A;B",
            help="The name servers, HOST:PORT each; or $NAMESRV_ADDR.",
        ),
        click.option("--enable-proxy", is_flag=True, help="Ignored: the broker always answers gRPC clients itself."),
        click.option(
            "-pc", "--proxyConfigPath", "proxy_file", metavar="FILE", help="File rmq-proxy.json of RocketMQ's proxy."
        ),
        click.option("-pm", "--proxyMode", "proxy_mode", metavar="MODE", help="Only local is accepted."),
        click.option("-p", "--printConfigItem", "print_all", is_flag=True, help="Print all options and exit."),
        click.option(
            "-m", "--printImportantConfig", "print_known", is_flag=True, help="Print RocketMQ's keys and exit."
        ),
        *_log_options,
    )
)
def mqbroker(options: SimpleNamespace) -> int:
    """Run a broker with RocketMQ's defaults, and print what RocketMQ's scripts wait for."""
    keys, named = _given(options)
    with _server_process(options) as stop:
        defaults = {
            "store": str(Path.home() / "store"),
            "name": socket.gethostname(),
            "namesrv": os.environ.get("NAMESRV_ADDR"),
            **_MONITORED,
        }
        given = {"namesrv": options.namesrv, **named}
        beside = _proxy_options(options)

        def load() -> BrokerConfig:
            return BrokerConfig.load(options.config, beside=beside, defaults=defaults, keys=keys, flags=given)

        config = load()
        if options.print_all or options.print_known:
            found = {
                **rocketmq_options.flat(config),
                **Store.check(**config.storage.overrides(), **config.timers.overrides()),
            }
            known = "".join(f"{key}={value}\n" for key, value in rocketmq_options.rocketmq_names(found).items())
            say((rocketmq_options.as_lines(found) if options.print_all else known).rstrip())
            return 0
        running = _start(config, options, load, stop)
        with _closing("broker", running, stop) as broker:
            servers = f" and name server is {';'.join(config.namesrv)}" if config.namesrv else ""
            say(f"The broker[{config.name}, {broker.address}] boot success. serializeType=JSON{servers}")
            _show(broker)
            _wait(broker, stop)
    return 0


def _proxy_options(options: SimpleNamespace) -> dict[str, Any]:
    """Return the options that RocketMQ's flags and file of a proxy set."""
    from ferromq.config import proxy_file  # noqa: PLC0415 (few brokers need it)

    if options.proxy_mode is not None:
        proxy_file.ProxyKeys.translate({"proxyMode": (options.proxy_mode, Place("the flags"))})
    if options.proxy_file is None:
        return {}
    has_mode = options.enable_proxy or options.proxy_mode is not None
    return proxy_file.options_of(options.proxy_file, has_mode=has_mode)
