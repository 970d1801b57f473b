"""
Reads from brokers over either protocol: queues of topics with their offsets, and messages as column buffers.

Callers keep the offsets. A pull commits nothing and takes no lease, so readers do not affect each other. Both protocols
carry records in the format of the log, which `_ferromq.record_columns` turns into rows, as it does for log files.
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
    from ferromq.client.tls import Tls
    from ferromq.spark.read.over_grpc import GrpcBroker


def queues(address: ClusterAddress, topics: Topics, *, is_whole: bool = True) -> list[Queue]:
    """
    Return the readable queues of *topics* on all brokers, with their current offsets.

    Raises `TopicNotFound` for an unknown topic, and `ConfigError` for a pattern that no topic matches. Also raises if a
    broker is down, because rows would be missing; over remoting only if the read *is_whole*.
    """
    found: list[Queue] = []
    if address.namesrv is not None:
        with NameServers(address.namesrv, address.tls) as name_servers:
            # Checked before and after: a route may lack a broker that starts or stops meanwhile.
            if is_whole:
                name_servers.check_whole(topics)
            found = _of_name_servers(address, name_servers, topics)
            if is_whole:
                name_servers.check_whole(topics)
    elif address.endpoint is not None:
        if topics.pattern is not None:
            raise ConfigError("option 'topicPattern' needs the names of all topics; allowed: with option 'namesrv'")
        for topic in topics.names:
            found += _over("grpc").queues(address.endpoint, topic, address.tls)
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
            # The topic was deleted after the name servers returned the list.
    return found


def check_whole(address: ClusterAddress, topics: Topics) -> None:
    """Raise `ServerError` if a broker that the name servers know is down: it may have queues of *topics*."""
    if address.namesrv is not None:
        with NameServers(address.namesrv, address.tls) as name_servers:
            name_servers.check_whole(topics)


def offsets_by_time(wanted: Sequence[tuple[Queue | QueueRange, int]]) -> list[int]:
    """
    Return for each queue the first offset stored at its time in ms or later, or else its max offset.

    Brokers are queried one after the other. Raises the broker's error or `ConnectionFailed`, which name the queue or
    broker.
    """
    by_broker: dict[tuple[Protocol, str, Tls | None], list[int]] = {}
    for place, (queue, _) in enumerate(wanted):
        by_broker.setdefault((queue.protocol, queue.endpoint, queue.tls), []).append(place)
    found = [0] * len(wanted)
    for (protocol, endpoint, tls), places in by_broker.items():
        asked = [wanted[place] for place in places]
        answers = _over(protocol).offsets_by_time(endpoint, asked, tls)
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
    Yield the messages of *wanted* as (number of rows, columns), while the next pull is in progress.

    *columns* and *filter* are those of `_ferromq.record_columns`. Raises if the queue no longer holds every offset of
    the range. *topic*, if given, must be the range's.
    """
    if topic not in {None, wanted.topic}:
        raise ValueError(f"the range belongs to topic {wanted.topic!r}, not {topic!r}")
    given, names = dict(filter or {}), list(columns)
    tags = tags_for_broker(wanted.topic, given.get("tags"))
    with _broker(wanted) as broker:
        offset = wanted.start
        call: Any = broker.begin(wanted, offset, tags)
        while offset < wanted.end:
            try:
                answer = broker.finish(call, wanted, offset)
            except AgedOutError as error:
                raise _aged_out(wanted, offset, f"the broker answered: {error}") from error
            following = _next(wanted, offset, answer)
            if following < wanted.end:
                call = broker.begin(wanted, following, tags)
            batch = record_columns(answer.parts, columns=names, filter=given, end=wanted.end)
            if not tags and batch["read"] != following - offset:
                count, following = batch["read"], answer.next_offset
                raise _aged_out(wanted, offset, f"the broker returned {count} messages, the next at {following}")
            offset = following
            if batch["rows"]:
                yield batch["rows"], batch["columns"]


def _over(protocol: Protocol) -> Any:
    """Return the module for *protocol*."""
    if protocol == "remoting":
        return over_remoting
    from ferromq.spark.read import over_grpc  # noqa: PLC0415 (importing gRPC takes longer than a name server's answer)

    return over_grpc


def _broker(wanted: QueueRange) -> "RemotingBroker | GrpcBroker":
    if wanted.protocol == "remoting":
        return RemotingBroker(wanted.endpoint, wanted.tls)
    broker: GrpcBroker = _over("grpc").GrpcBroker(wanted.endpoint, wanted.tls)
    return broker


def _next(wanted: QueueRange, offset: int, answer: PullResult) -> int:
    """Return the offset of the next pull. Raises if the result lacks offsets."""
    if answer.min_offset > offset:
        raise _aged_out(wanted, offset, f"the queue now begins at {answer.min_offset}")
    if answer.next_offset <= offset:
        what = f"the broker returned no messages, the next at {answer.next_offset}"
        raise _aged_out(wanted, offset, what, " or cannot be read now: then the broker's log names the file")
    return min(answer.next_offset, wanted.end)


def _aged_out(wanted: QueueRange, offset: int, what: str, otherwise: str = "") -> ServerError:
    return ServerError(
        f"{wanted} was read from queue offset {offset}, but {what}: "
        f"messages of the range [{wanted.start}, {wanted.end}) have aged out{otherwise}"
    )


def tags_for_broker(topic: str, tags: Sequence[str] | None) -> Sequence[str]:
    """
    Return the tags that the broker can filter by; the reader's own filter does the rest.

    Brokers compare tag hashes in queue entries. In internal topics these may be something else, such as a time.
    """
    if not tags or is_internal(topic) or any(tag == "*" or "|" in tag or tag != tag.strip() or not tag for tag in tags):
        return ()
    return tags
