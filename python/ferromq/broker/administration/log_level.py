"""ChangeLogLevel, the one method served of RocketMQ's Admin service over gRPC."""

from google.protobuf.message import DecodeError

from ferromq._ferromq import Request
from ferromq._proto import messages as pb
from ferromq.broker.grpc_answers import enum_name
from ferromq.errors import ConfigError
from ferromq.process import logs
from ferromq.protocol import audit
from ferromq.protocol.codes import ResponseCode

_NAME = "ChangeLogLevel"


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
        audit.write(request, _NAME, [f"level={level}"], ResponseCode.INVALID_PARAMETER.name)
    else:
        remark = f"the log level is {level}"
        audit.write(request, _NAME, [f"level={level}"], ResponseCode.SUCCESS.name)
    return pb.ChangeLogLevelResponse(remark=remark).SerializeToString()
