"""Queries brokers for the committed offsets of groups. It joins no group and changes nothing."""

from collections.abc import Iterable
from contextlib import closing

from ferromq._proto import messages as pb
from ferromq.core.requests import decoded
from ferromq.errors import ConnectionFailed, FerromqError, ServerError
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read import pull
from ferromq.spark.read.over_grpc import channels
from ferromq.spark.read.over_remoting import remoting_client
from ferromq.spark.read.plan import Queue
from ferromq.spark.topics import Topics

_TIMEOUT = 30.0
_QUERY_CONSUMER_OFFSET = 14
_QUERY_NOT_FOUND = 22

Lag = tuple[str, str, int, int, int, int]
"""Topic, group, queue id, committed offset, max offset, lag."""


def lags(address: ClusterAddress, topics: Iterable[str], groups: Iterable[str]) -> list[Lag]:
    """
    Return the lag of *groups* in each queue for which a group has committed an offset.

    Raises ServerError if a broker returns an error, ConnectionFailed if it does not answer.
    """
    queues = pull.queues(address, Topics(names=tuple(topics)))
    rows = []
    for queue in queues:
        for group in groups:
            committed_offset = _over_remoting if queue.protocol == "remoting" else _over_grpc
            committed = committed_offset(queue, group)
            if committed is not None:
                lag = max(queue.max_offset - committed, 0)
                rows.append((queue.topic, group, queue.queue_id, committed, queue.max_offset, lag))
    return rows


def _over_grpc(queue: Queue, group: str) -> int | None:
    request = pb.GetOffsetRequest(
        group=pb.Resource(name=group),
        message_queue=pb.MessageQueue(
            topic=pb.Resource(name=queue.topic), id=queue.queue_id, broker=pb.Broker(name=queue.broker_name)
        ),
    )
    with closing(channels(queue.tls)) as to_broker:
        try:
            packet = to_broker.call(queue.endpoint, "GetOffset", request.SerializeToString(), _TIMEOUT)
            answer = decoded(pb.GetOffsetResponse, packet, queue.endpoint, "GetOffset")
        except FerromqError as error:
            raise ConnectionFailed(f"the broker at {queue.endpoint} did not return offsets: {error}") from error
    if answer.status.code == pb.Code.OFFSET_NOT_FOUND:
        return None
    if answer.status.code != pb.Code.OK:
        raise ServerError(f"offset of group {group!r} in {queue}: {answer.status.message}", code=answer.status.code)
    return int(answer.offset) if answer.offset >= 0 else None


def _over_remoting(queue: Queue, group: str) -> int | None:
    fields = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "setZeroIfNotFound": "false",
    }
    client = remoting_client(queue.tls)
    try:
        code, remark, found, _ = client.call(queue.endpoint, _QUERY_CONSUMER_OFFSET, fields, timeout=_TIMEOUT)
    finally:
        client.close()
    if code == _QUERY_NOT_FOUND:
        return None
    if code != 0:
        raise ServerError(f"offset of group {group!r} in {queue}: {remark}", code=code)
    return int(found["offset"])
