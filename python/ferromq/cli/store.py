"""
The commands `ferromq store stat`, `verify` and `dump`. `store_tools` does their work.

Exit codes: 0 done without findings, 1 findings, 2 the directory cannot be read, or wrong usage.
"""

import argparse
import base64
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ferromq import store_tools
from ferromq._ferromq import StoredMessage
from ferromq.errors import FerromqError
from ferromq.store_tools import DamagedMessage, Finding, LostMessage, StoreSummary, VerifyReport
from ferromq.terminal.formatting import instant, number, size, span, table
from ferromq.terminal.progress import Progress

_SHOWN = 1000
"""Findings shown by default; all are counted."""
_MOST = 2**63 - 1
_MOST_QUEUES = 2**31 - 1
_MOST_SLOTS = 268_435_455
_MOST_THREADS = 1024


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", text: str) -> None:
    """Add the command `store` with the help *text*."""
    store = commands.add_parser("store", help=text)
    store.set_defaults(run=lambda _options: _usage(store))
    actions = store.add_subparsers(title="actions", metavar="ACTION")

    stat = actions.add_parser("stat", help="show its files, times, topics, queues, index and checkpoint")
    _add_directory(stat, _stat)
    stat.add_argument(
        "--index-slots",
        type=_count(_MOST_SLOTS, 1),
        metavar="N",
        help="hash slots of an index file (a quarter of the entries)",
    )

    verify = actions.add_parser("verify", help="check every byte; exit code 0 sound, 1 findings, 2 cannot be read")
    _add_directory(verify, _verify)
    verify.add_argument(
        "--index-slots",
        type=_count(_MOST_SLOTS, 1),
        metavar="N",
        help="hash slots of an index file (a quarter of the entries)",
    )
    verify.add_argument(
        "--threads", type=_count(_MOST_THREADS), default=0, metavar="N", help="worker threads (one per CPU)"
    )
    verify.add_argument(
        "--show", type=_count(_MOST), default=_SHOWN, metavar="N", help=f"findings in the table ({_SHOWN})"
    )

    dump = actions.add_parser("dump", help="print the messages of a topic, queue by queue")
    _add_directory(dump, _dump)
    dump.add_argument("--topic", required=True)
    dump.add_argument("--queue", type=_count(_MOST_QUEUES), metavar="N", help="only this queue")
    dump.add_argument("--from-offset", type=_count(_MOST), metavar="N", help="first queue offset")
    dump.add_argument("--to-offset", type=_count(_MOST), metavar="N", help="queue offset after the last")
    time_help = "2026-11-21, 2026-11-21T07:30, with a zone if not local, or milliseconds since 1970"
    dump.add_argument("--from-time", type=_time, metavar="TIME", help=f"stored at this time or later: {time_help}")
    dump.add_argument("--to-time", type=_time, metavar="TIME", help="stored at this time or before")
    dump.add_argument("--key", help="one of the message's keys, or its id")
    dump.add_argument("--tag")
    dump.add_argument("--limit", type=_count(_MOST), metavar="N", help="most messages to print")
    dump.add_argument("--body", action="store_true", help="print bodies, as text if they are UTF-8, else in base64")


def _add_directory(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    parser.set_defaults(run=lambda options: _guarded(run, options))
    parser.add_argument("directory", metavar="DIR", help="the store directory")
    parser.add_argument("--json", action="store_true", help="print JSON, in lines if there are many objects")
    parser.add_argument(
        "--commit-log",
        action="append",
        default=[],
        metavar="DIR",
        dest="commit_log_paths",
        help="a directory of the commit log, if it is not DIR/commitlog; may be repeated",
    )


def _usage(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return 2


def _guarded(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    try:
        code = run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, closed the pipe. Nothing can be written, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (FerromqError, OSError, ValueError, OverflowError) as error:
        sys.stderr.write(f"ferromq: {error}\n")
        return 2
    return code


def _count(most: int, least: int = 0) -> Callable[[str], int]:
    def read(text: str) -> int:
        # Checks the length first, because `int` fails for too many digits.
        number = int(text) if text.isdecimal() and len(text) <= len(str(_MOST)) else -1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return number

    return read


def _time(text: str) -> int | datetime:
    try:
        if text.isdecimal() and len(text) > len("20261121"):
            return _count(_MOST)(text)
        time = datetime.fromisoformat(text)
        if time.timestamp() < 0:
            raise argparse.ArgumentTypeError(f"{text!r} is before 1970")
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time such as 2026-11-21T07:30, or milliseconds since 1970"
        ) from None
    return time


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


# --- stat --------------------------------------------------------------------------------------------------------


def _stat(options: argparse.Namespace) -> int:
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


def _verify(options: argparse.Namespace) -> int:
    findings: list[Finding] = []
    with Progress("verify", 0, is_bytes=True, is_quiet=not sys.stderr.isatty()) as progress:

        def show(done: int, total: int) -> None:
            progress.total = total
            progress.update(done)

        with store_tools.verify(
            options.directory,
            commit_log_paths=options.commit_log_paths,
            index_slots=options.index_slots,
            threads=options.threads,
            on_progress=show,
        ) as verification:
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
    yield "sound" if report.is_sound else "not sound"


# --- dump --------------------------------------------------------------------------------------------------------


def _dump(options: argparse.Namespace) -> int:
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


def _fields(message: StoredMessage | DamagedMessage | LostMessage, options: argparse.Namespace) -> dict[str, Any]:
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


def _line(message: StoredMessage | DamagedMessage | LostMessage, options: argparse.Namespace) -> str:
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
