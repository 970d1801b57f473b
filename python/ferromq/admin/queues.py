"""Reads the queues of a broker by offset, without a lease and without a group that stays."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ferromq._ferromq import StoredMessage
from ferromq.admin.asking import Ask
from ferromq.admin.calls import Calls
from ferromq.admin.results import Unreachable
from ferromq.errors import OutcomeUnknown, ServerError, TopicNotFound
from ferromq.protocol import naming
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.message_queue import load_table

_FIRST_PAGE, _PAGE = 4, 32
"""Messages of the first pull and of a later one; brokers of RocketMQ answer no more."""
_LARGE_PAGE = 1 << 20
"""Bytes of bodies behind which the next page is smaller."""
_WITH_SUBSCRIPTION = 1 << 2
_NOTHING_HERE = (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of a topic at the address of a broker."""

    address: str
    topic: str
    number: int


def held(ask: Ask, topic: str) -> dict[int, tuple[int, int]]:
    """Return the min and max offset of each queue."""
    body = ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})

    def read() -> dict[int, tuple[int, int]]:
        table = load_table(body, "offsetTable")
        return {queue.queue_id: (int(row["minOffset"]), int(row["maxOffset"])) for queue, row in table.items()}

    return ask.decoded(f"the offsets of topic {topic!r}", read)


def page(calls: Calls, queue: Queue, offset: int, end: int) -> list[StoredMessage]:
    """Return the messages of a range of offsets, without those that were deleted meanwhile."""
    found: list[StoredMessage] = []
    with calls.bounded():
        while offset < end:
            fields = {
                "consumerGroup": naming.TOOLS_GROUP,
                "topic": queue.topic,
                "queueId": str(queue.number),
                "queueOffset": str(offset),
                "maxMsgNums": str(end - offset),
                "sysFlag": str(_WITH_SUBSCRIPTION),
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": "*",
                "expressionType": "TAG",
                "subVersion": "0",
            }
            also = (ResponseCode.PULL_NOT_FOUND, *_NOTHING_HERE)
            code, answered, body = calls.exchange(queue.address, RequestCode.PULL_MESSAGE, fields, also)
            if code == ResponseCode.PULL_NOT_FOUND:
                break
            ask = Ask(calls, queue.address, 1)
            if code == ResponseCode.SUCCESS:
                found += (message for message in ask.messages(body) if message.queue_offset < end)
            following = ask.decoded("the fields of a pull", lambda: int(answered["nextBeginOffset"]))  # noqa: B023
            if following <= offset:
                raise ServerError(f"{queue.address} does not go on after offset {offset} of {queue.topic}")
            offset = following
    return found


def browsed(
    calls: Calls,
    brokers: Iterable[str],
    topic: str,
    since: int | None,
    *,
    newest_first: bool,
    unreachable: list[Unreachable] | None = None,
) -> Iterator[tuple[str, StoredMessage]]:
    """
    Return the messages that are there now with their brokers' addresses, in the order of store times.

    *since*: stored then or later, in milliseconds since 1970. Reads a page at a time. Brokers
    that do not answer are added to *unreachable*; without this list, or if none answers, their failure is raised.
    Brokers without the topic are passed over, but it raises `TopicNotFound` if no broker has it.
    """
    sources: list[Iterator[tuple[str, StoredMessage]]] = []
    asked, read = list(brokers), backward if newest_first else _forward
    lost: list[Unreachable] = []
    without: list[TopicNotFound] = []
    with calls.bounded():
        for place, address in enumerate(asked):
            ask = Ask(calls, address, 1 if unreachable is None else len(asked) - place)
            try:
                queues = held(ask, topic)
                if since is not None:
                    queues = {
                        number: (max(begin, offset_by_time(ask, topic, number, since)), end)
                        for number, (begin, end) in queues.items()
                    }
            except OutcomeUnknown as error:
                lost.append(Unreachable(address, error))
                if unreachable is None or len(lost) == len(asked):
                    raise
                continue
            except TopicNotFound as error:
                without.append(error)
                continue
            sources += [read(calls, Queue(address, topic, number), *ends) for number, ends in queues.items()]
    if without and len(lost) + len(without) == len(asked):
        raise lost[0].error if lost else without[0]
    if unreachable is not None:
        unreachable += lost
    return heapq.merge(*sources, key=_order, reverse=newest_first)


def _order(found: tuple[str, StoredMessage]) -> tuple[int, str, int, int]:
    """Return what orders messages: those of one millisecond, too, whatever the order of the brokers."""
    address, message = found
    return message.store_timestamp, address, message.queue_id, message.queue_offset


def offset_by_time(ask: Ask, topic: str, queue_id: int, since: int) -> int:
    """Return the offset of the first message that was stored at *since* (milliseconds since 1970) or later."""
    fields = {"topic": topic, "queueId": str(queue_id), "timestamp": str(since)}
    return ask.number(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields, "offset")


def _forward(calls: Calls, queue: Queue, begin: int, end: int) -> Iterator[tuple[str, StoredMessage]]:
    size = _FIRST_PAGE
    while begin < end:
        stop = min(begin + size, end)
        found = page(calls, queue, begin, stop)
        size, begin = _next_size(size, found), stop
        for message in found:
            yield queue.address, message


def backward(calls: Calls, queue: Queue, begin: int, end: int) -> Iterator[tuple[str, StoredMessage]]:
    """Yield the messages of a range of offsets with their broker's address, the newest first."""
    size = _FIRST_PAGE
    while begin < end:
        start = max(end - size, begin)
        found = page(calls, queue, start, end)
        size, end = _next_size(size, found), start
        while found:
            yield queue.address, found.pop()


def _next_size(size: int, found: list[StoredMessage]) -> int:
    """Return the messages of the next page: a page of each queue is in memory, and bodies may be large."""
    is_large = sum(len(message.body) for message in found) > _LARGE_PAGE
    return max(1, size // 4) if is_large else min(2 * size, _PAGE)
