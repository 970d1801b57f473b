"""The rows that a pipeline reads: from an archive, from brokers, or from log files."""

import re
from datetime import UTC, datetime
from types import SimpleNamespace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (PySpark's own habit)

from ferromq.client.tls import Tls
from ferromq.errors import ConfigError
from ferromq.pipeline import archive
from ferromq.pipeline.command.parameters import Parameters
from ferromq.spark.options import TLS, WHERE, ClusterAddress, OptionReader, parse_address, parse_tls

_PLACES = ("archive", "endpoint", "namesrv", "log")


def add_arguments(parameters: Parameters, *, with_topic: bool = True) -> None:
    """Add the arguments that select rows: one of four places, and a selection. Without `--topic` the caller has it."""
    add = parameters.option
    add("--archive", metavar="DIR", help="archive that the pipeline `archive` wrote")
    add("--endpoint", metavar="HOST:PORT", help="gRPC endpoint of a broker, to read from ferromq brokers")
    add("--namesrv", metavar="A;B", help="name servers, to read from ferromq's and RocketMQ's brokers")
    add("--tls", is_flag=True, help="speak TLS with brokers and name servers")
    add("--tls-trust", metavar="FILE", help="the certificates to trust (PEM, at the same path on every node)")
    add("--tls-certificate", metavar="FILE", help="the certificate to show to brokers (PEM)")
    add("--tls-key", metavar="FILE", help="the key of the certificate (PEM)")
    add(
        "--tls-server-name",
        metavar="NAME",
        help="the name in the certificates of --endpoint and all brokers of the route",
    )
    add("--log", metavar="PATH", help="store directory, or commit-log files")
    if with_topic:
        add("--topic", metavar="NAME,…", required=True, help="the topics")
    add(
        "--start",
        metavar="TIME",
        help="only messages stored at or after this time: ISO-8601 (UTC by default), or milliseconds",
    )
    add("--end", metavar="TIME", help="only messages stored before this time")


def read(spark: SparkSession, arguments: SimpleNamespace, *, prefix: str | None = None) -> DataFrame:
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
        reader = spark.read.format("ferromq").options(**_address_options(arguments))
    if topics or prefix is None:
        reader = reader.option("topics", ",".join(topics))
    else:
        reader = reader.option("topicPattern", f"{re.escape(prefix)}.*")
        reader = reader.option("includeSystemTopics", "true") if place != "log" else reader
    return within(reader.load(), start, end)


def _address_options(arguments: SimpleNamespace) -> dict[str, str]:
    """Return the options of the data source for --endpoint or --namesrv, and TLS."""
    where = {"endpoint": arguments.endpoint, "namesrv": arguments.namesrv}
    return _tls_options(arguments) | {name: value for name, value in where.items() if value}


def _tls_options(arguments: SimpleNamespace) -> dict[str, str]:
    """Return the options of the data source for TLS."""
    given = {
        "tls": "true" if arguments.tls else None,
        "tlsTrust": arguments.tls_trust,
        "tlsCertificate": arguments.tls_certificate,
        "tlsKey": arguments.tls_key,
        "tlsServerName": arguments.tls_server_name,
    }
    return {name: value for name, value in given.items() if value is not None}


def address(arguments: SimpleNamespace) -> ClusterAddress:
    """Return the address of --endpoint or --namesrv. Raises ConfigError for wrong arguments."""
    return parse_address(OptionReader(_address_options(arguments), (*WHERE, *TLS)))


def tls(arguments: SimpleNamespace) -> bool | Tls:
    """Return how a pipeline uses TLS with the broker that it sends to. Raises ConfigError for wrong arguments."""
    return parse_tls(OptionReader(_tls_options(arguments), TLS)) or False


def _place(arguments: SimpleNamespace) -> str:
    given = [name for name in _PLACES if getattr(arguments, name)]
    if len(given) != 1:
        found = " and ".join(f"--{name}" for name in given) or "missing"
        names = ", ".join(f"--{name}" for name in _PLACES)
        raise ConfigError(f"the source is {found}; allowed: one of {names}; `ferromq pipeline` also takes --context")
    if given[0] in {"archive", "log"} and _tls_options(arguments) and not getattr(arguments, "to_endpoint", None):
        raise ConfigError(
            f"--{given[0]} reads files, and nothing else connects to a broker; remove the options for TLS"
        )
    return given[0]


def _times(arguments: SimpleNamespace) -> tuple[datetime | None, datetime | None]:
    start, end = moment("--start", arguments.start), moment("--end", arguments.end)
    if start is not None and end is not None and start >= end:
        raise ConfigError(f"--start is {arguments.start}, --end is {arguments.end}; allowed: an end after the start")
    return start, end


def describe(arguments: SimpleNamespace) -> str:
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
