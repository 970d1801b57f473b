"""Queries of messages by key and by id, over remoting."""

from ferromq._ferromq import Request, Store
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, failure, flag, integer, required, success

_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_MAX_MESSAGES = 32
_LIMIT_FOR_MESSAGES = 1024
MAX_BYTES = 4 << 20
"""The most bytes of records in one answer to a query by key; a single larger record is still answered."""
_END_OF_TIME = 2**63 - 1


class MessageQueries:
    """
    Answers requests 12 and 33 from the store.

    *is_guarded*: policies were checked for the topic of a request, so a message of another topic is not answered.
    """

    def __init__(self, store: Store, *, is_guarded: bool = False) -> None:
        self._store = store
        self._is_guarded = is_guarded

    def by_key(self, request: Request) -> Answer:
        """
        Answer request 12: the records of a topic that have a key, the newest first, up to `MAX_BYTES`.

        The caller gets the rest by a query with an earlier end time.
        """
        fields = request.fields
        topic, key = required(fields, "topic"), required(fields, "key")
        # As in RocketMQ, the client's limit applies to user keys only.
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
        topic = request.fields.get("topic", "")
        if self._is_guarded and (message is None or message.topic != topic):
            # One text for both, without the nearest message: it says nothing about other topics.
            return failure(ResponseCode.SYSTEM_ERROR, f"no message of {topic} begins at the physical offset {offset}")
        if message is None:
            nearest = self._store.nearest_message(max(offset, 0))
            hint = "" if nearest is None else f"; the nearest one begins at {nearest}"
            return failure(ResponseCode.SYSTEM_ERROR, f"no message begins at the physical offset {offset}{hint}")
        return success(body=message.raw)
