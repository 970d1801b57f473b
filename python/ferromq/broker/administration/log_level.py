"""RocketMQ's Admin service over gRPC, of which one method is served: the log level of the process, while it runs."""

import logging

from google.protobuf.message import DecodeError

from ferromq._ferromq import Request
from ferromq._proto import messages as pb
from ferromq.broker.grpc_answers import enum_name
from ferromq.errors import ConfigError
from ferromq.process import logs

_log = logging.getLogger("ferromq.broker")


def change_log_level(request: Request) -> bytes:
    """Answer ChangeLogLevel: all logs of the process are of this level from now on, Rust's and Python's."""
    try:
        wanted = pb.ChangeLogLevelRequest.FromString(request.body).level
        level = enum_name(pb.ChangeLogLevelRequest.Level.Name, wanted)
        logs.change(level.lower())
    except DecodeError as error:
        remark = f"not changed, this is no ChangeLogLevelRequest: {error}"
    except ConfigError as error:
        remark = f"not changed: {error}"
    else:
        remark = f"the log level is {level}"
        _log.warning("log level changed level=%s peer=%s", level, request.peer)
    return pb.ChangeLogLevelResponse(remark=remark).SerializeToString()
