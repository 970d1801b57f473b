"""
Writes the offsets of a stream to a consumer group, so that tools show its progress. ferromq never reads them back.

A failure is logged and has no other effect.
"""

import logging
from collections.abc import Iterable
from typing import Any

import grpc

from ferromq._ferromq import PendingAnswer, RemotingClient
from ferromq._proto import messages as pb
from ferromq.client.tls import Tls
from ferromq.core.requests import decoded
from ferromq.errors import FerromqError
from ferromq.spark.read.over_grpc import channels
from ferromq.spark.read.over_remoting import remoting_client
from ferromq.spark.read.plan import Queue
from ferromq.spark.stream.plan import QueueKey, key_of

_log = logging.getLogger("ferromq.spark")

_TIMEOUT = 5.0
_UPDATE_CONSUMER_OFFSET = 15


class GroupOffsets:
    """Writes the offsets that changed since the last write. Connections stay open until `close`."""

    def __init__(self, group: str, tls: Tls | None) -> None:
        self._group = group
        self._tls = tls
        self._channels = channels(tls)
        self._remoting: RemotingClient | None = None
        self._written: dict[QueueKey, int] = {}
        self._is_failing = False

    def write(self, offsets: Iterable[tuple[Queue, int]]) -> None:
        """Write the next offset to read of each queue; the calls run concurrently."""
        wanted = [(queue, offset) for queue, offset in offsets if self._written.get(_key(queue)) != offset]
        calls = [(queue, offset, self._start(queue, offset)) for queue, offset in wanted]
        failures = []
        for queue, offset, call in calls:
            problem = call if isinstance(call, str) else _problem(call, queue.endpoint)
            if not problem:
                self._written[_key(queue)] = offset
            else:
                failures.append(f"{queue}: {problem}")
        if failures and not self._is_failing:
            _log.warning(
                "offsets not written for display group=%s queues=%d: %s", self._group, len(failures), failures[0]
            )
        self._is_failing = bool(failures)

    def close(self) -> None:
        """Close the connections."""
        self._channels.close()
        if self._remoting is not None:
            self._remoting.close()
            self._remoting = None

    def _start(self, queue: Queue, offset: int) -> Any:
        """Return a call in progress, or the text of an error."""
        if queue.protocol == "remoting":
            return self._over_remoting(queue, offset)
        request = pb.UpdateOffsetRequest(
            group=pb.Resource(name=self._group),
            message_queue=pb.MessageQueue(
                topic=pb.Resource(name=queue.topic), id=queue.queue_id, broker=pb.Broker(name=queue.broker_name)
            ),
            offset=offset,
        )
        begin, metadata = self._channels.method(queue.endpoint, "UpdateOffset"), self._channels.identity.metadata()
        return begin.future(request.SerializeToString(), _TIMEOUT, metadata)

    def _over_remoting(self, queue: Queue, offset: int) -> PendingAnswer | str:
        if self._remoting is None:
            self._remoting = remoting_client(self._tls)
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


def _problem(call: Any, endpoint: str) -> str:
    """Wait for *call* and return the text of its error, or an empty text."""
    if isinstance(call, PendingAnswer):
        try:
            code, remark, _, _ = call.wait()
        except FerromqError as error:
            return str(error)
        return "" if code == 0 else f"code {code}: {remark}"
    try:
        status = decoded(pb.UpdateOffsetResponse, call.result(), endpoint, "UpdateOffset").status
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    except FerromqError as error:
        return str(error)
    return "" if status.code == pb.OK else f"{status.code}: {status.message}"


def _key(queue: Queue) -> QueueKey:
    return queue.topic, key_of(queue)
