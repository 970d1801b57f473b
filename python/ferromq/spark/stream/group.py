"""
Offsets of a stream written to a consumer group, for people to see: nothing ever reads them back.

A failure is logged and changes nothing else.
"""

import logging
from collections.abc import Iterable
from typing import Any

import grpc

from ferromq._ferromq import PendingAnswer, RemotingClient
from ferromq._proto import messages as pb
from ferromq.client.connection import OPTIONS, target
from ferromq.core.requests import SERVICE, Identity
from ferromq.errors import FerromqError
from ferromq.spark.read.plan import Queue
from ferromq.spark.stream.plan import Place, key_of

_log = logging.getLogger("ferromq.spark")

_TIMEOUT = 5.0
_UPDATE_CONSUMER_OFFSET = 15


class GroupOffsets:
    """Writes what changed since the last time; connections are kept until `close`."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._identity = Identity()
        self._channels: dict[str, grpc.Channel] = {}
        self._remoting: RemotingClient | None = None
        self._written: dict[Place, int] = {}
        self._is_failing = False

    def write(self, offsets: Iterable[tuple[Queue, int]]) -> None:
        """Write the next offset to read of each queue, all queues at once."""
        wanted = [(queue, offset) for queue, offset in offsets if self._written.get(_place(queue)) != offset]
        # Started before the first is waited for.
        asked = [(queue, offset, self._start(queue, offset)) for queue, offset in wanted]
        failures = []
        for queue, offset, answer in asked:
            problem = answer if isinstance(answer, str) else _problem(answer)
            if not problem:
                self._written[_place(queue)] = offset
            else:
                failures.append(f"{queue}: {problem}")
        if failures and not self._is_failing:
            _log.warning(
                "offsets not written for display group=%s queues=%d: %s", self._group, len(failures), failures[0]
            )
        self._is_failing = bool(failures)

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        if self._remoting is not None:
            self._remoting.close()
            self._remoting = None

    def _start(self, queue: Queue, offset: int) -> Any:
        """Return a call under way, or what went wrong in words."""
        if queue.protocol == "remoting":
            return self._over_remoting(queue, offset)
        request = pb.UpdateOffsetRequest(
            group=pb.Resource(name=self._group),
            message_queue=pb.MessageQueue(
                topic=pb.Resource(name=queue.topic), id=queue.queue_id, broker=pb.Broker(name=queue.broker_name)
            ),
            offset=offset,
        )
        channel = self._channels.get(queue.endpoint)
        if channel is None:
            channel = self._channels[queue.endpoint] = grpc.insecure_channel(target(queue.endpoint), OPTIONS)
        call = channel.unary_unary(SERVICE + "UpdateOffset", response_deserializer=pb.UpdateOffsetResponse.FromString)
        return call.future(request.SerializeToString(), timeout=_TIMEOUT, metadata=self._identity.metadata())

    def _over_remoting(self, queue: Queue, offset: int) -> PendingAnswer | str:
        if self._remoting is None:
            self._remoting = RemotingClient()
        fields = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "commitOffset": str(offset),
        }
        try:
            return self._remoting.begin(queue.endpoint, _UPDATE_CONSUMER_OFFSET, fields, timeout=_TIMEOUT)
        except FerromqError as error:
            return str(error)


def _problem(call: Any) -> str:
    """Wait for *call* and return what went wrong in words; an empty text where nothing did."""
    if isinstance(call, PendingAnswer):
        try:
            code, remark, _, _ = call.wait()
        except FerromqError as error:
            return str(error)
        return "" if code == 0 else f"code {code}: {remark}"
    try:
        status = call.result().status
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    return "" if status.code == pb.OK else f"{status.code}: {status.message}"


def _place(queue: Queue) -> Place:
    return queue.topic, key_of(queue)
