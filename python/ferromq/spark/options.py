"""
The options of `spark.read.format("ferromq")`, parsed and checked.

endpoint, namesrv       address of the cluster, one of the two: `host:port` of a broker's gRPC endpoint, or of name
                        servers (`a:1;b:1`) for remoting, which also reads RocketMQ's brokers
tls                     whether connections use TLS; default false, or true with one of the next options
tlsTrust                PEM file of the certificates to trust; default those of the system, or of gRPC
tlsCertificate, tlsKey  PEM files that the brokers see, if they ask for a certificate
tlsServerName           name in the certificates of the endpoint and all brokers of the route (only with endpoint)
topic, topics           the topic to read, or several separated by commas; or
topicPattern            a regular expression that the whole name matches (needs namesrv)
includeSystemTopics     topicPattern also matches RocketMQ's own topics and retry topics; default false
startingOffsets         first message: `earliest` (default), `latest`, or JSON {topic: {queue: position}}
endingOffsets           end, exclusive: `latest` (default), `earliest`, or JSON {topic: {queue: position}}
startingTimestamp       only messages stored at or after this time: ISO-8601 with a zone, or milliseconds since 1970
endingTimestamp         only messages stored before this time
columns                 the columns to read, separated by commas; default all
tags, keys              only messages with one of these tags, or one of these keys, separated by commas
maxRecordsPerPartition  larger ranges of a queue are split; default 1,000,000
minPartitions           ranges are split further into about this many; default 1

For a single topic, write {queue: position}. A position is a queue offset, `"earliest"`, `"latest"` or a time. A queue
is `"3"`, or `"broker-a:3"` if several brokers have the topic. Other queues begin at their min offset or
startingTimestamp, and end at their max offset or endingTimestamp. Option names are case-insensitive. Every process of
Spark reads the PEM files, so they are at the same path on every node.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from ferromq.errors import ConfigError
from ferromq.protocol.endpoints import parse_endpoints
from ferromq.spark.positions import EARLIEST, LATEST, Positions, Time
from ferromq.spark.row_filter import RowFilter
from ferromq.spark.schema import COLUMNS
from ferromq.spark.topics import Topics

if TYPE_CHECKING:
    from ferromq.client.tls import Tls

_T = TypeVar("_T")
_LIMIT = 1 << 63

WHERE = ("endpoint", "namesrv")
TLS = ("tls", "tlsTrust", "tlsCertificate", "tlsKey", "tlsServerName")
TOPICS = ("topic", "topics", "topicPattern", "includeSystemTopics")
TIMES = ("startingTimestamp", "endingTimestamp")
ROWS = ("columns", "tags", "keys")
OPTIONS = (
    *WHERE,
    *TLS,
    *TOPICS,
    *("startingOffsets", "endingOffsets"),
    *TIMES,
    *ROWS,
    *("maxRecordsPerPartition", "minPartitions"),
)
"""The options of a batch read."""
STREAM_OPTIONS = (
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("failOnDataLoss", "unreachableTimeout", "group"),
)
"""The options that only a stream read has."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The address of a cluster; exactly one of *endpoint* and *namesrv* is set."""

    endpoint: str | None = None
    """`host:port` of a gRPC endpoint."""
    namesrv: str | None = None
    """`host:port` of name servers, joined by `;`."""
    tls: "Tls | None" = None
    """None: without TLS."""

    def __str__(self) -> str:
        return self.endpoint or f"name server {self.namesrv}"


@dataclass(frozen=True, slots=True)
class RowOptions:
    """The columns and messages of a topic that become rows."""

    columns: tuple[str, ...] = COLUMNS
    tags: tuple[str, ...] = ()
    """Only messages with one of these; empty: all."""
    keys: tuple[str, ...] = ()

    @classmethod
    def parse(cls, given: "OptionReader") -> "RowOptions":
        """Parse the options of both formats. Raises ConfigError."""
        columns = given.names("columns") or COLUMNS
        for column in columns:
            if column not in COLUMNS:
                raise ConfigError(
                    f"option 'columns' names {column!r}{_nearest(column, COLUMNS)} Allowed: {', '.join(COLUMNS)}"
                )
        return cls(columns, given.names("tags"), given.names("keys"))

    def row_filter(self, **more: Any) -> RowFilter:
        """Return the filter of these options, with *more* conditions."""
        return RowFilter(tags=frozenset(self.tags) or None, keys=frozenset(self.keys) or None, **more)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The parsed options of a read, not yet compared with a broker."""

    address: ClusterAddress
    topics: Topics
    starting: Positions = field(default_factory=lambda: Positions(EARLIEST))
    ending: Positions = field(default_factory=lambda: Positions(LATEST))
    rows: RowOptions = field(default_factory=RowOptions)
    max_records_per_partition: int = 1_000_000
    min_partitions: int = 1

    @classmethod
    def parse(cls, options: Mapping[str, str], also: Iterable[str] = ()) -> "ReadOptions":
        """
        Parse Spark's *options*. ConfigError names the option, its value and the allowed values.

        The options in *also* are allowed; the caller parses them.
        """
        given = OptionReader(options, (*OPTIONS, *also), elsewhere=dict.fromkeys(STREAM_OPTIONS, "readStream"))
        topics = parse_topics(given)
        if topics is None:
            raise ConfigError(
                "option 'topic' is missing; write .option('topic', 'flights'), or 'topics' or 'topicPattern'"
            )
        address = parse_address(given)
        if topics.pattern is not None and address.namesrv is None:
            raise ConfigError(
                f"option 'topicPattern' is {topics.pattern!r} with 'endpoint', but gRPC cannot list topics; "
                "allowed: with 'namesrv', or name the topics in 'topics'"
            )
        return cls(
            address=address,
            topics=topics,
            starting=_positions(given, "starting", EARLIEST, topics),
            ending=_positions(given, "ending", LATEST, topics),
            rows=RowOptions.parse(given),
            max_records_per_partition=given.positive("maxRecordsPerPartition", 1_000_000),
            min_partitions=given.positive("minPartitions", 1),
        )


class OptionReader:
    """Reads options under their documented names."""

    def __init__(
        self, options: Mapping[str, str], allowed: Sequence[str], *, elsewhere: Mapping[str, str] | None = None
    ) -> None:
        """
        Take *options*. ConfigError names an option that is not *allowed*, and suggests a similar one.

        *elsewhere* maps options of another part of the API to its name.
        """
        names = {name.lower(): name for name in allowed}
        others = {name.lower(): place for name, place in (elsewhere or {}).items()}
        self._values: dict[str, str] = {}
        for key, value in options.items():
            name = names.get(key.lower())
            if name is None and key.lower() in others:
                raise ConfigError(f"option {key!r} (given {value!r}) belongs to {others[key.lower()]}")
            if name is None:
                near = _nearest(key, allowed)
                raise ConfigError(f"option {key!r} (given {value!r}) is not known{near} Allowed: {', '.join(allowed)}")
            self._values[name] = str(value)

    def get(self, name: str) -> str | None:
        """Return the value of *name*, or None. Raises ConfigError if it is empty."""
        value = self._values.get(name)
        if value is not None and not value.strip():
            raise ConfigError(f"option {name!r} is empty; give it a value or leave it out")
        return value

    def one_of(self, *names: str) -> tuple[str, str] | None:
        """Return the one of *names* that is set, and its value. Raises ConfigError if several are."""
        found = [(name, value) for name in names if (value := self.get(name)) is not None]
        if len(found) > 1:
            both = ", ".join(f"{name!r} ({value!r})" for name, value in found)
            raise ConfigError(f"options {both} were given; allowed: one of them")
        return found[0] if found else None

    def positive(self, name: str, default: int) -> int:
        """Return a positive integer."""
        value = self.get(name) or str(default)
        if not (value.isascii() and value.isdecimal() and len(value) <= len(str(_LIMIT)) and 0 < int(value) < _LIMIT):
            raise ConfigError(f"option {name!r} is {value!r}; allowed: a whole number from 1")
        return int(value)

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """Return one of the values *allowed*."""
        value = (self.get(name) or default).lower()
        if value not in allowed:
            given = self.get(name)
            raise ConfigError(f"option {name!r} is {given!r}{_nearest(value, allowed)} Allowed: {', '.join(allowed)}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        return self.choice(name, str(default).lower(), ("true", "false")) == "true"

    def names(self, name: str) -> tuple[str, ...]:
        """Return the distinct names of a comma-separated list; empty if the option is not set."""
        value = self.get(name)
        if value is None:
            return ()
        words = [word.strip() for word in value.split(",")]
        if not all(words):
            raise ConfigError(f"option {name!r} is {value!r}; allowed: names separated by single commas")
        return tuple(dict.fromkeys(words))

    def parsed(self, name: str, parse: Callable[[str], _T], allowed: str) -> _T | None:
        """Return the value parsed by *parse*; its ValueError becomes a ConfigError with the *allowed* values."""
        value = self.get(name)
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            why = f" ({error})" if str(error) else ""
            raise ConfigError(f"option {name!r} is {value!r}; allowed: {allowed}{why}") from error


def parse_address(given: OptionReader) -> ClusterAddress:
    """Return the address of the cluster."""
    found = given.one_of(*WHERE)
    if found is None:
        raise ConfigError("option 'endpoint' is missing; write .option('endpoint', '127.0.0.1:8081'), or namesrv")
    name, value = found
    what = "a broker's gRPC endpoint" if name == "endpoint" else "a name server, or several separated by ;"
    try:
        addresses = parse_endpoints(value)
    except ConfigError as error:
        raise ConfigError(f"option {name!r} is {value!r}; allowed: host:port of {what}") from error
    tls = parse_tls(given)
    if name == "namesrv":
        if tls is not None and tls.server_name is not None:
            raise ConfigError(
                f"option 'tlsServerName' is {tls.server_name!r} with 'namesrv'; over remoting a certificate must have "
                "the host of its server: remove the option, or read by 'endpoint'"
            )
        return ClusterAddress(namesrv=";".join(addresses), tls=tls)
    if len(addresses) > 1:
        raise ConfigError(f"option 'endpoint' is {value!r}; allowed: one host:port, which knows the other brokers")
    return ClusterAddress(endpoint=addresses[0], tls=tls)


def parse_tls(given: OptionReader) -> "Tls | None":
    """Return how connections use TLS; None without it. Raises ConfigError, also for a file that cannot be read."""
    from ferromq.client.tls import Tls, check_tls  # noqa: PLC0415 (Spark imports this module in every application)

    trust, certificate, key, server_name = (given.get(name) for name in TLS[1:])
    tls = Tls(trust, certificate, key, server_name)
    if not given.flag("tls", default=tls != Tls()):
        if tls != Tls():
            name = next(name for name in TLS[1:] if given.get(name) is not None)
            raise ConfigError(f"option {name!r} is {given.get(name)!r}, but 'tls' is 'false'; remove one of them")
        return None
    check_tls(tls)
    return tls


def parse_topics(given: OptionReader) -> Topics | None:
    """Return the topics to read, or None if no option names them."""
    system = given.flag("includeSystemTopics", default=False)
    found = given.one_of("topic", "topics", "topicPattern")
    if found is None:
        return None
    name, value = found
    if name == "topicPattern":
        topics = given.parsed(name, lambda text: Topics.matching(text, system=system), "a regular expression")
    else:
        names = given.names("topics") if name == "topics" else (value,)
        topics = given.parsed(name, lambda _: Topics.named(names), "names of topics")
    return topics


def parse_time(given: OptionReader, name: str) -> Time | None:
    """Return the time of an option."""
    return given.parsed(name, Time.parse, "ISO-8601 with a zone, as 2026-11-01T10:00:00Z, or milliseconds since 1970")


def _positions(given: OptionReader, which: str, default: str, topics: Topics) -> Positions:
    name = f"{which}Offsets"
    found = given.parsed(
        name,
        lambda text: Positions.parse(text, topics.names, default),
        'earliest, latest, or JSON {topic: {queue: queue offset from 0, "earliest", "latest" or a time}}, '
        'such as {"flights": {"0": 1200, "1": 0}}',
    )
    time = parse_time(given, f"{which}Timestamp")
    if time is None:
        return found or Positions(default)
    if found is not None and not found.by_queue:
        raise ConfigError(
            f"options '{which}Timestamp' ({given.get(f'{which}Timestamp')!r}) and {name!r} ({given.get(name)!r}) "
            "were given; allowed: one of them, or JSON for queues that do not follow the time"
        )
    return Positions(time, found.by_queue if found else {})


def _nearest(word: str, allowed: Iterable[str]) -> str:
    """Return the end of a sentence that suggests a similar name."""
    names = {name.lower(): name for name in allowed}
    near = get_close_matches(word.lower(), names, n=1)
    return f"; did you mean {names[near[0]]!r}?" if near else "."
