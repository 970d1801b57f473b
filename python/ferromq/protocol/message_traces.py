"""
The message traces of RocketMQ's clients: what the body of a message in a trace topic says.

The format is that of `TraceDataEncoder` in RocketMQ's client 5.5.0. Records are joined by U+0002, and fields of a
record by U+0001. The first field is the kind of the record. Older clients leave out the last fields. Java writes a
missing text as `null`.

Any client may write into a trace topic, so sizes are bounded here.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from ferromq._ferromq import StoredMessage
from ferromq.errors import CorruptMessage

LARGEST = 1 << 20
"""Bytes of a body after decompression. RocketMQ's clients write up to 128 KB."""
_LONGEST_TEXT = 1024
"""Characters of a name or an address in a record."""
_MOST_FIELDS = 64
_COMPRESSED, _KIND_SHIFT, _KIND_MASK = 1, 8, 7
_ZLIB = (0, 3)
"""Kinds of compression in RocketMQ's system flag that are zlib's: 0 of producers before 5.0."""
_RECORDS, _FIELDS = "\x02", "\x01"
_LATEST = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_LONGEST = 2**31 - 1
_OLDEST_SENT = 12
"""Fields after the kind in a send of the oldest clients, which leave out the id at the broker."""
_RESULTS: Sequence["Result"] = ("success", "timeout", "exception", "null", "failed")
_KINDS: Sequence["SendKind"] = ("normal", "transaction", "commit", "delay", "fifo")
_STATES: dict[str, "State"] = {"COMMIT_MESSAGE": "commit", "ROLLBACK_MESSAGE": "rollback", "UNKNOW": "unknown"}

Result = Literal["success", "timeout", "exception", "null", "failed"]
"""`null`: the listener returned nothing. `exception`: it threw one. `failed`: it asked for another delivery."""
SendKind = Literal["normal", "transaction", "commit", "delay", "fifo"]
State = Literal["commit", "rollback", "unknown"]


class Sent(NamedTuple):
    """A send, written when it ended."""

    message_id: str
    at: int
    """When it began, in milliseconds since 1970."""
    group: str
    topic: str
    store_host: str | None
    body_size: int
    """Bytes."""
    latency: int
    """Milliseconds."""
    kind: SendKind
    is_success: bool
    client_host: str | None
    """Absent in what clients before 5 write."""


class Begun(NamedTuple):
    """The begin of a consumption."""

    message_id: str
    at: int
    """Milliseconds since 1970."""
    group: str
    request: str
    """Is the same in the record of its end."""
    deliveries_before: int


class Ended(NamedTuple):
    """The end of a consumption."""

    message_id: str
    request: str
    latency: int
    """Milliseconds."""
    is_success: bool
    result: Result
    at: int | None
    """Milliseconds since 1970; absent in what old clients write, as the group is."""
    group: str | None


class TransactionEnded(NamedTuple):
    """The end of a transaction."""

    message_id: str
    at: int
    """Milliseconds since 1970."""
    group: str
    topic: str
    state: State
    transaction_id: str | None
    is_checked: bool
    """Whether the broker asked for the outcome."""


class Recalled(NamedTuple):
    """The recall of a delayed message."""

    message_id: str
    at: int
    """Milliseconds since 1970."""
    group: str
    topic: str
    is_success: bool


Record = Sent | Begun | Ended | TransactionEnded | Recalled


def read(message: StoredMessage) -> Iterator[Record | None]:
    """
    Yield the records of a trace message, and None for each of another form.

    A body that cannot be decompressed, or has more than `LARGEST` bytes, is one of another form.
    """
    body = plain(message)
    if body is None:
        yield None
    else:
        yield from decode(body)


def plain(message: StoredMessage) -> bytes | None:
    """Return the body as it was sent; None for a damaged or a large one."""
    stored = message.body
    if len(stored) > LARGEST:
        return None
    is_zlib = message.sys_flag & _COMPRESSED and message.sys_flag >> _KIND_SHIFT & _KIND_MASK in _ZLIB
    try:
        if not is_zlib:
            body = message.plain_body  # decompressed whole, which 64 MiB bound
            return body if len(body) <= LARGEST else None
        inflated = zlib.decompressobj()
        body = inflated.decompress(stored, LARGEST + 1)
    except (CorruptMessage, zlib.error):
        return None
    return body if inflated.eof and len(body) <= LARGEST else None


def decode(body: bytes) -> Iterator[Record | None]:
    """Yield the records of a body, and None for each of another form."""
    text = body.decode(errors="replace")
    begin = 0
    while begin < len(text):
        end = text.find(_RECORDS, begin)
        end = len(text) if end < 0 else end
        if begin < end:
            yield _record(text[begin:end])
        begin = end + 1


def _record(text: str) -> Record | None:
    kind, *fields = text.split(_FIELDS, _MOST_FIELDS)
    try:
        record = _DECODERS[kind](fields)
    except (KeyError, IndexError, ValueError):
        return None
    is_short = all(len(value) <= _LONGEST_TEXT for value in record if isinstance(value, str))
    return record if is_short else None


def _sent(fields: list[str]) -> Sent:
    success = fields[11] if len(fields) == _OLDEST_SENT else fields[12]
    return Sent(
        fields[4],
        _number(fields[0], _LATEST),
        fields[2],
        fields[3],
        _text(fields[7]),
        _number(fields[8], _LONGEST),
        _number(fields[9], _LONGEST),
        _KINDS[_number(fields[10], len(_KINDS) - 1)],
        _truth(success),
        _text(fields[13]) if len(fields) > 13 else None,  # noqa: PLR2004 (the format's)
    )


def _begun(fields: list[str]) -> Begun:
    return Begun(fields[4], _number(fields[0], _LATEST), fields[2], fields[3], _number(fields[5], _LONGEST))


def _ended(fields: list[str]) -> Ended:
    is_success = _truth(fields[3])
    code = _number(fields[5], len(_RESULTS) - 1) if len(fields) > 5 else 0 if is_success else len(_RESULTS) - 1  # noqa: PLR2004 (the format's)
    has_group = len(fields) > 7  # noqa: PLR2004 (the format's)
    return Ended(
        fields[1],
        fields[0],
        _number(fields[2], _LONGEST),
        is_success,
        _RESULTS[code],
        _number(fields[6], _LATEST) if has_group else None,
        fields[7] if has_group else None,
    )


def _transaction_ended(fields: list[str]) -> TransactionEnded:
    state, checked = _STATES[fields[10]], _truth(fields[11])
    return TransactionEnded(
        fields[4], _number(fields[0], _LATEST), fields[2], fields[3], state, _text(fields[9]), checked
    )


def _recalled(fields: list[str]) -> Recalled:
    return Recalled(fields[4], _number(fields[0], _LATEST), fields[2], fields[3], _truth(fields[5]))


_DECODERS: dict[str, Callable[[list[str]], Record]] = {
    "Pub": _sent,
    "SubBefore": _begun,
    "SubAfter": _ended,
    "EndTransaction": _transaction_ended,
    "Recall": _recalled,
}


def _number(text: str, most: int) -> int:
    """Return a whole number from 0 to *most*. Raises `ValueError` for anything else."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most):
        raise ValueError(text)
    return int(text)


def _text(text: str) -> str | None:
    return None if text in {"", "null"} else text


def _truth(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError(text)
    return text == "true"
