"""
OffsetRequests over remoting: where a queue begins and ends, where a time is in it, how far groups have read.

Reads, and the two changes administrators make to a group's progress without its members: cloning and forgetting. How
progress is kept is the store's business; resets that tell members are in `resets`.
"""

import logging
from collections.abc import Callable, Collection

from ferromq._ferromq import Request, Store
from ferromq.broker.cluster.routes import missing_topic
from ferromq.broker.metadata.topics import TopicTable
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, BadRequest, boolean, failure, flag, integer, required, success
from ferromq.protocol.route import DataVersion

_log = logging.getLogger("ferromq.broker")

_NOT_THERE = -1
_BOUNDARIES = {"lower": False, "upper": True}


class OffsetRequests:
    """
    Answers questions about offsets.

    *subscribed* says which topics the members of a group, where it has any, are subscribed to; *near_span* how many
    bytes before the end of the log a message is no history yet.
    """

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        *,
        now_ms: Callable[[], int],
        subscribed: Callable[[str], Collection[str]],
        near_span: Callable[[], int],
    ) -> None:
        self._store = store
        self._topics = topics
        self._now_ms = now_ms
        self._subscribed = subscribed
        self._near_span = near_span

    def committed(self, request: Request) -> Answer:
        """
        Answer request 14: the next offset a group will read.

        A group that has read nothing begins at 0 where the queue still has its first message, and that is no old
        history; also where the queue is empty, so that what is sent meanwhile is not skipped.
        """
        fields = request.fields
        group = required(fields, "consumerGroup")
        topic, queue_id = queue_of(fields)
        offset = self._store.committed_offset(group, topic, queue_id)
        if offset is None:
            if boolean(fields, "setZeroIfNotFound", default=True) and self._begins_at_zero(topic, queue_id):
                offset = 0
            else:
                return failure(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"the group {group} has committed no offset of {topic}, queue {queue_id}",
                )
        return success({"offset": str(offset)})

    def by_time(self, request: Request) -> Answer:
        """Answer request 29: the offset a time stands for."""
        fields = request.fields
        topic, queue_id = queue_of(fields)
        timestamp = integer(fields, "timestamp")
        boundary = (fields.get("boundaryType") or "lower").lower()
        if boundary not in _BOUNDARIES:
            raise BadRequest(f"the header field boundaryType is {boundary!r}; it may be lower or upper")
        missing = self._missing(topic)
        if missing is not None:
            return missing
        offset = self._store.offset_by_time(topic, queue_id, timestamp, upper=_BOUNDARIES[boundary])
        return success({"offset": str(offset)})

    def max_offset(self, request: Request) -> Answer:
        """Answer request 30: the offset the next message of a queue gets."""
        topic, queue_id = queue_of(request.fields)
        return self._missing(topic) or success({"offset": str(self._store.max_offset(topic, queue_id))})

    def min_offset(self, request: Request) -> Answer:
        """Answer request 31: the first offset kept of a queue."""
        topic, queue_id = queue_of(request.fields)
        return self._missing(topic) or success({"offset": str(self._store.min_offset(topic, queue_id))})

    def earliest_time(self, request: Request) -> Answer:
        """Answer request 32: when the first message kept of a queue was stored; -1 where it has none."""
        topic, queue_id = queue_of(request.fields)
        earliest = self._store.earliest_time(topic, queue_id)
        return self._missing(topic) or success({"timestamp": str(_NOT_THERE if earliest is None else earliest)})

    def all_committed(self, _request: Request) -> Answer:
        """Answer request 43: what all groups have committed, as it lies in consumerOffset.json."""
        table = self._store.committed_offsets()
        offsets = {
            name: {str(queue_id): offset for queue_id, offset in queues.items()} for name, queues in table.items()
        }
        # OffsetRequests change all the time: their version only says when they were read.
        version = DataVersion(self._now_ms())
        return success(body=java_json.dumps({"dataVersion": version.to_json(), "offsetTable": offsets}))

    def all_delayed(self, _request: Request) -> Answer:
        """Answer request 45: how far each delay level is, in the form of delayOffset.json."""
        found = java_json.loads_object(self._store.delay_offset_json())
        version = DataVersion.from_json(found.get("dataVersion"))
        return success(
            body=java_json.dumps({"dataVersion": version.to_json(), "offsetTable": found.get("offsetTable") or {}})
        )

    def clone(self, request: Request) -> Answer:
        """
        Answer request 314: let a group go on where another one is, in one topic or in all the other has read.

        Of a group with members, unless `offline` is set, only what they are subscribed to counts.
        """
        fields = request.fields
        source, target = required(fields, "srcGroup"), required(fields, "destGroup")
        naming.check_group(target)
        subscribed = () if flag(fields, "offline") else self._subscribed(source)
        committed = self._store.committed_offsets(source, fields.get("topic") or None)
        if not committed:
            of_topic = f" of {fields['topic']}" if fields.get("topic") else ""
            return failure(ResponseCode.QUERY_NOT_FOUND, f"the group {source} has committed no offset{of_topic}")
        for name, queues in committed.items():
            topic = name.rpartition("@")[0]
            if self._topics.find(topic) is None or (subscribed and topic not in subscribed):
                _log.warning("offsets not cloned topic=%s group=%s: no such topic, or not subscribed", topic, source)
                continue
            for queue_id, offset in queues.items():
                self._store.commit_offset(target, topic, queue_id, offset)
        _log.info("offsets cloned from=%s to=%s peer=%s", source, target, request.peer)
        return success()

    def _begins_at_zero(self, topic: str, queue_id: int) -> bool:
        if self._store.min_offset(topic, queue_id) > 0:
            return False
        first = self._store.queue_entries(topic, queue_id, 0, 1)
        return not first or self._store.stats()["max_physical_offset"] - first[0][0] <= self._near_span()

    def _missing(self, topic: str) -> Answer | None:
        if self._topics.find(topic) is not None:
            return None
        return failure(ResponseCode.TOPIC_NOT_EXIST, missing_topic(topic))


def queue_of(fields: dict[str, str]) -> tuple[str, int]:
    """Return the topic and the queue id a request names. Raises `BadRequest`."""
    queue_id = integer(fields, "queueId")
    if not 0 <= queue_id < 1 << 31:
        raise BadRequest(f"the header field queueId is {queue_id}; queues are counted from 0")
    return required(fields, "topic"), queue_id
