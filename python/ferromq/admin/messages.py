"""
Finds stored messages: by a key, by an id, and by their place in a queue.

Ids are those of RocketMQ's producers. A gRPC producer's has 34 hex digits: version `01`, 12 of a MAC address, 4 of a
process id, 8 of the seconds since 2021, 8 of a number. A remoting producer's has 32 or 56: an IP address, 4 digits of a
process id, 8 of a hash, 8 of the milliseconds since the month began, 4 of a number.
"""

import functools
import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ferromq._ferromq import StoredMessage
from ferromq.admin.asking import Ask, each
from ferromq.admin.calls import Calls
from ferromq.admin.queues import Queue, held, page
from ferromq.admin.results import Unreachable
from ferromq.errors import ConfigError, ConnectionFailed, Forbidden, RequestError, TopicNotFound
from ferromq.protocol.codes import RequestCode, ResponseCode

_END_OF_TIME = 2**63 - 1
# An offset message id: address, port and physical offset, for IPv4 and IPv6.
_OFFSET_IDS = {32: 4, 56: 16}
_GRPC_ID, _GRPC_VERSION, _GRPC_TIME = 34, "01", slice(18, 26)
GRPC_EPOCH = datetime(2021, 1, 1, tzinfo=UTC)
"""Where the seconds in the ids of gRPC producers begin."""
_REMOTING_IDS, _REMOTING_TIME = (32, 56), slice(-12, -4)
_CLOCKS_APART = timedelta(days=1)
"""How much a producer's clock, with its time zone, may be ahead of a broker's."""
_LONGEST_MONTH = timedelta(days=31)


def query(
    calls: Calls, brokers: Iterable[str], topic: str, key: str, max_messages: int
) -> tuple[list[StoredMessage], tuple[Unreachable, ...]]:
    """Return messages with a key, the newest first, and the brokers that did not answer."""
    answers, unreachable = each(calls, brokers, lambda ask: query_at(ask, topic, key, max_messages, unique=False))
    return _newest(answers)[:max_messages], unreachable


def query_at(ask: Ask, topic: str, key: str, max_messages: int, *, unique: bool, begin: int = 0) -> list[StoredMessage]:
    """Return a broker's messages with a key, or with an id, that were stored at *begin* (ms) or later."""
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": str(max_messages),
        "beginTimestamp": str(begin),
        "endTimestamp": str(_END_OF_TIME),
        "_UNIQUE_KEY_QUERY": str(unique).lower(),
    }
    answer = ask.messages(ask(RequestCode.QUERY_MESSAGE, fields, ResponseCode.QUERY_NOT_FOUND))
    # The index holds hashes only, so the answer may contain messages with other keys.
    return [message for message in answer if _has_key(message, key, unique=unique)]


def _newest(answers: Iterable[tuple[str, list[StoredMessage]]]) -> list[StoredMessage]:
    found = [message for _, messages in answers for message in messages]
    return sorted(found, key=lambda message: message.store_timestamp, reverse=True)


def by_id(
    calls: Calls, brokers: Iterable[str], topic: str, message_id: str, now: datetime
) -> tuple[StoredMessage | None, tuple[Unreachable, ...]]:
    """
    Return the message with a producer's id, if it is stored, and the brokers that did not answer.

    Looks at the time that the id holds first, and then at all times: an id's month is not known, and clocks differ.
    """
    asked = list(brokers)
    lost: tuple[Unreachable, ...] = ()
    sent = sent_at(message_id, now)
    begin = 0 if sent is None else max(0, round((sent - _CLOCKS_APART).timestamp() * 1000))
    for earliest in dict.fromkeys((begin, 0)):
        question = functools.partial(query_at, topic=topic, key=message_id, max_messages=1, unique=True, begin=earliest)
        answers, unreachable = each(calls, asked, question, later=2)  # the other time, and the place in an id
        lost += unreachable
        for message in _newest(answers):
            return message, lost
        asked = [address for address, _ in answers]
    return None, lost


def at(calls: Calls, address: str, topic: str, offset: int) -> StoredMessage | None:
    """Return the message of a topic at a physical offset of a broker, if it is stored."""
    try:
        body = calls.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, {"topic": topic, "offset": str(offset)})
    except Forbidden:
        raise
    except RequestError:
        return None  # RocketMQ answers a missing message with SYSTEM_ERROR
    return next((message for message in Ask(calls, address, 1).messages(body) if message.topic == topic), None)


def by_place(
    calls: Calls, brokers: Iterable[str], topic: str, queue_id: int, *, offset: int, count: int
) -> list[StoredMessage]:
    """
    Return up to *count* messages of one queue from an offset on.

    Raises `TopicNotFound` if no broker has the queue, and `ConfigError` if several have it.
    """
    found = {address: queues for address in brokers if queue_id in (queues := held(Ask(calls, address, 1), topic))}
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
        return GRPC_EPOCH + timedelta(seconds=int(message_id[_GRPC_TIME], 16))
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


class Location(NamedTuple):
    """Where a message is stored, as its offset message id tells."""

    host: str
    port: int
    offset: int
    """Physical."""


def location(message_id: str) -> Location | None:
    """
    Return what an offset message id holds; None for another kind of id.

    A producer's id of the same length has its process id in place of the upper half of the port, which is 0 here.
    """
    address_len = _OFFSET_IDS.get(len(message_id))
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        return None
    if address_len is None or len(raw) * 2 != len(message_id):
        return None
    port = int.from_bytes(raw[address_len : address_len + 4])
    if not 0 < port < 1 << 16:
        return None
    host = str(ipaddress.ip_address(raw[:address_len]))
    return Location(host, port, int.from_bytes(raw[address_len + 4 :]))


def registered(place: Location, brokers: Iterable[str], where: str) -> str:
    """
    Return the address of the broker that an id names, as the broker is registered.

    An id may come from a stranger, so no other address is connected. Raises `ConnectionFailed` if there is no such
    broker.
    """
    for address in brokers:
        host, _, port = address.rpartition(":")
        if port == str(place.port) and place.host in _addresses(host.strip("[]")):
            return address
    raise ConnectionFailed(
        f"the id names the broker at {place.host} port {place.port}, which {where} does not know: the broker is gone, "
        "or the id is of another cluster"
    )


def _addresses(host: str) -> set[str]:
    """Return the IP addresses of a host; none if its name is not known here."""
    with suppress(OSError, ValueError):
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    return set()
