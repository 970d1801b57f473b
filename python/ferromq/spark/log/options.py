"""
The options of `spark.read.format("ferromq-log")`, parsed and checked.

path                    a store directory (ferromq's or RocketMQ's, open or closed), a directory of commit-log files,
                        or one of them: on a local or shared disk, or any URL that fsspec knows (`s3://…`).
                        Several: `.load(["…", "…"])`
topic, topics           the topic to read, or several separated by commas; or
topicPattern            a regular expression that the whole name matches; by default every topic is read
includeSystemTopics     without topic and topics, also read RocketMQ's own topics and retry topics; default false
startingTimestamp       only messages stored at or after this time: ISO-8601 with a zone, or milliseconds since 1970
endingTimestamp         only messages stored before this time
columns                 the columns to read, separated by commas; default all
tags, keys              only messages with one of these tags, or one of these keys, separated by commas
includeExpired          also read messages of a store directory that have expired from its queues, and those of deleted
                        topics; default false: the rows that the broker returns
commitLogPaths          the directories of the store's commit log, separated by commas, if it is not its folder
                        commitlog
onCorrupt               for a damaged record: `fail` (default), or `skip` and log its position
maxBytesPerPartition    larger files of a store directory are split; default 256 MiB (268435456)
storageOptions          JSON object of options for fsspec, such as {"key": "…", "secret": "…"}
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from ferromq.errors import ConfigError
from ferromq.spark.options import ROWS, TIMES, TOPICS, OptionReader, RowOptions, parse_time, parse_topics
from ferromq.spark.row_filter import ALL, Interval, RowFilter
from ferromq.spark.topics import Topics

OPTIONS = (
    *("path", "paths", "commitLogPaths"),
    *TOPICS,
    *TIMES,
    *ROWS,
    *("includeExpired", "onCorrupt", "maxBytesPerPartition", "storageOptions"),
)

OnCorrupt = Literal["fail", "skip"]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The parsed options of a read, not yet compared with files."""

    paths: tuple[str, ...]
    topics: Topics = field(default_factory=Topics)
    rows: RowFilter = field(default_factory=RowFilter)
    columns: tuple[str, ...] = RowOptions().columns
    commit_log_paths: tuple[str, ...] = ()
    include_expired: bool = False
    on_corrupt: OnCorrupt = "fail"
    max_bytes_per_partition: int = 256 << 20
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "LogOptions":
        """Parse Spark's *options*. ConfigError names the option, its value and the allowed values."""
        given = OptionReader(options, OPTIONS)
        found = given.one_of("path", "paths")
        if found is None:
            raise ConfigError("option 'path' is missing; write .load('/var/lib/ferromq'), a store directory")
        name, value = found
        paths = (value,) if name == "path" else given.parsed("paths", _paths, "a JSON list of paths")
        topics = parse_topics(given) or Topics(system=given.flag("includeSystemTopics", default=False))
        first, end = parse_time(given, "startingTimestamp"), parse_time(given, "endingTimestamp")
        row_options = RowOptions.parse(given)
        rows = row_options.row_filter(
            stored=Interval(ALL.first if first is None else first.ms, ALL.end if end is None else end.ms),
            topics=frozenset(topics.names) or None,
        )
        return cls(
            paths=paths or (),
            topics=topics,
            rows=rows,
            columns=row_options.columns,
            commit_log_paths=given.names("commitLogPaths"),
            include_expired=given.flag("includeExpired", default=False),
            on_corrupt=cast("OnCorrupt", given.choice("onCorrupt", "fail", ("fail", "skip"))),
            max_bytes_per_partition=given.positive("maxBytesPerPartition", 256 << 20),
            storage_options=given.parsed("storageOptions", _object, "a JSON object") or {},
        )


def _paths(text: str) -> tuple[str, ...]:
    read = json.loads(text)
    if not isinstance(read, list) or not read or not all(isinstance(path, str) and path for path in read):
        raise ValueError
    return tuple(read)


def _object(text: str) -> dict[str, Any]:
    read = json.loads(text)
    if not isinstance(read, dict):
        raise ValueError  # noqa: TRY004
    return read
