"""Reads the queues of a broker by offset, without a lease and without a group that stays."""

from dataclasses import dataclass

from ferromq._ferromq import StoredMessage, decode_records
from ferromq.admin.calls import Calls
from ferromq.errors import ServerError
from ferromq.protocol import naming
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.message_queue import load_table

_WITH_SUBSCRIPTION = 1 << 2
_NOTHING_HERE = (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of a topic at the address of a broker."""

    address: str
    topic: str
    number: int


def held(calls: Calls, address: str, topic: str) -> dict[int, tuple[int, int]]:
    """Return the min and max offset of each queue."""
    body = calls.ask(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
    try:
        table = load_table(body, "offsetTable")
        return {queue.queue_id: (int(row["minOffset"]), int(row["maxOffset"])) for queue, row in table.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(f"the offsets of topic {topic!r} at {address} are malformed: {error}") from error


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
            if code == ResponseCode.SUCCESS:
                found += (message for message in decode_records(body) if message.queue_offset < end)
            following = int(answered["nextBeginOffset"])
            if following <= offset:
                raise ServerError(f"{queue.address} does not go on after offset {offset} of {queue.topic}")
            offset = following
    return found
