"""The commands `ferromq send`, `tail`, `message` and `dlq`."""

import base64
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, BinaryIO

import click

from ferromq import Message, Producer
from ferromq.cli.administration.output import FAILED, Missing, message_line, visible
from ferromq.cli.administration.target import Target, confirm, connected, group_argument, topic_argument, yes_option
from ferromq.cli.administration.times import Time
from ferromq.errors import ConfigError
from ferromq.message import SendReceipt
from ferromq.terminal.formatting import instant

_WRITTEN = {"body", "body_base64", "keys", "tag", "properties", "message_group"}
"""The fields of a line that make the message."""
_READ = {"topic", "message_id", "queue_id", "queue_offset", "born_timestamp", "store_timestamp"}
"""The fields that `ferromq tail --json` prints beside them."""


@click.command("send")
@topic_argument
@click.argument("body", required=False)
@click.option("--file", type=click.File("rb"), help="Read the body from a file; - is stdin.")
@click.option("--json-lines", is_flag=True, help="Send a message for each line, as `tail --json` prints them.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="A key; may be repeated.")
@click.option("--tag", metavar="TAG", help="Its tag.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A property; may be repeated.")
@click.option("--delay", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="Deliver it so much later.")
@click.option("--group", "message_group", metavar="NAME", help="Its message group, which keeps order.")
@connected
def send(
    target: Target,
    topic: str,
    body: str | None,
    *,
    file: BinaryIO | None,
    json_lines: bool,
    properties: Sequence[str],
    **options: Any,
) -> None:
    """
    Send a message, or many.

    The body is BODY, a file, or stdin if BODY is -. Prints the id of each message.
    """
    if (body is None) == (file is None):
        raise click.UsageError("give one of BODY and --file; BODY may be - for stdin")
    source = sys.stdin.buffer if body == "-" else file
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    if properties:
        given["properties"] = dict(map(_property, properties))
    with target.connection() as mq, mq.producer() as producer:
        if json_lines:
            if source is None or given:
                raise click.UsageError("--json-lines reads whole messages from --file or stdin, without other options")
            _send_lines(target, producer, topic, source)
            return
        content = (body or "").encode() if source is None else source.read()
        _show_receipt(target, producer.send(topic, content, **given))


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.UsageError(f"--property {text!r} is not NAME=VALUE")
    return name, value


def _send_lines(target: Target, producer: Producer[Any], topic: str, source: BinaryIO) -> None:
    receipts = producer.send_all(topic, message_lines(source))
    for receipt in receipts:
        _show_receipt(target, receipt, is_stream=True)


def message_lines(source: BinaryIO) -> Iterator[Message]:
    """Yield the message of each line of JSON. Raises `ConfigError` with the number of a wrong line."""
    for number, line in enumerate(source, start=1):
        if not line.strip():
            continue
        try:
            yield parse_line(line)
        except (ValueError, TypeError, RecursionError) as error:
            raise ConfigError(f"line {number}: {error}") from error


def parse_line(line: bytes) -> Message:
    """Return the message of a line of JSON. Raises `ValueError` or `TypeError` for anything else."""
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("a JSON object is expected")  # noqa: TRY004 (one error for bad bytes)
    unknown = value.keys() - _WRITTEN - _READ
    if unknown:
        raise ValueError(f"unknown field {min(unknown)!r}; known are {', '.join(sorted(_WRITTEN))}")
    text, encoded = value.get("body"), value.get("body_base64")
    if (text is None) == (encoded is None):
        raise ValueError("give one of body and body_base64")
    if not isinstance(text if encoded is None else encoded, str):
        raise ValueError("the body is no text")  # noqa: TRY004 (one error for bad bytes)
    body = str(text).encode() if encoded is None else base64.b64decode(encoded, validate=True)
    given = {name: value[name] for name in ("keys", "tag", "properties", "message_group") if value.get(name)}
    return Message(body, **given)


def _show_receipt(target: Target, receipt: SendReceipt, *, is_stream: bool = False) -> None:
    if not target.output.is_json:
        target.output.text(receipt.message_id)
        return
    value = {
        "message_id": receipt.message_id,
        "topic": receipt.topic,
        "broker": receipt.broker_name,
        "queue_id": receipt.queue_id,
        "queue_offset": receipt.queue_offset,
        "durability": receipt.durability,
        "recall_handle": receipt.recall_handle,
    }
    (target.output.line if is_stream else target.output.document)(value)


@click.command("tail")
@topic_argument
@click.option("--filter", "expression", default="*", metavar="TAGS", help="Tags, as new||paid (all).")
@click.option("--from", "begin", type=Time("begin", "end"), help="Where to begin: begin, or end with --follow.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many messages.")
@click.option("--follow", is_flag=True, help="Wait for further messages, until Ctrl-C.")
@connected
def tail(
    target: Target,
    topic: str,
    *,
    expression: str,
    begin: datetime | int | str | None,
    count: int | None,
    follow: bool,
) -> None:
    """
    Print messages of a topic, without a group.

    With --json a line for each. It leaves nothing behind on the brokers.
    """
    if begin == "end" and not follow:
        raise click.UsageError("at the end there is no message yet; give --follow, too")
    start: Any = {"begin": "first", "end": "last", None: "last" if follow else "first"}.get(begin, begin)  # type: ignore[arg-type]
    with target.admin() as admin:
        admin.describe_topic(topic)  # a missing topic is told; reading by endpoint might create it
    left = count
    with target.connection() as mq, mq.reader(topic, filter=expression, begin=start) as reader:
        messages = reader.messages() if follow else reader.messages(until="end")
        for message in messages:
            _show_message(target, message)
            left = None if left is None else left - 1
            if left == 0:
                return


def _show_message(target: Target, message: Any) -> None:
    if target.output.is_json:
        target.output.line(message)
    else:
        target.output.text(message_line(message))


@click.group("message")
def message() -> None:
    """Find stored messages."""


@message.command("get")
@topic_argument
@click.argument("message_id")
@connected
def get(target: Target, topic: str, message_id: str) -> None:
    """Print the message with an id: that of a receipt, or RocketMQ's offset message id."""
    with target.admin() as admin:
        found = admin.query_by_id(topic, message_id)
    if found is None:
        raise Missing(f"no message of {topic} has the id {message_id}; it may be deleted, or not be indexed yet")
    if target.output.is_json:
        target.output.document(found)
    else:
        target.output.text(message_line(found))


@message.command("find")
@topic_argument
@click.argument("key")
@click.option("--max", "most", type=click.IntRange(1), default=32, metavar="N", help="Most messages (32).")
@connected
def find(target: Target, topic: str, key: str, *, most: int) -> None:
    """Print the messages with a key, newest first."""
    with target.admin() as admin:
        found = admin.query_by_key(topic, key, most)
    _show_found(target, found, f"no message of {topic} has the key {key}; it may be deleted, or not be indexed yet")


@message.command("queue")
@topic_argument
@click.argument("queue_id", metavar="QUEUE", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0))
@click.option("--count", type=click.IntRange(1), default=1, metavar="N", help="Most messages (1).")
@click.option("--broker", metavar="NAME", help="Needed only if several brokers have the queue.")
@connected
def queue(target: Target, topic: str, queue_id: int, offset: int, *, count: int, broker: str | None) -> None:
    """Print messages of a queue from an offset on."""
    with target.admin() as admin:
        found = admin.query_by_offset(topic, queue_id, offset, count, broker=broker)
    _show_found(target, found, f"queue {queue_id} of {topic} has no message from offset {offset} on")


def _show_found(target: Target, found: Sequence[Any], missing: str) -> None:
    if not found:
        raise Missing(missing)
    if target.output.is_json:
        target.output.document(found)
        return
    for each in found:
        target.output.text(message_line(each))


_STATES = {
    "dead": "is a dead letter",
    "retrying": "waits for its next delivery",
    "behind": "behind the group: acknowledged, left out by a filter, or skipped by a reset; brokers do not keep which",
    "pending": "not acknowledged; whether it is handed out now, brokers do not tell",
    "unread": "the group has committed no offset of its queue",
}


@click.command("explain")
@topic_argument
@click.argument("message_id")
@connected
def explain(target: Target, topic: str, message_id: str) -> None:
    """
    Print what became of a message in each group.

    And where it is stored; of each group that reads TOPIC.
    """
    with target.admin() as admin:
        found = admin.explain(topic, message_id)
    if found is None:
        raise Missing(f"no message of {topic} has the id {message_id}; it may be deleted, or not be indexed yet")
    output = target.output
    if output.is_json:
        output.document(found)
        return
    output.text(f"message  {message_line(found.message)}")
    output.text(f"broker   {found.broker}, physical offset {found.message.physical_offset}")
    for group in found.groups:
        parts = [_STATES[group.state]]
        parts += [] if group.attempts is None else [f"{group.attempts} deliveries"]
        parts += [] if group.reason is None else [group.reason]
        output.text(f"group    {group.group}: {'; '.join(parts)}")
    if not found.groups:
        output.text(f"group    none reads {topic}")


@click.group("dlq")
def dlq() -> None:
    """List dead letters of a group, and send them again."""


@dlq.command("list")
@group_argument
@click.option("--max", "most", type=click.IntRange(1), default=100, metavar="N", help="Most letters (100).")
@click.option("--oldest", is_flag=True, help="The oldest first; else the newest.")
@connected
def list_letters(target: Target, group: str, *, most: int, oldest: bool) -> None:
    """Print dead letters with the reason; --json prints a line for each."""
    rows = []
    with target.admin() as admin:
        for _, letter in zip(range(most), admin.dead_letters(group, newest_first=not oldest), strict=False):
            if target.output.is_json:
                reason: dict[str, object] = {"origin_message_id": letter.origin_message_id}
                reason["exception"] = letter.exception
                reason |= {"attempts": letter.attempts, "reason": letter.reason, "origin_topic": letter.topic}
                target.output.line({**reason, "message": letter.message})
            stored = instant(letter.message.store_timestamp)
            rows.append((stored, letter.message_id, letter.topic, letter.attempts, letter.reason))
    if not target.output.is_json:
        target.output.table(("dead since", "message", "from topic", "attempts", "reason"), rows, "<<<><")


@dlq.command("resend")
@group_argument
@click.option("--id", "ids", multiple=True, metavar="MESSAGE", help="A letter by its message id; may be repeated.")
@click.option("--all", "all_letters", is_flag=True, help="All letters that are stored now.")
@click.option("--topic", metavar="NAME", help="Where to; else each goes where it came from.")
@yes_option
@connected
def resend(target: Target, group: str, *, ids: Sequence[str], all_letters: bool, topic: str | None, yes: bool) -> int:
    """Send dead letters to their topics again; they stay in the dead letters, too."""
    if bool(ids) == all_letters:
        raise click.UsageError("give the letters by --id, or --all")
    with target.admin() as admin:
        letters = [each for each in admin.dead_letters(group) if all_letters or each.message_id in ids]
        unknown = set(ids) - {letter.message_id for letter in letters}
        if unknown:
            raise Missing(f"no dead letter of {group} has the id {min(unknown)}; ferromq dlq list {group} shows them")
        confirm(f"Send {len(letters):,} dead letters of {group} again?", yes=yes)
        results = admin.resend_dead_letters(letters, topic=topic)
    failed = [each for each in results if each.error is not None]
    if target.output.is_json:
        for each in results:
            place = {"topic": each.topic, "queue_id": each.queue_id, "queue_offset": each.queue_offset}
            target.output.line({"message_id": each.letter.message_id, **place, "error": each.error})
    else:
        target.output.text(f"sent {len(results) - len(failed):,} dead letters again")
    for each in failed:
        click.echo(visible(f"ferromq: {each.letter.message_id} is not known to be sent: {each.error}"), err=True)
    return FAILED if failed else 0
