"""
What every request of a client has in common: who asks, how an answer becomes an exception, what a plan may ask for.

No I/O: plans yield the steps below, and a connection, synchronous or not, takes them.
"""

import errno
import itertools
import os
import platform
import re
import socket
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import DecodeError

from ferromq import _ferromq
from ferromq._proto import messages as pb
from ferromq.core.credentials import AUTHORIZATION, DATE_TIME, Credentials
from ferromq.errors import (
    ConnectionFailed,
    FerromqError,
    Forbidden,
    GroupNotFound,
    IllegalFilter,
    IllegalName,
    LeaseExpired,
    MessageTooLarge,
    NotDurable,
    OutcomeUnknown,
    RequestError,
    RequestTimeout,
    ServerError,
    StoreFull,
    Throttled,
    TopicNotFound,
    Unsupported,
)
from ferromq.protocol import naming
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.route import WHOLE
from ferromq.tables import MessageTable, message_columns, table_of, table_of_columns, to_arrow

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
M = TypeVar("M")
Metadata = tuple[tuple[str, str], ...]

SERVICE = "/apache.rocketmq.v2.MessagingService/"
PACKED = "x-ferromq-packed"
"""Asked for and confirmed in metadata: packets of many responses instead of one message each."""

COMPRESSION_FIELD = 1001
"""The field of `SystemProperties` with RocketMQ's number for a compression that gRPC has no word for."""
COMPRESSION = "x-ferromq-compression"
"""Announced beside it: the compressions of bodies that the broker takes and gRPC has no word for."""

RECEIPTS = "x-ferromq-receipts"
"""Asks for durability and second ids in the answers to sends."""

FRAMED = "x-ferromq-framed"
"""
Announced in the metadata of the telemetry stream: the port takes hot methods in frames, without HTTP/2.

`1`: what sends and acknowledges; `2`: receives and pulls, too.
"""


ACK_RECORDS = "AckRecords"
"""Acknowledges messages that came as records; only in frames."""

BEGIN = "x-ferromq-begin"
"""With GetOffset in metadata: where the group begins if it has no offset of the topic; see `GrpcOffsets.get_offset`."""


# --- steps of a plan -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method; the answer is its bytes."""

    endpoint: str
    method: str
    request: bytes
    timeout: float
    metadata: Metadata = ()
    """What goes with it beside what goes with each request."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Call a method that answers with a stream; the answer is `Packets`, once it has ended, or `Records`."""

    endpoint: str
    method: str
    request: bytes
    timeout: float
    lease: "_ferromq.LeaseKeeper | None" = None
    """What keeps the leases of the answer's messages; None: it has none."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Send the request of a `Stream`, and do not wait for its answer; what it gives is for `End`."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class End:
    """Wait for the answer of a stream that was begun; where its request was not sent, send it."""

    stream: Stream
    begun: Any


@dataclass(frozen=True, slots=True)
class Packets:
    """The messages of a stream as they came."""

    packets: list[bytes]
    packed: bool


Decoded = tuple[tuple[int, str] | None, M, int | None]
"""Status, messages and next offset of an answer."""


def decode_messages(
    answer: Packets | _ferromq.Records, lease: "_ferromq.LeaseKeeper", endpoint: str, namespace: str
) -> Decoded[list[_ferromq.MessageView]]:
    """Decode the answer to a `Stream`; topics are named without the *namespace*."""
    if isinstance(answer, Packets):
        return _ferromq.decode_received(answer.packets, answer.packed, lease, endpoint, namespace)
    return _ferromq.decode_records_answer(answer, lease, endpoint, namespace)


class MessageParts:
    """The messages of the answers to one request, or to several that follow each other."""

    def __init__(self, lease: "_ferromq.LeaseKeeper", endpoint: str, namespace: str) -> None:
        self._origin = (lease, endpoint, namespace)
        self._messages: list[_ferromq.MessageView] = []

    def add(self, answer: _ferromq.Records) -> tuple[tuple[int, str] | None, int | None]:
        """Decode an answer; return its status and the next offset."""
        status, messages, next_offset = _ferromq.decode_records_answer(answer, *self._origin)
        self._messages += messages
        return status, next_offset

    def result(self) -> list[_ferromq.MessageView]:
        """Return the messages of all answers."""
        return self._messages


class ColumnParts:
    """As `MessageParts`, as columns of a `pyarrow.Table`."""

    def __init__(self, _lease: "_ferromq.LeaseKeeper", _endpoint: str, namespace: str, size: int) -> None:
        """*size*: bytes of all answers, about."""
        self._columns = message_columns(size)
        self._named = partial(naming.without_namespace, namespace) if namespace else None

    def add(self, answer: _ferromq.Records) -> tuple[tuple[int, str] | None, int | None]:
        """Decode an answer; return its status and the next offset."""
        status, next_offset, records = _ferromq.split_records(answer)
        self._columns.add(records)
        return status, next_offset

    def result(self) -> Any:
        """Return the rows of all answers."""
        return table_of_columns(self._columns, self._named)


class TableParts(ColumnParts):
    """As `ColumnParts`, as a `MessageTable`, which keeps the answers."""

    def __init__(self, lease: "_ferromq.LeaseKeeper", endpoint: str, namespace: str, size: int) -> None:
        super().__init__(lease, endpoint, namespace, size)
        self._origin = (lease, endpoint, namespace)
        self._answers: list[_ferromq.Records] = []

    def add(self, answer: _ferromq.Records) -> tuple[tuple[int, str] | None, int | None]:
        """Decode an answer, and keep it."""
        self._answers.append(answer)
        return super().add(answer)

    def result(self) -> MessageTable:
        """Return the rows of all answers."""
        return MessageTable(super().result(), self._messages)

    def _messages(self) -> list[_ferromq.MessageView]:
        answers = [_ferromq.decode_records_answer(answer, *self._origin) for answer in self._answers]
        return [message for _, messages, _ in answers for message in messages]


def decode_columns(
    answer: Packets | _ferromq.Records, lease: "_ferromq.LeaseKeeper", endpoint: str, namespace: str
) -> Decoded[Any]:
    """Decode the answer to a `Stream` into a `pyarrow.Table`; topics are named without the *namespace*."""
    return _decode_rows(answer, (lease, endpoint, namespace), to_arrow, ColumnParts)


def decode_table(
    answer: Packets | _ferromq.Records, lease: "_ferromq.LeaseKeeper", endpoint: str, namespace: str
) -> Decoded[MessageTable]:
    """Decode the answer to a `Stream` into columns; topics are named without the *namespace*."""
    return _decode_rows(answer, (lease, endpoint, namespace), table_of, TableParts)


def _decode_rows(
    answer: Packets | _ferromq.Records,
    origin: tuple["_ferromq.LeaseKeeper", str, str],
    of_messages: Callable[[list[_ferromq.MessageView]], Any],
    parts_of: type["ColumnParts"],
) -> Decoded[Any]:
    if isinstance(answer, Packets):
        status, messages, next_offset = decode_messages(answer, *origin)
        return status, of_messages(messages), next_offset
    parts = parts_of(*origin, len(answer))
    status, next_offset = parts.add(answer)
    return status, parts.result(), next_offset


@dataclass(frozen=True, slots=True)
class Join:
    """Let the session make itself known at an endpoint, and wait until it is; producers name their topic, too."""

    endpoint: str
    timeout: float
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Arrive:
    """Wait until one of several brokers has messages; the answer is the names of those that have."""

    watched: list[tuple[str, str, bytes]]
    """Name, endpoint and the request of a receive."""
    timeout: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Await:
    """Wait for a future that another thread ends; the answer is its result. Raises `RequestTimeout` after *timeout*."""

    future: "Future[Any]"
    timeout: float


Step = Call | Stream | Begin | End | Join | Arrive | Pause | Await
Plan = Generator[Step, Any, T]
"""Yields steps, is sent their answers (or thrown their errors), and returns a T."""


# --- who asks ------------------------------------------------------------------------------------------------

_clients = itertools.count()


class Identity:
    """Names this client to servers."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        self.credentials = credentials
        """What its requests are signed with."""
        self._whole: Metadata = ()
        self.take_name()

    def take_name(self) -> None:
        """Take a name of this process that no other client has."""
        self.host = socket.gethostname()
        self.version = _ferromq.__version__
        self.client_id = f"{self.host}@{os.getpid()}@{next(_clients)}@{time.time_ns():x}"
        node = uuid.getnode()
        self.process = node.to_bytes(6, "big") + (os.getpid() & 0xFFFF).to_bytes(2, "big")
        """The part of message ids that says who made them."""
        self._fixed = (
            ("x-mq-client-id", self.client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", self.version),
            ("x-mq-protocol", "GRPC_V2"),
            (RECEIPTS, "1"),
        )
        self._requests = itertools.count(1)

    def ask_for_whole_routes(self) -> None:
        """Have routes answered with every queue of the topic, or with an error that names the missing broker."""
        self._whole = ((WHOLE, "1"),)

    def metadata(self) -> Metadata:
        """Return what goes with each request."""
        return (
            *self._fixed,
            *self._whole,
            *self.signature(),
            ("x-mq-request-id", f"{self.client_id}-{next(self._requests):x}"),
        )

    def signature(self) -> Metadata:
        """Return the time, and its signature if there are credentials."""
        date_time = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        if self.credentials is None:
            return ((DATE_TIME, date_time),)
        return (DATE_TIME, date_time), (AUTHORIZATION, self.credentials.authorization(date_time))

    def of_frames(self) -> list[tuple[str, str]]:
        """Return the fields of each framed call that say who sends it; servers do not look at the age of the time."""
        return [] if self.credentials is None else list(self.signature())

    def user_agent(self) -> pb.UA:
        """Return what the settings say of this program."""
        return pb.UA(
            language=pb.Language.PYTHON,
            version=self.version,
            platform=platform.platform(terse=True),
            hostname=self.host,
        )


def seconds(value: timedelta | float) -> float:
    """Return a duration in seconds; raises `ValueError` for a negative one, `TypeError` for no duration."""
    given: object = value
    try:  # float() reads a text, too
        taken = None if isinstance(given, (str, bytes, bool)) else value
        result = taken.total_seconds() if isinstance(taken, timedelta) else float(taken)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"a duration is a timedelta or a number of seconds, not {given!r}") from None
    if result < 0:
        raise ValueError(f"a duration cannot be negative, this one is {value}")
    return result


_TIMES = range(10**12, 253_402_300_800_000)
"""The milliseconds from 2001 to 9999. Below are the seconds of these years, above their microseconds."""


def milliseconds(when: datetime | int) -> int:
    """
    Return a time, an aware `datetime` or milliseconds since 1970, in milliseconds.

    Raises `ValueError` for a number that is a time between 2001 and 9999 in another unit only; 0 is before all others.
    """
    if isinstance(when, datetime):
        return max(0, round(when.timestamp() * 1000))
    if when and when not in _TIMES:
        unit = "seconds: multiply them by 1000" if when < _TIMES.start else "microseconds: divide them by 1000"
        raise ValueError(
            f"a time is an aware datetime, 0, or {_TIMES.start} milliseconds since 1970 or more; {when} may be {unit}"
        )
    return when


def duration(value: float) -> pb.Duration:
    """Return seconds as the protocol writes them, to the millisecond."""
    result = pb.Duration()
    result.FromMilliseconds(round(value * 1000))
    return result


def resource(name: str, namespace: str = "") -> pb.Resource:
    """
    Return a topic or group.

    The namespace is a part of the name: RocketMQ's proxy and ferromq do not read `Resource.resource_namespace`.
    """
    return pb.Resource(name=naming.in_namespace(namespace, name))


# --- answers -------------------------------------------------------------------------------------------------

_ERRORS: dict[int, type[RequestError]] = {
    pb.Code.ILLEGAL_TOPIC: IllegalName,
    pb.Code.ILLEGAL_CONSUMER_GROUP: IllegalName,
    pb.Code.ILLEGAL_FILTER_EXPRESSION: IllegalFilter,
    pb.Code.INVALID_RECEIPT_HANDLE: LeaseExpired,
    pb.Code.UNAUTHORIZED: Forbidden,
    pb.Code.FORBIDDEN: Forbidden,
    pb.Code.TOPIC_NOT_FOUND: TopicNotFound,
    pb.Code.CONSUMER_GROUP_NOT_FOUND: GroupNotFound,
    pb.Code.PAYLOAD_TOO_LARGE: MessageTooLarge,
    pb.Code.MESSAGE_BODY_TOO_LARGE: MessageTooLarge,
    pb.Code.MESSAGE_PROPERTIES_TOO_LARGE: MessageTooLarge,
    pb.Code.TOO_MANY_REQUESTS: Throttled,
    pb.Code.LITE_TOPIC_QUOTA_EXCEEDED: Throttled,
    pb.Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Throttled,
    pb.Code.NOT_IMPLEMENTED: Unsupported,
    pb.Code.UNSUPPORTED: Unsupported,
    pb.Code.VERSION_UNSUPPORTED: Unsupported,
    pb.Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED: Unsupported,
}
_NOT_DURABLE = {pb.Code.MASTER_PERSISTENCE_TIMEOUT, pb.Code.SLAVE_PERSISTENCE_TIMEOUT, pb.Code.HA_NOT_AVAILABLE}
_TIMED_OUT = {pb.Code.REQUEST_TIMEOUT, pb.Code.PROXY_TIMEOUT}
_SERVER_FAILED = 50000
# The protocol has no code of its own for it; the text is the store's.
_DISK_FULL = "disk full"
_OVER_LIMIT = "larger than max"
_NO_GROUP = "group not found"

RETRYABLE = (OutcomeUnknown, Throttled, ServerError, StoreFull)
"""Another try, maybe with another broker, may end better."""


_OF_ALL = (ServerError, Throttled, TopicNotFound, Forbidden, Unsupported)


def may_be_one(error: Exception) -> bool:
    """Say whether a batch was surely refused, and maybe for the sake of one message: the others may be sent anew."""
    return isinstance(error, ValueError) or (isinstance(error, RequestError) and not isinstance(error, _OF_ALL))


def error_of(code: int, text: str) -> FerromqError:
    """Return the exception for a code that is not OK."""
    if _DISK_FULL in text:
        return StoreFull(text)
    if code in _NOT_DURABLE:
        return NotDurable(text, code, text)
    if code in _TIMED_OUT:
        return RequestTimeout(text)
    default = ServerError if code >= _SERVER_FAILED else RequestError
    return _ERRORS.get(code, default)(text or f"the server answered the code {code}", code, text)


def check(status: pb.Status) -> None:
    """Raise the exception of a status, unless it is OK."""
    if status.code != pb.Code.OK:
        raise error_of(status.code, status.message)


def decoded(response: Any, packet: bytes, endpoint: str, method: str) -> Any:
    """Return *packet* as a *response*. Raises `OutcomeUnknown` if it is no such message."""
    try:
        return response.FromString(packet)
    except DecodeError as error:
        raise OutcomeUnknown(f"{method} failed at {endpoint}: the answer cannot be decoded: {error}") from error


_REFUSALS: Mapping[int, type[RequestError]] = {
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.SYSTEM_ERROR: ServerError,
    ResponseCode.SYSTEM_BUSY: Throttled,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Unsupported,
    ResponseCode.NO_PERMISSION: Forbidden,
}
_ABOUT_NAME = re.compile(r"\b(topic|group)\b.*\b(name|illegal|characters?|blank|long|length|reserved)\b", re.IGNORECASE)


def refusal(address: str, request: str, code: int, remark: str | None) -> FerromqError:
    """Return the exception for a *code* of the remoting protocol that is no success."""
    text = f"{address} refused {request}: {remark or f'code {code}, without a remark'}"
    if code == ResponseCode.SERVICE_NOT_AVAILABLE and (remark or "").startswith(_DISK_FULL):
        return StoreFull(text)
    # RocketMQ has one code for all wrong parameters. Names are checked before sending, but its rules may differ.
    about_name = code == ResponseCode.INVALID_PARAMETER and _ABOUT_NAME.search(remark or "")
    return (IllegalName if about_name else _REFUSALS.get(code, RequestError))(text, code, remark or "")


_GRPC_CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""By number."""


def grpc_code(number: int) -> str:
    """Return the name of gRPC's status code."""
    return _GRPC_CODES[number] if 0 <= number < len(_GRPC_CODES) else "UNKNOWN"


_OF_OFFSETS = {"GetOffset", "PullMessage", "QueryOffset", "UpdateOffset"}
_NO_OFFSETS = "RocketMQ's proxy has no offsets: connect with namesrv=, which reaches the brokers that have them"


def transport_error(code: str, details: str | None, endpoint: str, method: str, timeout: float) -> FerromqError:
    """Return the exception for a call that failed below the protocol; *code* is gRPC's."""
    if code == "DEADLINE_EXCEEDED":
        return RequestTimeout(f"no answer from broker {endpoint} within {timeout:g} s ({method})")
    if code == "CANCELLED":
        return ConnectionFailed(f"the call of broker {endpoint} was cancelled ({method})")
    if code == "UNAVAILABLE":
        return ConnectionFailed(_unreachable(details or "no reason given", endpoint))
    if code == "UNIMPLEMENTED":
        way_out = f"; {_NO_OFFSETS}" if method in _OF_OFFSETS else ""
        return Unsupported(f"{endpoint} does not know {method}: {details}{way_out}")
    refused = _refusal_below(code, details or "")
    if refused is not None:
        return refused(f"{endpoint} refused {method}: {details}")
    return OutcomeUnknown(f"{method} failed at {endpoint}: {details} ({code})")


def _refusal_below(code: str, details: str) -> type[RequestError] | None:
    """Return the error class of a refusal by gRPC itself; None if the code is no refusal."""
    if code == "RESOURCE_EXHAUSTED":
        # grpc refuses what is over its own limit with the same code as a server that has too much to do.
        return MessageTooLarge if _OVER_LIMIT in details else Throttled
    if code == "INVALID_ARGUMENT":
        # RocketMQ's proxy refuses the settings of a client so, and gives no code of the protocol.
        return GroupNotFound if _NO_GROUP in details else RequestError
    return None


_UNTRUSTED = "its certificate is signed by none that tls= trusts"
_REFUSED, _NO_ROUTE, _NO_NETWORK = "connection refused", "no route to host", "network is unreachable"
_REASONS = {
    _REFUSED: _REFUSED,
    f"[errno {errno.ECONNREFUSED}]": _REFUSED,
    _NO_ROUTE: _NO_ROUTE,
    f"[errno {errno.EHOSTUNREACH}]": _NO_ROUTE,
    _NO_NETWORK: _NO_NETWORK,
    f"[errno {errno.ENETUNREACH}]": _NO_NETWORK,
    "connection reset": "connection reset; a broker that takes TLS alone does this to clients without tls=",
    "unable to get local issuer": _UNTRUSTED,
    "self signed certificate": _UNTRUSTED,
    "certificate has expired": "its certificate has expired",
    "hostname verification": "its certificate is for another host; Tls(server_name=...) names the expected one",
    "wrong_version_number": "it does not speak TLS; leave tls= out, or set up TLS there",
    "dns resolution failed": "unknown host",
    "name resolution": "unknown host",
    "domain name not found": "unknown host",
    "name or service not known": "unknown host",
    "settings frame": "it does not speak gRPC, or not in time",
}


def why_unreachable(details: str) -> str | None:
    """Return in the user's words why a server is not reached; None for *details* that are not known."""
    text = details.lower()
    return next((said for found, said in _REASONS.items() if found in text), None)


def _unreachable(details: str, endpoint: str) -> str:
    """Say in the user's words that a broker is not reached, or no longer; *details* are gRPC's."""
    reason = why_unreachable(details)
    if reason is None:
        # What follows the last address that gRPC tried.
        reason = details.rpartition("last error: ")[2].rpartition(f"{endpoint}: ")[2]
    return f"cannot reach broker {endpoint} ({reason})"


def named(error: FerromqError, what: str) -> FerromqError:
    """Return the same error with its notes, its text beginning with *what*."""
    return reworded(error, f"{what}: {error}")


def reworded(error: FerromqError, text: str) -> FerromqError:
    """Return the same error with its notes and another text."""
    if isinstance(error, (RequestError, NotDurable)):
        again: FerromqError = type(error)(text, error.code, error.remark)
    else:
        again = type(error)(text)
    for note in getattr(error, "__notes__", ()):
        again.add_note(note)
    return again


def backoff(attempt: int) -> float:
    """Return the seconds to wait before *attempt* (1 is the first repetition)."""
    return min(0.1 * 4.0 ** (attempt - 1), 3.0)
