"""
Cold remoting requests in Python: reading header fields, and answers.

The Rust transport encodes and decodes frames.
"""

import errno
import logging
import re
from collections.abc import Callable, Mapping

from ferromq._ferromq import Request
from ferromq.errors import IllegalName, StoreFull
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol.codes import ResponseCode

_log = logging.getLogger("ferromq.remoting")
_FAILED = "request failed code=%s peer=%s"

Answer = tuple[int, str | None, dict[str, str], bytes]
Handler = Callable[[Request], Answer]


class BadRequest(Exception):  # noqa: N818 (an answer, not a failure)
    """A field of the request is missing or wrong. The text is for the peer."""


def required(fields: Mapping[str, str], name: str) -> str:
    """Return a field. Raises `BadRequest` if it is missing."""
    value = fields.get(name)
    if value is None:
        raise BadRequest(f"the header field {name} is missing")
    return value


def integer(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a field as a number. Raises `BadRequest` if it is not a number, or missing without a default."""
    if default is not None and fields.get(name) in {None, ""}:
        return default
    value = required(fields, name)
    try:
        return int(value)
    except ValueError:
        raise BadRequest(f"the header field {name} is {value!r}, expected a whole number") from None


def flag(fields: Mapping[str, str], name: str) -> bool:
    """Return a field as Java's boolean."""
    return fields.get(name, "").lower() == "true"


def boolean(fields: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return a field as Java's boolean, or *default* if it is missing or empty."""
    return flag(fields, name) if fields.get(name) else default


def success(fields: Mapping[str, str] | None = None, body: bytes = b"") -> Answer:
    """Return the answer of a successful request."""
    return ResponseCode.SUCCESS, None, dict(fields or {}), body


def failure(code: ResponseCode, remark: str) -> Answer:
    """Return the answer of a failed request, with the reason."""
    return code, remark, {}, b""


def refused(why: str) -> Handler:
    """Return a handler that refuses a known request, with the reason."""
    return lambda _request: failure(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, why)


def disk_full(error: Exception) -> str | None:
    """Return the remark for a full disk; None for another failure."""
    if isinstance(error, StoreFull):
        return str(error)
    is_full = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
    return f"disk full: {error}; nothing changed; free some space and try again" if is_full else None


def guarded(handler: Handler, limited_log: LimitedLog | None = None) -> Handler:
    """Turn exceptions of *handler* into answers. Logs unexpected ones, up to a rate for each handler."""
    limited_log = limited_log or LimitedLog(_log)

    def handle(request: Request) -> Answer:
        try:
            return handler(request)
        except (BadRequest, IllegalName) as error:
            return failure(ResponseCode.INVALID_PARAMETER, str(error))
        except (OSError, StoreFull) as error:
            why = disk_full(error)
            if why is None:
                limited_log.log(logging.ERROR, _FAILED, request.route, request.peer, exc_info=True)
                return failure(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
            limited_log.log(logging.WARNING, "request refused code=%s peer=%s: %s", request.route, request.peer, why)
            return failure(ResponseCode.SERVICE_NOT_AVAILABLE, why)
        except Exception as error:  # noqa: BLE001 (the peer always gets an answer)
            limited_log.log(logging.ERROR, _FAILED, request.route, request.peer, exc_info=True)
            return failure(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    return handle


_OFFSET_DIGITS = 16
# The broker's address and port, IPv4 or IPv6, then the physical offset.
_MESSAGE_ID = re.compile(r"(?:[0-9a-fA-F]{32}|[0-9a-fA-F]{56})\Z")


def physical_offset(message_id: str) -> int:
    """Return the physical offset in an offset message id, its last 16 digits. Raises `BadRequest` for another id."""
    if not _MESSAGE_ID.match(message_id):
        raise BadRequest(f"msgId is {message_id[:100]!r}; an offset message id of 32 or 56 hex digits is expected")
    return int(message_id[-_OFFSET_DIGITS:], 16)


def queue_of(fields: dict[str, str]) -> tuple[str, int]:
    """Return the topic and queue id of a request. Raises `BadRequest`."""
    queue_id = integer(fields, "queueId")
    if not 0 <= queue_id < 1 << 31:
        raise BadRequest(f"the header field queueId is {queue_id}; it must be 0 or more")
    return required(fields, "topic"), queue_id
