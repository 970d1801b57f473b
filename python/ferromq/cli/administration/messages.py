"""The commands `ferromq send`, `tail`, `message` and `dlq`."""

import base64
import json
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, groupby, islice
from typing import Any, BinaryIO

import click

import ferromq
from ferromq import Message, Producer
from ferromq.admin import DeadLetter, MessageTrace, ResentLetter
from ferromq.admin.results import Unreachable
from ferromq.cli.administration.output import (
    DONE,
    FAILED,
    Missing,
    Output,
    OutputError,
    message_line,
    partial,
    told,
    visible,
)
from ferromq.cli.administration.target import (
    Target,
    complete_brokers,
    confirm,
    connected,
    group_argument,
    topic_argument,
    yes_option,
)
from ferromq.cli.administration.times import Time
from ferromq.cli.parsing import Command, Group, Number
from ferromq.core.batching import MAX_BYTES, batches, lane_of
from ferromq.core.numbering import SEQUENCE
from ferromq.core.payloads import check_unicode
from ferromq.core.remoting.sends import RESERVED
from ferromq.core.requests import named
from ferromq.errors import (
    ConfigError,
    FerromqError,
    Forbidden,
    GroupNotFound,
    MessageTooLarge,
    OutcomeUnknown,
    RequestError,
    TopicNotFound,
)
from ferromq.message import SendReceipt
from ferromq.protocol import naming
from ferromq.protocol.dead_letters import CAUSES
from ferromq.terminal.commands import in_commands
from ferromq.terminal.formatting import instant, number
from ferromq.terminal.progress import Progress

_WRITTEN = {"body", "body_base64", "keys", "tag", "properties", "message_group"}
"""The fields of a line that make the message."""
_KINDS: Mapping[str, type] = {"keys": list, "tag": str, "properties": dict, "message_group": str}
_READ = {"topic", "message_id", "queue_id", "queue_offset", "broker", "born_timestamp", "store_timestamp"}
"""The fields that `ferromq tail --json` prints beside them."""
_LEFT_OUT = frozenset({*CAUSES, SEQUENCE})
"""Properties of stored messages that are left out beside the reserved ones, as `Admin.resend_dead_letters` does."""
_AT_ONCE, _PAUSE, _PART = 4096, 0.005, 1 << 16
"""About so many lines are sent together, if they follow each other within so many seconds; bytes of one read."""
_LONGEST_LINE = 64 << 20
"""Bytes: a body of 4 MiB as escapes has 24 MiB."""
_OF_ONE = {RequestError, MessageTooLarge}
"""The errors of a server that refuses a message, and then stores none of its request."""
_STEP = 16
"""Dead letters that are in memory together: each may have 4 MiB."""


@click.command("send", cls=Command)
@topic_argument
@click.argument("body", required=False)
@click.option("--file", type=click.File("rb"), help="Read the body from a file; - is stdin.")
@click.option("--json-lines", is_flag=True, help="Send a message for each line, as `tail --json` prints them.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="A key; may be repeated.")
@click.option("--tag", metavar="TAG", help="Its tag.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A property; may be repeated.")
@click.option("--delay", type=Number(0, min_open=True), metavar="SECONDS", help="Deliver it so much later.")
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
) -> int:
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
            return _send_lines(target, producer, topic, source)
        content = (body or "").encode() if source is None else source.read()
        receipt = producer.send(topic, content, **given)
        with told(f"the message {receipt.message_id} is stored"):
            _show_receipt(target, receipt)
    return DONE


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.UsageError(f"--property {text!r} is not NAME=VALUE")
    return name, value


def _send_lines(target: Target, producer: Producer[Any], topic: str, source: BinaryIO) -> int:
    """Send the messages before the first wrong line, print a receipt for each, and return the exit code."""
    sent = stored = 0

    def count(number_stored: int) -> None:
        nonlocal stored
        stored = sent + number_stored

    try:
        # One request at a time: if it is refused, nothing behind it is stored.
        for lines in chain.from_iterable(map(_requests, message_batches(source))):
            for receipts in _sent(producer, topic, lines, count):
                stored = sent + len(receipts)
                for receipt in receipts:
                    _show_receipt(target, receipt, is_stream=True)
                sent = stored
    except ConfigError as wrong:
        if not sent:
            raise
        click.echo(visible(f"ferromq: {wrong}; sent from the lines before it: {number(sent, 'message')}"), err=True)
        return FAILED
    except FerromqError as error:
        more = ", and perhaps a batch more" if isinstance(error, OutcomeUnknown) else ""
        error.add_note(f"stored: {number(stored, 'message')}{more}")
        raise
    except KeyboardInterrupt:
        click.echo(f"ferromq: ended by Ctrl-C; stored: {number(stored, 'message')}, and perhaps a batch more", err=True)
        raise
    except BrokenPipeError:
        click.echo(f"ferromq: the output was closed; stored: {number(stored, 'message')}", err=True)
        return FAILED
    return DONE


def _requests(lines: Mapping[int, Message]) -> Iterator[dict[int, Message]]:
    """Yield the messages of lines, in order, in parts that `Producer.send_all` sends in one request each."""
    for _, run in groupby(lines.items(), lambda line: lane_of(line[1])):
        places, messages = zip(*run, strict=True)
        for part in batches(messages):
            yield {places[number]: messages[number] for number in part.numbers}


def _sent(
    producer: Producer[Any], topic: str, lines: Mapping[int, Message], on_progress: Callable[[int], None]
) -> Iterator[Sequence[SendReceipt]]:
    """
    Send the messages of one request, and yield their receipts; if one is refused, send those before it.

    Raises as the producer, with the number of the refused line.
    """
    stored = 0

    def note(count: int) -> None:
        nonlocal stored
        stored = count
        on_progress(count)

    try:
        receipts = producer.send_all(topic, [*lines.values()], on_progress=note)
    except RequestError as error:
        if stored:  # the server takes such messages one by one
            raise named(error, f"line {[*lines][stored]}") from error.__cause__
        if type(error) not in _OF_ONE:
            error.add_note(f"message 0 is that of line {min(lines)}, the last one that of line {max(lines)}")
            raise
    else:
        yield receipts
        return
    for place, message in lines.items():
        try:
            receipt = producer.send(topic, message)
        except RequestError as error:
            raise named(error, f"line {place}") from error.__cause__
        yield [receipt]


def message_batches(source: BinaryIO) -> Iterator[dict[int, Message]]:
    """
    Yield the messages of lines of JSON by the number of the line, together those that can be read at once.

    A long one comes alone: if it is refused, none of those behind it is sent. Raises `ConfigError` with the number of a
    wrong line, after the messages before it.
    """
    place = 0
    for lines in _ready_lines(source):
        messages: dict[int, Message] = {}
        for line in lines:
            place += 1
            try:
                message = parse_line(line) if line.strip() else None
            except (ValueError, TypeError, RecursionError) as error:
                if messages:
                    yield messages
                raise ConfigError(f"line {place}: {error}") from error
            if message is None:
                continue
            is_long = len(message.body) > MAX_BYTES
            if is_long and messages:
                yield messages
                messages = {}
            messages[place] = message
            if is_long:
                yield messages
                messages = {}
        if messages:
            yield messages


def _ready_lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """
    Yield lines: a first one, and up to `_AT_ONCE` with those that follow each other within `_PAUSE`.

    Raises `ConfigError` for a line above `_LONGEST_LINE`, after those before it.
    """
    begun: list[bytes] = []
    """Parts of a line whose end is yet to come."""
    lines: list[bytes] = []
    while part := source.read1(_PART):  # type: ignore[attr-defined]
        head, *rest = part.split(b"\n")
        begun.append(head)
        if rest:
            lines += [b"".join(begun), *rest[:-1]]
            begun = [rest[-1]]
        is_too_long = sum(map(len, begun)) > _LONGEST_LINE
        if lines and (is_too_long or len(lines) >= _AT_ONCE or not _is_ready(source)):
            yield lines
            lines = []
        if is_too_long:
            raise ConfigError(f"a line has more than {_LONGEST_LINE:,} bytes, which no message needs")
    yield [*lines, b"".join(begun)]


def _is_ready(source: BinaryIO) -> bool:
    """Wait up to `_PAUSE` until *source* can be read without waiting, which files and bytes in memory always can."""
    try:
        descriptor = source.fileno()
    except OSError:
        return True
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(_PAUSE * 1000))


def parse_line(line: bytes) -> Message:
    """Return the message of a line of JSON. Raises `ValueError` or `TypeError` for anything else."""
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("a JSON object is expected")  # noqa: TRY004 (one error for bad bytes)
    if value.get("compressed"):
        raise ValueError("the body is as it was stored, compressed; `ferromq tail --json` prints it decompressed")
    unknown = value.keys() - _WRITTEN - _READ
    if unknown:
        raise ValueError(f"unknown field {min(unknown)!r}; known are {', '.join(sorted(_WRITTEN))}")
    text, encoded = value.get("body"), value.get("body_base64")
    if (text is None) == (encoded is None):
        raise ValueError("give one of body and body_base64")
    if not isinstance(text if encoded is None else encoded, str):
        raise ValueError("the body is no text")  # noqa: TRY004 (one error for bad bytes)
    given = _options_of(value)
    check_unicode("body", text)
    body = str(text).encode() if encoded is None else base64.b64decode(encoded, validate=True)
    return Message(body, **given)


def _options_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the message of a line; of one that a broker stored, without properties of the system."""
    given = {name: value[name] for name in _KINDS if value.get(name)}
    for name, found in given.items():
        if not isinstance(found, _KINDS[name]):
            raise ValueError(f"{name} is {found!r:.40}, no {_KINDS[name].__name__}")  # noqa: TRY004 (one error for bad bytes)
    properties = given.get("properties", {})
    reserved = properties.keys() & RESERVED
    if "store_timestamp" in value:
        if group := properties.get("__SHARDINGKEY"):
            given.setdefault("message_group", group)
        given["properties"] = {
            name: each for name, each in properties.items() if name not in RESERVED and name not in _LEFT_OUT
        }
    elif reserved:
        raise ValueError(f"property {min(reserved)} is reserved for the system; choose another name")
    for name, found in given.items():
        check_unicode(name, found)
    return given


def _show_receipt(target: Target, receipt: SendReceipt, *, is_stream: bool = False) -> None:
    value = {
        "message_id": receipt.message_id,
        "topic": receipt.topic,
        "broker": receipt.broker_name,
        "queue_id": receipt.queue_id,
        "queue_offset": receipt.queue_offset,
        "durability": receipt.durability,
        "recall_handle": receipt.recall_handle,
    }
    if not target.output.is_json:
        target.output.text(receipt.message_id)
    elif is_stream:
        target.output.line(value)
    else:
        target.output.document(value)


@click.command("tail", cls=Command)
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
    # A missing topic is told; reading by endpoint might create it. A user may have the right to read alone.
    with target.admin() as admin, suppress(Forbidden):
        admin.describe_topic(topic)
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


@click.group("message", cls=Group)
def message() -> None:
    """Find stored messages."""


@message.command("get")
@topic_argument
@click.argument("message_id")
@connected
def get(target: Target, topic: str, message_id: str) -> int:
    """Print the message with an id: that of a receipt, or RocketMQ's offset message id."""
    with target.admin() as admin, _in_part() as part:
        found = admin.query_by_id(topic, message_id, unreachable=part.unreachable)
    if found is None:
        if part.code:
            return part.code
        raise Missing(f"no message of {topic} has the id {message_id}; it may be deleted, or not be indexed yet")
    if target.output.is_json:
        target.output.document(found)
    else:
        target.output.text(message_line(found))
    return part.code


@dataclass(slots=True)
class _Part:
    """The brokers whose part of a result is missing."""

    unreachable: list[Unreachable] = field(default_factory=list)
    code: int = DONE
    """The exit code."""


@contextmanager
def _in_part() -> Iterator[_Part]:
    """Yield what notes the brokers that do not answer, and name them at the end, also before an error."""
    part = _Part()
    try:
        yield part
    finally:
        part.code = partial(part.unreachable)


@message.command("find")
@topic_argument
@click.argument("key")
@click.option("--max", "most", type=click.IntRange(1), default=32, metavar="N", help="Most messages (32).")
@connected
def find(target: Target, topic: str, key: str, *, most: int) -> int:
    """Print the messages with a key, newest first."""
    with target.admin() as admin, _in_part() as part:
        found = admin.query_by_key(topic, key, most, unreachable=part.unreachable)
    if found or not part.code:
        _show_found(target, found, f"no message of {topic} has the key {key}; it may be deleted, or not be indexed yet")
    return part.code


@message.command("queue")
@topic_argument
@click.argument("queue_id", metavar="QUEUE", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0))
@click.option("--count", type=click.IntRange(1), default=1, metavar="N", help="Most messages (1).")
@click.option(
    "--broker", metavar="NAME", help="Needed only if several brokers have the queue.", shell_complete=complete_brokers
)
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


@message.command("trace")
@click.argument("message_id")
@click.option("--trace-topic", default=naming.TRACE_TOPIC, metavar="NAME", help="Where clients write traces.")
@click.option("--since", type=Time(), help="Only traces that were stored then or later.")
@click.option("--until", type=Time(), help="Only traces that were stored then or earlier.")
@connected
def trace(
    target: Target, message_id: str, *, trace_topic: str, since: datetime | int | None, until: datetime | int | None
) -> int:
    """
    Print who sent and who consumed a message.

    As RocketMQ's clients traced it, which they do with enableMsgTrace.
    """
    with target.admin() as admin:
        try:
            found = admin.trace(message_id, topic=trace_topic, since=since, until=until)
        except TopicNotFound as error:
            raise Missing(str(error)) from error
    code = partial(found.unreachable)
    left_out = _left_out(found)
    if found.is_empty and not code:
        if left_out:
            raise Missing(
                f"no record of the message {message_id} could be read in {trace_topic}; {'; '.join(left_out)}"
            )
        raise Missing(
            f"no client traced the message {message_id} in {trace_topic}: clients trace with enableMsgTrace, write "
            "traces some seconds later, and brokers delete them as other messages"
        )
    if target.output.is_json:
        target.output.document(found)
    elif not found.is_empty:
        _show_trace(target, found)
    for each in left_out:
        click.echo(f"ferromq: {each}", err=True)
    return code


def _left_out(found: MessageTrace) -> list[str]:
    """Return what may be missing in a trace."""
    texts = []
    if found.unreadable:
        texts.append(f"the trace messages have {number(found.unreadable, 'record')} of an unknown form")
    if not found.is_complete:
        texts.append("brokers have more traces; --since and --until narrow the search")
    return texts


def _show_trace(target: Target, found: MessageTrace) -> None:
    rows: list[tuple[int, tuple[object, ...]]] = []
    for send in found.sends:
        result = "success" if send.is_success else "failed"
        what = f"{send.kind}, {send.topic}, {number(send.body_size, 'byte')}, to {send.broker or '-'}"
        rows.append((send.began, ("send", send.group, send.client, f"{send.latency} ms", result, what)))
    for end in found.transaction_ends:
        what = "the broker asked" if end.is_checked else ""
        rows.append((end.at, ("transaction", end.group, end.client, None, end.state, what)))
    for recall in found.recalls:
        result = "success" if recall.is_success else "failed"
        rows.append((recall.at, ("recall", recall.group, recall.client, None, result, "")))
    for one in found.consumptions:
        latency = None if one.latency is None else f"{one.latency} ms"
        before = one.deliveries_before
        what = "its begin is not traced" if before is None else f"delivery {before + 1}"
        result = one.result or "its end is not traced"
        rows.append((one.began or 0, ("consumption", one.group, one.client, latency, result, what)))
    rows.sort(key=lambda row: row[0])
    head = ("time", "event", "group", "host", "latency", "result", "details")
    target.output.table(head, [(instant(time), *cells) for time, cells in rows], "<<<<><<")


_STATES = {
    "dead": "is a dead letter",
    "retrying": "waits for its next delivery",
    "leased": "a consumer has it, or gave it back; no other delivery",
    "ready": "not acknowledged, and not leased; a consumer that pulls may have it",
    "acknowledged": "acknowledged, or left out by a filter; an earlier message is not",
    "behind": "behind the group: acknowledged, left out by a filter, or skipped by a reset; brokers do not keep which",
    "pending": "not acknowledged; whether it is handed out now, its broker does not tell",
    "unread": "the group has committed no offset of its queue",
}


@click.command("explain", cls=Command)
@topic_argument
@click.argument("message_id")
@connected
def explain(target: Target, topic: str, message_id: str) -> int:
    """
    Print what became of a message in each group.

    And where it is stored; of each group that reads TOPIC.
    """
    with target.admin() as admin, _in_part() as part:
        found = admin.explain(topic, message_id, unreachable=part.unreachable)
    if found is None:
        if part.code:
            return part.code
        raise Missing(f"no message of {topic} has the id {message_id}; it may be deleted, or not be indexed yet")
    output = target.output
    if output.is_json:
        output.document(found)
        return part.code
    output.text(f"message  {message_line(found.message)}")
    output.text(f"broker   {found.broker}, physical offset {found.message.physical_offset}")
    for group in found.groups:
        until = "" if group.leased_until is None else f" until {instant(group.leased_until)}"
        parts = [_STATES[group.state] + until]
        parts += [] if group.attempts is None else [f"{group.attempts} deliveries"]
        parts += [] if group.reason is None else [group.reason]
        if group.dead_letter is not None and group.state != "dead":
            letter = group.dead_letter.message
            place = f"queue {letter.queue_id} offset {letter.queue_offset} at {group.dead_letter.broker}"
            parts.append(f"an earlier copy is a dead letter, {place}")
        output.text(f"group    {group.group}: {'; '.join(parts)}")
    if not found.groups:
        output.text(f"group    none reads {topic}")
    return part.code


@click.group("dlq", cls=Group)
def dlq() -> None:
    """List dead letters of a group, and send them again."""


@dlq.command("list")
@group_argument
@click.option("--max", "most", type=click.IntRange(1), default=100, metavar="N", help="Most letters (100).")
@click.option("--oldest", is_flag=True, help="The oldest first; else the newest.")
@connected
def list_letters(target: Target, group: str, *, most: int, oldest: bool) -> int:
    """Print dead letters with the reason; --json prints a line for each."""
    rows = []
    with target.admin() as admin, _in_part() as part:
        letters = admin.dead_letters(group, newest_first=not oldest, unreachable=part.unreachable)
        for _, letter in zip(range(most), letters, strict=False):
            if target.output.is_json:
                reason: dict[str, object] = {"origin_message_id": letter.origin_message_id}
                reason["exception"] = letter.exception
                reason |= {"attempts": letter.attempts, "reason": letter.reason, "origin_topic": letter.topic}
                target.output.line({**reason, "message": letter.message})
            stored = instant(letter.message.store_timestamp)
            rows.append((stored, letter.message_id, letter.topic, letter.attempts, letter.reason))
        if not rows:
            admin.describe_group(group)  # an unknown group is an error
    if not target.output.is_json:
        target.output.table(("dead since", "message", "from topic", "attempts", "reason"), rows, "<<<><")
    return part.code


@dlq.command("resend")
@group_argument
@click.option("--id", "ids", multiple=True, metavar="MESSAGE", help="A letter by its message id; may be repeated.")
@click.option("--all", "all_letters", is_flag=True, help="All letters that are stored now.")
@click.option("--after", metavar="LETTER", help="Only those behind this one, which an ended resend names.")
@click.option("--topic", metavar="NAME", help="Where to; else each goes where it came from.")
@yes_option
@connected
def resend(
    target: Target,
    group: str,
    *,
    ids: Sequence[str],
    all_letters: bool,
    after: str | None,
    topic: str | None,
    yes: bool,
) -> int:
    """
    Send dead letters to their topics again, the oldest first.

    They stay in the dead letters, too. Ends at a server that does not answer, and names the place to go on from.
    """
    if bool(ids) == all_letters:
        raise click.UsageError("give the letters by --id, or --all")
    with target.admin() as admin:
        count, unknown = 0, set(ids)
        for letter in _letters(admin, group, ids, after):
            count += 1
            unknown.discard(letter.message_id)
        if unknown and (after is None or not count):
            raise Missing(f"no dead letter of {group} has the id {min(unknown)}; ferromq dlq list {group} shows them")
        if not count and after is None:
            clusters = {broker.cluster for broker in admin.cluster(figures=False)}
            if not any(group in admin.groups(cluster=cluster) for cluster in clusters):
                raise GroupNotFound(f"there is no consumer group {group}")
        confirm(f"Send {count:,} dead letters of {group} again?", yes=yes)
        with Progress("resend", count, is_quiet=not sys.stderr.isatty()) as bar:
            resending = _Resending(target.output, count, after)
            try:
                letters = islice(_letters(admin, group, ids, after), count)
                while not resending.is_stopped and (step := list(islice(letters, _STEP))):
                    resending.note(admin.resend_dead_letters(step, topic=topic))
                    bar.update(resending.asked)
            except FerromqError as error:
                resending.stop(_why_ended(error))
                raise
            except KeyboardInterrupt:
                resending.stop(f"ended by Ctrl-C; up to {_STEP} of them may be sent")
                raise
            except BrokenPipeError:
                resending.stop(f"the output was closed; up to {_STEP} of them may be sent")
            finally:
                with suppress(BrokenPipeError):
                    resending.tell()
    return resending.code


def _why_ended(error: FerromqError) -> str:
    if isinstance(error, OutputError):
        return f"the output cannot be written; up to {_STEP} of them may be sent"
    return "a server did not answer as expected"  # and nothing of the last step was sent


def _letters(admin: ferromq.Admin, group: str, ids: Sequence[str], after: str | None) -> Iterator[DeadLetter]:
    """Return the letters with the ids, or all, behind a place, the oldest first. Raises `Missing` without the place."""
    letters = admin.dead_letters(group, newest_first=False)
    if after is not None and all(letter.message.offset_message_id != after for letter in letters):
        raise Missing(
            f"no dead letter of {group} is at {after}: it may be deleted, and those before it, too; "
            f"ferromq dlq list {group} --oldest shows those that are left"
        )
    return (letter for letter in letters if not ids or letter.message_id in ids)


class _Resending:
    """Tells what became of letters, and where to go on."""

    def __init__(self, output: Output, count: int, after: str | None) -> None:
        self._output = output
        self._count = count
        self._last = after
        """The place of the last letter that was asked for."""
        self._why = ""
        self.asked = self._failed = 0

    @property
    def is_stopped(self) -> bool:
        """Whether no further letter may be sent."""
        return bool(self._why)

    @property
    def code(self) -> int:
        """The exit code."""
        return FAILED if self._failed or self.is_stopped else DONE

    def stop(self, why: str) -> None:
        """Send no more."""
        self._why = self._why or why

    def note(self, results: Sequence[ResentLetter]) -> None:
        """Print what became of letters, up to the first one that was skipped."""
        for each in results:
            if each.is_skipped:
                self.stop(in_commands(str(each.error)))
                return
            self.asked += 1
            message = each.letter.message
            self._last = message.offset_message_id
            if self._output.is_json:
                place = {"topic": each.topic, "queue_id": each.queue_id, "queue_offset": each.queue_offset}
                named = {"message_id": each.letter.message_id, "letter": self._last}
                self._output.line({**named, **place, "error": each.error})
            if each.error is None:
                continue
            self._failed += 1
            what = "not known to be sent" if isinstance(each.error, OutcomeUnknown) else "not sent"
            click.echo(
                visible(f"ferromq: {each.letter.message_id} is {what}: {in_commands(str(each.error))}"), err=True
            )
            if each.is_unanswered:
                self.stop("a server did not answer")

    def tell(self) -> None:
        """Print how many were sent, and where to go on."""
        sent = f"sent {number(self.asked - self._failed, 'dead letter')} again"
        if not self._output.is_json:
            with told(sent):
                self._output.text(sent)
        left = self._count - self.asked
        if self.is_stopped and left:
            place = "" if self._last is None else f" and --after {self._last}"
            text = (
                f"ferromq: not sent: {number(left, 'dead letter')} ({self._why}); repeat the command with its options"
            )
            click.echo(visible(text + place), err=True)
