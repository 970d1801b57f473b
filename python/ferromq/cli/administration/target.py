"""The options of each command that say which cluster is meant, and the clients that they make."""

import functools
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import click
from click.shell_completion import CompletionItem

import ferromq
from ferromq.cli.administration.contexts import Context, Contexts
from ferromq.cli.administration.output import Output
from ferromq.cli.parsing import Number, with_options
from ferromq.core.credentials import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from ferromq.errors import ConfigError, FerromqError
from ferromq.protocol.endpoints import ENDPOINT_VARIABLE, NAMESRV_VARIABLE
from ferromq.terminal.commands import use_namespace

_COMPLETION_TIMEOUT = 2.0
"""Seconds that a completion of names may take."""


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster of a command, and how it prints."""

    context: Context
    timeout: float
    output: Output

    def admin(self) -> ferromq.Admin:
        """Return a new administrator."""
        return ferromq.Admin(timeout=self.timeout, **self.context.client_options())

    def connection(self) -> ferromq.Connection:
        """Return a new connection."""
        return ferromq.connect(timeout=self.timeout, **self.context.client_options())


class NoAddress(ConfigError):  # noqa: N818 (as the others)
    """No address of a cluster is given."""


ADDRESS_OPTIONS = (
    click.option("--namesrv", metavar="HOST:PORT", help="Name servers, several joined by ;."),
    click.option("--endpoint", metavar="HOST:PORT", help="The gRPC address of a ferromq broker, or several."),
    click.option("--namespace", metavar="NAME", help="The namespace of topics and groups."),
    click.option("--tls", is_flag=True, default=None, help="Speak TLS."),
    click.option("--tls-trust", metavar="FILE", help="Certificates to believe (PEM)."),
    click.option("--tls-certificate", metavar="FILE", help="The certificate to show (PEM)."),
    click.option("--tls-key", metavar="FILE", help="Its key (PEM)."),
    click.option("--tls-server-name", metavar="NAME", help="The name in the server's certificate."),
)
_KEYS = ("access_key", "secret_key")
ADDRESS_NAMES = tuple(name for name in Context.__dataclass_fields__ if name not in _KEYS)
TLS_VARIABLES = {f"tls_{name}": f"FERROMQ_TLS_{name.upper()}" for name in ("trust", "certificate", "key")}
"""Fields of a context, and the environment variables that come before them."""


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`, and pass an `Output` in its place."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(command)
    def with_output(*arguments: Any, as_json: bool, **options: Any) -> Any:
        return command(*arguments, Output(is_json=as_json), **options)

    return with_output


def complete_contexts(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the names of contexts that begin like the word."""
    # A shell that completes has no place for errors.
    with suppress(FerromqError, OSError):
        return [CompletionItem(name) for name in sorted(Contexts.load().known) if name.startswith(begun)]
    return []


def connected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which cluster is meant, and `--json`; pass a `Target` in their place."""

    @with_options(*ADDRESS_OPTIONS)
    @click.option(
        "--context",
        "context_name",
        metavar="NAME",
        help="A context of `ferromq context list`.",
        shell_complete=complete_contexts,
    )
    @click.option("--timeout", type=Number(0, min_open=True), default=10.0, help="Seconds for each call (10).")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(command)
    def with_target(*arguments: Any, context_name: str | None, timeout: float, as_json: bool, **options: Any) -> Any:
        given = {name: options.pop(name) for name in ADDRESS_NAMES}
        target = Target(chosen(context_name, given), timeout, Output(is_json=as_json))
        use_namespace(target.context.namespace)
        return command(target, *arguments, **options)

    return with_target


def chosen(name: str | None, given: dict[str, Any]) -> Context:
    """
    Return the context of a command.

    Addresses on the command line come first, then `--context`, then FERROMQ_ENDPOINT and NAMESRV_ADDR of the
    environment, then the current context. An address that is that of the current context has its TLS options and keys.
    The environment's files for TLS and keys come before those of a context, the options of the command before both.
    Raises `ConfigError`.
    """
    changes = {field: value for field, value in given.items() if value is not None}
    address: dict[str, Any] = {field: changes.pop(field) for field in ("namesrv", "endpoint") if field in changes}
    if address and name is not None:
        raise ConfigError("--context has an address; leave out --namesrv and --endpoint")
    contexts = Contexts.load()
    if name is not None:
        return _changed(contexts.find(name), changes)
    current = None if contexts.current is None else contexts.find(contexts.current)
    address = address or _address_of_environment()
    if address:
        found = Context(**address)
        is_current = current is not None and (current.namesrv, current.endpoint) == (found.namesrv, found.endpoint)
        return _changed(replace(current, namespace="") if current is not None and is_current else found, changes)
    if current is None:
        raise NoAddress(
            f"no cluster is given; use --namesrv HOST:9876 or --endpoint HOST:8081, set {ENDPOINT_VARIABLE} or "
            f"{NAMESRV_VARIABLE}, or keep an address with ferromq context add NAME --namesrv HOST:9876"
        )
    return _changed(current, changes)


def _address_of_environment() -> dict[str, Any]:
    for variable, field in ((ENDPOINT_VARIABLE, "endpoint"), (NAMESRV_VARIABLE, "namesrv")):
        if os.environ.get(variable, "").strip():
            return {field: os.environ[variable].strip()}
    return {}


def tls_of_environment() -> dict[str, str]:
    """Return the files for TLS that the environment names, by the fields of a context."""
    return {field: os.environ[variable] for field, variable in TLS_VARIABLES.items() if os.environ.get(variable)}


def _changed(context: Context, changes: dict[str, Any]) -> Context:
    has_keys = any(os.environ.get(name) for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE))
    if has_keys:
        context = replace(context, access_key=None, secret_key=None)  # clients read those of the environment themselves
    values: dict[str, Any] = {**tls_of_environment(), **changes}
    return replace(context, **values)


def _complete(names: Callable[[ferromq.Admin], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    def complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        # A shell that completes has no place for errors.
        with suppress(FerromqError, OSError, ValueError):
            given = {name: context.params.get(name) for name in ADDRESS_NAMES}
            found = chosen(context.params.get("context_name"), given)
            with Target(found, _COMPLETION_TIMEOUT, Output(is_json=False)).admin() as admin:
                return [CompletionItem(name) for name in names(admin) if name.startswith(begun)]
        return []

    return complete


def _groups(admin: ferromq.Admin) -> list[str]:
    clusters = {each.cluster for each in admin.cluster(figures=False)}
    return sorted({group for name in clusters for group in admin.groups(system=False, cluster=name, unreachable=[])})


_complete_topics = _complete(lambda admin: admin.topics(system=False))
_complete_groups = _complete(_groups)
complete_brokers = _complete(lambda admin: sorted({each.name for each in admin.cluster(figures=False)}))
"""Return the names of brokers that begin like the word."""

topic_argument = click.argument("topic", shell_complete=_complete_topics)
group_argument = click.argument("group", shell_complete=_complete_groups)
optional_group = click.argument("group", required=False, shell_complete=_complete_groups)
topic_option = click.option("--topic", metavar="NAME", help="Only this topic.", shell_complete=_complete_topics)
cluster_option = click.option("--cluster", metavar="NAME", help="Needed only if several clusters are known.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a change that cannot be undone. Raises `ConfigError` without a terminal, `click.Abort` at a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} There is no terminal to ask at; give --yes to do it")
    click.confirm(question, abort=True, err=True)
