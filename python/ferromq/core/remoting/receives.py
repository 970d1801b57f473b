"""ReceiveMessage and what ends its leases, by pops: as RocketMQ's proxy does it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ferromq._proto import messages as pb
from ferromq.core.remoting.calls import Calls
from ferromq.core.remoting.handles import Handle, Popped
from ferromq.core.remoting.records import decode, message_of
from ferromq.core.request_plans import Answer
from ferromq.core.requests import Call, Packets, Plan, Stream
from ferromq.errors import ClientClosed, FerromqError, LeaseExpired, ServerError, Unsupported
from ferromq.protocol import naming
from ferromq.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from ferromq._ferromq import StoredMessage

_MOST = 32
"""Messages of one pop; a broker refuses more."""
_FOUND = {ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT}
_STALE = {ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_MESSAGE}
"""Refusals of a handle whose lease is over, or whose message is gone."""
_GIVEN_BACK_MS = "1000"
"""Milliseconds after which a message is redelivered that came when its receiver waited no more; as of the proxy."""
_LEASE_LIMIT = 3.0
"""Seconds in which a lease ends that no caller waits for."""
_INIT_FIRST, _INIT_LAST = "0", "1"


class Policy(NamedTuple):
    """What the group's settings say of its receives."""

    is_fifo: bool
    max_attempts: int


class Receives:
    """Receives for the client, and ends leases."""

    def __init__(self, calls: Calls, now: Callable[[], float], policy: Callable[[], Policy]) -> None:
        self._calls = calls
        self._now = now
        self._policy = policy
        self._begins: dict[tuple[str, str], str] = {}
        """Topic and address → where a queue begins of which the group has no offset."""

    def begin_at(self, address: str, topic: str, start: str) -> None:
        """
        Have a group without an offset begin at *start*. Raises `Unsupported` for a time.

        Each later pop says so: the broker uses it for queues of which the group has no offset.
        """
        begins = {"first": _INIT_FIRST, "last": _INIT_LAST}
        if start not in begins:
            raise Unsupported(
                "begin= of a time needs brokers of ferromq and their gRPC endpoint; behind name servers begin= is "
                "'first' or 'last', and mqadmin resetOffsetByTime sets the offsets of a group"
            )
        self._begins[topic, address] = begins[start]

    def receive(self, step: Stream) -> Plan[Packets]:
        """Answer a ReceiveMessage request."""
        request = pb.ReceiveMessageRequest.FromString(step.request)
        topic, policy = request.message_queue.topic.name, self._policy()
        fields = self._fields(step, request, policy)
        answer = yield from self._pop(step, request, fields)
        if answer[0] != ResponseCode.SUCCESS:
            return _packets(pb.Status(code=pb.Code.MESSAGE_NOT_FOUND, message=answer[1] or ""), ())
        given: list[pb.Message] = []
        for record, message in self._messages(step.endpoint, request, answer):
            if not tag_matches(request.filter_expression, record.tag):
                yield from self._drop(step.endpoint, request, message, RequestCode.ACK_MESSAGE)
            elif record.reconsume_times >= policy.max_attempts and not topic.startswith(naming.DLQ_PREFIX):
                yield from self._drop(step.endpoint, request, message, RequestCode.CONSUMER_SEND_MSG_BACK)
            else:
                given.append(message)
        code = pb.Code.OK if given else pb.Code.MESSAGE_NOT_FOUND
        return _packets(pb.Status(code=code), given)

    def _fields(self, step: Stream, request: pb.ReceiveMessageRequest, policy: Policy) -> dict[str, str]:
        topic, wanted = request.message_queue.topic.name, request.filter_expression
        return {
            "consumerGroup": request.group.name,
            "topic": topic,
            "queueId": "-1",
            "maxMsgNums": str(min(_MOST, request.batch_size)),
            "invisibleTime": str(request.invisible_duration.ToMilliseconds()),
            "pollTime": str(request.long_polling_timeout.ToMilliseconds()),
            "bornTime": "0",  # the broker's own time: the clocks may differ
            "initMode": self._begins.get((topic, step.endpoint), _INIT_LAST),
            "expType": expression_type(wanted),
            "exp": wanted.expression,
            "order": str(policy.is_fifo).lower(),
            "attemptId": request.attempt_id,
        }

    def _pop(self, step: Stream, request: pb.ReceiveMessageRequest, fields: dict[str, str]) -> Plan[Answer]:
        """Pop; messages that come when the plan was given up are given back."""
        begun = self._calls.begin(step.endpoint, RequestCode.POP_MESSAGE, fields, step.timeout)
        waited: Future[Answer] = Future()

        def hand_over(done: "Future[Answer]") -> None:
            if not waited.set_running_or_notify_cancel():
                self._give_back(step.endpoint, request, done)
            elif done.cancelled() or done.exception() is not None:
                waited.set_exception(
                    done.exception()
                    if not done.cancelled()
                    else ClientClosed("the client was closed meanwhile; make a new one")
                )
            else:
                waited.set_result(done.result())

        begun.add_done_callback(hand_over)
        asked = step.endpoint, RequestCode.POP_MESSAGE
        try:
            return (yield from self._calls.end(waited, asked, step.timeout, _FOUND))
        except GeneratorExit:
            if not waited.cancel():
                self._give_back(step.endpoint, request, waited)
            raise
        except FerromqError:
            waited.cancel()
            raise

    def _give_back(self, address: str, request: pb.ReceiveMessageRequest, done: "Future[Answer]") -> None:
        """Let messages be redelivered soon whose receiver waits no more."""
        if done.cancelled() or done.exception() is not None or done.result()[0] != ResponseCode.SUCCESS:
            return
        with suppress(FerromqError):  # then they come again when their leases end
            for _, message in self._messages(address, request, done.result()):
                handle = Handle.parse(message.system_properties.receipt_handle)
                fields = handle.fields(request.message_queue.topic.name, request.group.name)
                code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
                self._calls.begin(address, code, {**fields, "invisibleTime": _GIVEN_BACK_MS}, _LEASE_LIMIT)

    def _messages(
        self, address: str, request: pb.ReceiveMessageRequest, answer: Answer
    ) -> "Iterator[tuple[StoredMessage, pb.Message]]":
        """Yield the messages of a pop's answer, with their handles. Raises `ServerError` for another one."""
        records, topic = decode(answer[3], address), request.message_queue.topic.name
        expiry_ms = round(self._now() * 1000) + request.invisible_duration.ToMilliseconds()
        try:
            popped = Popped(answer[2], request.message_queue.broker.name)
            infos = [
                record.properties.get("POP_CK") or popped.extra_info(record.topic, record.queue_id, record.queue_offset)
                for record in records
            ]
        except (ValueError, KeyError) as error:
            raise ServerError(f"{address} answered a pop with a wrong header: {error!r}") from None
        for record, info in zip(records, infos, strict=True):
            message = message_of(record, topic)
            system = message.system_properties
            system.receipt_handle = str(Handle(info, record.physical_offset, expiry_ms))
            system.invisible_duration.CopyFrom(request.invisible_duration)
            times = popped.times_before(record.topic, record.queue_id, record.queue_offset)
            before = times or record.reconsume_times
            system.delivery_attempt = 1 if record.topic.startswith(naming.DLQ_PREFIX) else before + 1
            yield record, message

    def _drop(
        self, address: str, request: pb.ReceiveMessageRequest, message: pb.Message, code: RequestCode
    ) -> Plan[None]:
        """Acknowledge a message of another tag, or put one into the dead letters that had its attempts."""
        system = message.system_properties
        place = request.message_queue.topic.name, request.group.name
        with suppress(FerromqError):  # then it comes again when its lease ends
            handle = Handle.parse(system.receipt_handle)
            if code == RequestCode.CONSUMER_SEND_MSG_BACK:
                yield from self._send_back(address, place, handle, system.message_id, _LEASE_LIMIT)
            yield from self._calls.call(address, RequestCode.ACK_MESSAGE, handle.fields(*place), _LEASE_LIMIT)

    def ack(self, step: Call) -> Plan[bytes]:
        """Answer an AckMessage request: one request for each message, all under way at once."""
        request = pb.AckMessageRequest.FromString(step.request)
        place = request.topic.name, request.group.name
        begun: list[tuple[pb.AckMessageEntry, Future[Answer] | LeaseExpired]] = []
        for entry in request.entries:
            try:
                handle = self._valid(entry.receipt_handle)
            except LeaseExpired as error:
                begun.append((entry, error))
            else:
                fields = handle.fields(*place)
                begun.append((entry, self._calls.begin(step.endpoint, RequestCode.ACK_MESSAGE, fields, step.timeout)))
        response = pb.AckMessageResponse()
        for entry, call in begun:
            result = response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle)
            if isinstance(call, LeaseExpired):
                result.status.code, result.status.message = pb.Code.INVALID_RECEIPT_HANDLE, str(call)
                continue
            answer = yield from self._calls.end(
                call, (step.endpoint, RequestCode.ACK_MESSAGE), step.timeout, {ResponseCode.SUCCESS, *_STALE}
            )
            is_stale = answer[0] in _STALE
            result.status.code = pb.Code.INVALID_RECEIPT_HANDLE if is_stale else pb.Code.OK
            result.status.message = answer[1] or ""
        codes = {entry.status.code for entry in response.entries}
        response.status.code = codes.pop() if len(codes) == 1 else pb.Code.MULTIPLE_RESULTS
        return response.SerializeToString()

    def change(self, step: Call) -> Plan[bytes]:
        """Answer a ChangeInvisibleDuration request."""
        request = pb.ChangeInvisibleDurationRequest.FromString(step.request)
        handle, code = self._valid(request.receipt_handle), RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        fields = handle.fields(request.topic.name, request.group.name)
        milliseconds = request.invisible_duration.ToMilliseconds()
        fields |= {"invisibleTime": str(milliseconds), "suspend": str(request.suspend).lower()}
        expiry_ms = round(self._now() * 1000) + milliseconds
        answer = yield from self._calls.call(
            step.endpoint, code, fields, step.timeout, accepted={ResponseCode.SUCCESS, *_STALE}
        )
        if answer[0] in _STALE:
            raise LeaseExpired(f"{step.endpoint} refused {code.name}: {answer[1]}", answer[0], answer[1] or "")
        status = pb.Status(code=pb.Code.OK)
        changed = str(handle.changed(answer[2], expiry_ms))
        return pb.ChangeInvisibleDurationResponse(status=status, receipt_handle=changed).SerializeToString()

    def forward(self, step: Call) -> Plan[bytes]:
        """Answer a ForwardMessageToDeadLetterQueue request: store the message there, then end its lease."""
        request = pb.ForwardMessageToDeadLetterQueueRequest.FromString(step.request)
        handle, place = self._valid(request.receipt_handle), (request.topic.name, request.group.name)
        yield from self._send_back(step.endpoint, place, handle, request.message_id, step.timeout)
        fields = handle.fields(*place)
        accepted = {ResponseCode.SUCCESS, *_STALE}
        yield from self._calls.call(step.endpoint, RequestCode.ACK_MESSAGE, fields, step.timeout, accepted=accepted)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=pb.Status(code=pb.Code.OK)).SerializeToString()

    def _send_back(
        self, address: str, place: tuple[str, str], handle: Handle, message_id: str, timeout: float
    ) -> Plan[None]:
        topic, group = place
        fields = {
            "offset": str(handle.physical_offset),
            "group": group,
            "delayLevel": "-1",
            "originMsgId": message_id,
            "originTopic": handle.topic(topic, group),
            "maxReconsumeTimes": "0",
            "unitMode": "false",
        }
        yield from self._calls.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, fields, timeout)

    def _valid(self, text: str) -> Handle:
        """Return a handle whose lease lasts. Raises `LeaseExpired`."""
        handle = Handle.parse(text)
        late_ms = round(self._now() * 1000) - handle.expiry_ms
        if late_ms >= 0:
            raise LeaseExpired(f"the lease ended {late_ms / 1000:g} s ago: the message is redelivered")
        return handle


def expression_type(wanted: pb.FilterExpression) -> str:
    """Return RocketMQ's name of the kind of a filter."""
    return "SQL92" if wanted.type == pb.FilterType.SQL else "TAG"


def tag_matches(wanted: pb.FilterExpression, tag: str | None) -> bool:
    """Return whether a filter takes a tag: brokers compare hashes of tags."""
    expression = wanted.expression.strip()
    if wanted.type == pb.FilterType.SQL or expression in {"", "*"}:
        return True
    return tag in {part.strip() for part in expression.split("||")}


def _packets(status: pb.Status, messages: "list[pb.Message] | tuple[()]") -> Packets:
    responses = [pb.ReceiveMessageResponse(status=status)]
    responses += [pb.ReceiveMessageResponse(message=message) for message in messages]
    return Packets([response.SerializeToString() for response in responses], packed=False)
