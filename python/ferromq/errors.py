"""
The whole tree of exceptions, for every room of ferromq.

It holds no logic: who raises what is decided where it is raised. Branches answer the question of the one who
catches: what may I do now? The classes that have a builtin base beside them can be caught by that, too::

    FerromqError
    ├ ClientClosed                        the client was closed, and nothing was sent: make a new one
    ├ ConfigError (ValueError)            an option or a file is wrong: correct it
    ├ CorruptMessage (ValueError)         a received body does not decompress: see `raw_body`, or give it up
    ├ DataLost                            messages that a stream should read are gone: decide whether to go on
    ├ ForkedProcess                       made before a fork, used in the child: make it anew there
    ├ RowError                            a row of a Spark DataFrame cannot become a message: correct the row
    ├ StoreError                          the local engine refused; nothing was stored
    │ ├ CorruptStore                        bytes on disk break the format
    │ ├ StoreLocked                         another broker has the directory open
    │ ├ StoreClosed                         closed, or stopped after a failed flush
    │ └ StoreFull                           no space on the disk; it reopens by itself
    ├ RequestError (.code .remark)        the answer was no; nothing happened
    │ ├ AlreadyExists                       it exists with other settings: alter it, or choose another name
    │ ├ TopicNotFound                       create the topic
    │ ├ GroupNotFound                       create the consumer group
    │ ├ MessageTooLarge (ValueError)        make the message smaller
    │ ├ IllegalName (ValueError)            choose another topic or group name
    │ ├ IllegalFilter (ValueError)          correct the expression
    │ ├ Forbidden                           the permission is missing
    │ ├ Throttled                           wait, then try again
    │ ├ LeaseExpired                        drop the message; it is redelivered
    │ ├ Unsupported                         this server does not know the request
    │ └ ServerError                         the server failed; its log says why
    └ OutcomeUnknown                      it may have happened: try again and expect a duplicate
      ├ ConnectionFailed (ConnectionError)  the server is not reached, or the connection broke
      ├ RequestTimeout (TimeoutError)       no answer in time
      └ NotDurable (.code .remark)          stored, but its flush or replication failed, or took too long

Two more are raised by handlers of `Consumer.run`, not by ferromq, and say what becomes of a message::

    Exception
    ├ Reject (.reason)                    a dead letter now
    └ RetryAfter (.seconds)               redelivered after that time; it counts as an attempt

Every exception survives pickling, with its attributes.
"""
# ruff: noqa: N818 (the names say what happened; "Error" is kept for the branches)

from datetime import timedelta as _timedelta

__all__ = [
    "AlreadyExists",
    "ClientClosed",
    "ConfigError",
    "ConnectionFailed",
    "CorruptMessage",
    "CorruptStore",
    "DataLost",
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
    "Reject",
    "RequestError",
    "RequestTimeout",
    "RetryAfter",
    "RowError",
    "ServerError",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "Throttled",
    "TopicNotFound",
    "Unsupported",
]


class FerromqError(Exception):
    """Is the base of everything ferromq raises on purpose."""


class ClientClosed(FerromqError):
    """
    A producer, consumer or administrator was used after its `close`, or closed before it could send.

    Nothing was sent. What was under way at that moment raises an `OutcomeUnknown` instead.
    """


class ConfigError(FerromqError, ValueError):
    """An option, a configuration file or a combination of options is wrong."""


class CorruptMessage(FerromqError, ValueError):
    """
    The body of a received message does not decompress, though the message says it is compressed.

    The text names message id, topic, queue and offset. Other messages of the answer are not touched by it.
    """


class DataLost(FerromqError):
    """Messages that a stream should read are not there any more; the text names queues, offsets and what is there."""


class ForkedProcess(FerromqError):
    """An object made before `os.fork` was used in the child, where its threads and connections do not exist."""


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
    """The disk has less free space than the reserve; sends are taken again once space is back."""


class _Answer(FerromqError):
    """Carries the response code and the remark of the server."""

    code: int | None
    """The code that came: gRPC's (40402) or the remoting protocol's (17); None where nothing was sent."""
    remark: str
    """The words of the server."""

    def __init__(self, message: str = "", code: int | None = None, remark: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.remark = message if remark is None else remark


class RequestError(_Answer):
    """The answer was no, and nothing happened."""


class AlreadyExists(RequestError):
    """What is to be created exists with other settings; the text names both, and the call that alters it."""


class TopicNotFound(RequestError):
    """The topic does not exist and may not be created on first use."""


class GroupNotFound(RequestError):
    """The consumer group does not exist and may not be created on first use."""


class MessageTooLarge(RequestError, ValueError):
    """The body, or the whole message, is over the limit; the text names the limit."""


class IllegalName(RequestError, ValueError):
    """A topic or group name breaks RocketMQ's rules; the text names the rule."""


class IllegalFilter(RequestError, ValueError):
    """The expression of a subscription is none; the text names the position and the reason."""


class Forbidden(RequestError):
    """The topic's permission, or the caller's, does not allow it."""


class Throttled(RequestError):
    """The server is busy and refused at once."""


class LeaseExpired(RequestError):
    """The lease of the message ended; the message is redelivered, perhaps to another consumer."""


class Unsupported(RequestError):
    """The server does not know this request, or the combination of its fields."""


class ServerError(RequestError):
    """The server failed while it answered."""


class OutcomeUnknown(FerromqError):
    """It may have happened or not: trying again is right where a duplicate does no harm."""


class ConnectionFailed(OutcomeUnknown, ConnectionError):
    """The server is not reached, or the connection broke before the answer came."""


class RequestTimeout(OutcomeUnknown, TimeoutError):
    """No answer came in time."""


class NotDurable(_Answer, OutcomeUnknown):
    """The message is stored, but its promise (flush, replication) was not kept; it may be gone after a restart."""


class Reject(Exception):
    """
    Raised by a handler of `Consumer.run`: the message goes to the group's dead letters now, whatever attempts are left.

    In a group that keeps order the next message begins after that. *reason* is the dead letter's property `DLQ_REASON`.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


_LONGEST_RETRY = 12 * 3600


class RetryAfter(Exception):
    """
    Raised by a handler of `Consumer.run`: the message is handled again after *seconds*, or after a `timedelta`.

    It counts as an attempt: after the group's last one the message is a dead letter. In a group that keeps order it is
    handled again in place, and what follows it waits. Raises `ValueError` for a negative time, and for one above 12
    hours, the longest that a broker leases a message for.
    """

    def __init__(self, seconds: _timedelta | float) -> None:
        self.seconds = seconds.total_seconds() if isinstance(seconds, _timedelta) else float(seconds)
        if not 0 <= self.seconds <= _LONGEST_RETRY:
            raise ValueError(f"a message can be retried after 0 s to {_LONGEST_RETRY} s, not after {seconds}")
        super().__init__(self.seconds)
