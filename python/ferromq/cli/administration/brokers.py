"""The commands `ferromq cluster`, `config`, `context` and `completion`."""

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import click
from click.shell_completion import get_completion_class

from ferromq.admin import Admin, Import, Metadata, Retirement
from ferromq.admin.inventory import found_broker
from ferromq.cli.administration.access import read_secret, secret_file_option
from ferromq.cli.administration.contexts import Context, Contexts
from ferromq.cli.administration.output import (
    CARRIED_OUT,
    DONE,
    FAILED,
    UNREACHABLE,
    Missing,
    Output,
    plain,
    printing,
    told,
    visible,
)
from ferromq.cli.administration.target import (
    ADDRESS_OPTIONS,
    TLS_VARIABLES,
    Target,
    cluster_option,
    complete_brokers,
    complete_contexts,
    confirm,
    connected,
    json_option,
    yes_option,
)
from ferromq.cli.parsing import Command, Group, with_options
from ferromq.config.membership import LONGEST_DRAIN
from ferromq.config.values import duration, written
from ferromq.errors import AlreadyExists, ConfigError, FerromqError, OutcomeUnknown
from ferromq.files.atomic import put_file
from ferromq.protocol.route import MASTER
from ferromq.terminal.commands import in_commands
from ferromq.terminal.progress import Progress

_LOOK_SECONDS = 1.0
"""How often a command that waits for a broker looks at it."""
_PROGRAMS = ("ferromq", "mqbroker", "mqnamesrv")


@click.group("cluster", cls=Group)
def cluster() -> None:
    """Look at clusters; drain, retire and stop brokers; export and import metadata."""


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
                *(each.address, each.version, each.state, _rate(each.sent_per_second), _rate(each.received_per_second)),
                *(each.sent_today, None if each.disk_used is None else f"{each.disk_used:.0%}"),
            )
            for each in found
        ]
        head = ("cluster", "broker", "role", "address", "version", "state", "in/s", "out/s", "today", "disk")
        target.output.table(head, rows, "<<<<<<>>>>")
    for each in found:
        if each.error is not None:
            why = in_commands(str(each.error))
            click.echo(visible(f"ferromq: the broker {each.name} at {each.address} told nothing: {why}"), err=True)
    return UNREACHABLE if any(each.error for each in found) else DONE


def _rate(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:,.1f}"


_broker_argument = click.argument("broker", shell_complete=complete_brokers)


@cluster.command("drain")
@_broker_argument
@click.option("--quiet", metavar="TIME", default="30s", help="Stop when no send has come for this time (30s).")
@click.option("--within", metavar="TIME", default="60s", help="Stop after this time in any case (60s).")
@yes_option
@connected
def drain(target: Target, broker: str, *, quiet: str, within: str, yes: bool) -> None:
    """Let senders leave BROKER, a name or an address; then it stops by itself."""
    times = {
        "quiet": _duration("--quiet", quiet, most=LONGEST_DRAIN),
        "timeout": _duration("--within", within, most=LONGEST_DRAIN),
    }
    with target.admin() as admin:
        if not yes:
            alone = " No other broker takes messages." if _is_last(admin, broker) else ""
            confirm(f"Drain and stop the broker {broker}?{alone}", yes=False)
        admin.drain_broker(broker, **times)
    target.output.done(f"draining {broker}; it stops within {written(times['timeout'])}", {"draining": broker})


def _is_last(admin: Admin, broker: str) -> bool:
    """Whether no other broker of the cluster is known to take messages. Raises `ConfigError` for an unknown broker."""
    known = admin.cluster(figures=False)
    address = found_broker(known, broker)
    here = next(each for each in known if each.address == address)
    others = {each.address for each in known if each.broker_id == MASTER and each.cluster == here.cluster} - {address}
    if not others:
        return True
    try:
        told = admin.cluster(here.cluster)
    except FerromqError:  # this user may not see the states
        return False
    serving = {each.address for each in told if each.error is None and each.state in {None, "serving"}}
    return not others & serving


def _duration(option: str, text: str, *, most: timedelta = timedelta.max) -> timedelta:
    """Read the duration of an option. Raises `click.UsageError` for anything else, and above *most*."""
    try:
        found = duration(text)
    except ValueError as error:
        if most == timedelta.max:
            raise click.UsageError(f"{option} is {text!r}: {error}") from error
        found = timedelta.max
    if found > most:
        raise click.UsageError(
            f"{option} is {text!r}; expected a duration of 0s to {written(most)}, such as 500ms or 30s"
        )
    return found


@cluster.command("undrain")
@_broker_argument
@connected
def undrain(target: Target, broker: str) -> None:
    """Let senders come back to BROKER, which drains."""
    with target.admin() as admin:
        admin.resume_broker(broker)
    target.output.done(f"{broker} takes messages again", {"serving": broker})


@cluster.command("retire")
@_broker_argument
@click.option("--within", metavar="TIME", default="0s", help="Wait for the end, this time at most (0s).")
@click.option("--quiet", metavar="TIME", default="30s", help="Leave when no send has come for this time (30s).")
@click.option("--force", is_flag=True, help="Also if no other broker takes messages of a topic.")
@click.option("--stop", "stops", is_flag=True, help="Stop the broker in the end.")
@yes_option
@connected
def retire(target: Target, broker: str, *, within: str, yes: bool, quiet: str, force: bool, stops: bool) -> int:
    """
    Take BROKER out of its cluster for good, once its messages are read.

    Prints what is left, and ends with 1 until nothing is. Repeat it then.
    """
    until = time.monotonic() + _duration("--within", within).total_seconds()
    silence = _duration("--quiet", quiet)
    confirm(f"Take the broker {broker} out of its cluster for good?", yes=yes)
    never = threading.Event()
    with target.admin() as admin:
        while True:
            left = until - time.monotonic()
            try:
                found = admin.retire_broker(broker, quiet=silence, force=force, stop=stops)
            except OutcomeUnknown:
                if left <= 0:
                    raise
            else:
                if found.is_retired or left <= 0:
                    return _show_retirement(target, found)
            never.wait(min(_LOOK_SECONDS, max(left, 0)))


@cluster.command("remove")
@click.argument("broker", metavar="NAME", shell_complete=complete_brokers)
@click.option("--force", is_flag=True, help="Also if no table of the name servers has the broker.")
@yes_option
@connected
def remove_broker(target: Target, broker: str, *, force: bool, yes: bool) -> None:
    """
    Take the broker NAME, which is stopped or lost and will not come back, out of all ordered topics.

    Their message groups then move, those of other brokers, too.
    """
    confirm(f"Take the lost broker {broker} out of all ordered topics?", yes=yes)
    with target.admin() as admin:
        try:
            topics = admin.take_out_broker(broker, force=force)
        except ConfigError as error:
            raise Missing(str(error)) from error
    said = f"took {broker} out of {', '.join(topics)}" if topics else f"no ordered topic has a broker {broker}"
    target.output.done(said, {"removed": broker, "topics": topics})


def _show_retirement(target: Target, found: Retirement) -> int:
    output = target.output
    if output.is_json:
        output.document(found)
        return DONE if found.is_retired else FAILED
    rows = [(each.topic, each.group, each.messages) for each in found.unread]
    if rows:
        output.table(("topic", "group", "not acknowledged"), rows, "<<>")
    counts = {
        "delayed messages": found.delayed,
        "half messages": found.half,
        "bytes of messages that are not in queues yet": found.undispatched,
    }
    for what, count in counts.items():
        if count:
            output.text(f"{count:,} {what} wait")
    for topic in found.ordered:
        output.text(f"message groups of {topic} belong to {found.broker}")
    for what, lost in (("dead letters of", found.dead_letters), ("messages without a group of", found.without_readers)):
        for name, count in (lost or {}).items():
            output.text(f"{count:,} {what} {name} go with the broker")
    if found.is_retired:
        output.text(f"{found.broker} is retired")
        return DONE
    if found.is_empty:
        output.text(f"nothing is left; no send for {found.quiet_seconds:.0f} s")
    click.echo(visible(f"ferromq: {found.broker} retires and is not done; repeat the command"), err=True)
    return FAILED


@cluster.command("export")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--offsets", is_flag=True, help="With the committed offsets of groups.")
@click.option(
    "--kv-namespace",
    "namespaces",
    metavar="NAME",
    multiple=True,
    help="A namespace of the name servers' key-value table; may be repeated.",
)
@cluster_option
@connected
def export(target: Target, file: str, *, offsets: bool, namespaces: Sequence[str], cluster: str | None) -> None:
    """Write topics, groups, options, users and policies of a cluster to FILE; - is stdout."""
    folder = Path(file).parent
    if not folder.is_dir():
        raise FerromqError(f"{folder} is not a directory; make it, or choose another FILE")
    with target.admin() as admin:
        text = admin.export_metadata(cluster=cluster, namespaces=namespaces, offsets=offsets).to_json()
    if file == "-":
        with printing():
            click.echo(text, nl=False)
        return
    put_file(Path(file), text.encode())
    target.output.done(f"wrote {file}", {"wrote": file})


@cluster.command("import")
@click.argument("file", type=click.File("rb"))
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option("--offsets", is_flag=True, help="With the committed offsets of groups, for the same messages.")
@cluster_option
@yes_option
@connected
def import_(target: Target, file: BinaryIO, *, dry_run: bool, offsets: bool, cluster: str | None, yes: bool) -> int:
    """
    Make a cluster have what FILE has; - is stdin.

    Nothing is deleted. Ends with 1 if something could not be made.
    """
    wanted = Metadata.from_json(file.read())
    if not dry_run:
        confirm("Change the cluster as the file says?", yes=yes)
    with target.admin() as admin, Progress("import", 0, is_quiet=not sys.stderr.isatty()) as bar:
        found = admin.import_metadata(wanted, cluster=cluster, dry_run=dry_run, offsets=offsets, on_progress=bar.show)
    with told("nothing was to be changed" if dry_run else CARRIED_OUT):
        if target.output.is_json:
            target.output.document(found)
        else:
            _show_import(target.output, found, dry_run=dry_run)
    return DONE if found.is_complete else FAILED


def _difference(before: Any, after: Any) -> str:
    """Return what an import changes, such as `perm 6 -> 4`; `new` for what is missing."""
    if before is None:
        return "new"
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return f"{before} -> {after}"
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return ", ".join(f"{name} {before.get(name, '-')} -> {after.get(name, '-')}" for name in names)


def _show_import(output: Output, found: Import, *, dry_run: bool) -> None:
    made = [change for change in found.changes if change.error is None]
    rows = [(change.kind, change.name, change.where, _difference(change.before, change.after)) for change in made]
    if rows:
        output.table(("what", "name", "where", "how"), rows, "<<<<")
    output.text(f"{len(made):,} {'changes would be made' if dry_run else 'changes made'}")
    for change in found.changes:
        if change.error is not None:
            text = f"ferromq: {change.kind} {change.name} at {change.where}: {in_commands(str(change.error))}"
            click.echo(visible(text), err=True)
    for name in found.without_key:
        text = f"ferromq: the user {name} needs a secret key: ferromq user create {name}, then import again"
        click.echo(visible(text), err=True)


@cluster.command("stop")
@_broker_argument
@yes_option
@connected
def stop(target: Target, broker: str, *, yes: bool) -> None:
    """Stop BROKER at once; senders notice it by an error and go to other brokers."""
    confirm(f"Stop the broker {broker} without a drain?", yes=yes)
    with target.admin() as admin:
        admin.stop_broker(broker)
    target.output.done(f"{broker} stops", {"stopped": broker})


@click.group("config", cls=Group)
def config() -> None:
    """Print and change options of a running broker or name server."""


_broker = click.option(
    "--broker",
    metavar="NAME",
    help="A broker by name or address; needed only if there are several.",
    shell_complete=complete_brokers,
)
_name_servers = click.option("--name-servers", is_flag=True, help="All name servers, in place of a broker.")


@config.command("get")
@click.argument("names", nargs=-1)
@_broker
@_name_servers
@connected
def get(target: Target, names: Sequence[str], *, broker: str | None, name_servers: bool) -> None:
    """Print the options NAMES, or all."""
    _check_one(broker, name_servers=name_servers)
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
    _check_one(broker, name_servers=name_servers)
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


@config.command("reload")
@click.argument("broker", required=False, shell_complete=complete_brokers)
@_name_servers
@connected
def reload(target: Target, broker: str | None, *, name_servers: bool) -> None:
    """Read the configuration file of BROKER again, which is needed only if there are several."""
    _check_one(broker, name_servers=name_servers)
    with target.admin() as admin:
        if name_servers:
            found = admin.reload_name_servers()
        else:
            chosen = _chosen(admin, broker, "BROKER")
            found = {chosen: admin.reload_broker(chosen)}
    if target.output.is_json:
        target.output.document(found)
        return
    for server, each in found.items():
        target.output.text(f"{server}: changed {', '.join(each.changed) or 'nothing'}")
        if each.restart:
            target.output.text(f"{server}: needs a restart for {', '.join(each.restart)}")


def _option(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise click.UsageError(f"{text!r} is not NAME=VALUE")
    return name.strip(), value.strip()


def _check_one(broker: str | None, *, name_servers: bool) -> None:
    """Raise `UsageError` for a broker beside all name servers."""
    if name_servers and broker is not None:
        raise click.UsageError("give a broker or --name-servers, not both")


def _chosen(admin: Admin, broker: str | None, option: str = "--broker") -> str:
    """Return the given broker, or the only one, which need not answer. Raises `ConfigError` for several."""
    if broker is not None:
        return broker
    known = admin.cluster(figures=False)
    if len(known) > 1:
        masters = sorted({each.name for each in known if each.broker_id == MASTER})
        slaves = [f"{each.address} (slave of {each.name})" for each in known if each.broker_id != MASTER]
        raise ConfigError(f"there are several brokers; give {option} with one of {', '.join([*masters, *slaves])}")
    return known[0].address


@click.group("context", cls=Group)
def context() -> None:
    """Keep addresses of clusters under names."""


_context_argument = click.argument("name", shell_complete=complete_contexts)


@context.command("add")
@click.argument("name")
@with_options(*ADDRESS_OPTIONS)
@click.option("--access-key", metavar="NAME", help="The user whose keys sign requests; its secret key is asked for.")
@secret_file_option
@click.option("--replace", "replaces", is_flag=True, help="In place of a context that is there.")
@json_option
def add(
    output: Output, name: str, *, replaces: bool, access_key: str | None, secret_file: BinaryIO | None, **fields: Any
) -> None:
    """Keep an address as NAME, with TLS options and keys; the first one is used from now on."""
    if secret_file is not None and access_key is None:
        raise click.UsageError("--secret-file belongs to --access-key")
    if not name.isprintable() or len(name.split()) != 1 or name.strip() != name:
        raise click.UsageError(f"the name {name!r} has blanks or control characters, or is empty")
    _check_new(Contexts.load(), name, replaces=replaces)  # before a key is asked for
    given = {field: _kept(field, value) for field, value in fields.items() if value is not None}
    added = Context(**given)
    if access_key is not None:
        added = replace(added, access_key=access_key, secret_key=read_secret(access_key, secret_file))
    with Contexts.changing() as contexts:
        _check_new(contexts, name, replaces=replaces)
        contexts.known[name] = added
        contexts.current = contexts.current or name
    output.done(f"added context {name}", {"added": name, "current": contexts.current})


def _kept(field: str, value: Any) -> Any:
    """Return what a context keeps of a field: of a file for TLS the whole path, so that it holds in any directory."""
    return str(Path(value).absolute()) if field in TLS_VARIABLES else value


def _check_new(contexts: Contexts, name: str, *, replaces: bool) -> None:
    """Raise `AlreadyExists` for a context that is there and is not to be replaced."""
    if name in contexts.known and not replaces:
        raise AlreadyExists(
            f"there is a context {name} with {contexts.known[name].address}; choose another name, or give --replace"
        )


@context.command("list")
@json_option
def list_contexts(output: Output) -> None:
    """Print all contexts, without secret keys; * marks the one that is used."""
    contexts = Contexts.load()
    if output.is_json:
        known = {name: plain(each) for name, each in contexts.known.items()}
        for each in known.values():
            del each["secret_key"]
        output.document({"current": contexts.current, "contexts": known})
        return
    rows = [
        (
            *("*" if name == contexts.current else "", name, each.address, each.namespace),
            *(bool(each.tls_options), each.access_key),
        )
        for name, each in sorted(contexts.known.items())
    ]
    output.table(("", "context", "address", "namespace", "TLS", "user"), rows, "<<<<<<")


@context.command("use")
@_context_argument
@json_option
def use(output: Output, name: str) -> None:
    """Use a context from now on."""
    with Contexts.changing() as contexts:
        contexts.find(name)
        contexts.current = name
    output.done(f"using context {name}", {"current": name})


@context.command("remove")
@_context_argument
@json_option
def remove(output: Output, name: str) -> None:
    """Forget a context."""
    with Contexts.changing() as contexts:
        contexts.find(name)
        del contexts.known[name]
        contexts.current = None if contexts.current == name else contexts.current
    output.done(f"removed context {name}", {"removed": name})


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """
    Print the code that completes words in a shell.

    Put it into the start file of the shell.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    for program in _PROGRAMS:
        # The code names the program and a variable, and does not depend on the command.
        click.echo(kind(click.Command(program), {}, program, f"_{program.upper()}_COMPLETE").source())
