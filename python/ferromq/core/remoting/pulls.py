"""PullMessage and the offsets of groups and queues, by remoting requests."""

from collections.abc import Callable

from ferromq._proto import messages as pb
from ferromq.core.remoting.calls import Calls, number
from ferromq.core.remoting.receives import expression_type, tag_matches
from ferromq.core.remoting.records import decode, message_of
from ferromq.core.request_plans import Answer
from ferromq.core.requests import Call, Packets, Plan, Stream
from ferromq.errors import RequestTimeout
from ferromq.protocol import naming
from ferromq.protocol.codes import RequestCode, ResponseCode

_SUSPEND, _SUBSCRIPTION = 2, 4
"""Flags of a pull that may wait for a message, and that brings its filter."""
_NO_MESSAGE = {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY}
_ANSWERS = {ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED, *_NO_MESSAGE}
_MARGIN = 0.2
"""Seconds beyond its wait in which a broker answers a pull that waits in vain; RocketMQ's looks every 5 s only."""

_LAST = 1.0
"""Seconds that are kept for a pull without a wait."""


def pull(calls: Calls, step: Stream, now: Callable[[], float]) -> Plan[Packets]:
    """Answer a PullMessage request."""
    request = pb.PullMessageRequest.FromString(step.request)
    until = now() + step.timeout
    wait_ms = request.long_polling_timeout.ToMilliseconds()
    answer: Answer | None = None
    if wait_ms > 0:
        limit = min(wait_ms / 1000 + _MARGIN, step.timeout - min(_LAST, step.timeout / 2))
        try:
            answer = yield from _pull_once(calls, step.endpoint, request, wait_ms, limit)
        except RequestTimeout:  # a pull without a wait tells a broker that hangs from a queue without messages
            answer = None
    if answer is None:
        answer = yield from _pull_once(calls, step.endpoint, request, 0, max(0.001, until - now()))
    return _packets(step.endpoint, request, answer)


def _pull_once(calls: Calls, address: str, request: pb.PullMessageRequest, wait_ms: int, limit: float) -> Plan[Answer]:
    wanted = request.filter_expression
    fields = {
        # A reader has no group, and leaves none behind: each broker has this one.
        "consumerGroup": request.group.name or naming.TOOLS_GROUP,
        "topic": request.message_queue.topic.name,
        "queueId": str(request.message_queue.id),
        "queueOffset": str(request.offset),
        "maxMsgNums": str(request.batch_size),
        "sysFlag": str(_SUBSCRIPTION | (_SUSPEND if wait_ms else 0)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(wait_ms),
        "subscription": wanted.expression or "*",
        "subVersion": "0",
        "expressionType": expression_type(wanted),
    }
    return (yield from calls.call(address, RequestCode.PULL_MESSAGE, fields, limit, accepted=_ANSWERS))


def _packets(address: str, request: pb.PullMessageRequest, answer: Answer) -> Packets:
    responses: list[pb.PullMessageResponse] = []
    if answer[0] == ResponseCode.PULL_OFFSET_MOVED:
        text = f"the queue has the offsets {answer[2].get('minOffset')} to {answer[2].get('maxOffset')}"
        status = pb.Status(code=pb.Code.ILLEGAL_OFFSET, message=f"offset {request.offset} is out of range: {text}")
        return Packets([pb.PullMessageResponse(status=status).SerializeToString()], packed=False)
    topic = request.message_queue.topic.name
    if answer[0] == ResponseCode.SUCCESS:
        responses = [
            pb.PullMessageResponse(message=message_of(record, topic))
            for record in decode(answer[3], address)
            if record.queue_offset >= request.offset and tag_matches(request.filter_expression, record.tag)
        ]
    code = pb.Code.OK if responses else pb.Code.MESSAGE_NOT_FOUND
    responses.insert(0, pb.PullMessageResponse(status=pb.Status(code=code)))
    responses.append(pb.PullMessageResponse(next_offset=number(answer, "nextBeginOffset", address)))
    return Packets([response.SerializeToString() for response in responses], packed=False)


def query_offset(calls: Calls, step: Call) -> Plan[bytes]:
    """Answer a QueryOffset request: an end of a queue, or its first offset from a time on."""
    request = pb.QueryOffsetRequest.FromString(step.request)
    fields = _queue(request.message_queue)
    match request.query_offset_policy:
        case pb.QueryOffsetPolicy.BEGINNING:
            code = RequestCode.GET_MIN_OFFSET
        case pb.QueryOffsetPolicy.END:
            code = RequestCode.GET_MAX_OFFSET
        case _:
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            fields["timestamp"] = str(request.timestamp.ToMilliseconds())
    answer = yield from calls.call(step.endpoint, code, fields, step.timeout)
    offset = number(answer, "offset", step.endpoint)
    return pb.QueryOffsetResponse(status=pb.Status(code=pb.Code.OK), offset=offset).SerializeToString()


def get_offset(calls: Calls, step: Call) -> Plan[bytes]:
    """Answer a GetOffset request: the committed offset of a group."""
    request = pb.GetOffsetRequest.FromString(step.request)
    fields = {**_queue(request.message_queue), "consumerGroup": request.group.name, "setZeroIfNotFound": "false"}
    accepted = {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND}
    code = RequestCode.QUERY_CONSUMER_OFFSET
    answer = yield from calls.call(step.endpoint, code, fields, step.timeout, accepted=accepted)
    if answer[0] == ResponseCode.QUERY_NOT_FOUND:
        status = pb.Status(code=pb.Code.OFFSET_NOT_FOUND, message=answer[1] or "")
        return pb.GetOffsetResponse(status=status).SerializeToString()
    offset = number(answer, "offset", step.endpoint)
    return pb.GetOffsetResponse(status=pb.Status(code=pb.Code.OK), offset=offset).SerializeToString()


def update_offset(calls: Calls, step: Call) -> Plan[bytes]:
    """Answer an UpdateOffset request: commit an offset of a group."""
    request = pb.UpdateOffsetRequest.FromString(step.request)
    fields = _queue(request.message_queue)
    fields |= {"consumerGroup": request.group.name, "commitOffset": str(request.offset)}
    yield from calls.call(step.endpoint, RequestCode.UPDATE_CONSUMER_OFFSET, fields, step.timeout)
    return pb.UpdateOffsetResponse(status=pb.Status(code=pb.Code.OK)).SerializeToString()


def _queue(queue: pb.MessageQueue) -> dict[str, str]:
    return {"topic": queue.topic.name, "queueId": str(queue.id)}
