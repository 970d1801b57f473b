"""
Offsets over remoting: the limits of queues, times in queues, and committed offsets of groups.

`clone` copies committed offsets without involving members; `offset_resets` moves them and notifies members.
"""

import logging
from collections.abc import Callable, Collection

from ferromq._ferromq import Request, Store
from ferromq.broker.metadata.not_found import missing_topic
from ferromq.broker.metadata.topics import TopicTable
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.delivery import ATTEMPTS, DELIVERY, DELIVERY_OF, LEASED, LEASED_UNTIL, OVER, READY
from ferromq.protocol.remoting import Answer, BadRequest, boolean, failure, flag, integer, queue_of, required, success
from ferromq.protocol.route import DataVersion

_log = logging.getLogger("ferromq.broker")

_NOT_THERE = -1
_BOUNDARIES = {"lower": False, "upper": True}


class OffsetRequests:
    """
    Answers requests 14, 29 to 32, 43, 45 and 314.

    *subscribed* returns the topics that a group's members subscribe to. *near_span* returns the number of bytes before
    the log's end within which a message counts as recent.
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
        Answer request 14: a group's committed offset, which is the next one that it reads.

        A group without one starts at 0 if the queue still has its first message and that is recent, or if the queue is
        empty, so that messages sent meanwhile are not skipped.

        ferromq's field `ferromqQueueOffset` asks what became of the message there, too; see docs/wire-format.md.
        """
        fields = request.fields
        group = required(fields, "consumerGroup")
        topic, queue_id = queue_of(fields)
        if fields.get(DELIVERY_OF):
            delivery = self._store.delivery(group, topic, queue_id, max(0, integer(fields, DELIVERY_OF)))
            if delivery is not None:
                return success(_delivery(*delivery))
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
        """Answer request 29: the offset at a time."""
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
        """Answer request 30: the offset of the next message of a queue."""
        topic, queue_id = queue_of(request.fields)
        return self._missing(topic) or success({"offset": str(self._store.max_offset(topic, queue_id))})

    def min_offset(self, request: Request) -> Answer:
        """Answer request 31: the first offset that a queue still has."""
        topic, queue_id = queue_of(request.fields)
        return self._missing(topic) or success({"offset": str(self._store.min_offset(topic, queue_id))})

    def earliest_time(self, request: Request) -> Answer:
        """Answer request 32: the store time of a queue's first message; -1 for an empty queue."""
        topic, queue_id = queue_of(request.fields)
        earliest = self._store.earliest_time(topic, queue_id)
        return self._missing(topic) or success({"timestamp": str(_NOT_THERE if earliest is None else earliest)})

    def all_committed(self, _request: Request) -> Answer:
        """Answer request 43: all committed offsets, in the format of consumerOffset.json."""
        table = self._store.committed_offsets()
        offsets = {
            name: {str(queue_id): offset for queue_id, offset in queues.items()} for name, queues in table.items()
        }
        # Offsets change all the time; the version is only the time of this answer.
        version = DataVersion(self._now_ms())
        return success(body=java_json.dumps({"dataVersion": version.to_json(), "offsetTable": offsets}))

    def all_delayed(self, _request: Request) -> Answer:
        """Answer request 45: the progress of each delay level, in the format of delayOffset.json."""
        found = java_json.loads_object(self._store.delay_offset_json())
        version = DataVersion.from_json(found.get("dataVersion"))
        return success(
            body=java_json.dumps({"dataVersion": version.to_json(), "offsetTable": found.get("offsetTable") or {}})
        )

    def clone(self, request: Request) -> Answer:
        """
        Answer request 314: copy another group's committed offsets of one topic, or of all that it has read.

        If the source has members, only their subscribed topics are copied, unless `offline` is set.
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


def _delivery(committed: int, is_over: bool, attempts: int | None, leased_until: int | None) -> dict[str, str]:
    answer = {"offset": str(committed), DELIVERY: OVER if is_over else READY if leased_until is None else LEASED}
    answer |= {} if attempts is None else {ATTEMPTS: str(attempts)}
    return answer | ({} if leased_until is None else {LEASED_UNTIL: str(leased_until)})
