"""
All exceptions of ferromq.

Each branch tells the caller what to do next. Classes with a builtin base can also be caught by that base::

    FerromqError
    ├ ClientClosed                        the client was closed, and nothing was sent: create a new one
    ├ ConfigError (ValueError)            an option or a file is wrong: correct it
    ├ CorruptMessage (ValueError)         a received body is damaged: see `raw_body`, or skip it
    ├ DataLost                            messages that a stream should read are gone: decide whether to go on
    ├ ForkedProcess                       created before a fork, used in the child: create a new one there
    ├ RowError                            a row of a Spark DataFrame cannot become a message: correct the row
    ├ StoreError                          the local engine refused; nothing was stored
    │ ├ CorruptStore                        bytes on disk break the format
    │ ├ StoreLocked                         another broker has the directory open
    │ ├ StoreClosed                         closed, or stopped after a failed flush
    │ └ StoreFull                           no space on the disk; it reopens by itself
    ├ RequestError (.code .remark)        the server refused; nothing happened
    │ ├ AlreadyExists                       it exists with other settings: alter it, or choose another name
    │ ├ TopicNotFound                       create the topic
    │ ├ GroupNotFound                       create the consumer group
    │ ├ UserNotFound                        create the user
    │ ├ PolicyNotFound                      the user has no such entry: see its policies
    │ ├ MessageTooLarge (ValueError)        make the message smaller
    │ ├ IllegalName (ValueError)            choose another topic or group name
    │ ├ IllegalFilter (ValueError)          correct the expression
    │ ├ Forbidden                           the permission is missing
    │ ├ Throttled                           wait, then try again
    │ ├ LeaseExpired                        drop the message; it is redelivered
    │ ├ RequesterGone                       drop the reply; its requester is no longer connected
    │ ├ Unsupported                         this server does not know the request
    │ └ ServerError                         the server failed; its log says why
    └ OutcomeUnknown                      it may have happened: try again and expect a duplicate
      ├ ConnectionFailed (ConnectionError)  the server cannot be reached, or the connection broke
      ├ RequestTimeout (TimeoutError)       no answer in time
      └ NotDurable (.code .remark)          stored, but its flush or replication failed, or took too long

Handlers of `Consumer.run` raise three more, to decide what happens to a message::

    Exception
    ├ Failed (.failures)                  of a batch: these messages failed, the others are handled
    ├ Reject (.reason)                    a dead letter now
    │ └ Undecodable                         the body is no value of the consumer's `decode`
    └ RetryAfter (.seconds)               redelivered after that time; it counts as an attempt

All exceptions can be pickled with their attributes.
"""
# ruff: noqa: N818 (the names are clear; "Error" is for the branches)

from collections.abc import Mapping as _Mapping
from datetime import timedelta as _timedelta
from typing import Any as _Any

__all__ = [
    "AlreadyExists",
    "ClientClosed",
    "ConfigError",
    "ConnectionFailed",
    "CorruptMessage",
    "CorruptStore",
    "DataLost",
    "Failed",
    "FerromqError",
    "Forbidden",
    "ForkedProcess",
    "GroupNotFound",
    "IllegalFilter",
    "IllegalName",
    "LeaseExpired",
    "MessageTooLarge",
    "NotDurable",
    "OutcomeUnknown",
    "PolicyNotFound",
    "Reject",
    "RequestError",
    "RequestTimeout",
    "RequesterGone",
    "RetryAfter",
    "RowError",
    "ServerError",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "Throttled",
    "TopicNotFound",
    "Undecodable",
    "Unsupported",
    "UserNotFound",
]


class FerromqError(Exception):
    """The base of all exceptions of ferromq."""


class ClientClosed(FerromqError):
    """
    A producer, consumer or administrator was used after its `close`, or closed before it could send.

    Nothing was sent. Requests in progress at that moment raise an `OutcomeUnknown` instead.
    """


class ConfigError(FerromqError, ValueError):
    """An option, a configuration file or a combination of options is wrong."""


class CorruptMessage(FerromqError, ValueError):
    """
    The body of a received message does not match its checksum, or is marked as compressed but cannot be decompressed.

    Reading `body` raises it; `raw_body` has the bytes as received. The text names message id, topic, queue and offset.
    Other messages of the answer are not affected.
    """


class DataLost(FerromqError):
    """Messages that a stream should read are gone; the text names queues and offsets, and the present range."""


class ForkedProcess(FerromqError):
    """An object created before `os.fork` was used in the child, where its threads and connections do not exist."""


class RowError(FerromqError):
    """A row of a Spark DataFrame cannot become a message; the text names the row of its partition and the column."""


class StoreError(FerromqError):
    """The local engine refused; nothing was stored."""


class CorruptStore(StoreError):
    """Bytes on disk break the format; the message names file and offset."""


class StoreLocked(StoreError):
    """Another broker has the store directory open."""


class StoreClosed(StoreError):
    """The store is closed, or has stopped writing after a failed flush."""


class StoreFull(StoreError):
    """The disk has less free space than the reserve; sends are accepted again once there is space."""


class _Answer(FerromqError):
    """Carries the response code and the remark of the server."""

    code: int | None
    """The code of the answer: gRPC's (40402) or the remoting protocol's (17); None if nothing was sent."""
    remark: str
    """The server's text."""

    def __init__(self, message: str = "", code: int | None = None, remark: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.remark = message if remark is None else remark


class RequestError(_Answer):
    """The server refused the request, and nothing happened."""


class AlreadyExists(RequestError):
    """The topic or group exists with other settings; the text names both, and the call that alters it."""


class TopicNotFound(RequestError):
    """The topic does not exist and cannot be created on first use."""


class GroupNotFound(RequestError):
    """The consumer group does not exist and cannot be created on first use."""


class UserNotFound(RequestError):
    """No broker has the user."""


class PolicyNotFound(RequestError):
    """The user has no such entry in its policies."""


class MessageTooLarge(RequestError, ValueError):
    """The body, or the whole message, is over the limit; the text names the limit."""


class IllegalName(RequestError, ValueError):
    """A topic or group name breaks RocketMQ's rules; the text names the rule."""


class IllegalFilter(RequestError, ValueError):
    """The filter expression is invalid; the text names the position and the reason."""


class Forbidden(RequestError):
    """The permission of the topic or the caller does not allow the request."""


class Throttled(RequestError):
    """The server is busy and refused the request."""


class LeaseExpired(RequestError):
    """The lease of the message ended; the message is redelivered, perhaps to another consumer."""


class RequesterGone(RequestError):
    """The client that sent a request has no connection to the broker any more, so that nothing can take the reply."""


class Unsupported(RequestError):
    """The server does not support the request, or the combination of its fields."""


class ServerError(RequestError):
    """The server failed while it answered."""


class OutcomeUnknown(FerromqError):
    """The request may have been executed or not. Try again if a duplicate does no harm."""


class ConnectionFailed(OutcomeUnknown, ConnectionError):
    """The server cannot be reached, or the connection broke before the answer came."""


class RequestTimeout(OutcomeUnknown, TimeoutError):
    """No answer came in time."""


class NotDurable(_Answer, OutcomeUnknown):
    """The message is stored but not flushed or replicated as promised; it may be gone after a restart."""


class Reject(Exception):
    """
    Raised by a handler of `Consumer.run` to make the message a dead letter now, whatever attempts are left.

    In an ordered group the next message follows. *reason* becomes the dead letter's property `DLQ_REASON`.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Undecodable(Reject):
    """
    The body of a message cannot be decoded as the consumer's `decode` says; its cause is the decoder's error.

    Such a message becomes a dead letter at its first delivery, with the error as `DLQ_REASON`: it would fail each time.
    """


_LONGEST_RETRY = 12 * 3600


class RetryAfter(Exception):
    """
    Raised by a handler of `Consumer.run` to have the message redelivered after *seconds*, or after a `timedelta`.

    It counts as an attempt: after the group's last attempt the message becomes a dead letter. In an ordered group the
    following messages wait. Raises `ValueError` for a negative time, and for more than 12 hours, the longest lease of a
    message.
    """

    def __init__(self, seconds: _timedelta | float) -> None:
        self.seconds = seconds.total_seconds() if isinstance(seconds, _timedelta) else float(seconds)
        if not 0 <= self.seconds <= _LONGEST_RETRY:
            raise ValueError(f"RetryAfter takes 0 s to {_LONGEST_RETRY} s, not {seconds}")
        super().__init__(self.seconds)


class Failed(Exception):
    """
    Raised by a handler of batches: the messages of *failures* failed, and the others of the batch are handled.

    *failures* has the cause for each of these messages: a text, `Reject`, `RetryAfter`, or another exception. What
    becomes of the message is as if a handler of single messages had raised the cause. In an ordered group the messages
    behind the first failed one are handed out once more. Raises `ValueError` without a message.
    """

    def __init__(self, failures: _Mapping[_Any, Exception | str]) -> None:
        if not failures:
            raise ValueError("Failed names no message; return from the handler if all are handled")
        super().__init__(failures)
        self.failures = dict(failures)
