"""
The commands `ferromq store stat`, `verify`, `backup`, `diff` and `dump`. `store_tools` does their work.

Exit codes: 0 done without findings, 1 findings or differences, 2 the directory cannot be read, the backup is
unfinished, or wrong usage.
"""

import base64
import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import click

from ferromq import store_tools
from ferromq._ferromq import RecoveryProgress, StoredMessage
from ferromq.cli.administration.target import confirm, yes_option
from ferromq.cli.administration.times import Time
from ferromq.cli.output import fail
from ferromq.cli.parsing import Group
from ferromq.errors import ConfigError, FerromqError
from ferromq.store_tools import DamagedMessage, Finding, LostMessage, Repair, StoreSummary, VerifyReport
from ferromq.terminal.formatting import instant, number, size, span, table
from ferromq.terminal.progress import Progress, watching

_SHOWN = 1000
"""Findings shown by default; all are counted."""
_MOST = 2**63 - 1
_MOST_QUEUES = 2**31 - 1
_MOST_SLOTS = 268_435_455
_MOST_THREADS = 1024


_index_slots = click.option(
    "--index-slots",
    type=click.IntRange(1, _MOST_SLOTS),
    metavar="N",
    help="Hash slots of an index file (a quarter of the entries).",
)


@click.group("store", cls=Group)
def store() -> None:
    """Show, verify, compare, copy and mend a store directory of ferromq or a Java broker."""


def _guarded(command: Callable[[SimpleNamespace], int]) -> Callable[..., int]:
    """Add `--json`, and pass all options as one object; turn errors into the exit code 2."""

    @click.option("--json", is_flag=True, help="Print JSON, in lines if there are many objects.")
    @functools.wraps(command)
    def guarded(**options: Any) -> int:
        try:
            code = command(SimpleNamespace(**options))
            sys.stdout.flush()
        except BrokenPipeError:
            raise  # the reader, such as `head`, closed the pipe
        except (FerromqError, OSError, ValueError, OverflowError) as error:
            return fail(error, code=2)
        return code

    return guarded


def _of_directory(command: Callable[[SimpleNamespace], int]) -> Callable[..., int]:
    """Do what `_guarded` does, and add the directory."""
    of_log = click.option(
        "--commit-log",
        "commit_log_paths",
        multiple=True,
        metavar="DIR",
        help="A directory of the commit log, if it is not DIR/commitlog; may be repeated.",
    )
    return click.argument("directory", metavar="DIR", help="The store directory.")(_guarded(of_log(command)))


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal; the function takes bytes that are done, and all."""
    with _bar(what) as progress:
        yield progress.show


def _bar(what: str) -> Progress:
    return Progress(what, 0, is_bytes=True, is_quiet=not sys.stderr.isatty())


@contextlib.contextmanager
def _opening(next_bar: Progress) -> Iterator[RecoveryProgress | None]:
    """Show on a terminal how far the recovery of the store is; the clock of *next_bar* begins after it."""
    recovery = RecoveryProgress()
    with watching("recovery", recovery.bytes) as is_shown:
        yield recovery if is_shown else None
    next_bar.restart()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


# --- stat --------------------------------------------------------------------------------------------------------


@store.command("stat")
@_index_slots
@_of_directory
def _stat(options: SimpleNamespace) -> int:
    """Show its files, times, topics, queues, index and checkpoint."""
    summary = store_tools.stat(
        options.directory, commit_log_paths=options.commit_log_paths, index_slots=options.index_slots
    )
    if options.json:
        _say(json.dumps(asdict(summary) | {"last_stop": summary.last_stop}, default=str))
    else:
        for line in _stat_lines(summary):
            _say(line)
    return 0


def _stat_lines(summary: StoreSummary) -> Iterator[str]:
    log, index = summary.log, summary.index
    queues = [queue for topic in summary.topics.values() for queue in topic]
    yield f"store        {summary.directory}"
    yield f"last stop    {summary.last_stop}"
    files = f"{number(log.files, 'file')} of {size(log.file_size)}"
    yield f"commit log   {files}, physical offsets {log.start:,} to {log.end:,}"
    if log.paths != [str(summary.directory / "commitlog")]:
        yield f"             in {', '.join(log.paths)}"
    yield f"             {size(log.end - log.start)} of records, {span(log.first_time, log.last_time)}"
    for start, end in log.gaps:
        yield f"             no file holds the physical offsets {start:,} to {end:,}"
    queue_files, queue_bytes = sum(queue.files for queue in queues), sum(queue.file_bytes for queue in queues)
    files = f"{number(queue_files, 'file')}, {size(queue_bytes)}"
    yield f"queues       {len(queues):,} of {number(len(summary.topics), 'topic')}, {files}"
    yield (
        f"index        {number(index.files, 'file')}, {size(index.bytes)}, {number(index.entries, 'key')}"
        + (f", {span(index.first_time, index.last_time)}" if index.entries else "")
    )
    yield f"checkpoint   {_checkpoint(summary)}"
    for file in summary.config:
        entries = "" if file.entries is None else f", {file.entries:,} entries"
        yield f"config       {file.name}, {size(file.bytes)}{entries}" + (f": {file.error}" if file.error else "")
    for own in summary.own_files:
        state = f": {own.error}" if own.error else ": of another log, ignored" if own.is_void else ""
        yield f"ferromq      {own.name}, {size(own.bytes)}{state}"
    for problem in summary.problems:
        yield f"problem      {problem}"
    rows = [
        (
            topic,
            f"{queue.queue_id}",
            f"{queue.min_offset:,}",
            f"{queue.max_offset:,}",
            f"{queue.messages:,}",
            size(queue.bytes),
            instant(queue.first_time),
            instant(queue.last_time),
        )
        for topic, in_topic in summary.topics.items()
        for queue in in_topic
    ]
    if rows:
        yield ""
        yield from table(("topic", "queue", "min", "max", "messages", "bytes", "first", "last"), rows, "<>>>>><<")


def _checkpoint(summary: StoreSummary) -> str:
    marks = summary.checkpoint
    if marks is None:
        return "none"
    times = f"log {instant(marks.log_time)}, queues {instant(marks.queues_time)}, index {instant(marks.index_time)}"
    return f"{times}, durable to {marks.durable_end:,}" if marks.durable_end else times


# --- verify ------------------------------------------------------------------------------------------------------


@store.command("verify")
@_index_slots
@click.option(
    "--threads", type=click.IntRange(0, _MOST_THREADS), default=0, metavar="N", help="Worker threads (one per CPU)."
)
@click.option(
    "--show", type=click.IntRange(0, _MOST), default=_SHOWN, metavar="N", help=f"Findings in the table ({_SHOWN})."
)
@click.option("--repair", is_flag=True, help="Mend what derives from the log; damaged files are moved aside.")
@click.option("--dry-run", is_flag=True, help="With --repair: only show what it would do.")
@yes_option
@_of_directory
def _verify(options: SimpleNamespace) -> int:
    """Check every byte; exit code 0 sound, 1 findings (with --repair: left), 2 cannot be read, or refused."""
    if options.repair:
        return _repair(options)
    if options.dry_run or options.yes:
        raise ConfigError("--dry-run and --yes belong to --repair")
    findings: list[Finding] = []
    with (
        _progress("verify") as show,
        store_tools.verify(
            options.directory,
            commit_log_paths=options.commit_log_paths,
            index_slots=options.index_slots,
            threads=options.threads,
            on_progress=show,
        ) as verification,
    ):
        for finding in verification:
            if options.json:
                _say(json.dumps({"finding": asdict(finding)}, default=str))
            elif len(findings) < options.show:
                findings.append(finding)
        report = verification.report
    if options.json:
        _say(json.dumps({"report": asdict(report) | {"is_sound": report.is_sound}}, default=str))
    else:
        for line in _verify_lines(report, findings):
            _say(line)
    return 0 if report.is_sound else 1


def _verify_lines(report: VerifyReport, findings: Sequence[Finding]) -> Iterator[str]:
    def place(finding: Finding) -> str:
        file = finding.file
        name = file.relative_to(report.directory) if file.is_relative_to(report.directory) else file
        return f"{name}" if finding.start == finding.end else f"{name}  {finding.start}-{finding.end}"

    rows = [
        (finding.kind, place(finding), f"{finding.count:,}", finding.expected, finding.found)
        for finding in sorted(findings, key=lambda finding: (finding.file, finding.start, finding.kind))
    ]
    if rows:
        yield from table(("finding", "file and bytes", "count", "expected", "found"), rows, "<<><<")
        total = sum(report.findings.values())
        if total > len(rows):
            yield f"… and {total - len(rows):,} more; --json or --show {total} shows all"
        yield ""
    rate = report.log_bytes / max(report.seconds, 1e-9)
    files = f"{number(report.log_files, 'file')}, {size(report.log_bytes)}"
    yield f"checked      {number(report.records, 'record')} in {files}"
    yield f"             physical offsets {report.log_start:,} to {report.looked_to:,}"
    yield f"             {report.queue_entries:,} entries of {report.queues:,} queues"
    yield f"             {number(report.index_entries, 'key')} in {number(report.index_files, 'index file')}"
    yield f"             in {report.seconds:.2f} s, {size(rate)}/s"
    if report.of_deleted:
        yield f"note         {report.of_deleted:,} records of deleted topics are not yet cleaned"
    for note in report.notes:
        yield f"note         {note}"
    for kind, count in report.findings.items():
        yield f"findings     {kind}: {count:,}"
    yield _verdict(report)


def _verdict(report: VerifyReport) -> str:
    return "sound" if report.is_sound else "not sound"


def _repair(options: SimpleNamespace) -> int:
    """Show what mends the findings, ask, and do it."""
    with _progress("verify") as show:
        repair = store_tools.plan_repair(
            options.directory,
            commit_log_paths=options.commit_log_paths,
            index_slots=options.index_slots,
            threads=options.threads,
            on_progress=show,
        )
    if not options.json:
        for line in _plan_lines(repair):
            _say(line)
    if options.dry_run:
        if options.json:
            _say(json.dumps({"steps": [asdict(step) for step in repair.steps], "lost": repair.lost_count}, default=str))
        else:
            _say(_verdict(repair.before))
        return 0 if repair.before.is_sound else 1
    if repair.steps:
        confirm(f"Mend {repair.directory} in {number(len(repair.steps), 'step')}?", yes=options.yes)
    with _bar("verify") as bar:
        report = repair.apply(on_progress=bar.show, opening=lambda: _opening(bar))
    if options.json:
        _say(json.dumps(asdict(report) | {"is_sound": report.is_sound}, default=str))
    else:
        if report.quarantine is not None:
            _say(f"moved aside  {report.quarantine}")
        for line in _verify_lines(report.after, report.left[: options.show]):
            _say(line)
    return 0 if report.is_sound else 1


def _plan_lines(repair: Repair) -> Iterator[str]:
    steps = [
        (
            step.action,
            f"{step.path.relative_to(repair.directory) if step.path.is_relative_to(repair.directory) else step.path}",
            f"{step.findings:,}",
        )
        for step in repair.steps
    ]
    if steps:
        yield from table(("step", "file or directory", "findings"), steps, "<<>")
    if any(finding.kind == "config" for finding in repair.lost):
        yield "a table is lost: put the table back first, from a backup of the store; until then nothing is mended"
    if repair.lost_count:
        yield f"cannot be mended: {repair.lost_count:,}"
        for finding in repair.lost:
            yield f"  {finding.kind}  {finding.file}  {finding.start}-{finding.end}: {finding.found}"


# --- backup ------------------------------------------------------------------------------------------------------


@store.command("backup")
@_of_directory
@click.argument("target", metavar="TARGET", help="A new directory, or an earlier backup, which is brought up to date.")
def _backup(options: SimpleNamespace) -> int:
    """Copy the store to TARGET; a ferromq broker may have it open. If it fails, ask again: it continues."""
    with _progress("backup") as show:
        report = store_tools.backup(
            options.directory, options.target, commit_log_paths=options.commit_log_paths, on_progress=show
        )
    if options.json:
        _say(json.dumps(asdict(report), default=str))
        return 0
    rate = size(report.copied_bytes / max(report.seconds, 1e-9))
    _say(f"backup       {report.target}")
    _say(f"of           {report.directory}, {'open' if report.was_open else 'stopped'}")
    _say(f"commit log   physical offsets {report.log_start:,} to {report.log_end:,}")
    _say(f"copied       {size(report.copied_bytes)} in {report.seconds:.2f} s, {rate}/s")
    _say(f"             {number(report.files, 'file')}; the target had {size(report.kept_bytes)}")
    return 0


# --- diff --------------------------------------------------------------------------------------------------------


@store.command("diff")
@click.argument("first", metavar="DIR", help="A store directory.")
@click.argument("second", metavar="OTHER", help="Another one, such as its backup.")
@_guarded
def _diff(options: SimpleNamespace) -> int:
    """Compare messages, tables and users of two stores; exit code 0 the same, 1 different, 2 cannot be read."""
    is_same = True
    for difference in store_tools.diff(options.first, options.second):
        is_same = False
        if options.json:
            _say(json.dumps(asdict(difference)))
        else:
            first, second = (json.dumps(value, ensure_ascii=False) for value in (difference.first, difference.second))
            _say(f"{difference.kind} {difference.name}: {first}, in the other {second}")
    if is_same and not options.json:
        _say("the same")
    return 0 if is_same else 1


# --- dump --------------------------------------------------------------------------------------------------------


@store.command("dump")
@click.option("--topic", required=True, metavar="NAME", help="The topic.")
@click.option("--queue", type=click.IntRange(0, _MOST_QUEUES), metavar="N", help="Only this queue.")
@click.option("--from-offset", type=click.IntRange(0, _MOST), metavar="N", help="First queue offset.")
@click.option("--to-offset", type=click.IntRange(0, _MOST), metavar="N", help="Queue offset after the last.")
@click.option("--from-time", type=Time(), help="Stored at this time or later.")
@click.option("--to-time", type=Time(), help="Stored at this time or before.")
@click.option("--key", metavar="KEY", help="One of the message's keys, or its id.")
@click.option("--tag", metavar="TAG", help="Its tag.")
@click.option("--limit", type=click.IntRange(0, _MOST), metavar="N", help="Most messages to print.")
@click.option("--body", is_flag=True, help="Print bodies, as text if they are UTF-8, else in base64.")
@_of_directory
def _dump(options: SimpleNamespace) -> int:
    """Print the messages of a topic, queue by queue."""
    messages = store_tools.dump(
        options.directory,
        options.topic,
        queue_id=options.queue,
        from_offset=options.from_offset,
        to_offset=options.to_offset,
        from_time=options.from_time,
        to_time=options.to_time,
        key=options.key,
        tag=options.tag,
        limit=options.limit,
        commit_log_paths=options.commit_log_paths,
    )
    is_sound = True
    for message in messages:
        is_sound = is_sound and isinstance(message, StoredMessage)
        _say(json.dumps(_fields(message, options)) if options.json else _line(message, options))
    return 0 if is_sound else 1


def _fields(message: StoredMessage | DamagedMessage | LostMessage, options: SimpleNamespace) -> dict[str, Any]:
    if isinstance(message, LostMessage):
        place = {"topic": options.topic, "queue_id": message.queue_id, "queue_offset": message.queue_offset}
        return place | {"error": message.reason}
    if isinstance(message, DamagedMessage):
        return _fields(message.message, options) | {"error": "the record does not match its checksum"}
    fields: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "message_id": message.message_id,
        "keys": list(message.keys),
        "tag": message.tag,
        "properties": message.properties,
        "born_timestamp": message.born_timestamp,
        "born_host": message.born_host,
        "store_timestamp": message.store_timestamp,
        "store_host": message.store_host,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_size": len(message.body),
    }
    if options.body:
        try:
            fields["body"] = message.body.decode()
        except UnicodeDecodeError:
            fields["body_base64"] = base64.b64encode(message.body).decode()
    return fields


def _line(message: StoredMessage | DamagedMessage | LostMessage, options: SimpleNamespace) -> str:
    if isinstance(message, LostMessage):
        return f"queue {message.queue_id} offset {message.queue_offset}: lost, {message.reason}"
    if isinstance(message, DamagedMessage):
        return f"{_line(message.message, options)}  DAMAGED"
    parts = [
        f"{instant(message.store_timestamp)}  queue {message.queue_id} offset {message.queue_offset}",
        f"{len(message.body)} bytes",
        message.message_id,
    ]
    if message.tag is not None:
        parts.append(f"tag {message.tag}")
    if message.keys:
        parts.append(f"keys {' '.join(message.keys)}")
    if options.body:
        parts.append(repr(message.body)[1:])
    return "  ".join(parts)
