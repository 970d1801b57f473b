"""
What the brokers say: the queues of topics with their offsets, and the messages of a range, as column buffers.

Offsets are the caller's; nothing is committed and no lease is taken, so any number of readers do not see each
other. Over either protocol records come as they lie in the log, and `_ferromq.record_columns` makes rows of them, so
the rows are the same as from the log's files. gRPC is imported where it is used: it takes a Python process longer to
import than a name server to answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ferromq._ferromq import record_columns
from ferromq.errors import ConfigError, ServerError, TopicNotFound
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read import over_remoting
from ferromq.spark.read.over_remoting import NameServers, RemotingBroker
from ferromq.spark.read.plan import Protocol, Queue, QueueRange
from ferromq.spark.read.pull_result import AgedOutError, PullResult
from ferromq.spark.schema import COLUMNS
from ferromq.spark.topics import Topics, is_internal

if TYPE_CHECKING:
    from ferromq.spark.read.over_grpc import GrpcBroker


def queues(address: ClusterAddress, topics: Topics, *, is_whole: bool = True) -> list[Queue]:
    """
    Return the readable queues of *topics* on all brokers, with the offsets they hold now.

    Raises `TopicNotFound` for a name that no broker has, and `ConfigError` for a pattern that no topic matches.
    ClusterAddress a broker is away it raises, too, for a part would look like the whole; over remoting only where the
    read *is_whole*.
    """
    found: list[Queue] = []
    if address.namesrv is not None:
        with NameServers(address.namesrv) as name_servers:
            # Before: one that comes meanwhile may be missing in a route. After: so may one that leaves.
            if is_whole:
                name_servers.check_whole(topics)
            found = _of_name_servers(address, name_servers, topics)
            if is_whole:
                name_servers.check_whole(topics)
    elif address.endpoint is not None:
        if topics.pattern is not None:
            raise ConfigError("option 'topicPattern' needs the names of all topics; allowed: with option 'namesrv'")
        for topic in topics.names:
            found += _over("grpc").queues(address.endpoint, topic)
    return sorted(found, key=lambda queue: (queue.topic, queue.broker_name, queue.queue_id))


def _of_name_servers(address: ClusterAddress, name_servers: NameServers, topics: Topics) -> list[Queue]:
    found: list[Queue] = []
    names: Sequence[str] = topics.names
    if topics.pattern is not None:
        names = topics.choose(name_servers.topics())
        if not names:
            raise ConfigError(f"option 'topicPattern' is {topics.pattern!r}, which no topic at {address} matches")
    for topic in names:
        try:
            found += name_servers.queues(topic)
        except TopicNotFound:
            if topics.pattern is None:
                raise
            # Deleted since the name servers were asked for the list.
    return found


def check_whole(address: ClusterAddress, topics: Topics) -> None:
    """Raise `ServerError` where name servers know a broker that is away: it may have queues of *topics*."""
    if address.namesrv is not None:
        with NameServers(address.namesrv) as name_servers:
            name_servers.check_whole(topics)


def offsets_by_time(wanted: Sequence[tuple[Queue | QueueRange, int]]) -> list[int]:
    """
    Return, for each queue and time in ms, the first offset stored then or later, or its end where none is.

    Brokers are asked one after the other, each for many queues at once. Raises what a broker refused with, or
    `ConnectionFailed`; the queue or broker is named.
    """
    by_broker: dict[tuple[Protocol, str], list[int]] = {}
    for place, (queue, _) in enumerate(wanted):
        by_broker.setdefault((queue.protocol, queue.endpoint), []).append(place)
    found = [0] * len(wanted)
    for (protocol, endpoint), places in by_broker.items():
        asked = [wanted[place] for place in places]
        answers = _over(protocol).offsets_by_time(endpoint, asked)
        for place, offset in zip(places, answers, strict=True):
            found[place] = offset
    return found


def pull(
    wanted: QueueRange,
    topic: str | None = None,
    *,
    columns: Sequence[str] = COLUMNS,
    filter: Mapping[str, Any] | None = None,  # noqa: A002 (the word of the Rust functions)
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """
    Yield the messages of *wanted* as (number of rows, columns), the next answer under way meanwhile.

    *columns* and *filter* as for `_ferromq.record_columns`. Raises where the queue does not hold every offset of the
    range any more: nothing is left out in silence. *topic* is the range's own.
    """
    if topic not in {None, wanted.topic}:
        raise ValueError(f"the range is of topic {wanted.topic!r}, not of {topic!r}")
    given, names = dict(filter or {}), list(columns)
    tags = tags_for_broker(wanted.topic, given.get("tags"))
    with _broker(wanted) as broker:
        offset = wanted.start
        call: Any = broker.begin(wanted, offset, tags)
        while offset < wanted.end:
            try:
                answer = broker.finish(call, wanted, offset)
            except AgedOutError as error:
                raise _aged_out(wanted, offset, f"was answered: {error}") from error
            following = _next(wanted, offset, answer)
            if following < wanted.end:
                call = broker.begin(wanted, following, tags)
            batch = record_columns(answer.parts, columns=names, filter=given, end=wanted.end)
            if not tags and batch["read"] != following - offset:
                raise _aged_out(wanted, offset, f"gave {batch['read']} messages, the next at {answer.next_offset}")
            offset = following
            if batch["rows"]:
                yield batch["rows"], batch["columns"]


def _over(protocol: Protocol) -> Any:
    """Return the module for *protocol*; that for gRPC is imported when it is first used."""
    if protocol == "remoting":
        return over_remoting
    from ferromq.spark.read import over_grpc  # noqa: PLC0415

    return over_grpc


def _broker(wanted: QueueRange) -> "RemotingBroker | GrpcBroker":
    if wanted.protocol == "remoting":
        return RemotingBroker(wanted.endpoint)
    broker: GrpcBroker = _over("grpc").GrpcBroker(wanted.endpoint)
    return broker


def _next(wanted: QueueRange, offset: int, answer: PullResult) -> int:
    """Return where the read goes on; an answer that leaves offsets out is an error."""
    if answer.min_offset > offset:
        raise _aged_out(wanted, offset, f"begins at {answer.min_offset} now")
    if answer.next_offset <= offset:
        what = f"gave no messages, the next at {answer.next_offset}"
        raise _aged_out(wanted, offset, what, " or cannot be read now: then the broker's log names the file")
    return min(answer.next_offset, wanted.end)


def _aged_out(wanted: QueueRange, offset: int, what: str, otherwise: str = "") -> ServerError:
    return ServerError(
        f"{wanted} was asked for queue offsets from {offset} and {what}: "
        f"messages of the range [{wanted.start}, {wanted.end}) have aged out{otherwise}"
    )


def tags_for_broker(topic: str, tags: Sequence[str] | None) -> Sequence[str]:
    """
    Return the tags that an expression can say; the rest is left to the filter on our side.

    Brokers compare the code in a queue's entry, which is no tag's in their own topics: delayed messages have a time.
    """
    if not tags or is_internal(topic) or any(tag == "*" or "|" in tag or tag != tag.strip() or not tag for tag in tags):
        return ()
    return tags
