"""
What a consumer that is called does with a message whose handler failed, as the settings of its group say.

No I/O and no threads: `aio._handling` and `client.handling` carry it out.
"""

from dataclasses import dataclass

from ferromq._ferromq import MessageView
from ferromq._proto import messages as pb
from ferromq.errors import Reject, RetryAfter, Undecodable

# RocketMQ's own, for a server whose settings say nothing.
_DELAYS = (1.0, 5.0, 10.0, 30.0, 60.0)
_MAX_ATTEMPTS = 17


@dataclass(frozen=True, slots=True)
class Retry:
    """The retry policy of a group; times in seconds."""

    is_fifo: bool
    max_attempts: int
    delays: tuple[float, ...] = ()
    """Customised: after the first attempt, the second, …; the last one goes on."""
    initial: float = 0.0
    maximum: float = 0.0
    multiplier: float = 1.0

    @classmethod
    def of(cls, settings: pb.Settings) -> "Retry":
        """Take it from the settings that a broker answered."""
        policy = settings.backoff_policy
        is_fifo, attempts = settings.subscription.fifo, policy.max_attempts
        if policy.WhichOneof("strategy") == "exponential_backoff":
            backoff = policy.exponential_backoff
            initial, maximum = backoff.initial.ToTimedelta(), backoff.max.ToTimedelta()
            return cls(
                is_fifo,
                attempts,
                initial=initial.total_seconds(),
                maximum=maximum.total_seconds(),
                multiplier=backoff.multiplier,
            )
        delays = tuple(delay.ToTimedelta().total_seconds() for delay in policy.customized_backoff.next)
        return cls(is_fifo, attempts if delays else _MAX_ATTEMPTS, delays or _DELAYS)

    def after(self, attempt: int) -> float | None:
        """Return when a message comes again after *attempt* (1 is the first) failed; None: it has had its attempts."""
        if attempt >= self.max_attempts:
            return None
        if self.delays:
            return self.delays[min(attempt, len(self.delays)) - 1]
        # Beyond any maximum long before it is too large for a float.
        return min(self.initial * self.multiplier ** min(attempt - 1, 64), self.maximum)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a message becomes a dead letter."""

    reason: str = ""
    exception: str = ""
    """The class of an exception."""
    attempts: int | None = None
    """How often it was tried, with the tries in place of which the broker does not know; None: as received."""


def cause_of(error: Reject, attempt: int | None = None) -> Cause:
    """Return why a rejected message is dead; of a body that does not decode, the class of the decoder's error."""
    source = error.__cause__ if isinstance(error, Undecodable) else None
    return Cause(error.reason, _class_of(source or error), attempt)


def _class_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a message whose handler failed."""

    delay: float | None
    """Seconds until it is tried again; None: it is a dead letter now."""
    cause: Cause
    is_planned: bool
    """The handler asked for it, so that its traceback is of no interest."""

    @classmethod
    def of(cls, error: Exception, retry: Retry, attempt: int) -> "Verdict":
        """Decide what becomes of a message after *error* in its *attempt* (1 is the first)."""
        if isinstance(error, Reject):
            return cls(None, cause_of(error, attempt), is_planned=True)
        # Its class first: causes are compared by what is before the colon.
        cause = Cause(f"{type(error).__name__}: {error}", _class_of(error), attempt)
        delay = retry.after(attempt)
        if isinstance(error, RetryAfter):
            return cls(None if delay is None else error.seconds, cause, is_planned=True)
        return cls(delay, cause, is_planned=False)


def order_of(message: MessageView) -> str:
    """Return what messages that must be handled one after the other share, in a group that keeps order."""
    group = message.message_group
    where = f"queue {message.endpoint} {message.queue_id}" if group is None else f"group {group}"
    return f"{message.topic} {where}"


class InOrder:
    """Which messages received together may be used: the next of an order once the one before it is acknowledged."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, str, int, int]] = {}
        # Of those: an acknowledgement of any other message is of no interest.
        self._unacknowledged: set[tuple[str, str, int, int]] = set()

    def acknowledged(self, message: MessageView) -> None:
        """Note an acknowledgement."""
        self._unacknowledged.discard(_place(message))

    def may_use(self, message: MessageView) -> bool:
        """Say whether it may be used now; if not it comes again, after the one before it."""
        order = order_of(message)
        if self._last.get(order) in self._unacknowledged:
            return False
        self._last[order] = _place(message)
        self._unacknowledged.add(_place(message))
        return True


def _place(message: MessageView) -> tuple[str, str, int, int]:
    return message.endpoint, message.topic, message.queue_id, message.queue_offset
