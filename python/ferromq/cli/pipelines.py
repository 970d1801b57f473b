"""
The command `ferromq pipeline NAME`.

It imports PySpark and the pipeline only when a pipeline is named. A pipeline that reads from brokers finds them as the
other commands do: by an address, a context or the environment.
"""

import functools
import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from ferromq.cli.parsing import Command, Group
from ferromq.errors import ConfigError

if TYPE_CHECKING:
    from ferromq.cli.administration.contexts import Context

PIPELINES: Mapping[str, str] = {
    "archive": "write commit log files as Parquet, by topic, date and hour",
    "audit": "check a store: compare records, queues and index with each other",
    "compact": "keep the last message of each key, as Parquet or in a topic",
    "dead-letters": "list dead letters by group and cause, and write a list for replay",
    "replay": "send messages of an archive, a topic or a log again",
    "stats": "count messages, bytes, tags, keys, delays and lags by topic, time and queue",
}
"""Name on the command line → help text. The module's name has `_` instead of `-`."""
_TLS = ("tls", "tls_trust", "tls_certificate", "tls_key", "tls_server_name")


class _Pipelines(Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's)
        """Return all names."""
        return list(PIPELINES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's)
        """Return the command of a pipeline."""
        return _Pipeline(cmd_name, help=PIPELINES[cmd_name]) if cmd_name in PIPELINES else None


class _Pipeline(Command):
    @functools.cached_property
    def _modules(self) -> tuple[Any, Any]:
        """What all pipelines share, and this one. Raises `ConfigError` with the pip command for a missing package."""
        try:
            shared = importlib.import_module("ferromq.pipeline.command.shared")
            return shared, importlib.import_module(f"ferromq.pipeline.{str(self.name).replace('-', '_')}")
        except ModuleNotFoundError as error:
            raise ConfigError(str(error)) from error

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters of the pipeline."""
        if not self.params:
            shared, module = self._modules
            self.params = shared.parameters_of(module)
            if any(parameter.name == "namesrv" for parameter in self.params):
                self.params.append(
                    click.Option(["--context", "context_name"], metavar="NAME", help="read from a context's brokers")
                )
        return super().get_params(ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the pipeline and return its exit code."""
        shared, module = self._modules
        with _addressed(dict(ctx.params)) as parameters:
            return shared.guarded(module.run, SimpleNamespace(**parameters))


@contextmanager
def _addressed(parameters: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parameters, with the address, TLS options and keys that other commands take. Raises `ConfigError`."""
    name = parameters.pop("context_name", None)
    found = _context(name, parameters) if "namesrv" in parameters else None
    if found is None:
        yield parameters
        return
    if found.namespace:
        raise ConfigError(
            f"the context has the namespace {found.namespace}, which pipelines do not take; give its address by "
            f"--namesrv or --endpoint, and whole names of topics: {found.namespace}%TOPIC"
        )
    with _signing(found, parameters["master"]):
        yield parameters | {field: getattr(found, field) for field in _TLS}


def _context(name: str | None, parameters: dict[str, Any]) -> "Context | None":
    """Return the context of the brokers that a pipeline connects to, and note its address; None if there are none."""
    from ferromq.cli.administration.target import NoAddress, chosen  # noqa: PLC0415 (servers need no clients)

    given = {field: parameters[field] or None for field in ("namesrv", "endpoint", *_TLS)}
    files = [place for place in ("archive", "log") if parameters[place]]
    if files:
        if name is not None:
            raise ConfigError(f"--context and --{files[0]} are two sources; leave out one of them")
        if given["namesrv"] or given["endpoint"] or not parameters.get("to_endpoint"):
            return None  # the pipeline refuses two sources, and reads files without a connection
        return chosen(None, {**given, "endpoint": parameters["to_endpoint"]})
    if given["namesrv"] and given["endpoint"]:
        return None  # refused by the pipeline
    with suppress(NoAddress):  # the pipeline says what it can read
        found = chosen(name, given)
        parameters["namesrv"], parameters["endpoint"] = found.namesrv, found.endpoint
        return found
    return None


@contextmanager
def _signing(context: "Context", master: str | None) -> Iterator[None]:
    """Put the keys of a context into the environment, where the processes that Spark starts find them."""
    from ferromq.core.credentials import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE  # noqa: PLC0415 (as in `_context`)

    if context.access_key is None or context.secret_key is None:
        yield
        return
    if master is not None and not master.startswith("local"):
        raise ConfigError(
            f"the context has keys, which do not reach the workers of {master}; set {ACCESS_KEY_VARIABLE} and "
            f"{SECRET_KEY_VARIABLE} in their environment and here"
        )
    before = {variable: os.environ.get(variable) for variable in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE)}
    os.environ |= {ACCESS_KEY_VARIABLE: context.access_key, SECRET_KEY_VARIABLE: context.secret_key}
    try:
        yield
    finally:
        for variable, value in before.items():
            os.environ.pop(variable, None)
            if value is not None:
                os.environ[variable] = value


@click.group("pipeline", cls=_Pipelines)
def pipeline() -> None:
    """Run a Spark job: archive, replay, audit, statistics."""
