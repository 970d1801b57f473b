"""
Replies to messages (324, 325): each is pushed to the client that sent the request message, and optionally stored.

The request is an ordinary message; a property names its sender.
"""

import logging
import random
from collections.abc import Callable, Mapping

from ferromq._ferromq import Request, Store
from ferromq.broker.clients.client import PushChannel
from ferromq.broker.clients.table import ClientTable
from ferromq.broker.metadata.topics import TopicTable
from ferromq.errors import MessageTooLarge, StoreError
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol import naming
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.properties import format_properties, parse_properties
from ferromq.protocol.remoting import Answer, BadRequest, failure, integer, required

_log = logging.getLogger("ferromq.broker")

_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
# The fields of the short header, by their letters in the long one's order.
_LONG_NAMES: Mapping[str, str] = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
}


class Replies:
    """Answers remoting requests 324 and 325."""

    def __init__(
        self,
        server: PushChannel,
        address: str,
        *,
        table: ClientTable,
        store: Store,
        topics: TopicTable,
        now_ms: Callable[[], int],
        keep: Callable[[], bool],
    ) -> None:
        self._server = server
        self._table = table
        self._store = store
        self._topics = topics
        self._address = address
        self._now_ms = now_ms
        self._keep = keep
        self._seldom = LimitedLog(_log)

    def reply(self, request: Request) -> Answer:
        """
        Answer request 324: push a reply to the client that its property REPLY_TO_CLIENT names.

        The answer tells whether the reply went to the client's connection, not whether the client still waits, so that
        a hanging client blocks no other. Where replies are stored, the answer has the queue offset; a reply that cannot
        be stored is pushed all the same.
        """
        return self._reply(request, dict(request.fields))

    def short_reply(self, request: Request) -> Answer:
        """Answer request 325, which has short names of header fields."""
        return self._reply(request, {long: request.fields[n] for n, long in _LONG_NAMES.items() if n in request.fields})

    def _reply(self, request: Request, header: dict[str, str]) -> Answer:
        name, queue_id = required(header, "topic"), integer(header, "queueId")
        naming.check_topic(name)
        topic = self._topics.find(name)
        if topic is None:
            return failure(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        if queue_id >= max(topic.read_queues, topic.write_queues):
            raise BadRequest(f"request queueId[{queue_id}] is illegal, {name} has {topic.write_queues} queues")
        if queue_id < 0:
            queue_id = random.randrange(max(1, topic.write_queues))  # noqa: S311 (which queue is no secret)
        properties = parse_properties(header.get("properties", ""))
        problem = self._push(request, header, properties)
        place = {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"}
        if self._keep():
            place |= self._store_reply(request, header, name, queue_id, properties)
        code = ResponseCode.SUCCESS if problem is None else ResponseCode.SYSTEM_ERROR
        return code, problem, place, b""

    def _push(self, request: Request, header: Mapping[str, str], properties: Mapping[str, str]) -> str | None:
        """Push the reply; returns an error text, or None."""
        client_id = properties.get(_REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{_REPLY_TO_CLIENT}] is null"
        client = self._table.producer(client_id)
        if client is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now = str(self._now_ms())
        fields = {long: header[long] for long in _LONG_NAMES.values() if long in header}
        fields |= {
            "bornHost": request.peer,
            "storeHost": self._address,
            "storeTimestamp": now,
            "properties": format_properties({**properties, _PUSH_REPLY_TIME: now}),
        }
        try:
            if self._server.push(client.connection, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, request.body):
                return None
            problem = "its connection is gone, or its buffer is full"
        except MessageTooLarge as error:
            problem = str(error)
        return f"push reply message to {client_id} fail: {problem}."

    def _store_reply(
        self, request: Request, header: Mapping[str, str], topic: str, queue_id: int, properties: Mapping[str, str]
    ) -> dict[str, str]:
        try:
            offset, physical_offset = self._store.append(
                topic,
                queue_id,
                request.body,
                properties,
                flag=integer(header, "flag", 0),
                sys_flag=integer(header, "sysFlag", 0),
                born_timestamp=integer(header, "bornTimestamp", 0),
                born_host=request.peer,
                reconsume_times=integer(header, "reconsumeTimes", 0),
            )
        except (StoreError, ValueError, OverflowError) as error:
            text = "reply not stored topic=%s queue_id=%d: %s"
            self._seldom.log(logging.WARNING, text, topic, queue_id, error)
            return {}
        message = self._store.message_at(physical_offset)
        return {"msgId": message.offset_message_id if message else "0", "queueOffset": str(offset)}
