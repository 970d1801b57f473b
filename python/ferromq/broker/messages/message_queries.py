"""
MessageQueries of a broker: messages by key and by id over remoting, offsets over gRPC.

It reads the store and changes nothing.
"""

from collections.abc import Callable

from ferromq._ferromq import Request, Store
from ferromq._proto import messages as pb
from ferromq.broker.cluster.routes import unknown_topic
from ferromq.broker.grpc_answers import OK, Refused, group_name, topic_name
from ferromq.broker.metadata.topics import TopicTable
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, failure, flag, integer, required, success

_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_MAX_MESSAGES = 32
_LIMIT_FOR_MESSAGES = 1024
MAX_BYTES = 4 << 20
"""Bytes of the records in an answer to a query by key, unless the first one alone has more."""
_END_OF_TIME = 2**63 - 1


class MessageQueries:
    """Answers questions about what is stored."""

    def __init__(
        self, store: Store, topics: TopicTable, reads_refused: Callable[[], str | None] = lambda: None
    ) -> None:
        self._store = store
        self._topics = topics
        self._reads_refused = reads_refused

    def by_key(self, request: Request) -> Answer:
        """
        Answer request 12: the records of a topic that have a key, one after the other in the body.

        The newest first, at most `MAX_BYTES`: those that are left out are asked for by an earlier end of the time.
        """
        fields = request.fields
        topic, key = required(fields, "topic"), required(fields, "key")
        # RocketMQ does the same for a unique key: the client's number is about user keys.
        is_unique = flag(fields, _UNIQUE_KEY_QUERY)
        count = _MAX_MESSAGES if is_unique else integer(fields, "maxNum", _MAX_MESSAGES)
        begin, end = integer(fields, "beginTimestamp", 0), integer(fields, "endTimestamp", _END_OF_TIME)
        count = min(max(count, 1), _LIMIT_FOR_MESSAGES)
        query = self._store.query_by_unique_key if is_unique else self._store.query_by_key
        messages = query(topic, key, count, max(begin, 0), max(end, 0), max_bytes=MAX_BYTES)
        if not messages:
            return failure(
                ResponseCode.QUERY_NOT_FOUND, f"no message of {topic} between {begin} and {end} has the key {key}"
            )
        stats = self._store.stats()
        header = {
            "indexLastUpdateTimestamp": str(stats["indexed_timestamp"]),
            "indexLastUpdatePhyoffset": str(stats["indexed_offset"]),
        }
        return success(header, b"".join(message.raw for message in messages))

    def by_id(self, request: Request) -> Answer:
        """Answer request 33: the record at a physical offset."""
        offset = integer(request.fields, "offset")
        message = self._store.message_at(offset) if offset >= 0 else None
        if message is None:
            nearest = self._store.nearest_message(max(offset, 0))
            hint = "" if nearest is None else f"; the nearest one begins at {nearest}"
            return failure(ResponseCode.SYSTEM_ERROR, f"no message begins at the physical offset {offset}{hint}")
        return success(body=message.raw)

    def query_offset(self, message: pb.QueryOffsetRequest, _request: Request) -> pb.QueryOffsetResponse:
        """Answer with the offset a queue has at its beginning, its end, or at a time."""
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

    def get_offset(self, message: pb.GetOffsetRequest, _request: Request) -> pb.GetOffsetResponse:
        """Answer with the committed offset of a group."""
        group = group_name(message.group)
        topic, queue_id = self._queue(message.message_queue)
        offset = self._store.committed_offset(group, topic, queue_id)
        if offset is None:
            raise Refused(
                pb.Code.OFFSET_NOT_FOUND, f"the group {group} has committed no offset of {topic}, queue {queue_id}"
            )
        return pb.GetOffsetResponse(status=OK, offset=offset)

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
        raise Refused(pb.Code.BAD_REQUEST, f"the timestamp may not be: {error}") from error
