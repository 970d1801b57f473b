"""Queries of queue offsets and committed offsets over gRPC: QueryOffset and GetOffset."""

import threading
from collections.abc import Callable

from ferromq._ferromq import Request, Store
from ferromq._proto import messages as pb
from ferromq.broker.grpc_answers import OK, Refused, group_name, topic_name
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.not_found import unknown_group, unknown_topic
from ferromq.broker.metadata.topics import TopicTable
from ferromq.core.requests import BEGIN

_DIGITS = 15
"""The most digits of a time."""


class GrpcOffsets:
    """Answers QueryOffset and GetOffset, unless *reads_refused* gives a reason not to serve consumers."""

    def __init__(
        self, store: Store, topics: TopicTable, groups: GroupTable, reads_refused: Callable[[], str | None]
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._reads_refused = reads_refused
        self._beginning = threading.Lock()

    def query_offset(self, message: pb.QueryOffsetRequest, _request: Request) -> pb.QueryOffsetResponse:
        """Answer QueryOffset: a queue's first offset, its end, or the offset at a time."""
        topic, queue_id = self._queue(message.message_queue)
        if message.query_offset_policy == pb.QueryOffsetPolicy.BEGINNING:
            offset = self._store.min_offset(topic, queue_id)
        elif message.query_offset_policy == pb.QueryOffsetPolicy.END:
            offset = self._store.max_offset(topic, queue_id)
        elif message.query_offset_policy != pb.QueryOffsetPolicy.TIMESTAMP:
            raise Refused(pb.Code.BAD_REQUEST, f"the policy {int(message.query_offset_policy)} is unknown")
        elif message.HasField("timestamp"):
            offset = self._store.offset_by_time(topic, queue_id, _milliseconds(message.timestamp))
        else:
            raise Refused(pb.Code.BAD_REQUEST, "the policy is TIMESTAMP, and the timestamp is missing")
        return pb.QueryOffsetResponse(status=OK, offset=offset)

    def get_offset(self, message: pb.GetOffsetRequest, request: Request) -> pb.GetOffsetResponse:
        """
        Answer GetOffset: the committed offset of a group.

        A ferromq extension: the metadata `x-ferromq-begin` (`first`, `last`, or milliseconds since 1970) makes a group
        that has no offset of the topic begin there in all its queues. A queue that was added later begins at its first
        message. Members that start at once get the same offsets.
        """
        group = group_name(message.group)
        topic, queue_id = self._queue(message.message_queue)
        start = request.fields.get(BEGIN)
        if start is not None:
            self._begin(group, topic, start)
        offset = self._store.committed_offset(group, topic, queue_id)
        if offset is None:
            raise Refused(
                pb.Code.OFFSET_NOT_FOUND, f"the group {group} has committed no offset of {topic}, queue {queue_id}"
            )
        return pb.GetOffsetResponse(status=OK, offset=offset)

    def _begin(self, group: str, topic: str, start: str) -> None:
        if start not in {"first", "last"} and not (start.isascii() and start.isdecimal() and len(start) <= _DIGITS):
            raise Refused(pb.Code.BAD_REQUEST, f"{BEGIN} is {start!r}; it is first, last, or milliseconds since 1970")
        if self._groups.get(group) is None:
            raise Refused(pb.Code.CONSUMER_GROUP_NOT_FOUND, unknown_group(group))
        found = self._topics.get(topic)
        queues = range(found.read_queues if found else 0)
        with self._beginning:  # the first member decides
            offsets = [self._store.committed_offset(group, topic, queue_id) for queue_id in queues]
            is_new = all(offset is None for offset in offsets)
            for queue_id in queues:
                if offsets[queue_id] is None:
                    offset = self._start(topic, queue_id, start if is_new else "first")
                    self._store.commit_offset(group, topic, queue_id, offset)

    def _start(self, topic: str, queue_id: int, start: str) -> int:
        match start:
            case "first":
                return self._store.min_offset(topic, queue_id)
            case "last":
                return self._store.max_offset(topic, queue_id)
        return self._store.offset_by_time(topic, queue_id, int(start))

    def _queue(self, queue: pb.MessageQueue) -> tuple[str, int]:
        why = self._reads_refused()
        if why is not None:
            raise Refused(pb.Code.TOO_MANY_REQUESTS, why)
        name = topic_name(queue.topic)
        topic = self._topics.get(name)
        if topic is None:
            raise Refused(pb.Code.TOPIC_NOT_FOUND, unknown_topic(name))
        if not 0 <= queue.id < topic.read_queues:
            raise Refused(pb.Code.BAD_REQUEST, f"{name} has the queues 0 to {topic.read_queues - 1}, not {queue.id}")
        return name, queue.id


def _milliseconds(timestamp: pb.Timestamp) -> int:
    try:
        return timestamp.ToMilliseconds()
    except ValueError as error:
        raise Refused(pb.Code.BAD_REQUEST, f"the timestamp is invalid: {error}") from error
