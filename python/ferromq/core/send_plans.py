"""What a producer says to servers and what the answers mean: written once, without I/O, as `plans` is."""

import base64
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ferromq import _ferromq
from ferromq._ferromq import Message, MessageIds
from ferromq._proto import messages as pb
from ferromq.core.batching import Gathered, group_of, is_ordered, lane_of
from ferromq.core.numbering import Numbered
from ferromq.core.plans import Common, Tries
from ferromq.core.requests import Call, Plan, check, error_of, named
from ferromq.core.routes import Queue
from ferromq.core.watch import over, stored
from ferromq.errors import (
    ConnectionFailed,
    FerromqError,
    MessageTooLarge,
    OutcomeUnknown,
    RequestError,
    RequestTimeout,
    ServerError,
)
from ferromq.message import Batch, Handles, Records, SendReceipt
from ferromq.protocol.order_configuration import text_of

ID_EPOCH = 1_609_459_200
"""2021-01-01T00:00:00Z, from which the seconds in message ids count."""
_HANDLE_WORDS = 5
_NO_TRANSACTION = "cannot found transaction data"
"""How RocketMQ's proxy refuses an end after the first one, with the code of its own failures."""


@dataclass(slots=True)
class Half:
    """A half message of a transaction, as its broker names it."""

    message_id: str
    topic: str
    transaction_id: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A half message before it is sent: its id is known beforehand, for a check-back that comes early."""

    ids: MessageIds
    recovery_ms: int
    """Milliseconds after which the broker may ask what became of it; 0: the broker's setting."""

    @property
    def message_id(self) -> str:
        """The id it will have."""
        return self.ids[0]


class MustPartError(RequestError):
    """The server takes each of these messages in a request of its own; none was sent."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """An attempt that failed before a plan was begun."""

    ids: MessageIds
    endpoint: str
    error: FerromqError | None
    """Its error: at an `OutcomeUnknown` the message may be stored. None: another message of the request was refused."""


@dataclass(slots=True)
class _Named:
    """Messages of one request, and what they are called in errors."""

    messages: list[Message | bytes]
    numbers: Sequence[int] | None
    """The number of each among all that the caller gave; None where it gave no more than these."""
    told: FerromqError | None = None
    """The last error that names one message."""

    def one(self, index: int) -> str:
        """Return how an error about one message begins."""
        if self.numbers is None:
            return f"message {index}" if len(self.messages) > 1 else ""
        return f"message {self.numbers[index]}"

    def all(self, error: FerromqError) -> FerromqError:
        """Return an error that says which messages it is about."""
        if self.numbers is None or error is self.told:
            return error
        first, last = self.numbers[0], self.numbers[-1]
        count = len(self.numbers)
        if count == 1:
            return named(error, f"message {first}")
        some = "" if last - first + 1 == count else f"{count} of the "
        return named(error, f"{some}messages {first} to {last}")

    def check(self, max_body: int) -> None:
        """Raise for a body that cannot be sent."""
        for index, message in enumerate(self.messages):
            size = len(message if isinstance(message, bytes) else message.body)
            if 0 < size <= max_body:
                continue
            which = self.one(index)
            body = f"{which}: the body" if which else "the body"
            if not size:
                raise ValueError(f"{body} is empty; RocketMQ takes at least one byte")
            self.told = MessageTooLarge(f"{body} has {size} bytes; the limit is {max_body}")
            raise self.told


def reserve_ids(common: Common, count: int) -> MessageIds:
    """Take message ids that nobody else has."""
    return MessageIds.reserve(common.identity.process, int(time.time()) - ID_EPOCH, count)


def send(
    common: Common,
    topic: str,
    messages: list[Message | bytes],
    numbers: Sequence[int] | None = None,
    *,
    half: Draft | None = None,
    beside: str | None = None,
    to: Queue | None = None,
    timeout: float | None = None,
    after: "Earlier | None" = None,
) -> Plan[Batch]:
    """
    Send messages of one topic and lane in one request, with the same message ids however often it is repeated.

    *numbers* are those of the messages among all that the caller gave; errors name them. A *half* message is not
    repeated where the first may be stored: both would be committed. *beside*: without being of a message group they
    go to the queue of the group that has this name, as others do; *to* is another one for it. *timeout*: seconds
    for all of it; None: the client's. *after*: an attempt that failed before, with the same message ids.
    """
    which = _Named(messages, numbers)
    given = after or half
    ids = reserve_ids(common, len(messages)) if given is None else given.ids
    born = common.wall()
    group = messages[0].message_group if isinstance(messages[0], Message) else None
    group = beside if group is None else group
    chosen: Queue | None = None
    counted: Sequence[Queue] = ()
    limit = common.timeout if timeout is None else timeout
    # A half message is not repeated, and cannot have a number.
    numbered = Numbered(common.numbering if half is None else None, topic, messages)

    def once(tries: Tries) -> Plan[Batch]:
        nonlocal chosen, counted
        if after is not None and tries.unknown is None:
            tries.unknown = after.error if isinstance(after.error, OutcomeUnknown) else None
            tries.endpoints.add(after.endpoint)
        route = yield from common.route(topic, tries)
        counted = route.writable
        # A message group stays in its queue, whatever becomes of its broker: elsewhere it would be out of order.
        avoided = common.routes.failing()
        of_group = None if group is None else to or route.of_group(group)
        queue = chosen = numbered.kept_in(route) or of_group or route.next_writable(tries.endpoints, avoided)
        tries.endpoints.add(queue.endpoint)
        yield from common.join(queue.endpoint, topic, tries)
        common.check_compression(queue.endpoint)
        _check_batch(common, queue.endpoint, messages)
        yield from numbered.check(queue.endpoint, common.limit(tries), limit)
        try:
            request = _ferromq.encode_send(
                common.whole(topic),
                numbered.messages(queue),
                ids,
                queue.queue_id,
                born,
                common.identity.host,
                common.max_body,
                None if half is None else half.recovery_ms,
            )
        except ValueError:
            which.check(common.max_body)  # says which message it was
            raise
        try:
            answer = yield Call(queue.endpoint, "SendMessage", request, common.limit(tries))
            offsets, handles, told, records = _sent(answer, ids, which)
        except (OutcomeUnknown, ServerError) as error:
            numbered.keep(queue)
            _note_unknown(common, tries, queue, error)
            raise
        common.routes.answered(queue.endpoint)
        queue_id = queue.queue_id if told is None else told
        return Batch(ids, queue_id, offsets, topic, queue.endpoint, handles, queue.broker_name, records)

    try:
        return (yield from common.attempt(topic, once, is_repeatable=half is None, timeout=limit))
    except FerromqError as error:
        ours = (
            error
            if group is None or chosen is None
            else of_group_error(error, common.whole(topic), group, chosen, counted)
        )
        raise which.all(_kept_error(ours, topic, numbered.kept)) from error.__cause__
    finally:
        numbered.release()


def _check_batch(common: Common, endpoint: str, messages: Sequence[Message | bytes]) -> None:
    """
    Raise `MustPartError` for a batch that RocketMQ's proxy would not store as it is.

    It puts a batch into any queue, also one of a message group, and stores all bodies as it stores the first.
    """
    is_plain = common.compression is None and lane_of(messages[0]) is None
    if len(messages) > 1 and not is_plain and not common.takes_batches(endpoint):
        raise MustPartError(f"{endpoint} takes such messages one by one")


def _note_unknown(common: Common, tries: Tries, queue: Queue, error: FerromqError) -> None:
    if isinstance(error, OutcomeUnknown):
        common.routes.failed(queue.endpoint)
        tries.unknown = error


def _kept_error(error: FerromqError, topic: str, queue: Queue | None) -> FerromqError:
    """Return the error of numbered messages that *queue* may have; it says where, and the way out."""
    if queue is None or not isinstance(error, (ConnectionFailed, RequestTimeout)):
        return error
    return named(
        error,
        f"whether queue {queue.queue_id} of {topic} on the broker {queue.broker_name} has the messages of this send is "
        "not known, and only a repetition there is recognized. Give the send a longer timeout than a restart of the "
        "broker takes; a new send stores new messages",
    )


def send_gathered(common: Common, batch: Gathered[Any]) -> Plan[Batch]:
    """
    Send what was submitted.

    Once a batch has failed because its broker does not answer, those behind it have waited as long as it has: each has
    what is left of its own time, and fails at once where that is over.
    """
    limit = None
    brokers = brokers_of(common, batch)
    if (lost := common.routes.given_up()) and brokers <= lost:
        limit = batch.until - common.now()
        if limit <= 0:
            raise _not_begun(common, batch, brokers)
    try:
        return (yield from send(common, batch.topic, batch.messages, timeout=limit))
    except (ConnectionFailed, RequestTimeout):
        common.routes.give_up(brokers_of(common, batch))
        raise


def brokers_of(common: Common, batch: Gathered[Any]) -> set[str]:
    """Return the endpoints of the brokers that may store a batch; before any answered, those the client was given."""
    route = common.routes.known(batch.topic)
    if route is None or not route.in_order:
        return {*common.endpoints}
    if batch.lane is not None and is_ordered(batch.lane):
        return {route.of_group(group_of(batch.lane)).endpoint}
    return {queue.endpoint for queue in route.writable}


def _not_begun(common: Common, batch: Gathered[Any], brokers: set[str]) -> FerromqError:
    where = ", ".join(sorted(brokers))
    error = RequestTimeout(
        f"SendMessage to {where} was not begun within {common.timeout:g} s: the broker did not answer those before it"
    )
    route = common.routes.known(batch.topic)
    if route is None or not route.in_order or batch.lane is None or not is_ordered(batch.lane):
        return error
    group = group_of(batch.lane)
    return of_group_error(error, common.whole(batch.topic), group, route.of_group(group), route.writable)


def for_group(common: Common, topic: str, message: Message, error: FerromqError) -> FerromqError:
    """Return the error of a message that was sent to the queue of its group, if it has one."""
    route = common.routes.known(topic)
    if message.message_group is None or route is None or not route.in_order:
        return error
    group = message.message_group
    return of_group_error(error, common.whole(topic), group, route.of_group(group), route.writable)


def of_group_error(error: FerromqError, topic: str, group: str, queue: Queue, counted: Sequence[Queue]) -> FerromqError:
    """
    Return the error of a message group whose broker is not reached; it says where it waits, and the way out.

    *counted*: the queues that message groups are spread over.
    """
    if not isinstance(error, (ConnectionFailed, RequestTimeout)):
        return error
    rest = text_of(Counter(each.broker_name for each in counted if each.broker_name != queue.broker_name))
    return named(
        error,
        f"the message group {group!r} is in queue {queue.queue_id} of {topic} on the broker {queue.broker_name}, which "
        "does not answer; start it, or take it out for good: "
        f"ferromq.Admin(...).take_out_broker({queue.broker_name!r}), or mqadmin updateOrderConf -m put -t {topic} "
        f"-v '{rest}'",
    )


_Sent = tuple[Sequence[int], dict[int, Handles], int | None, Records]


def _sent(answer: bytes, ids: MessageIds, which: _Named) -> _Sent:
    """Return offsets, handles, the queue where the broker chose another one, and what it says of the records."""
    code, text, offsets, failures, told, queue_id, records = _ferromq.decode_sent(answer)
    if failures:
        index, code, text = failures[0]
        name = which.one(index)
        which.told = error_of(code, f"{name} (id {ids[index]}): {text}" if name else text)
        raise which.told
    if code != pb.Code.OK:
        raise error_of(code, text)
    handles = {index: Handles(transaction_id, recall_handle) for index, transaction_id, recall_handle in told}
    if len(offsets) == 1:
        # RocketMQ's own broker stores a batch as one and tells its first queue offset.
        return range(offsets[0], offsets[0] + len(ids)), handles, queue_id, Records(*records)
    if len(offsets) != len(ids):
        raise ServerError(f"{len(ids)} messages were sent and {len(offsets)} results came back")
    dense = range(offsets[0], offsets[0] + len(ids))
    return (dense if offsets == list(dense) else offsets), handles, queue_id, Records(*records)


def recall(common: Common, receipt: SendReceipt) -> Plan[str]:
    """Recall a delayed message that is not due yet, and return its id."""
    if not isinstance(receipt, SendReceipt):
        raise TypeError(f"the receipt of a delayed message is expected, as send() returns it, not {receipt!r}")
    handle = receipt.recall_handle
    if not handle or not receipt.topic:
        raise ValueError(f"message {receipt.message_id} has no recall handle: only delayed messages can be recalled")
    request = pb.RecallMessageRequest(topic=common.resource(receipt.topic), recall_handle=handle).SerializeToString()

    def once(tries: Tries) -> Plan[str]:
        route = yield from common.route(receipt.topic, tries)
        endpoint = route.endpoint_of(_broker_name(handle)) or common.endpoints[0]
        answer = yield Call(endpoint, "RecallMessage", request, common.limit(tries))
        response = pb.RecallMessageResponse.FromString(answer)
        check(response.status)
        return response.message_id

    with over(common.watch, "recall", receipt.topic) as operation:
        stored(operation, receipt)
        return (yield from common.attempt(receipt.topic, once, timeout=common.timeout))


def _broker_name(handle: str) -> str:
    """Return the broker that a recall handle names; RocketMQ's first form is `v1 topic broker time id` in base64."""
    try:
        words = base64.urlsafe_b64decode(handle + "=" * (-len(handle) % 4)).decode().split(" ")
    except ValueError:
        return ""
    return words[2] if len(words) >= _HANDLE_WORDS else ""


def end_transaction(common: Common, half: Half, *, is_commit: bool, is_checked: bool) -> Plan[None]:
    """
    Tell the broker that has a half message how its transaction ends.

    Not repeated where the answer is lost: RocketMQ's broker commits twice what is committed twice.
    """
    request = pb.EndTransactionRequest(
        topic=common.resource(half.topic),
        message_id=half.message_id,
        transaction_id=half.transaction_id,
        resolution=pb.TransactionResolution.COMMIT if is_commit else pb.TransactionResolution.ROLLBACK,
        source=pb.TransactionSource.SOURCE_SERVER_CHECK if is_checked else pb.TransactionSource.SOURCE_CLIENT,
    ).SerializeToString()

    def once(tries: Tries) -> Plan[None]:
        try:
            answer = yield Call(half.endpoint, "EndTransaction", request, common.limit(tries))
            check(pb.EndTransactionResponse.FromString(answer).status)
        except OutcomeUnknown as error:
            tries.unknown = error
            raise
        except ServerError as error:
            if _NO_TRANSACTION not in str(error):
                raise
            text = f"{half.endpoint} knows no open transaction of message {half.message_id}: it has ended ({error})"
            raise RequestError(text, error.code, error.remark) from None

    yield from common.attempt(half.topic, once, is_repeatable=False, timeout=common.timeout)
