"""
The options of `spark.read.format("ferromq")`, parsed and checked. Pure: no Spark, no sockets.

endpoint                `host:port` of a broker's gRPC endpoint; required
topic                   the topic to read; required
startingOffsets         `earliest` (default), `latest`, or JSON {queue: queue offset}, the first to read
endingOffsets           `latest` (default), `earliest`, or JSON {queue: queue offset}, the first not to read
maxRecordsPerPartition  larger ranges of a queue are split; default 1,000,000
minPartitions           ranges are split further until there are about as many; default 1

A queue in JSON is `"3"`, or `"broker-a:3"` where the topic lies on several brokers. Queues left out begin at
their min offset and end at their max offset. Names are not case-sensitive, as Spark has it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from ferromq.client._routes import parse_endpoints
from ferromq.errors import ConfigError

OPTIONS = ("endpoint", "topic", "startingOffsets", "endingOffsets", "maxRecordsPerPartition", "minPartitions")

Offsets = str | dict[str, int]
"""`earliest`, `latest`, or queue offsets by queue."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a user asked for; nothing has been compared with a broker yet."""

    endpoint: str
    topic: str
    starting_offsets: Offsets = "earliest"
    ending_offsets: Offsets = "latest"
    max_records_per_partition: int = 1_000_000
    min_partitions: int = 1

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "ReadOptions":
        """Read Spark's *options*; ConfigError names the option, what was given and what is allowed."""
        given = _by_name(options)
        for name in ("endpoint", "topic"):
            if not given.get(name):
                raise ConfigError(f"option {name!r} is missing; write .option({name!r}, {_EXAMPLES[name]!r})")
        return cls(
            endpoint=_endpoint(given["endpoint"]),
            topic=given["topic"],
            starting_offsets=_offsets(given, "startingOffsets", "earliest"),
            ending_offsets=_offsets(given, "endingOffsets", "latest"),
            max_records_per_partition=_positive(given, "maxRecordsPerPartition", 1_000_000),
            min_partitions=_positive(given, "minPartitions", 1),
        )


_EXAMPLES = {"endpoint": "127.0.0.1:8081", "topic": "flights"}


def _by_name(options: Mapping[str, str]) -> dict[str, str]:
    """Return *options* under the names as they are written here."""
    names = {name.lower(): name for name in OPTIONS}
    given: dict[str, str] = {}
    for key, value in options.items():
        name = names.get(key.lower())
        if name is None:
            near = get_close_matches(key.lower(), names, n=1)
            hint = f"; did you mean {names[near[0]]!r}?" if near else "."
            raise ConfigError(f"option {key!r} (given {value!r}) is not known{hint} Allowed: {', '.join(OPTIONS)}")
        given[name] = str(value)
    return given


def _endpoint(value: str) -> str:
    try:
        endpoints = parse_endpoints(value)
    except ConfigError as error:
        raise ConfigError(f"option 'endpoint' is {value!r}; allowed: host:port of a broker's gRPC endpoint") from error
    if len(endpoints) > 1:
        raise ConfigError(f"option 'endpoint' is {value!r}; allowed: one host:port, the other brokers are found there")
    return endpoints[0]


def _positive(given: Mapping[str, str], name: str, default: int) -> int:
    value = given.get(name, str(default))
    if not (value.isdecimal() and int(value) > 0):
        raise ConfigError(f"option {name!r} is {value!r}; allowed: a whole number from 1")
    return int(value)


def _offsets(given: Mapping[str, str], name: str, default: str) -> Offsets:
    value = given.get(name, default)
    if value.lower() in {"earliest", "latest"}:
        return value.lower()
    try:
        offsets = json.loads(value)
    except json.JSONDecodeError:
        offsets = None
    if not isinstance(offsets, dict) or not all(type(offset) is int and offset >= 0 for offset in offsets.values()):
        raise ConfigError(
            f"option {name!r} is {value!r}; allowed: earliest, latest, "
            'or JSON {queue: queue offset from 0}, such as {"0": 1200, "1": 0}'
        )
    return offsets
