"""The rows that a pipeline reads: from an archive, from brokers, or from log files."""

import argparse
import re
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (PySpark's own habit)

from ferromq.errors import ConfigError
from ferromq.pipeline import archive

_PLACES = ("archive", "endpoint", "namesrv", "log")


def add_arguments(parser: argparse.ArgumentParser, *, with_topic: bool = True) -> None:
    """Add the arguments that select rows; without `--topic` the caller selects the topics."""
    group = parser.add_argument_group("source", "one of --archive, --endpoint, --namesrv, --log, and a selection")
    add = group.add_argument
    add("--archive", metavar="DIR", help="archive that the pipeline `archive` wrote")
    add("--endpoint", metavar="HOST:PORT", help="gRPC endpoint of a broker, to read from ferromq brokers")
    add("--namesrv", metavar="A;B", help="name servers, to read from ferromq's and RocketMQ's brokers")
    add("--log", metavar="PATH", help="store directory, or commit-log files")
    if with_topic:
        add("--topic", metavar="NAME,…", required=True, help="the topics")
    else:
        parser.set_defaults(topic=None)
    add(
        "--start",
        metavar="TIME",
        help="only messages stored at or after this time: ISO-8601 (UTC by default), or milliseconds",
    )
    add("--end", metavar="TIME", help="only messages stored before this time")


def read(spark: SparkSession, arguments: argparse.Namespace, *, prefix: str | None = None) -> DataFrame:
    """
    Return the rows that *arguments* select, with the columns of the format. Raises ConfigError for wrong arguments.

    Without topics in the arguments, the topics that begin with *prefix* are read.
    """
    place = _place(arguments)
    topics = [name for name in (arguments.topic or "").split(",") if name]
    start, end = _times(arguments)
    if place == "archive":
        kept = F.col("topic").isin(topics) if topics or prefix is None else F.col("topic").startswith(prefix)
        return within(archive.read(spark, arguments.archive).where(kept), start, end)
    if place == "log":
        reader = spark.read.format("ferromq-log").option("path", arguments.log)
    else:
        reader = spark.read.format("ferromq").option(place, getattr(arguments, place))
    if topics or prefix is None:
        reader = reader.option("topics", ",".join(topics))
    else:
        reader = reader.option("topicPattern", f"{re.escape(prefix)}.*")
        reader = reader.option("includeSystemTopics", "true") if place != "log" else reader
    return within(reader.load(), start, end)


def _place(arguments: argparse.Namespace) -> str:
    given = [name for name in _PLACES if getattr(arguments, name)]
    if len(given) != 1:
        found = " and ".join(f"--{name}" for name in given) or "missing"
        raise ConfigError(f"the source is {found}; allowed: one of {', '.join(f'--{name}' for name in _PLACES)}")
    return given[0]


def _times(arguments: argparse.Namespace) -> tuple[datetime | None, datetime | None]:
    start, end = moment("--start", arguments.start), moment("--end", arguments.end)
    if start is not None and end is not None and start >= end:
        raise ConfigError(f"--start is {arguments.start}, --end is {arguments.end}; allowed: an end after the start")
    return start, end


def describe(arguments: argparse.Namespace) -> str:
    """Return a text that identifies the selected rows. Raises ConfigError for wrong arguments."""
    place = _place(arguments)
    _times(arguments)
    return f"{place} {getattr(arguments, place)} topics {arguments.topic} from {arguments.start} to {arguments.end}"


def moment(name: str, value: str | None) -> datetime | None:
    """Parse the time of option *name*. Raises ConfigError if it is not a time."""
    if value is None:
        return None
    try:
        if value.isdecimal():
            return datetime.fromtimestamp(int(value) / 1000, UTC)
        at = datetime.fromisoformat(value)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f"{name} is {value!r}; allowed: ISO-8601 such as 2026-11-21T23:00:00Z, or milliseconds since 1970"
        ) from error
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def within(frame: DataFrame, start: datetime | None, end: datetime | None) -> DataFrame:
    """Return the rows stored at or after *start* and before *end*. Of an archive, only the days between are opened."""
    has_dates = "date" in frame.columns
    for at, is_start in ((start, True), (end, False)):
        if at is None:
            continue
        stored, day = F.col("store_timestamp"), F.col("date")
        limit = F.timestamp_micros(F.lit(int(at.timestamp() * 1000) * 1000))
        frame = frame.where(stored >= limit if is_start else stored < limit)
        if has_dates:
            on = F.lit(at.astimezone(UTC).date())
            frame = frame.where(day.isNull() | (day >= on if is_start else day <= on))
    return frame.drop("date", "hour") if has_dates else frame
