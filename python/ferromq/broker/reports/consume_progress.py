"""
Reports of consume progress: the offsets of topics and groups, and the entries of consume queues.

It reads the store, the tables and the statistics, and changes nothing.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferromq._ferromq import Request, Store
from ferromq.broker.cluster.identity import BrokerIdentity
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.not_found import missing_topic
from ferromq.broker.metadata.topics import TopicConfig, TopicTable
from ferromq.broker.reports.statistics import Statistics
from ferromq.protocol import java_json
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, failure, flag, integer, queue_of, required, success

_NOT_THERE = -1
# Most entries of a consume queue in one answer.
_LIMIT_FOR_ENTRIES = 10_000

Subscriptions = Callable[[str], Mapping[str, Any]]
"""Returns the subscriptions of a group's members: topic → RocketMQ's SubscriptionData; empty without members."""


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """The progress of a group in one queue."""

    queue_id: int
    end: int
    committed: int
    timestamp: int
    """The store time of the last message it has read; 0 if unknown."""

    def to_json(self) -> dict[str, int]:
        """Return the form Java reads."""
        return {
            "brokerOffset": self.end,
            "consumerOffset": self.committed,
            "lastTimestamp": self.timestamp,
            "pullOffset": self.committed,
        }


class ConsumeProgress:
    """Answers requests 202, 208, 303, 317 and 321."""

    def __init__(
        self,
        identity: BrokerIdentity,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        *,
        statistics: Statistics,
        now_ms: Callable[[], int],
        subscriptions: Subscriptions,
    ) -> None:
        self._identity = identity
        self._store = store
        self._topics = topics
        self._groups = groups
        self._statistics = statistics
        self._now_ms = now_ms
        self._subscriptions = subscriptions

    def topic(self, request: Request) -> Answer:
        """Answer request 202: the first and last offset of each queue of a topic, including empty queues."""
        name = required(request.fields, "topic")
        topic = self._topics.find(name)
        if topic is None:
            return failure(ResponseCode.TOPIC_NOT_EXIST, missing_topic(name))
        pairs = [
            (self._queue(name, queue_id), self._extent(name, queue_id))
            for queue_id in range(max(topic.read_queues, topic.write_queues))
        ]
        body = {"offsetTable": java_json.ObjectMap(pairs), "topicPutTps": self._statistics.per_second("put", name)}
        return success(body=java_json.dumps_java(body))

    def group(self, request: Request) -> Answer:
        """
        Answer request 208: a group's progress in `topicList`, in `topic`, or in every topic that it has read.

        If the group has members, only their subscribed topics count, unless `topicList` is given.
        """
        fields = request.fields
        group = required(fields, "consumerGroup")
        listed = [name for name in (fields.get("topicList") or "").split(";") if name]
        asked = (fields.get("topic") or "").strip()
        wanted: Collection[str] = listed or ([asked] if asked else self._read_by(group))
        subscribed = {} if listed else self._subscriptions(group)
        topics = [
            topic
            for name in dict.fromkeys(wanted)
            if (topic := self._topics.find(name)) is not None and (not subscribed or name in subscribed)
        ]
        return success(body=java_json.dumps_java(self._stats(group, topics, [topic.read_queues for topic in topics])))

    def all_groups(self, request: Request) -> Answer:
        """Answer request 317: every group's progress in every topic it has read; with `isOrder`, in ordered topics."""
        in_order = flag(request.fields, "isOrder")
        found: list[Mapping[str, Any]] = []
        behind = 0
        read: dict[str, list[str]] = {}
        for name in self._store.committed_offsets():
            topic_name, _, group = name.rpartition("@")
            read.setdefault(group, []).append(topic_name)
        for group in sorted(self._groups.content.entries):
            subscribed = self._subscriptions(group)
            lists = []
            for name in sorted(read.get(group, [])):
                topic = self._topics.find(name)
                if topic is None or (in_order and not topic.order) or (subscribed and name not in subscribed):
                    continue
                behind += sum(queue.end - queue.committed for queue in self._progress(group, name, topic.write_queues))
                lists.append(self._stats(group, [topic], [topic.write_queues]))
            found.append({group: lists})
        body = {
            "brokerAddr": self._identity.address,
            "consumeStatsList": found,
            "totalDiff": behind,
            "totalInflightDiff": 0,
        }
        return success(body=java_json.dumps_java(body))

    def time_span(self, request: Request) -> Answer:
        """Answer request 303: the time span of each queue's messages, and the group's place in it."""
        fields = request.fields
        name, group = required(fields, "topic"), required(fields, "group")
        topic = self._topics.find(name)
        if topic is None:
            return failure(ResponseCode.TOPIC_NOT_EXIST, missing_topic(name))
        spans = [self._span(group, name, queue_id) for queue_id in range(topic.write_queues)]
        return success(body=java_json.dumps({"consumeTimeSpanSet": spans}))

    def consume_queue(self, request: Request) -> Answer:
        """Answer request 321: entries of a consume queue, and a group's subscription to it."""
        fields = request.fields
        topic, queue_id = queue_of(fields)
        first, count = integer(fields, "index"), integer(fields, "count")
        group = fields.get("consumerGroup")
        entries = self._store.queue_entries(topic, queue_id, max(first, 0), min(max(count, 0), _LIMIT_FOR_ENTRIES))
        if entries is None:
            return failure(
                ResponseCode.SYSTEM_ERROR,
                f"{queue_id}@{topic} is not exist: the queue has no messages on this broker, or its topic is not there",
            )
        begin, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        body: dict[str, Any] = {"maxQueueIndex": end, "minQueueIndex": begin}
        if group is not None:
            subscription = self._subscriptions(group).get(topic)
            body["subscriptionData"] = subscription
            body["filterData"] = "null" if subscription else f"{group}@{topic} is not online!"
        if not begin <= first < end:
            remark = f"Index {first} of {queue_id}@{topic} is not exist: it has {begin} to {end - 1}"
            return int(ResponseCode.SUCCESS), remark, {}, java_json.dumps(body)
        # RocketMQ's extension with filter bit maps is not supported, so every entry passes here.
        body["queueData"] = [
            {"eval": False, "physicOffset": place, "physicSize": size, "tagsCode": tag} for place, size, tag in entries
        ]
        return success(body=java_json.dumps(body))

    def _read_by(self, group: str) -> list[str]:
        return [name.rpartition("@")[0] for name in self._store.committed_offsets(group)]

    def _stats(self, group: str, topics: Sequence[TopicConfig], counts: Sequence[int]) -> dict[str, Any]:
        pairs = [
            (self._queue(topic.name, queue.queue_id), queue.to_json())
            for topic, count in zip(topics, counts, strict=True)
            for queue in self._progress(group, topic.name, count)
        ]
        per_second = self._statistics.per_second("get", *(f"{topic.name}@{group}" for topic in topics))
        return {"consumeTps": float(per_second), "offsetTable": java_json.ObjectMap(pairs)}

    def _progress(self, group: str, topic: str, count: int) -> list[QueueProgress]:
        committed = self._store.committed_offsets(group, topic).get(f"{topic}@{group}", {})
        return [self._progress_in(topic, queue_id, committed.get(queue_id, 0)) for queue_id in range(count)]

    def _progress_in(self, topic: str, queue_id: int, committed: int) -> QueueProgress:
        time = self._store.stored_time(topic, queue_id, committed - 1) if committed > 0 else None
        return QueueProgress(queue_id, self._store.max_offset(topic, queue_id), committed, time or 0)

    def _queue(self, topic: str, queue_id: int) -> dict[str, Any]:
        return {"brokerName": self._identity.name, "queueId": queue_id, "topic": topic}

    def _extent(self, topic: str, queue_id: int) -> dict[str, int]:
        begin, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        time = self._store.stored_time(topic, queue_id, end - 1) if end > 0 else None
        return {"lastUpdateTimestamp": time or 0, "maxOffset": end, "minOffset": begin}

    def _span(self, group: str, topic: str, queue_id: int) -> dict[str, Any]:
        end = self._store.max_offset(topic, queue_id)
        committed = self._store.committed_offset(group, topic, queue_id) or 0
        earliest = _or_not_there(self._store.earliest_time(topic, queue_id))
        latest = _or_not_there(self._store.stored_time(topic, queue_id, end - 1) if end > 0 else None)
        read = self._store.stored_time(topic, queue_id, committed - 1) if committed > 0 else earliest
        waiting = self._store.stored_time(topic, queue_id, committed) if committed < end else None
        return {
            "consumeTimeStamp": _or_not_there(read),
            "delayTime": 0 if waiting is None else max(0, self._now_ms() - waiting),
            "maxTimeStamp": latest,
            "messageQueue": self._queue(topic, queue_id),
            "minTimeStamp": earliest,
        }


def _or_not_there(time: int | None) -> int:
    return _NOT_THERE if time is None else time
