"""
Recalls timed messages before their delivery: request 370 and gRPC's RecallMessage.

A recall handle names a message by topic, unique key and delivery time. A recall appends a message for the same time;
the store then delivers neither.
"""

import base64
import binascii
from collections.abc import Callable
from typing import NamedTuple

from ferromq._ferromq import Request, Store
from ferromq._proto import messages as pb
from ferromq.broker.grpc_answers import OK, Refused, topic_name
from ferromq.broker.metadata.not_found import unknown_topic
from ferromq.broker.metadata.topics import TopicTable
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, failure, required, success

_VERSION = "v1"
_PARTS = 5
_BODY = b"0"
_TAG = "_RECALL_TAG_"
_REGION = "DefaultRegion"


class RecallRefused(Exception):  # noqa: N818 (an answer, not a failure of ours)
    """The message cannot be recalled; the code is RocketMQ's."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


class RecallHandle(NamedTuple):
    """A decoded recall handle."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str


def decode_handle(text: str) -> RecallHandle:
    """Decode a recall handle. Raises `RecallRefused` for a malformed one."""
    invalid = RecallRefused(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
    try:
        parts = base64.b64decode(text, altchars=b"-_", validate=True).decode().split(" ")
        version, topic, broker_name, deliver_ms, unique_key = parts[:_PARTS]
        handle = RecallHandle(topic, broker_name, int(deliver_ms), unique_key)
    except (ValueError, binascii.Error):
        raise invalid from None
    if version != _VERSION or not unique_key:
        raise invalid
    return handle


class Recalls:
    """Answers requests 60, 61 and 370, and RecallMessage; recalls on a master only."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        broker_name: str,
        *,
        is_slave: Callable[[], bool],
        is_allowed: Callable[[], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._topics = topics
        self._broker_name = broker_name
        self._is_slave = is_slave
        self._is_allowed = is_allowed
        self._now_ms = now_ms

    def recall(self, request: Request) -> Answer:
        """Answer request 370: recall the message of a handle, and return its unique key."""
        fields = request.fields
        topic, handle = required(fields, "topic"), required(fields, "recallHandle")
        try:
            key = self._recall(topic, handle, fields.get("producerGroup") or "", request.peer)
        except RecallRefused as error:
            return failure(error.code, str(error))
        return success({"msgId": key, "MSG_REGION": _REGION})

    def recall_message(self, message: pb.RecallMessageRequest, request: Request) -> pb.RecallMessageResponse:
        """Answer RecallMessage like request 370, with the codes of RocketMQ's proxy."""
        topic = topic_name(message.topic)
        try:
            key = self._recall(topic, message.recall_handle, "", request.peer)
        except RecallRefused as error:
            code = pb.Code.TOPIC_NOT_FOUND if error.code == ResponseCode.TOPIC_NOT_EXIST else None
            raise Refused(code or pb.Code.INTERNAL_SERVER_ERROR, str(error)) from error
        return pb.RecallMessageResponse(status=OK, message_id=key)

    def check_point(self, _request: Request) -> Answer:
        """Answer request 60: the timer's progress."""
        return success(body=self._store.timer_check_point())

    def metrics(self, _request: Request) -> Answer:
        """Answer request 61: the number of waiting timed messages of each topic."""
        return success(body=self._store.timer_metrics().encode())

    def _recall(self, topic: str, text: str, group: str, peer: str) -> str:
        if not self._is_allowed():
            raise RecallRefused(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden: recall is off here")
        if self._is_slave():
            raise RecallRefused(
                ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, broker service not available: it is a slave"
            )
        if self._topics.find(topic) is None:
            raise RecallRefused(ResponseCode.TOPIC_NOT_EXIST, f"recall failed: {unknown_topic(topic)}")
        handle = decode_handle(text)
        if handle.topic != topic:
            raise RecallRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != self._broker_name:
            raise RecallRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed: the message waits at the broker {handle.broker_name}, this is {self._broker_name}",
            )
        limit = self._store.options()["timer_max_delay"].total_seconds() * 1000
        if not 0 < handle.deliver_ms - self._now_ms() <= limit:
            raise _too_late()
        properties = {
            # The form of RocketMQ 5.5.0; later versions put the topic before it.
            "TIMER_DEL_UNIQKEY": handle.unique_key,
            "UNIQ_KEY": handle.unique_key,
            "TIMER_DELIVER_MS": str(handle.deliver_ms),
            "BORN_TIMESTAMP": str(self._now_ms()),
            "TAGS": _TAG,
        }
        if group:
            properties["PGROUP"] = group
        self._append(topic, handle, properties, peer)
        return handle.unique_key

    def _append(self, topic: str, handle: RecallHandle, properties: dict[str, str], peer: str) -> None:
        try:
            waiting = self._store.delayed(topic, 0, properties)
        except ValueError as error:
            raise _too_late() from error
        if waiting is None:
            raise _too_late()
        topic, queue_id, properties = waiting
        _, offset = self._store.append(
            topic, queue_id, _BODY, properties, born_timestamp=self._now_ms(), born_host=peer
        )
        stored = self._store.message_at(offset)
        # A recall stored at the delivery time or later may come after the delivery.
        if stored is not None and stored.store_timestamp >= handle.deliver_ms:
            raise _too_late()


def _too_late() -> RecallRefused:
    return RecallRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid: the message is delivered")
