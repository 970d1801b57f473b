"""
What becomes of the messages of a batch after its handler was called.

No I/O and no threads: `aio._handling` and `client.handling` carry it out.
"""

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ferromq._ferromq import MessageView
from ferromq.core.ahead import Held
from ferromq.core.arguments import whole_number
from ferromq.core.payloads import DecodedMessage, Decoder, plain
from ferromq.errors import ConfigError, Failed, Reject, RequesterGone, RetryAfter

_log = logging.getLogger("ferromq.client")

Causes = dict[MessageView, Exception | str]


def check_batch(batch: int | None, linger: float, prefetch: int | None) -> None:
    """Raise `ConfigError` for a batch of no messages, one that *prefetch* never fills, or a linger without a batch."""
    if batch is None:
        if linger:
            raise ConfigError(f"linger is {linger:g} s, which only a batch waits; give batch=")
        return
    whole_number("batch", batch, 1)
    if prefetch is not None and prefetch < batch:
        raise ConfigError(f"batch is {batch}, and prefetch is {prefetch}; give a prefetch of at least {batch}, or None")


def of_batches(
    handler: Callable[[list[Any]], Any], decoder: Decoder[Any], in_order: Callable[[], bool]
) -> Callable[[list[MessageView]], Any]:
    """
    Return a handler of batches as they are received, which gives *handler* what the decoder makes of them.

    Messages that do not decode fail; *handler* gets the others. *in_order* it gets those before the first that fails:
    the others are handed out once more, and must not be handled twice.
    """
    if not decoder.is_on:
        return handler

    @functools.wraps(handler)
    def decoded(messages: list[MessageView]) -> Any:
        given: list[DecodedMessage[Any]] = []
        failures: Causes = {}
        for message in messages:
            try:
                given.append(decoder.given(message))
            except (Reject, RetryAfter) as error:
                failures[message] = error
                if in_order():
                    break
        if not given:
            raise Failed(failures)
        with _together(failures, given):
            result = handler(given)
        if inspect.isawaitable(result):
            return _awaited(result, failures, given)
        if failures:
            raise Failed(failures)
        return result

    return decoded


async def _awaited(result: Awaitable[Any], failures: Causes, given: Sequence[MessageView]) -> Any:
    with _together(failures, given):
        value = await result
    if failures:
        raise Failed(failures)
    return value


@contextmanager
def _together(failures: Causes, given: Sequence[MessageView]) -> Iterator[None]:
    """Raise what the block raises for *given*, and *failures* of other messages of the batch with it."""
    try:
        yield
    except Failed as error:
        raise Failed({**failures, **{plain(message): cause for message, cause in error.failures.items()}}) from error
    except Exception as error:
        if not failures:
            raise
        raise Failed({**failures, **dict.fromkeys(map(plain, given), error)}) from error


def failures_of(error: Exception | None, batch: Sequence[Held]) -> Mapping[MessageView, Exception]:
    """
    Return which messages a call of the handler failed with, and why; *error* is what it raised.

    A reply that `Failed` says nothing takes is logged and is no failure: another attempt would be as useless. Raises
    `ValueError` where `Failed` names a message that is not in the batch.
    """
    messages = [held.message for held in batch]
    if error is None:
        return {}
    if not isinstance(error, Failed):
        return dict.fromkeys(messages, error)
    strange = [message for message in error.failures if message not in messages]
    if strange:
        raise ValueError(f"Failed names {strange[0]!r}, which is not in the handler's batch") from error
    for message, cause in error.failures.items():
        if isinstance(cause, RequesterGone):
            _log.warning("reply dropped topic=%s message_id=%s: %s", message.topic, message.message_id, cause)
    return {
        message: cause if isinstance(cause, Exception) else Exception(cause)
        for message, cause in error.failures.items()
        if not isinstance(cause, RequesterGone)
    }


def sort_batch(
    batch: Sequence[Held], failures: Mapping[MessageView, Exception], *, in_order: bool
) -> tuple[list[Held], list[tuple[Held, Exception]], list[Held]]:
    """
    Return the messages that are handled, those that failed with their causes, and those to hand out once more.

    *in_order* the first failure ends what is handled: what follows it is handed out once more, behind it.
    """
    failed = [(held, failures[held.message]) for held in batch if held.message in failures]
    if not in_order or not failed:
        return [held for held in batch if held.message not in failures], failed, []
    first = batch.index(failed[0][0])
    return list(batch[:first]), failed[:1], list(batch[first + 1 :])
