"""
The command `ferromq`: servers, the demo, tools for store directories, pipelines, the version.

It parses, starts, waits for a signal and stops; what it starts is in `namesrv.server` and `broker.controller`. Exit
codes: 0 done or stopped by a signal, 1 failed, 2 wrong usage or configuration.
"""

import argparse
import contextlib
import difflib
import os
import resource
import signal
import socket
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn, Self

from ferromq._ferromq import Store
from ferromq.broker.administration import settings
from ferromq.broker.controller import BrokerController
from ferromq.cli import flags as _flags
from ferromq.cli import pipelines, store
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.config.properties_file import Place
from ferromq.embedding import SMALL_FILES
from ferromq.errors import ConfigError, FerromqError
from ferromq.namesrv.server import NamesrvController
from ferromq.namesrv.settings import Settings
from ferromq.process import logs

_DEV = {"listen": "127.0.0.1:10911", "grpc_listen": "127.0.0.1:8081", **SMALL_FILES}
_DEV_NAMESRV = "127.0.0.1:9876"
_FLAGS = (
    *("store", "listen", "grpc_listen", "advertise", "grpc_advertise", "name", "cluster", "namesrv"),
    *("flush", "retention_age", "retention_total_bytes", "fast_boot", "auto_create_topics", "auto_create_groups"),
    "compat",
)
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        parser = _parser(words)
        options, unknown = parser.parse_known_args(words)
        if unknown:
            _refuse(parser, words, unknown[0])
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except ConfigError as error:
        return _complain(error, code=2)
    except (FerromqError, OSError) as error:
        return _complain(error, code=1)


def _refuse(parser: argparse.ArgumentParser, words: Sequence[str], unknown: str) -> NoReturn:
    """End with the usage of the command that was called, and with the nearest option it has."""
    for word in words:
        choices = [action.choices for action in parser._actions if isinstance(action.choices, dict)]  # noqa: SLF001 (there is no other way to ask)
        parser = next((known[word] for known in choices if word in known), parser)
    flags = [flag for action in parser._actions for flag in action.option_strings]  # noqa: SLF001
    nearest = difflib.get_close_matches(unknown.partition("=")[0], flags, n=1)
    parser.error(f"unknown argument {unknown}" + (f"; did you mean {nearest[0]}?" if nearest else ""))


def _complain(error: Exception, *, code: int) -> int:
    _say(f"ferromq: {error}", file=sys.stderr)
    return code


def _say(text: str, file: Any = None) -> None:
    print(text, file=file or sys.stdout, flush=True)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ferromq", description="Apache RocketMQ in one wheel.")
    parser.add_argument("--version", action="version", version=f"ferromq {_version()}", help="print the version")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="the main job, end to end, on 336,776 real rows")
    demo.set_defaults(run=_demo)
    if "demo" in words[:1]:
        from ferromq.demo import add_arguments  # noqa: PLC0415 (servers need neither clients nor pandas)

        add_arguments(demo)

    dev = commands.add_parser("dev", help="name server and broker in one process, on 127.0.0.1 and RocketMQ's ports")
    dev.set_defaults(run=_dev)
    dev.add_argument("--namesrv-listen", metavar="HOST:PORT", help=f"the name server's address ({_DEV_NAMESRV})")
    _add_broker_options(dev)

    namesrv = commands.add_parser("namesrv", help="a name server")
    namesrv.set_defaults(run=_namesrv)
    _add_namesrv_options(namesrv)

    broker = commands.add_parser("broker", help="a broker")
    broker.set_defaults(run=_broker)
    broker.add_argument("--namesrv", metavar="A;B", help="the name servers, HOST:PORT each")
    _add_broker_options(broker)

    store.add_commands(commands)
    pipelines.add_commands(commands, words)

    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_print_version)
    return parser


def mqnamesrv(arguments: Sequence[str] | None = None) -> int:
    """Run a name server as RocketMQ's command of this name does, its key-value table kept at RocketMQ's place."""
    parser = argparse.ArgumentParser(prog="mqnamesrv", description="A name server.", allow_abbrev=False)
    _add_namesrv_options(parser)
    words = sys.argv[1:] if arguments is None else list(arguments)
    options, unknown = parser.parse_known_args(words)
    options.kv_config_default = str(Path.home() / "namesrv" / "kvConfig.json")
    try:
        _flags.refuse(unknown, NameServerConfig)
        return _namesrv(options)
    except ConfigError as error:
        return _complain(error, code=2)
    except (FerromqError, OSError) as error:
        return _complain(error, code=1)


def mqbroker(arguments: Sequence[str] | None = None) -> int:
    """Run a broker as RocketMQ's command of this name does; what is not said is as it is there."""
    parser = argparse.ArgumentParser(prog="mqbroker", description="A broker.", allow_abbrev=False)
    add = parser.add_argument
    files = ("-c", "--config", "--configFile", "-bc", "--brokerConfigPath")
    add(*files, metavar="FILE", help="TOML, or RocketMQ's .conf or .properties")
    add("-n", "--namesrv", "--namesrvAddr", metavar="A;B", help="the name servers, HOST:PORT each; else $NAMESRV_ADDR")
    add("--enable-proxy", action="store_true", help="accepted; the broker answers gRPC clients itself, always")
    add("-pc", "--proxyConfigPath", dest="proxy_file", metavar="FILE", help="rmq-proxy.json of RocketMQ's proxy")
    add("-pm", "--proxyMode", dest="proxy_mode", metavar="MODE", help="accepted where it is local")
    add("-p", "--printConfigItem", dest="print_all", action="store_true", help="print all options and exit")
    add("-m", "--printImportantConfig", dest="print_known", action="store_true", help="print RocketMQ's keys and exit")
    _flags.add_options(parser, BrokerConfig)
    options, unknown = parser.parse_known_args(sys.argv[1:] if arguments is None else list(arguments))
    try:
        _flags.refuse(unknown, BrokerConfig)
        return _mqbroker(options)
    except ConfigError as error:
        return _complain(error, code=2)
    except (FerromqError, OSError) as error:
        return _complain(error, code=1)


def _raise_open_files() -> None:
    """
    Raise the soft limit of open files to the hard one, before connections and store get their parts of it.

    Service managers and shells leave it at 1,024 for old programs; a server needs a descriptor for each connection. An
    embedded broker leaves the limit of its process as it is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Where the system allows less than it says the limit stays.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _mqbroker(options: argparse.Namespace) -> int:
    _raise_open_files()
    with _Stop() as stop:
        defaults = {
            "store": str(Path.home() / "store"),
            "name": socket.gethostname(),
            "namesrv": os.environ.get("NAMESRV_ADDR"),
        }
        keys, named = _flags.given(options)
        flags = {"namesrv": options.namesrv, **named}
        beside = _proxy_options(options)
        config = BrokerConfig.load(options.config, beside=beside, defaults=defaults, keys=keys, flags=flags)
        if options.print_all or options.print_known:
            found = {**settings.flat(config), **Store.check(**config.storage.overrides(), **config.timers.overrides())}
            known = "".join(f"{key}={value}\n" for key, value in settings.rocketmq_names(found).items())
            _say((settings.as_lines(found) if options.print_all else known).rstrip())
            return 0
        with contextlib.closing(BrokerController(config, config_file=options.config)) as broker:
            servers = f" and name server is {';'.join(config.namesrv)}" if config.namesrv else ""
            _say(f"The broker[{config.name}, {broker.address}] boot success. serializeType=JSON{servers}")
            _show(broker)
            stop.wait()
    return 0


def _proxy_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that RocketMQ's flags and file of a proxy set."""
    from ferromq.config import proxy_file  # noqa: PLC0415 (few brokers are started with it)

    if options.proxy_mode is not None:
        proxy_file.ProxyKeys.translate({"proxyMode": (options.proxy_mode, Place("the flags"))})
    if options.proxy_file is None:
        return {}
    has_mode = options.enable_proxy or options.proxy_mode is not None
    return proxy_file.options_of(options.proxy_file, has_mode=has_mode)


def _add_namesrv_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-c", "--config", "--configFile", metavar="FILE", help="TOML, or RocketMQ's .conf or .properties")
    add("-p", "--printConfigItem", dest="only_print", action="store_true", help="print the configuration and exit")
    add("-n", "--namesrvAddr", dest="others", metavar="A;B", help="accepted; name servers do not talk to each other")
    add("--kv-config", metavar="FILE", dest="kv_config", help="the same as --kv-config-path")
    parser.set_defaults(kv_config_default=None)
    _flags.add_options(parser, NameServerConfig)


def _add_broker_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-c", "--config", metavar="FILE", help="TOML, or RocketMQ's .conf")
    add("--store", metavar="DIR", help="the store directory (./store)")
    add("--listen", metavar="HOST:PORT", help="address for clients of RocketMQ 4 (port 10911)")
    add("--grpc-listen", metavar="HOST:PORT", help="address for gRPC clients (port 8081)")
    add("--advertise", metavar="HOST[:PORT]", help="the first address, as others reach it")
    add("--grpc-advertise", metavar="HOST[:PORT]", help="the second address, as others reach it")
    add("--name", help="the broker's name (broker-a)")
    add("--cluster", help="the cluster's name (DefaultCluster)")
    add(
        "--flush",
        metavar="POLICY",
        help="answer a send once on disk: group, each; once written: 'every 1000', interval, 'interval 200ms'",
    )
    add("--retention-age", metavar="AGE", help="delete files whose messages are older: 72h, 30d, forever")
    add("--retention-total-bytes", metavar="SIZE", help="delete the oldest files above this size of the log: 500GiB")
    add("--fast-boot", action=argparse.BooleanOptionalAction, default=None, help="open after a kill without checking")
    add("--compat", metavar="SIDE", help="what is allowed: generous (the default), or as in Apache RocketMQ: rocketmq")
    add("--set", metavar="NAME=VALUE", action="append", default=[], help="any option by its name; may be repeated")
    add("--auto-create-topics", action=argparse.BooleanOptionalAction, default=None, help="create topics on first use")
    add("--auto-create-groups", action=argparse.BooleanOptionalAction, default=None, help="create groups on first use")


def _demo(options: argparse.Namespace) -> int:
    from ferromq import demo  # noqa: PLC0415

    logs.install(os.environ.get("FERROMQ_LOG", "warn"))
    return demo.main(options)


def _dev(options: argparse.Namespace) -> int:
    _raise_open_files()
    with _Stop() as stop, contextlib.ExitStack() as started:
        name_server_config = NameServerConfig.load(
            defaults={"listen": _DEV_NAMESRV}, flags={"listen": options.namesrv_listen}
        )
        config = _broker_config(options, _DEV)
        name_server = NamesrvController(name_server_config)
        started.callback(name_server.close)
        broker = BrokerController(replace(config, namesrv=(name_server.address,)), config_file=options.config)
        started.callback(broker.close)
        _say(f"name server  {name_server.address}")
        _show(broker)
        stop.wait()
    return 0


def _namesrv(options: argparse.Namespace) -> int:
    _raise_open_files()
    file = None if options.config is None else Path(options.config)
    with _Stop() as stop:
        keys, named = _flags.given(options)
        flags = {"kv_config_path": options.kv_config, **named}
        defaults = {"kv_config_path": options.kv_config_default}
        config = NameServerConfig.load(file, defaults=defaults, keys=keys, flags=flags)
        if options.only_print:
            _say(Settings(config).text().rstrip())
            return 0
        with contextlib.closing(NamesrvController(config, config_file=file)) as name_server:
            _say(f"The Name Server boot success. serializeType=JSON, address {name_server.address}")
            _say(f"name server  {name_server.address}")
            _say("ready; stop with Ctrl-C")
            stop.wait()
    return 0


def _broker(options: argparse.Namespace) -> int:
    _raise_open_files()
    with (
        _Stop() as stop,
        contextlib.closing(BrokerController(_broker_config(options, {}), config_file=options.config)) as broker,
    ):
        _show(broker)
        stop.wait()
    return 0


def _show(broker: BrokerController) -> None:
    _say(f"broker       {broker.address}")
    _say(f"gRPC         {broker.endpoint}")
    _say(f"store        {os.path.abspath(broker.config.store)}")  # noqa: PTH100 (shown, not used)
    _say("ready; stop with Ctrl-C")


def _version() -> str:
    try:
        return metadata.version("ferromq")
    except metadata.PackageNotFoundError:
        project = Path(__file__).resolve().parents[2] / "pyproject.toml"
        return f"{tomllib.loads(project.read_text())['project']['version']} (a source tree, not installed)"


def _print_version(_options: argparse.Namespace) -> int:
    _say(f"ferromq {_version()}")
    return 0


def _broker_config(options: argparse.Namespace, defaults: Mapping[str, Any]) -> BrokerConfig:
    pairs = [pair.partition("=") for pair in options.set]
    for name, separator, _ in pairs:
        if not name or not separator:
            raise ConfigError(f"--set takes NAME=VALUE, not {name}")
    flags: dict[str, Any] = {name.strip(): value.strip() for name, _, value in pairs}
    # A flag of its own counts more.
    flags |= {name: getattr(options, name, None) for name in _FLAGS if getattr(options, name, None) is not None}
    return BrokerConfig.load(options.config, defaults=defaults, flags=flags)


class _Stop:
    """
    Waits for SIGINT or SIGTERM; a second one ends the process at once.

    The interpreter looks for signals before it waits for a lock, not while it waits: a signal in between, or one that
    another thread received, would be found by the next signal only. So the main thread waits for a byte instead, which
    the interpreter writes as soon as it receives a signal, whichever thread that is.
    """

    def __init__(self) -> None:
        self._signals, self._woken_by = socket.socketpair()
        self._woken_by.settimeout(0)
        self._before = -1

    def __enter__(self) -> Self:
        logs.install(os.environ.get("FERROMQ_LOG", "info"))
        self._before = signal.set_wakeup_fd(self._woken_by.fileno(), warn_on_full_buffer=False)
        for number in _STOP_SIGNALS:
            signal.signal(number, self._ask)
        return self

    def __exit__(self, *_error: object) -> None:
        self._end_at_the_next()
        signal.set_wakeup_fd(self._before)
        self._woken_by.close()
        self._signals.close()

    def wait(self) -> None:
        """Return once a signal came."""
        while self._signals.recv(1)[0] not in _STOP_SIGNALS:
            pass
        self._end_at_the_next()

    def _ask(self, _number: int, _frame: object) -> None:
        self._end_at_the_next()

    def _end_at_the_next(self) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
