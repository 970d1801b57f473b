"""The commands that run servers: `ferromq dev`, `broker`, `namesrv`, and RocketMQ's `mqbroker` and `mqnamesrv`."""

import argparse
import contextlib
import os
import resource
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ferromq._ferromq import Store
from ferromq.broker.administration import rocketmq_options
from ferromq.broker.controller import BrokerController
from ferromq.cli import flags
from ferromq.cli.output import say
from ferromq.config.broker import BrokerConfig
from ferromq.config.monitoring import AUTO
from ferromq.config.namesrv import NameServerConfig
from ferromq.config.properties_file import Place
from ferromq.embedding import SMALL_FILES
from ferromq.errors import ConfigError
from ferromq.namesrv.server import NamesrvController
from ferromq.namesrv.settings import Settings
from ferromq.process import logs
from ferromq.process.stop_signals import StopSignals

DEV_NAMESRV = "127.0.0.1:9876"
# A server that runs alone exports its metrics, unless it is told otherwise.
_MONITORED = {"metrics_listen": AUTO}
_DEV = {**_MONITORED, "listen": "127.0.0.1:10911", "grpc_listen": "127.0.0.1:8081", **SMALL_FILES}
_FLAGS = (
    *("store", "listen", "grpc_listen", "advertise", "grpc_advertise", "name", "cluster", "namesrv"),
    *("flush", "retention_age", "retention_total_bytes", "fast_boot", "auto_create_topics", "auto_create_groups"),
    *("compat", "metrics_listen"),
)


@contextlib.contextmanager
def _server_process(options: argparse.Namespace) -> Iterator[StopSignals]:
    """Set up the process of a server: limits, signals and logs."""
    _raise_open_files()
    with StopSignals() as stop:
        level = options.log_level or os.environ.get("FERROMQ_LOG", "info")
        logs.install(level, options.log_format or os.environ.get("FERROMQ_LOG_FORMAT", "text"))
        yield stop


def _add_log_options(parser: argparse.ArgumentParser) -> None:
    add, levels = parser.add_argument, "trace, debug, info, warn, error, off"
    add("--log-level", metavar="LEVEL", help=f"{levels}; also of parts: info,ferromq_store=debug (or $FERROMQ_LOG)")
    add("--log-format", metavar="FORMAT", help="text, or json: one object a line (or $FERROMQ_LOG_FORMAT)")


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


def add_dev_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ferromq dev`."""
    parser.add_argument("--namesrv-listen", metavar="HOST:PORT", help=f"address of the name server ({DEV_NAMESRV})")
    _add_broker_options(parser)


def run_dev(options: argparse.Namespace) -> int:
    """Run a name server and a broker in this process."""
    with _server_process(options) as stop, contextlib.ExitStack() as started:
        name_server_config = NameServerConfig.load(
            defaults={"listen": DEV_NAMESRV, **_MONITORED}, flags={"listen": options.namesrv_listen}
        )
        config = _broker_config(options, _DEV)
        name_server = NamesrvController(name_server_config)
        started.callback(name_server.close)
        broker = BrokerController(replace(config, namesrv=(name_server.address,)), config_file=options.config)
        started.callback(broker.close)
        say(f"name server  {name_server.address}")
        _show(broker)
        stop.wait()
    return 0


def add_namesrv_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ferromq namesrv` and `mqnamesrv`."""
    add = parser.add_argument
    add("-c", "--config", "--configFile", metavar="FILE", help="TOML, or RocketMQ's .conf or .properties")
    add("-p", "--printConfigItem", dest="only_print", action="store_true", help="print the configuration and exit")
    add("-n", "--namesrvAddr", dest="others", metavar="A;B", help="ignored: name servers do not talk to each other")
    add("--kv-config", metavar="FILE", dest="kv_config", help="same as --kv-config-path")
    _add_log_options(parser)
    parser.set_defaults(kv_config_default=None)
    flags.add_options(parser, NameServerConfig)


def run_namesrv(options: argparse.Namespace) -> int:
    """Run a name server."""
    file = None if options.config is None else Path(options.config)
    with _server_process(options) as stop:
        keys, named = flags.given(options)
        given = {"kv_config_path": options.kv_config, **named}
        defaults = {"kv_config_path": options.kv_config_default, **_MONITORED}
        config = NameServerConfig.load(file, defaults=defaults, keys=keys, flags=given)
        if options.only_print:
            say(Settings(config).text().rstrip())
            return 0
        with contextlib.closing(NamesrvController(config, config_file=file)) as name_server:
            say(f"The Name Server boot success. serializeType=JSON, address {name_server.address}")
            say(f"name server  {name_server.address}")
            say("ready; stop with Ctrl-C")
            stop.wait()
    return 0


def add_broker_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `ferromq broker`."""
    parser.add_argument("--namesrv", metavar="A;B", help="addresses of the name servers, HOST:PORT each")
    _add_broker_options(parser)


def _add_broker_options(parser: argparse.ArgumentParser) -> None:
    add, switch = parser.add_argument, argparse.BooleanOptionalAction
    add("-c", "--config", metavar="FILE", help="TOML, or RocketMQ's .conf")
    add("--store", metavar="DIR", help="the store directory (./store)")
    add("--listen", metavar="HOST:PORT", help="address for remoting clients, RocketMQ 4 (port 10911)")
    add("--grpc-listen", metavar="HOST:PORT", help="address for gRPC clients, RocketMQ 5 (port 8081)")
    add("--advertise", metavar="HOST[:PORT]", help="the remoting address that clients connect to")
    add("--grpc-advertise", metavar="HOST[:PORT]", help="the gRPC address that clients connect to")
    add("--name", help="name of the broker (broker-a)")
    add("--cluster", help="name of the cluster (DefaultCluster)")
    add(
        "--flush",
        metavar="POLICY",
        help="answer a send once it is on disk: group, each; or once it is written: 'every 1000', interval, "
        "'interval 200ms'",
    )
    add("--retention-age", metavar="AGE", help="delete files with older messages only: 72h, 30d, forever")
    add("--retention-total-bytes", metavar="SIZE", help="delete the oldest files above this size of the log: 500GiB")
    add("--fast-boot", action=switch, default=None, help="after a kill, open without checking records")
    add("--compat", metavar="SIDE", help="limits: generous (the default), or those of Apache RocketMQ: rocketmq")
    add("--set", metavar="NAME=VALUE", action="append", default=[], help="set any option; may be repeated")
    add("--auto-create-topics", action=switch, default=None, help="create topics on first use")
    add("--auto-create-groups", action=switch, default=None, help="create consumer groups on first use")
    add(
        "--metrics-listen",
        metavar="HOST:PORT",
        help="address for metrics and health checks (127.0.0.1:5557); off: none",
    )
    _add_log_options(parser)


def run_broker(options: argparse.Namespace) -> int:
    """Run a broker."""
    with (
        _server_process(options) as stop,
        contextlib.closing(BrokerController(_broker_config(options, _MONITORED), config_file=options.config)) as broker,
    ):
        _show(broker)
        stop.wait()
    return 0


def _broker_config(options: argparse.Namespace, defaults: Mapping[str, Any]) -> BrokerConfig:
    pairs = [pair.partition("=") for pair in options.set]
    for name, separator, _ in pairs:
        if not name or not separator:
            raise ConfigError(f"--set takes NAME=VALUE, not {name}")
    given: dict[str, Any] = {name.strip(): value.strip() for name, _, value in pairs}
    # An option's own flag overrides --set.
    given |= {name: getattr(options, name, None) for name in _FLAGS if getattr(options, name, None) is not None}
    return BrokerConfig.load(options.config, defaults=defaults, flags=given)


def _show(broker: BrokerController) -> None:
    say(f"broker       {broker.address}")
    say(f"gRPC         {broker.endpoint}")
    if broker.metrics_address:
        say(f"metrics      http://{broker.metrics_address}/metrics")
    say(f"store        {os.path.abspath(broker.config.store)}")  # noqa: PTH100 (shown, not used)
    say("ready; stop with Ctrl-C")


def add_mqbroker_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `mqbroker`."""
    add = parser.add_argument
    files = ("-c", "--config", "--configFile", "-bc", "--brokerConfigPath")
    add(*files, metavar="FILE", help="TOML, or RocketMQ's .conf or .properties")
    add("-n", "--namesrv", "--namesrvAddr", metavar="A;B", help="the name servers, HOST:PORT each; or $NAMESRV_ADDR")
    add("--enable-proxy", action="store_true", help="ignored: the broker always answers gRPC clients itself")
    add("-pc", "--proxyConfigPath", dest="proxy_file", metavar="FILE", help="rmq-proxy.json of RocketMQ's proxy")
    add("-pm", "--proxyMode", dest="proxy_mode", metavar="MODE", help="only local is accepted")
    add("-p", "--printConfigItem", dest="print_all", action="store_true", help="print all options and exit")
    add("-m", "--printImportantConfig", dest="print_known", action="store_true", help="print RocketMQ's keys and exit")
    _add_log_options(parser)
    flags.add_options(parser, BrokerConfig)


def run_mqbroker(options: argparse.Namespace) -> int:
    """Run a broker with RocketMQ's defaults, and print what RocketMQ's scripts wait for."""
    with _server_process(options) as stop:
        defaults = {
            "store": str(Path.home() / "store"),
            "name": socket.gethostname(),
            "namesrv": os.environ.get("NAMESRV_ADDR"),
            **_MONITORED,
        }
        keys, named = flags.given(options)
        given = {"namesrv": options.namesrv, **named}
        beside = _proxy_options(options)
        config = BrokerConfig.load(options.config, beside=beside, defaults=defaults, keys=keys, flags=given)
        if options.print_all or options.print_known:
            found = {
                **rocketmq_options.flat(config),
                **Store.check(**config.storage.overrides(), **config.timers.overrides()),
            }
            known = "".join(f"{key}={value}\n" for key, value in rocketmq_options.rocketmq_names(found).items())
            say((rocketmq_options.as_lines(found) if options.print_all else known).rstrip())
            return 0
        with contextlib.closing(BrokerController(config, config_file=options.config)) as broker:
            servers = f" and name server is {';'.join(config.namesrv)}" if config.namesrv else ""
            say(f"The broker[{config.name}, {broker.address}] boot success. serializeType=JSON{servers}")
            _show(broker)
            stop.wait()
    return 0


def _proxy_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that RocketMQ's flags and file of a proxy set."""
    from ferromq.config import proxy_file  # noqa: PLC0415 (few brokers need it)

    if options.proxy_mode is not None:
        proxy_file.ProxyKeys.translate({"proxyMode": (options.proxy_mode, Place("the flags"))})
    if options.proxy_file is None:
        return {}
    has_mode = options.enable_proxy or options.proxy_mode is not None
    return proxy_file.options_of(options.proxy_file, has_mode=has_mode)
