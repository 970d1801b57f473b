"""
Finds stored messages: by a key, by an id, and by their place in a queue.

Ids are those of RocketMQ's producers. A gRPC producer's has 34 hex digits: version `01`, 12 of a MAC address, 4 of a
process id, 8 of the seconds since 2021, 8 of a number. A remoting producer's has 32 or 56: an IP address, 4 digits of a
process id, 8 of a hash, 8 of the milliseconds since the month began, 4 of a number.
"""

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from ferromq._ferromq import StoredMessage, decode_records
from ferromq.admin.calls import Calls
from ferromq.admin.queues import Queue, held, page
from ferromq.errors import ConfigError, OutcomeUnknown, RequestError, TopicNotFound
from ferromq.protocol.codes import RequestCode, ResponseCode

_END_OF_TIME = 2**63 - 1
# An offset message id: address, port and physical offset, for IPv4 and IPv6.
_OFFSET_IDS = {32: 4, 56: 16}
_GRPC_ID, _GRPC_VERSION, _GRPC_TIME = 34, "01", slice(18, 26)
_GRPC_EPOCH = datetime(2021, 1, 1, tzinfo=UTC)
_REMOTING_IDS, _REMOTING_TIME = (32, 56), slice(-12, -4)
_CLOCKS_APART = timedelta(days=1)
"""How much a producer's clock, with its time zone, may be ahead of a broker's."""
_LONGEST_MONTH = timedelta(days=31)


def query(
    calls: Calls, brokers: Iterable[str], topic: str, key: str, max_messages: int, *, unique: bool, begin: int = 0
) -> list[StoredMessage]:
    """Return messages with a key, or with an id, that were stored at *begin* (ms) or later, the newest first."""
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": str(max_messages),
        "beginTimestamp": str(begin),
        "endTimestamp": str(_END_OF_TIME),
        "_UNIQUE_KEY_QUERY": str(unique).lower(),
    }
    found: list[StoredMessage] = []
    for address in brokers:
        body = calls.ask(address, RequestCode.QUERY_MESSAGE, fields, ResponseCode.QUERY_NOT_FOUND)
        # The index holds hashes only, so the answer may contain messages with other keys.
        found += (message for message in decode_records(body) if _has_key(message, key, unique=unique))
    found.sort(key=lambda message: message.store_timestamp, reverse=True)
    return found[:max_messages]


def by_id(calls: Calls, brokers: Iterable[str], topic: str, message_id: str, now: datetime) -> StoredMessage | None:
    """
    Return the message with an id, if it is stored.

    Looks at the time that the id holds first, and then at all times: an id's month is not known, and clocks differ.
    """
    asked = list(brokers)
    sent = sent_at(message_id, now)
    begin = 0 if sent is None else max(0, round((sent - _CLOCKS_APART).timestamp() * 1000))
    for earliest in dict.fromkeys((begin, 0)):
        for message in query(calls, asked, topic, message_id, 1, unique=True, begin=earliest):
            return message
    location = _location(message_id)
    if location is None:
        return None
    address, offset = location
    try:
        body = calls.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, {"topic": topic, "offset": str(offset)})
    except (RequestError, OutcomeUnknown):
        return None  # 32 digits may also be the id of an old producer, which holds no address
    return next((message for message in decode_records(body) if message.topic == topic), None)


def by_place(
    calls: Calls, brokers: Iterable[str], topic: str, queue_id: int, *, offset: int, count: int
) -> list[StoredMessage]:
    """
    Return up to *count* messages of one queue from an offset on.

    Raises `TopicNotFound` if no broker has the queue, and `ConfigError` if several have it.
    """
    found = {address: queues for address in brokers if queue_id in (queues := held(calls, address, topic))}
    if not found:
        raise TopicNotFound(f"no broker has queue {queue_id} of the topic {topic}")
    if len(found) > 1:
        raise ConfigError(
            f"several brokers have queue {queue_id} of {topic}: {', '.join(found)}; choose one with broker="
        )
    ((address, queues),) = found.items()
    begin, end = queues[queue_id]
    first = max(offset, begin)
    return page(calls, Queue(address, topic, queue_id), first, min(first + count, end)) if first < end else []


def sent_at(message_id: str, now: datetime) -> datetime | None:
    """
    Return the time that a producer's id holds; None for another kind of id.

    A remoting producer's id holds the time since its month began: it is the last such time before *now*.
    """
    try:
        bytes.fromhex(message_id)
    except ValueError:
        return None
    if len(message_id) == _GRPC_ID and message_id.startswith(_GRPC_VERSION):
        return _GRPC_EPOCH + timedelta(seconds=int(message_id[_GRPC_TIME], 16))
    if len(message_id) not in _REMOTING_IDS:
        return None
    since = timedelta(milliseconds=int(message_id[_REMOTING_TIME], 16))
    if since > _LONGEST_MONTH + _CLOCKS_APART:
        return None
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    if month + since > now + _CLOCKS_APART:
        month = (month - timedelta(days=1)).replace(day=1)
    return month + since


def _has_key(message: StoredMessage, key: str, *, unique: bool) -> bool:
    return message.message_id == key if unique else key in message.keys


def _location(message_id: str) -> tuple[str, int] | None:
    """Return the address and the physical offset in an offset message id; None for another kind of id."""
    address_len = _OFFSET_IDS.get(len(message_id))
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        return None
    if address_len is None or len(raw) * 2 != len(message_id):
        return None
    address = ipaddress.ip_address(raw[:address_len])
    port = int.from_bytes(raw[address_len : address_len + 4])
    host = f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004
    return (f"{host}:{port}", int.from_bytes(raw[address_len + 4 :])) if 0 < port < 1 << 16 else None
