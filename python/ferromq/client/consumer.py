"""
The consumer: receives messages under a lease, acknowledges them, or iterates over them as they come.

What is asked and answered is in `core.plans`; how much is received ahead in `core.leases`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import Literal, Self

from ferromq.client.client import Client, Options
from ferromq.client.connection import end_of, remaining
from ferromq.client.holding import Leases, ReceiveAhead
from ferromq.client.push import Runner
from ferromq.client.tls import Tls, TlsFile
from ferromq.core import plans, pull_plans
from ferromq.core.ahead import check_prefetch
from ferromq.core.filters import Sql, filter_expression
from ferromq.core.handlers import check_sync
from ferromq.core.plans import Subscription, Wish
from ferromq.core.pull_plans import Pulled, Queue
from ferromq.core.requests import seconds
from ferromq.core.retry import Cause
from ferromq.message import MessageView
from ferromq.protocol import naming
from ferromq.terminal.objects import described

__all__ = ["Consumer"]

_ACKS_FIRST = 1.0
"""Seconds that a receive gives to the acknowledgements that wait, at most."""


class Consumer:
    """
    Receives the messages of a topic on behalf of a consumer group; thread-safe. Use it in a `with`, or call `close`.

    *endpoint* is the gRPC address of a broker, `host:port`, or several joined by `;`. *filter* is tags joined by `||`,
    or `Sql("price > 3")`; the condition is checked here and by the broker, `IllegalFilter` names the position. Each
    message is leased for *invisible_duration*; unless it is acknowledged until then it comes again, to any member of
    the group. Iteration goes on over restarts of brokers, and renews a message's lease until the next is asked for:

        for message in consumer:
            ...
            message.ack()

    In a group that keeps order, a message comes once those before it, of its message group or else of its queue, are
    acknowledged: nothing is received ahead, and iteration gives back what follows one that was not acknowledged, which
    comes again behind it. `run` calls a function instead. Both hold one message for each thread until they know how
    fast the threads are, then half a second's work at most; *prefetch* is an upper bound.

    Other calls than `receive` end within *timeout* seconds, repetitions and look-ups included; one attempt has at most
    3. *attempts* of 1 means no repetition. *tls* is as of `Producer`.
    """

    def __init__(
        self,
        endpoint: str,
        group: str,
        topic: str,
        *,
        filter: str | Sql = "*",  # noqa: A002 (what it is called everywhere)
        invisible_duration: timedelta | float = timedelta(seconds=30),
        timeout: timedelta | float = 10.0,
        attempts: int = 3,
        tls: bool | TlsFile | Tls = False,
        prefetch: int | None = None,
    ) -> None:
        naming.check_topic(topic)
        naming.check_group(group)
        self._subscription = Subscription(group, topic, filter_expression(filter))
        self._client = Client("consumer", Options(endpoint, timeout, attempts, tls), self._subscription.settings())
        self._invisible = seconds(invisible_duration)
        self._leases = Leases(self._client, self._subscription)
        self._running = threading.Lock()
        self._runner: Runner | None = None
        self._prefetch = check_prefetch(prefetch)
        self._ahead = ReceiveAhead(self._client, self._subscription, self._leases, self._invisible, prefetch=prefetch)

    def receive(
        self,
        max_messages: int = 32,
        *,
        wait: timedelta | float = timedelta(seconds=20),
        invisible_duration: timedelta | float | None = None,
    ) -> list[MessageView]:
        """
        Receive up to *max_messages*, waiting for the first one; an empty list when none came in time.

        Acknowledgements that wait are sent first. It ends within *wait* and 3 seconds, whatever hangs. Raises
        `ConnectionFailed` or `RequestTimeout` where no broker answered for the whole wait.
        """
        self._client.check()
        if max_messages < 1:
            raise ValueError(f"at least one message must be asked for, not {max_messages}")
        invisible = self._invisible if invisible_duration is None else seconds(invisible_duration)
        until = time.monotonic() + seconds(wait)
        self._leases.flush(time.monotonic() + _ACKS_FIRST)
        ahead = self._ahead.take_ahead(max_messages, until, None if invisible_duration is None else invisible)
        if ahead is not None:
            return ahead
        left = remaining(until)
        grace = until + plans.LATE - time.monotonic() - left
        wish = Wish(max_messages, left, invisible, grace=max(grace, plans.LATE - _ACKS_FIRST))
        return self._client.run(plans.receive(self._client.common, self._subscription, wish, self._leases))

    def ack(self, messages: MessageView | Iterable[MessageView]) -> None:
        """
        Acknowledge messages and return once the broker has answered; what is acknowledged already costs no call.

        Raises the error of the first that was refused: `LeaseExpired` when its lease had ended, an `OutcomeUnknown`
        when an answer was lost and the repetition was refused. The others are acknowledged.
        """
        self._client.check()
        self._leases.ack([messages] if isinstance(messages, MessageView) else list(messages))

    def change_invisible_duration(self, message: MessageView, duration: timedelta | float) -> None:
        """Let the lease of *message* end *duration* from now; zero gives it back at once."""
        self._client.check()
        self._leases.change_invisible_duration(message, duration)

    def forward_to_dead_letter(self, message: MessageView, reason: str = "") -> None:
        """
        Put *message* into the group's dead letter queue, the topic `%DLQ%` + group, and end its life in the group.

        *reason* is the dead letter's property `DLQ_REASON`. Raises `LeaseExpired` where the lease had ended.
        """
        self._client.check()
        self._leases.forward_to_dead_letter(message, Cause(reason))

    def run(
        self,
        handler: Callable[[MessageView], object],
        *,
        concurrency: int = 1,
        stop_timeout: timedelta | float = timedelta(seconds=30),
    ) -> None:
        """
        Call *handler* with each message, on as many threads as *concurrency* says, until `stop` or `close` is called.

        A message is acknowledged when the handler returns. When it raises, the message comes again after the delay of
        the group's retry policy, and goes to the dead letter queue after the group's last attempt; the exception is
        logged. It may raise `Reject` or `RetryAfter` to say what becomes of the message. In a group that keeps order it
        is tried again in place, and what follows it waits. Leases are renewed while handlers work, however long.

        In the main thread SIGTERM ends it, too, unless the program handles that signal. At the end handlers under way
        have *stop_timeout*; messages that were not handled are given back. Raises what
        ended receiving, as `receive` does, and what a handler raised that is no `Exception`. Raises
        `TypeError` for an asynchronous handler, and for one whose result would have to be awaited.
        """
        self._client.check()
        check_sync(handler)
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        runner = Runner(self._client, self._subscription, self._leases, self._invisible, self._prefetch)
        with self._running:
            if self._runner is not None:
                raise RuntimeError("run() is already active; raise concurrency, or create another consumer")
            self._runner = runner
        try:
            runner.run(handler, concurrency, seconds(stop_timeout))
        finally:
            self._runner = None

    def stop(self) -> None:
        """End `run`, from any thread: it returns once the handlers under way have ended. The consumer stays usable."""
        runner = self._runner
        if runner is not None and self._client.is_here:
            runner.stop()

    def queues(self) -> list[Queue]:
        """Return the queues of the topic, for those who keep their own offsets."""
        self._client.check()
        return self._client.run(pull_plans.queues(self._client.common, self._subscription.topic))

    def pull(self, queue: Queue, offset: int, max_messages: int = 32, *, wait: timedelta | float = 0.0) -> Pulled:
        """
        Read up to *max_messages* from *offset* on, waiting for the first; nothing is leased.

        The result says where the next pull begins: past what the filter passed over, too. Keep the offset yourself, or
        `commit_offset` it for the group. It ends within *wait* and the consumer's `timeout`, whatever hangs. Raises
        `RequestError` for an offset the queue does not hold, saying which it holds.
        """
        self._client.check()
        if max_messages < 1:
            raise ValueError(f"at least one message must be asked for, not {max_messages}")
        wish = Wish(max_messages, seconds(wait), 0.0)
        plan = pull_plans.pull(self._client.common, self._subscription, queue, offset, wish)
        return self._client.run(plan)

    def offset_at(self, queue: Queue, when: datetime | int | Literal["begin", "end"]) -> int:
        """Return the offset of the first message stored at *when* or later, the min offset, or the max offset."""
        self._client.check()
        return self._client.run(pull_plans.offset_at(self._client.common, self._subscription.topic, queue, when))

    def committed_offset(self, queue: Queue) -> int | None:
        """Return the next offset the group will read, None where it has read nothing of the queue."""
        self._client.check()
        return self._client.run(pull_plans.committed_offset(self._client.common, self._subscription, queue))

    def commit_offset(self, queue: Queue, offset: int) -> None:
        """Set the next offset the group will read."""
        self._client.check()
        self._client.run(pull_plans.commit_offset(self._client.common, self._subscription, queue, offset))

    def flush(self, timeout: timedelta | float | None = None) -> bool:
        """
        Send the waiting acknowledgements at once, and wait until the brokers have answered.

        Returns whether all were answered within *timeout* (float: seconds); the others stay on their way. None waits as
        long as it takes: a broker that hangs fails them. Raises the first failure since the last `flush`.
        """
        self._client.check()
        waiting = self._leases.flush(end_of(timeout))
        failure = self._leases.take_failure()
        if failure is not None:
            raise failure
        return not waiting

    def __iter__(self) -> Iterator[MessageView]:
        """Yield messages as they come, until the consumer is closed."""
        self._client.check()
        return self._ahead.messages()

    def close(self, timeout: timedelta | float = 5.0) -> None:
        """
        Send waiting acknowledgements, give back what was received ahead, unregister, and end.

        Returns within about *timeout* (float: seconds) whatever the brokers do. Refused acknowledgements are logged; it
        raises none of them. Idempotent.
        """
        until = end_of(timeout)
        if self._client.is_closed or not self._client.is_here:
            return
        runner = self._runner
        if runner is not None:
            runner.stop()
            runner.wait(until)
        unused = self._ahead.stop(until)
        self._ahead.finish()
        self._leases.flush(until)
        self._leases.give_back(unused, until)
        self._client.close(until)
        self._leases.stop()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._client.is_closed

    def __repr__(self) -> str:
        endpoint, subscription = ";".join(self._client.common.endpoints), self._subscription
        state = self._client.state
        return described("Consumer", state, endpoint=endpoint, group=subscription.group, topic=subscription.topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
