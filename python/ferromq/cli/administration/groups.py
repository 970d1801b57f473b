"""The commands `ferromq group` and `ferromq lag`."""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import click

from ferromq.admin import Admin, GroupDescription, GroupLag, Member, QueueReset, Unreachable
from ferromq.cli.administration.output import CARRIED_OUT, DONE, fail, partial, told
from ferromq.cli.administration.target import (
    Target,
    cluster_option,
    complete_brokers,
    confirm,
    connected,
    group_argument,
    optional_group,
    topic_argument,
    topic_option,
    yes_option,
)
from ferromq.cli.administration.times import Time
from ferromq.cli.parsing import Command, Group, Number
from ferromq.errors import OutcomeUnknown, RequestError, ServerError
from ferromq.protocol import naming
from ferromq.protocol.retry_policy import Customized, RetryPolicy
from ferromq.terminal.formatting import age, number

_fifo = click.option("--fifo/--no-fifo", default=None, help="Whether it consumes each message group in order.")
_retries = click.option("--retries", type=click.IntRange(0), metavar="N", help="Redeliveries of a failed message.")
_delays = click.option(
    "--retry-delay",
    "delays",
    type=Number(0),
    multiple=True,
    metavar="SECONDS",
    help="A delay; repeat it for the next ones.",
)
_all = click.option("--all", "show_all", is_flag=True, help="RocketMQ's own groups, too.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only print what would change.")


@click.group("group", cls=Group)
def group() -> None:
    """List, describe, create, alter, delete, reset and skip consumer groups."""


@group.command("list")
@_all
@cluster_option
@connected
def list_groups(target: Target, *, show_all: bool, cluster: str | None) -> int:
    """Print the names of all consumer groups."""
    lost: list[Unreachable] = []
    with target.admin() as admin:
        names = admin.groups(system=show_all, cluster=cluster, unreachable=lost)
    if target.output.is_json:
        target.output.document(names)
    for name in () if target.output.is_json else names:
        target.output.text(name)
    return partial(lost)


@group.command("describe")
@group_argument
@cluster_option
@connected
def describe(target: Target, group: str, *, cluster: str | None) -> int:
    """Print settings, subscriptions and members of a group."""
    with target.admin() as admin:
        found = admin.describe_group(group, cluster=cluster)
    output = target.output
    if output.is_json:
        output.document(found)
        return partial(found.unreachable)
    output.text(f"group         {found.name}")
    output.text(f"order         {'each message group in order' if found.fifo else 'none'}")
    output.text(f"retries       {found.retries}, {_policy(found.retry_policy)}")
    output.text(f"enabled       {'yes' if found.enabled else 'no'}")
    subscriptions = ", ".join(f"{topic} ({expression})" for topic, expression in found.subscriptions.items())
    output.text(f"subscribes to {subscriptions or 'nothing now'}")
    output.text(f"members       {len(found.members)}")
    _show_members(target, found.members)
    return partial(found.unreachable)


def _policy(policy: RetryPolicy) -> str:
    if isinstance(policy, Customized):
        return f"after {', '.join(f'{delay / 1000:g}' for delay in policy.delays_ms)} s"
    first, longest = policy.initial_ms / 1000, policy.max_ms / 1000
    return f"after {first:g} s, each {policy.multiplier} times the last, up to {longest:g} s"


@group.command("create")
@click.argument("group")
@_fifo
@_retries
@_delays
@cluster_option
@connected
def create(target: Target, group: str, *, delays: Sequence[float], **settings: Any) -> None:
    """Create a consumer group on every broker of the cluster."""
    with target.admin() as admin:
        admin.create_group(group, retry_delays=delays or None, **settings)
    target.output.done(f"created group {group}", {"created": group})


@group.command("alter")
@group_argument
@_fifo
@_retries
@_delays
@cluster_option
@connected
def alter(target: Target, group: str, *, delays: Sequence[float], **settings: Any) -> None:
    """Change the given settings of a consumer group."""
    with target.admin() as admin:
        admin.alter_group(group, retry_delays=delays or None, **settings)
    target.output.done(f"altered group {group}", {"altered": group})


@group.command("delete")
@group_argument
@click.option("--keep-offsets", is_flag=True, help="A new group of the name goes on where this one was.")
@cluster_option
@yes_option
@connected
def delete(target: Target, group: str, *, keep_offsets: bool, cluster: str | None, yes: bool) -> None:
    """Delete a consumer group with its offsets."""
    confirm(f"Delete the group {group} from {target.context.address}?", yes=yes)
    with target.admin() as admin:
        admin.delete_group(group, keep_offsets=keep_offsets, cluster=cluster)
    target.output.done(f"deleted group {group}", {"deleted": group})


@group.command("members")
@group_argument
@cluster_option
@connected
def members(target: Target, group: str, *, cluster: str | None) -> int:
    """Print the connected clients of a group."""
    lost: list[Unreachable] = []
    with target.admin() as admin:
        found = admin.members(group, cluster=cluster, unreachable=lost)
        if not found and not lost:
            admin.describe_group(group, cluster=cluster)  # an unknown group is an error
    if target.output.is_json:
        target.output.document(found)
    elif found:
        _show_members(target, found)
    elif not lost:
        target.output.text(f"no client of {group} is connected")
    return partial(lost)


def _show_members(target: Target, found: Sequence[Member]) -> None:
    if found:
        rows = [(each.client_id, each.address, each.language, each.version, each.protocol) for each in found]
        target.output.table(("client", "address", "language", "version", "protocol"), rows, "<<<<<")


@group.command("reset")
@group_argument
@topic_argument
@click.option("--to", type=Time("begin", "end"), help="The first message, the end, or a time.")
@click.option("--offset", type=click.IntRange(0), metavar="N", help="An offset of the queue --queue.")
@click.option("--queue", "queue_id", type=click.IntRange(0), metavar="N", help="Only this queue.")
@click.option(
    "--broker", metavar="NAME", help="Only on this broker, by name or address.", shell_complete=complete_brokers
)
@_dry_run
@cluster_option
@yes_option
@connected
def reset(
    target: Target,
    group: str,
    topic: str,
    *,
    to: datetime | int | str | None,
    dry_run: bool,
    yes: bool,
    **place: Any,
) -> None:
    """Move a group in a topic; shows from where to where before it asks."""
    if (to is None) == (place["offset"] is None):
        raise click.UsageError("give one of --to (begin, end or a time) and --offset")
    if place["offset"] is not None and place["queue_id"] is None:
        raise click.UsageError("an offset belongs to one queue; give --queue, too")
    _move(
        target,
        lambda admin, only_told: admin.reset_offsets(group, topic, to, dry_run=only_told, **place),  # type: ignore[arg-type]
        f"Move the group {group} in {topic}?",
        dry_run=dry_run,
        yes=yes,
    )


@group.command("skip")
@group_argument
@topic_option
@click.option("--force", is_flag=True, help="Also while consumers of the group are connected.")
@_dry_run
@cluster_option
@yes_option
@connected
def skip(target: Target, group: str, *, dry_run: bool, yes: bool, **options: Any) -> None:
    """Move a group to the end of a topic, or of all that it has read; shows what is skipped before it asks."""

    def move(admin: Admin, only_told: bool) -> list[QueueReset]:
        moved = admin.skip_backlog(group, dry_run=only_told, **options)
        if only_told and not dry_run and not options["force"]:
            _check_unused(admin.describe_group(group, cluster=options["cluster"]), {each.topic for each in moved})
        return moved

    _move(target, move, f"Skip the backlog of the group {group}?", dry_run=dry_run, yes=yes)


def _check_unused(group: GroupDescription, topics: set[str]) -> None:
    """Raise `RequestError` before a question whose answer would be refused."""
    if group.members and (not group.subscriptions or topics & group.subscriptions.keys()):
        clients = f"{len(group.members)} connected consumers" if len(group.members) > 1 else "a connected consumer"
        raise RequestError(
            f"the group {group.name} has {clients} ({group.members[0].client_id}), which may hold messages "
            "that would be skipped; stop the consumers, or give --force"
        )


def _move(
    target: Target, move: Callable[[Admin, bool], list[QueueReset]], question: str, *, dry_run: bool, yes: bool
) -> None:
    with target.admin() as admin:
        planned = move(admin, True)  # noqa: FBT003 (a lambda has no names)
        if dry_run or not yes:
            _show_resets(target, planned, is_done=False, to_stderr=not dry_run)
        if dry_run:
            return
        confirm(question, yes=yes)
        moved = move(admin, False)  # noqa: FBT003
        with told(CARRIED_OUT):
            _show_resets(target, moved, is_done=True)


def _show_resets(target: Target, found: Sequence[QueueReset], *, is_done: bool, to_stderr: bool = False) -> None:
    replayed, skipped = sum(each.replayed for each in found), sum(each.skipped for each in found)
    if target.output.is_json and not to_stderr:
        target.output.document({"done": is_done, "replayed": replayed, "skipped": skipped, "queues": found})
        return
    summary = f"{replayed:,} messages {'are' if is_done else 'would be'} read once more, {skipped:,} skipped"
    if to_stderr:
        click.echo(summary, err=True)
        return
    rows = [
        (each.topic, each.broker, each.queue_id, each.from_offset, each.to_offset, each.replayed, each.skipped)
        for each in found
    ]
    target.output.table(("topic", "broker", "queue", "from", "to", "replayed", "skipped"), rows, "<<>>>>>")
    target.output.text(summary)


@click.command("lag", cls=Command)
@optional_group
@topic_option
@click.option("--queues", is_flag=True, help="A row for each queue.")
@click.option("--watch", is_flag=True, help="Print it again and again, until Ctrl-C.")
@click.option("--interval", type=Number(0.1), default=2.0, metavar="SECONDS", help="Of --watch (2).")
@_all
@cluster_option
@connected
def lag(target: Target, group: str | None, *, watch: bool, interval: float, queues: bool, **options: Any) -> int:
    """
    Print how far groups are behind.

    For GROUP, by topic in messages and in time: the age of the oldest message that it has yet to read. Without GROUP,
    the messages of all groups.
    """
    if group is None and (options["topic"] is not None or queues):
        raise click.UsageError("--topic and --queues need a GROUP")
    never = threading.Event()
    with target.admin() as admin:
        while True:
            try:
                code = _look(target, admin, group, by_queue=queues, is_stream=watch, **options)
            except (OutcomeUnknown, ServerError) as error:
                if not watch:
                    raise
                code = fail(error)  # the next look may find the servers, or brokers that have registered
            if not watch:
                return code
            never.wait(interval)
            if not target.output.is_json:
                target.output.text("")


def _look(
    target: Target,
    admin: Admin,
    group: str | None,
    *,
    topic: str | None,
    show_all: bool,
    cluster: str | None,
    by_queue: bool,
    is_stream: bool,
) -> int:
    if group is not None:
        found = admin.lag(group, topic=topic, cluster=cluster)
        return _show_lag(target, found, by_queue=by_queue, is_stream=is_stream)
    lags = admin.lags(cluster=cluster)
    shown = [each for each in lags if show_all or not naming.is_system_group(each.group)]
    _show_lags(target, shown, is_stream=is_stream)
    return partial(lags[0].unreachable) if lags else DONE


def _show_lags(target: Target, found: Sequence[GroupLag], *, is_stream: bool) -> None:
    if target.output.is_json:
        rows = [{"group": each.group, "messages": each.messages} for each in found]
        (target.output.line if is_stream else target.output.document)(rows)
    else:
        target.output.table(("group", "behind"), [(each.group, each.messages) for each in found], "<>")


def _show_lag(target: Target, found: GroupLag, *, by_queue: bool, is_stream: bool) -> int:
    output = target.output
    if output.is_json:
        names = ("group", "messages", "seconds", "topics", "unreachable")
        value = {name: getattr(found, name) for name in names}
        (output.line if is_stream else output.document)(value)
        return partial(found.unreachable)
    if by_queue:
        rows: list[tuple[object, ...]] = [
            (
                each.topic,
                each.broker,
                each.queue_id,
                each.committed_offset,
                each.max_offset,
                each.messages,
                age(each.seconds),
            )
            for each in found.queues
        ]
        output.table(("topic", "broker", "queue", "committed", "max", "behind", "oldest"), rows, "<<>>>>>")
    else:
        rows = [(each.topic, each.messages, age(each.seconds)) for each in found.topics]
        output.table(("topic", "behind", "oldest"), rows, "<>>")
    oldest = f", the oldest is {age(found.seconds)} old" if found.messages else ""
    output.text(f"{found.group} is {number(found.messages, 'message')} behind{oldest}")
    return partial(found.unreachable)
