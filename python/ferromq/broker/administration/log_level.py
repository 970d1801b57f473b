"""ChangeLogLevel, the one method served of RocketMQ's Admin service over gRPC."""

import logging

from google.protobuf.message import DecodeError

from ferromq._ferromq import Request
from ferromq._proto import messages as pb
from ferromq.broker.grpc_answers import enum_name
from ferromq.errors import ConfigError
from ferromq.process import logs

_log = logging.getLogger("ferromq.broker")


def change_log_level(request: Request) -> bytes:
    """Answer ChangeLogLevel: set the level of all logs of the process, Rust's and Python's."""
    try:
        wanted = pb.ChangeLogLevelRequest.FromString(request.body).level
        level = enum_name(pb.ChangeLogLevelRequest.Level.Name, wanted)
        logs.change(level.lower())
    except DecodeError as error:
        remark = f"not changed, the body is not a ChangeLogLevelRequest: {error}"
    except ConfigError as error:
        remark = f"not changed: {error}"
    else:
        remark = f"the log level is {level}"
        _log.warning("log level changed level=%s peer=%s", level, request.peer)
    return pb.ChangeLogLevelResponse(remark=remark).SerializeToString()
