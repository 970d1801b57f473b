"""Helpers for cold gRPC requests: bytes to bytes, exceptions to statuses, and checks of names."""

import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from google.protobuf.message import DecodeError

from ferromq._ferromq import Request
from ferromq._proto import messages as pb
from ferromq.errors import IllegalName
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol import naming
from ferromq.protocol.remoting import disk_full

_log = logging.getLogger("ferromq.grpc")
Q = TypeVar("Q")
Q_co = TypeVar("Q_co", covariant=True)


class Refused(Exception):  # noqa: N818 (an answer, not a failure of ours)
    """The request is refused; code and text tell the client why, and what to do."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _RequestType(Protocol[Q_co]):
    def FromString(self, data: bytes) -> Q_co: ...  # noqa: N802 (protobuf's name)


Rpc = Callable[[Request], bytes]


def status(code: int, message: str) -> pb.Status:
    """Return a status."""
    return pb.Status(code=code, message=message)


OK = status(pb.Code.OK, "OK")


def enum_name(name: Callable[[int], str], number: int) -> str:
    """Return the name of an enum value by its `Name` function; the number for a value of a newer protocol."""
    try:
        return name(number)
    except ValueError:
        return str(number)


def rpc(request_type: _RequestType[Q], response_type: Callable[..., Any], answer: Callable[[Q, Request], Any]) -> Rpc:
    """Return a function from bytes to bytes around *answer*, which maps the decoded message to the response."""
    seldom = LimitedLog(_log)

    def handle(request: Request) -> bytes:
        try:
            response = answer(request_type.FromString(request.body), request)
        except DecodeError as error:
            response = response_type(status=status(pb.Code.BAD_REQUEST, f"not a message of this RPC: {error}"))
        except Refused as error:
            response = response_type(status=status(error.code, str(error)))
        except Exception as error:  # noqa: BLE001 (the client gets an answer in any case)
            text = disk_full(error) or f"{type(error).__name__}: {error}"
            if disk_full(error):
                seldom.log(logging.WARNING, "request refused rpc=%s peer=%s: %s", request.route, request.peer, text)
            else:
                failed = "request failed rpc=%s peer=%s"
                seldom.log(logging.ERROR, failed, request.route, request.peer, exc_info=True)
            response = response_type(status=status(pb.Code.INTERNAL_SERVER_ERROR, text))
        encoded: bytes = response.SerializeToString()
        return encoded

    return handle


def topic_name(resource: pb.Resource) -> str:
    """Return the name of a topic; raises `Refused` for an illegal name and for a system topic."""
    try:
        naming.check_topic(resource.name)
    except IllegalName as error:
        raise Refused(pb.Code.ILLEGAL_TOPIC, str(error)) from error
    if naming.is_system_topic(resource.name):
        raise Refused(pb.Code.ILLEGAL_TOPIC, system_topic(resource.name))
    return resource.name


def system_topic(name: str) -> str:
    """Return the error for a client that uses a system topic."""
    return f"the topic {name} belongs to RocketMQ or to the broker itself; choose another name"


def group_name(resource: pb.Resource) -> str:
    """Return the name of a consumer group; raises `Refused` for an illegal name and for a system group."""
    try:
        naming.check_group(resource.name)
    except IllegalName as error:
        raise Refused(pb.Code.ILLEGAL_CONSUMER_GROUP, str(error)) from error
    if resource.name in naming.SYSTEM_GROUPS:
        why = f"the consumer group {resource.name} belongs to RocketMQ; choose another name"
        raise Refused(pb.Code.ILLEGAL_CONSUMER_GROUP, why)
    return resource.name
