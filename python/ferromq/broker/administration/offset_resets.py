"""
Resets of a group's offsets, by time or to an offset (request 222).

The store keeps the offsets; members are notified so that they drop prefetched messages.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from ferromq._ferromq import Request, Store
from ferromq.broker.clients.client import PushChannel
from ferromq.broker.clients.client_calls import KNOWS_RESET
from ferromq.broker.clients.table import ClientTable, Group
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.topics import TopicConfig, TopicTable
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.message_queue import MessageQueue, dump_offsets
from ferromq.protocol.remoting import Answer, BadRequest, failure, integer, required, success

_log = logging.getLogger("ferromq.broker")

_CPP = "CPP"


class ResetSink(PushChannel, Protocol):
    """The part of `Server` that carries resets to members."""

    def put_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Answer the next pull of a queue with the new offset."""

    def remove_resets(self, group: str, topic: str | None = None) -> None:
        """Remove pending resets of a topic."""

    def wake_receives(self, group: str, topic: str) -> None:
        """Make waiting receives look for messages again."""


class OffsetResets:
    """Answers remoting request 222."""

    def __init__(
        self,
        server: ResetSink,
        broker_name: str,
        *,
        table: ClientTable,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
    ) -> None:
        self._server = server
        self._broker_name = broker_name
        self._table = table
        self._store = store
        self._topics = topics
        self._groups = groups

    def reset(self, request: Request) -> Answer:
        """
        Answer request 222: set a group's offsets of a topic, and return them.

        All queues, or the named one, go to the time `timestamp` (-1 for the end); the named one can go to `offset`. The
        offsets hold before the answer is sent. Commits of remoting members are ignored until they know of the reset: by
        their next pull, or by the notification to drop prefetched messages.
        """
        fields = request.fields
        name, group = required(fields, "topic"), required(fields, "group")
        timestamp, queue_id = integer(fields, "timestamp"), integer(fields, "queueId", -1)
        offset = integer(fields, "offset", -1)
        topic = self._topics.find(name)
        if topic is None:
            return failure(ResponseCode.TOPIC_NOT_EXIST, f"Topic {name} does not exist")
        if self._groups.get(group) is None:
            return failure(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        refusal = self._refusal(topic, queue_id, offset)
        if refusal is not None:
            return refusal
        if queue_id >= 0:
            offsets = {queue_id: self._by_time(name, queue_id, timestamp) if offset == -1 else offset}
        else:
            offsets = {each: self._by_time(name, each, timestamp) for each in range(topic.read_queues)}
        if not offsets:
            return failure(ResponseCode.SYSTEM_ERROR, f"No queues to reset: {name} has no readable queue")
        # Resets are pushed first: a commit in between would undo them.
        self._table.with_readers(
            group,
            name,
            there=lambda: self._note(group, name, offsets),
            # Earlier resets have no reader any more.
            none_there=lambda: self._server.remove_resets(group, name),
        )
        known = self._table.group(group)
        for each, target in offsets.items():
            self._store.reset_offset(group, name, each, target)
        # Leases of gRPC members ended, so waiting receives may find their messages.
        self._server.wake_receives(group, name)
        table = {MessageQueue(name, self._broker_name, each): target for each, target in offsets.items()}
        if known is not None and offset == -1:
            self._tell(known, name, timestamp, table)
        _log.info("offsets reset topic=%s group=%s queues=%d peer=%s", name, group, len(offsets), request.peer)
        return success(body=b'{"offsetTable":' + dump_offsets(table) + b"}")

    def _note(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        for queue_id, offset in offsets.items():
            self._server.put_reset(group, topic, queue_id, offset)

    def _refusal(self, topic: TopicConfig, queue_id: int, offset: int) -> Answer | None:
        """Return why one queue cannot go to an offset; None if it can, or if no offset is given."""
        if queue_id < 0:
            return None
        if queue_id >= max(topic.read_queues, topic.write_queues):
            raise BadRequest(f"queueId is {queue_id}; {topic.name} has {topic.read_queues} queues")
        begin, end = self._store.min_offset(topic.name, queue_id), self._store.max_offset(topic.name, queue_id)
        if offset == -1 or begin <= offset <= end:
            return None
        why = f"Target offset {offset} not in consume queue range [{begin}-{end}]"
        return failure(ResponseCode.SYSTEM_ERROR, why)

    def _by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        if timestamp < 0:
            return self._store.max_offset(topic, queue_id)
        return self._store.offset_by_time(topic, queue_id, timestamp)

    def _tell(self, group: Group, topic: str, timestamp: int, table: Mapping[MessageQueue, int]) -> None:
        fields = {"topic": topic, "group": group.name, "timestamp": str(timestamp), "isForce": "true"}
        objects = b'{"offsetTable":' + dump_offsets(table) + b"}"
        entries = [{**queue.to_json(), "offset": offset} for queue, offset in table.items()]
        # The C++ client expects a list.
        listed = java_json.dumps({"offsetTable": entries})
        for client in group.members:
            if client.is_grpc or client.version < KNOWS_RESET:
                continue
            body = listed if client.language == _CPP else objects
            self._server.push(client.connection, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
