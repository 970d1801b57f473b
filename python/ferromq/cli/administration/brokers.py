"""The commands `ferromq cluster`, `config`, `context` and `completion`."""

from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import get_completion_class

from ferromq.admin import Admin
from ferromq.cli.administration.contexts import Context, Contexts
from ferromq.cli.administration.output import DONE, UNREACHABLE, Missing, Output, visible
from ferromq.cli.administration.target import ADDRESS_OPTIONS, Target, confirm, connected, json_option, yes_option
from ferromq.errors import ConfigError
from ferromq.protocol.route import MASTER

COMPLETE_VARIABLE = "_FERROMQ_COMPLETE"
"""The environment variable by which a shell asks for completions."""


@click.group("cluster")
def cluster() -> None:
    """Look at the brokers of clusters."""


@cluster.command("list")
@click.argument("cluster", required=False)
@connected
def list_brokers(target: Target, cluster: str | None) -> int:
    """Print all brokers with version, rates and disk."""
    with target.admin() as admin:
        found = admin.cluster(cluster)
    if target.output.is_json:
        target.output.document(found)
    else:
        rows = [
            (
                *(each.cluster, each.name, "master" if each.broker_id == MASTER else f"slave {each.broker_id}"),
                *(each.address, each.version, _rate(each.sent_per_second), _rate(each.received_per_second)),
                *(each.sent_today, None if each.disk_used is None else f"{each.disk_used:.0%}"),
            )
            for each in found
        ]
        head = ("cluster", "broker", "role", "address", "version", "in/s", "out/s", "today", "disk")
        target.output.table(head, rows, "<<<<<>>>>")
    for each in found:
        if each.error is not None:
            click.echo(
                visible(f"ferromq: the broker {each.name} at {each.address} told nothing: {each.error}"), err=True
            )
    return UNREACHABLE if any(each.error for each in found) else DONE


def _rate(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:,.1f}"


@click.group("config")
def config() -> None:
    """Print and change options of a running broker or name server."""


_broker = click.option(
    "--broker", metavar="NAME", help="A broker by name or address; needed only if there are several."
)
_name_servers = click.option("--name-servers", is_flag=True, help="All name servers, in place of a broker.")


@config.command("get")
@click.argument("names", nargs=-1)
@_broker
@_name_servers
@connected
def get(target: Target, names: Sequence[str], *, broker: str | None, name_servers: bool) -> None:
    """Print the options NAMES, or all."""
    with target.admin() as admin:
        if name_servers:
            found = admin.name_server_config()
        else:
            chosen = _chosen(admin, broker)
            found = {chosen: admin.broker_config(chosen)}
    for name in names:
        if not any(name in options for options in found.values()):
            raise Missing(f"there is no option {name}; ferromq config get prints all")
    shown = {
        server: {name: value for name, value in options.items() if not names or name in names}
        for server, options in found.items()
    }
    if target.output.is_json:
        target.output.document(shown)
        return
    for server, options in shown.items():
        if len(shown) > 1:
            target.output.text(f"# {server}")
        for name, value in options.items():
            target.output.text(f"{name}={value}")


@config.command("set")
@click.argument("options", nargs=-1, required=True, metavar="NAME=VALUE...")
@_broker
@_name_servers
@yes_option
@connected
def change(target: Target, options: Sequence[str], *, broker: str | None, name_servers: bool, yes: bool) -> None:
    """Change options by RocketMQ's name or ours; all of them or none."""
    wanted = dict(map(_option, options))
    with target.admin() as admin:
        if name_servers:
            confirm(f"Change {', '.join(wanted)} of all name servers?", yes=yes)
            admin.configure_name_servers(wanted)
        else:
            chosen = _chosen(admin, broker)
            confirm(f"Change {', '.join(wanted)} of the broker {chosen}?", yes=yes)
            admin.configure_broker(chosen, wanted)
    target.output.done(f"changed {', '.join(wanted)}", {"changed": wanted})


def _option(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise click.UsageError(f"{text!r} is not NAME=VALUE")
    return name.strip(), value.strip()


def _chosen(admin: Admin, broker: str | None) -> str:
    """Return the given broker, or the only one, which need not answer. Raises `ConfigError` for several."""
    if broker is not None:
        return broker
    known = admin.cluster()
    if len(known) > 1:
        raise ConfigError(
            f"there are several brokers; choose one with --broker: {', '.join(each.name for each in known)}"
        )
    return known[0].address


@click.group("context")
def context() -> None:
    """Keep addresses of clusters under names."""


def _with_address(command: Any) -> Any:
    for option in reversed(ADDRESS_OPTIONS):
        command = option(command)
    return command


@context.command("add")
@click.argument("name")
@_with_address
@json_option
def add(output: Output, name: str, **fields: Any) -> None:
    """Keep an address as NAME; the first one is used from now on."""
    contexts = Contexts.load()
    contexts.known[name] = Context(**{field: value for field, value in fields.items() if value is not None})
    contexts.current = contexts.current or name
    contexts.save()
    output.done(f"added context {name}", {"added": name, "current": contexts.current})


@context.command("list")
@json_option
def list_contexts(output: Output) -> None:
    """Print all contexts; * marks the one that is used."""
    contexts = Contexts.load()
    if output.is_json:
        output.document({"current": contexts.current, "contexts": contexts.known})
        return
    rows = [
        ("*" if name == contexts.current else "", name, each.address, each.namespace, bool(each.tls_options))
        for name, each in sorted(contexts.known.items())
    ]
    output.table(("", "context", "address", "namespace", "TLS"), rows, "<<<<<")


@context.command("use")
@click.argument("name")
@json_option
def use(output: Output, name: str) -> None:
    """Use a context from now on."""
    contexts = Contexts.load()
    contexts.find(name)
    contexts.current = name
    contexts.save()
    output.done(f"using context {name}", {"current": name})


@context.command("remove")
@click.argument("name")
@json_option
def remove(output: Output, name: str) -> None:
    """Forget a context."""
    contexts = Contexts.load()
    contexts.find(name)
    del contexts.known[name]
    contexts.current = None if contexts.current == name else contexts.current
    contexts.save()
    output.done(f"removed context {name}", {"removed": name})


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(current: click.Context, shell: str) -> None:
    """
    Print the code that completes words in a shell.

    Put it into the start file of the shell.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(current.find_root().command, {}, "ferromq", COMPLETE_VARIABLE).source())
