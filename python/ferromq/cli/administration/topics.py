"""The command `ferromq topic`."""

from typing import get_args

import click

from ferromq.admin import MessageType
from ferromq.admin.settings import PERMISSIONS
from ferromq.cli.administration.output import partial
from ferromq.cli.administration.target import Target, cluster_option, confirm, connected, topic_argument, yes_option
from ferromq.cli.parsing import Group
from ferromq.terminal.formatting import instant

_queues = click.option("--queues", type=click.IntRange(1), metavar="N", help="Queues on each broker.")
_type = click.option(
    "--type", "message_type", type=click.Choice(get_args(MessageType), case_sensitive=False), help="What it takes."
)


@click.group("topic", cls=Group)
def topic() -> None:
    """List, describe, create, alter and delete topics."""


@topic.command("list")
@click.option("--all", "show_all", is_flag=True, help="RocketMQ's own topics, retries and dead letters, too.")
@connected
def list_topics(target: Target, *, show_all: bool) -> None:
    """Print the names of all topics."""
    with target.admin() as admin:
        names = admin.topics(system=show_all)
    if target.output.is_json:
        target.output.document(names)
    for name in () if target.output.is_json else names:
        target.output.text(name)


@topic.command("describe")
@topic_argument
@connected
def describe(target: Target, topic: str) -> int:
    """Print settings, queues with offsets and times, and reading groups of a topic."""
    with target.admin() as admin:
        found = admin.describe_topic(topic)
    output = target.output
    if output.is_json:
        output.document(found)
        return partial(found.unreachable)
    output.text(f"topic        {found.name}")
    for broker in found.brokers:
        queues = f"{broker.write_queues} queues"
        if broker.read_queues != broker.write_queues:
            queues = f"{broker.read_queues} queues to read and {broker.write_queues} to write"
        kind = broker.message_type or "no type yet"
        output.text(f"on           {broker.address}: {queues}, permission {broker.permission}, {kind}")
    output.text(f"groups       {', '.join(found.groups) or 'none'}")
    output.text(f"messages     {found.messages:,}\n")
    rows = [
        (queue.broker, queue.queue_id, queue.min_offset, queue.max_offset, queue.messages, instant(queue.updated))
        for queue in found.queues
    ]
    output.table(("broker", "queue", "min", "max", "messages", "last stored"), rows, "<>>>><")
    return partial(found.unreachable)


@topic.command("create")
@click.argument("topic")
@_queues
@_type
@cluster_option
@connected
def create(
    target: Target, topic: str, *, queues: int | None, message_type: MessageType | None, cluster: str | None
) -> None:
    """Create a topic on every broker of the cluster."""
    with target.admin() as admin:
        admin.create_topic(topic, queues, message_type=message_type, cluster=cluster)
    target.output.done(f"created topic {topic}", {"created": topic})


@topic.command("alter")
@topic_argument
@_queues
@_type
@click.option("--permission", type=click.Choice(tuple(PERMISSIONS)), help="What clients may do with it.")
@cluster_option
@connected
def alter(
    target: Target,
    topic: str,
    *,
    queues: int | None,
    message_type: MessageType | None,
    permission: str | None,
    cluster: str | None,
) -> None:
    """Change the given settings of a topic."""
    with target.admin() as admin:
        admin.alter_topic(topic, queues=queues, message_type=message_type, permission=permission, cluster=cluster)
    target.output.done(f"altered topic {topic}", {"altered": topic})


@topic.command("delete")
@topic_argument
@cluster_option
@yes_option
@connected
def delete(target: Target, topic: str, *, cluster: str | None, yes: bool) -> None:
    """Delete a topic with its messages."""
    confirm(f"Delete the topic {topic} with its messages from {target.context.address}?", yes=yes)
    with target.admin() as admin:
        admin.delete_topic(topic, cluster=cluster)
    target.output.done(f"deleted topic {topic}", {"deleted": topic})
