"""SendMessage, EndTransaction and RecallMessage by remoting requests."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from google.protobuf.unknown_fields import UnknownFieldSet

from ferromq._proto import messages as pb
from ferromq.core.plans import MAX_BODY
from ferromq.core.remoting.calls import Calls, number
from ferromq.core.request_plans import Answer
from ferromq.core.requests import COMPRESSION_FIELD, Call, Plan
from ferromq.errors import MessageTooLarge, RequestError, ServerError
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.properties import format_properties
from ferromq.protocol.remoting import BadRequest, physical_offset

if TYPE_CHECKING:
    from concurrent.futures import Future

PRODUCERS = "ferromq_producers"
"""The producer group of messages that are no half messages."""
MAX_PROPERTIES = 32_767
"""Bytes of a message's properties: their length is a signed number of 16 bits."""
RESERVED = frozenset(
    {
        *("1ST_POP_TIME", "ARRIVE_TIME", "BORN_TIMESTAMP", "BUYER_ID", "CHECK_IMMUNITY_TIME_IN_SECONDS", "CLUSTER"),
        *("CONSUME_START_TIME", "CORRECTION_FLAG", "CORRELATION_ID", "DELAY", "DLQ_ORIGIN_MESSAGE_ID"),
        *("DLQ_ORIGIN_TOPIC", "DUP_INFO", "EXTEND_UNIQ_INFO", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"),
        *("INNER_NUM", "INSTANCE_ID", "KEYS", "MAX_OFFSET", "MAX_RECONSUME_TIMES", "MIN_OFFSET", "MQ2_FLAG"),
        *("MSG_REGION", "MSG_TYPE", "ORIGIN_GROUP", "ORIGIN_MESSAGE_ID", "PGROUP", "POP_CK", "POP_CK_OFFSET"),
        *("PUSH_REPLY_TIME", "REAL_QID", "REAL_TOPIC", "RECONSUME_TIME", "REPLY_TO_CLIENT", "RETRY_TOPIC", "TAGS"),
        *("TIMER_DELAY_LEVEL", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY"),
        *("TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TRACE_ON"),
        *("TRANSACTION_CHECK_TIMES", "TRANSFER_FLAG", "TRAN_MSG", "TRAN_PREPARED_QUEUE_OFFSET", "TTL", "UNIQ_KEY"),
        *("WAIT", "_SYS_MSG_PRIORITY_", "__BORNHOST", "__CRC32#", "__LITE_TOPIC", "__SHARDINGKEY"),
        "__transactionId__",
    }
)
"""Properties that tell a broker how to treat a message: RocketMQ's proxy and ferromq's brokers refuse them, too."""

_TRANSACTION_FLAG = 4
_COMPRESSED, _COMPRESSION_AT = 1, 8
_ZLIB = 0
"""Before 4.9.4 producers named no algorithm, and consumers knew zlib alone."""
_COMMIT, _ROLLBACK = 8, 12
_ID_OFFSET = 16
"""The digits of the physical offset at the end of a second id."""
_HEAD = 22
"""Bytes of a message in a batch beside its body and its properties."""
_DURABILITY, _STORE_HOST, _PHYSICAL_OFFSETS = 1001, 1002, 1003
"""ferromq's fields of a SendMessageResponse."""
_WRITTEN = 1
_VARINT, _LENGTH_DELIMITED = 0, 2
_LOW_BITS, _MORE = 0x7F, 0x80
_LAST_CONTROL = 0x1F
_DELETE = 0x7F
_IN_BATCHES = {pb.MessageType.MESSAGE_TYPE_UNSPECIFIED, pb.MessageType.NORMAL, pb.MessageType.FIFO}
_OUTCOMES: Mapping[int, pb.Code] = {
    ResponseCode.SUCCESS: pb.Code.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: pb.Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: pb.Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: pb.Code.HA_NOT_AVAILABLE,
}
"""Answers for a message that is stored."""


class _Encoded(NamedTuple):
    """A message with its properties as text."""

    message: pb.Message
    properties: str

    @property
    def size(self) -> int:
        """Bytes in a batch."""
        return _HEAD + len(self.message.body) + len(self.properties.encode())


def send(calls: Calls, step: Call) -> Plan[bytes]:
    """
    Send the messages of a SendMessage request.

    Messages that need nothing from the broker at their time share requests of at most 4 MiB, RocketMQ's limit. Delays,
    priorities and half messages are requests of their own, as RocketMQ's broker ignores them in a batch.
    """
    request = pb.SendMessageRequest.FromString(step.request)
    encoded = [_Encoded(each, _properties_text(each, index)) for index, each in enumerate(request.messages)]
    if any(each.message.system_properties.HasField("delivery_timestamp") for each in encoded):
        calls.check_version(step.endpoint, "delivery times")
    parts = [*_parts(encoded)]
    futures = [(part, _begin(calls, step, part)) for part in parts]
    response = pb.SendMessageResponse()
    places: list[str] = []
    for part, (code, future) in futures:
        answer = yield from calls.end(future, (step.endpoint, code), step.timeout, _OUTCOMES)
        _put_results(response, part, answer, step.endpoint)
        places += answer[2].get("msgId", "").split(",")
    codes = {entry.status.code for entry in response.entries}
    response.status.code = codes.pop() if len(codes) == 1 else pb.Code.MULTIPLE_RESULTS
    return response.SerializeToString() + _records(places, len(encoded))


def _parts(encoded: Sequence[_Encoded]) -> Iterator[list[_Encoded]]:
    """Yield the messages of each request."""
    part: list[_Encoded] = []
    size = 0
    for each in encoded:
        # The flags of a batch are those of all its messages.
        is_alone = each.message.system_properties.message_type not in _IN_BATCHES or _compression(each.message)
        if part and (is_alone or size + each.size > MAX_BODY):
            yield part
            part, size = [], 0
        if is_alone:
            yield [each]
        else:
            part.append(each)
            size += each.size
    if part:
        yield part


def _begin(calls: Calls, step: Call, part: Sequence[_Encoded]) -> "tuple[RequestCode, Future[Answer]]":
    first = part[0].message
    system = first.system_properties
    is_half = system.message_type == pb.MessageType.TRANSACTION
    is_batch = len(part) > 1
    fields = {
        "a": first.topic.name if is_half else PRODUCERS,
        "b": first.topic.name,
        "c": "TBW102",
        "d": "4",
        "e": str(system.queue_id),
        "f": str((_TRANSACTION_FLAG if is_half else 0) | _compression(first)),
        "g": str(system.born_timestamp.ToMilliseconds()),
        "h": "0",
        "i": format_properties({"UNIQ_KEY": system.message_id}) if is_batch else part[0].properties,
        "j": "0",
        "k": "false",
        "m": "true" if is_batch else "false",
    }
    code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
    body = b"".join(map(_in_batch, part)) if is_batch else first.body
    return code, calls.begin(step.endpoint, code, fields, step.timeout, body)


def _compression(message: pb.Message) -> int:
    """Return the bits of the system flag for a compressed body; 0 for any other."""
    system = message.system_properties
    if system.body_encoding != pb.Encoding.GZIP:
        return 0
    fields: Any = UnknownFieldSet(cast("Any", system))  # its stubs know less than it does
    numbers = [int(field.data) for field in fields if field.field_number == COMPRESSION_FIELD]
    return _COMPRESSED | (numbers[-1] if numbers else _ZLIB) << _COMPRESSION_AT


def _in_batch(each: _Encoded) -> bytes:
    properties, body = each.properties.encode(), each.message.body
    head = each.size.to_bytes(4) + bytes(12) + len(body).to_bytes(4)
    return head + body + len(properties).to_bytes(2) + properties


def _put_results(response: pb.SendMessageResponse, part: Sequence[_Encoded], answer: Answer, address: str) -> None:
    code, remark, fields, _ = answer
    offset = number(answer, "queueOffset", address)
    for index, each in enumerate(part):
        system = each.message.system_properties
        entry = response.entries.add(message_id=system.message_id, offset=offset + index)
        entry.status.code = _OUTCOMES[code]
        entry.status.message = remark or ""
        entry.recall_handle = fields.get("recallHandle", "")
        if system.message_type == pb.MessageType.TRANSACTION:
            try:
                half = offset, physical_offset(fields.get("msgId", ""))
            except BadRequest as error:
                raise ServerError(f"{address} answered a half message with a wrong id: {error}") from None
            entry.transaction_id = transaction_id(*half, fields.get("transactionId") or system.message_id)


def _records(places: Sequence[str], count: int) -> bytes:
    """
    Encode what ferromq's brokers say of the records over gRPC (docs/wire-format.md), from the second ids of messages.

    An answer over remoting says nothing of a flush: all that is sure is that the messages are written.
    """
    durability = _tag(_DURABILITY, _VARINT) + _varint(_WRITTEN)
    try:
        hosts = {bytes.fromhex(each[:-_ID_OFFSET]) for each in places}
        offsets = [bytes.fromhex(each[-_ID_OFFSET:]) for each in places]
    except ValueError:
        return durability
    if len(hosts) != 1 or len(offsets) != count or any(2 * len(each) != _ID_OFFSET for each in offsets):
        return durability
    packed = b"".join(each[::-1] for each in offsets)
    return durability + _bytes_field(_STORE_HOST, hosts.pop()) + _bytes_field(_PHYSICAL_OFFSETS, packed)


def _bytes_field(field: int, value: bytes) -> bytes:
    return _tag(field, _LENGTH_DELIMITED) + _varint(len(value)) + value


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > _LOW_BITS:
        out.append(value & _LOW_BITS | _MORE)
        value >>= 7
    return bytes([*out, value])


def _properties_text(message: pb.Message, index: int) -> str:
    """Return a message's properties as text. Raises `RequestError` for those that RocketMQ's proxy refuses."""
    for name, value in message.user_properties.items():
        if name in RESERVED:
            raise RequestError(f"message {index}: property {name} is reserved for the system; choose another name")
        if not name or _has_control(name) or _has_control(value):
            raise RequestError(
                f"message {index}: property {name!r} has an empty name, or a control character in its name or value"
            )
    system = message.system_properties
    words = [("tag", system.tag), ("message group", system.message_group), *(("key", key) for key in system.keys)]
    for what, text in words:
        if text and (not text.strip() or _has_control(text)):
            raise RequestError(f"message {index}: the {what} {text!r} is blank or has a control character")
    text = format_properties(properties_of(message))
    if len(text.encode()) > MAX_PROPERTIES:
        raise MessageTooLarge(
            f"message {index}: its properties have {len(text.encode())} bytes; the limit is {MAX_PROPERTIES}"
        )
    return text


def _has_control(text: str) -> bool:
    return any(ord(each) <= _LAST_CONTROL or ord(each) == _DELETE for each in text)


def properties_of(message: pb.Message) -> dict[str, str]:
    """Return the properties that a broker stores of a message."""
    system = message.system_properties
    found = dict(message.user_properties)
    if system.tag:
        found["TAGS"] = system.tag
    if system.keys:
        found["KEYS"] = " ".join(system.keys)
    found["UNIQ_KEY"] = system.message_id
    if system.message_group:
        found["__SHARDINGKEY"] = system.message_group
    if system.HasField("delivery_timestamp"):
        found["TIMER_DELIVER_MS"] = str(system.delivery_timestamp.ToMilliseconds())
    if system.message_type == pb.MessageType.TRANSACTION:
        # As of gRPC producers: each producer of the topic can answer a check-back.
        found |= {"TRAN_MSG": "true", "PGROUP": message.topic.name}
        if system.HasField("orphaned_transaction_recovery_duration"):
            found["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(system.orphaned_transaction_recovery_duration.seconds)
    if system.HasField("priority"):
        found["_SYS_MSG_PRIORITY_"] = str(system.priority)
    if system.trace_context:
        found["TRACE_CONTEXT"] = system.trace_context
    if system.born_host:
        found["__BORNHOST"] = system.born_host
    return found


def transaction_id(queue_offset: int, offset: int, own_id: str) -> str:
    """Return the transaction id that names a half message: its offsets in its queue and in the log, and RocketMQ's."""
    return f"{queue_offset}.{offset}.{own_id}"


def end_transaction(calls: Calls, step: Call) -> Plan[bytes]:
    """Commit or roll back a half message."""
    request = pb.EndTransactionRequest.FromString(step.request)
    queue_offset, offset, own_id = request.transaction_id.split(".", 2)
    fields = {
        "topic": request.topic.name,
        "producerGroup": request.topic.name,
        "tranStateTableOffset": queue_offset,
        "commitLogOffset": offset,
        "commitOrRollback": str(_COMMIT if request.resolution == pb.TransactionResolution.COMMIT else _ROLLBACK),
        "fromTransactionCheck": str(request.source == pb.TransactionSource.SOURCE_SERVER_CHECK).lower(),
        "msgId": request.message_id,
        "transactionId": own_id,
    }
    code = RequestCode.END_TRANSACTION
    accepted = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    answer = yield from calls.call(step.endpoint, code, fields, step.timeout, accepted=accepted)
    if answer[0] == ResponseCode.SYSTEM_ERROR:
        # As brokers refuse an end that does not fit the half message: another attempt would end the same way.
        raise RequestError(f"{step.endpoint} refused {code.name}: {answer[1] or 'without a remark'}")
    return pb.EndTransactionResponse(status=pb.Status(code=pb.Code.OK)).SerializeToString()


def recall(calls: Calls, step: Call) -> Plan[bytes]:
    """Recall a delayed message."""
    request = pb.RecallMessageRequest.FromString(step.request)
    topic = request.topic.name
    fields = {"producerGroup": PRODUCERS, "topic": topic, "recallHandle": request.recall_handle}
    answer = yield from calls.call(step.endpoint, RequestCode.RECALL_MESSAGE, fields, step.timeout)
    status = pb.Status(code=pb.Code.OK)
    return pb.RecallMessageResponse(status=status, message_id=answer[2].get("msgId", "")).SerializeToString()
