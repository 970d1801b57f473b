"""The log lines for messages that were not handled as they should be; what becomes of them is in `core.retry`."""

import logging

from ferromq.core.retry import Verdict
from ferromq.errors import FerromqError, Reject, RequesterGone, RetryAfter
from ferromq.message import MessageView

_log = logging.getLogger("ferromq.client")


def say_failed(message: MessageView, attempt: int, verdict: Verdict, error: Exception | None) -> None:
    """Log what a handler raised, and what becomes of the message; *error*: has the traceback, if it was not logged."""
    delay = verdict.delay
    then = "it goes to the dead letter queue" if delay is None else f"it is redelivered after {delay:g} s"
    _log.warning(
        "handler failed topic=%s message_id=%s attempt=%d, %s: %s",
        message.topic,
        message.message_id,
        attempt,
        then,
        verdict.cause.reason or verdict.cause.exception,
        exc_info=None if verdict.is_planned else error,
    )


def say_undecodable(message: MessageView, error: Reject | RetryAfter) -> None:
    """Log what becomes of a message that a loop or a receive does not get, because its body does not decode."""
    then = (
        f"it is redelivered after {error.seconds:g} s" if isinstance(error, RetryAfter) else "it is a dead letter now"
    )
    _log.warning("body not decoded topic=%s message_id=%s, %s: %s", message.topic, message.message_id, then, error)


def say_redelivered(message: MessageView, error: FerromqError) -> None:
    """Log why such a message stays in its queue: the broker could not be told."""
    _log.warning("message is redelivered message_id=%s: %s", message.message_id, error)


def say_requester_gone(message: MessageView, error: RequesterGone) -> None:
    """Log that nothing takes a reply: another attempt at the request would be as useless."""
    _log.warning("reply dropped topic=%s message_id=%s: %s", message.topic, message.message_id, error)


def say_failed_after_end(message: MessageView) -> None:
    """Log what a handler raised that had acknowledged or forwarded its message."""
    _log.warning("handler failed after it ended its message message_id=%s", message.message_id, exc_info=True)
