# Generated from aio/consumer.py by tools/sync_from_async.py: change that file, then run `make sync`.
"""
The consumer: receives messages under a lease, acknowledges them, or iterates over them as they come.

What is asked and answered is in `core.receive_plans`; how much is received ahead in `core.ahead`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, Literal, Self, Unpack, cast, overload

from ferromq.client.client import Client, Options
from ferromq.client.connection import end_of
from ferromq.client.direct_receives import DirectReceives
from ferromq.client.leases import Leases
from ferromq.client.options import ConsumerOptions, MessageOptions, PlainConsumerOptions
from ferromq.client.push import Runner
from ferromq.client.receive_ahead import Iteration, ReceiveAhead, values
from ferromq.client.tls import Tls, TlsFile
from ferromq.core import progress, pull_plans, receive_plans
from ferromq.core.ahead import Many, check_prefetch
from ferromq.core.arguments import lease, text, whole_number
from ferromq.core.batches import check_batch, of_batches
from ferromq.core.batching import Sendable
from ferromq.core.filters import Sql
from ferromq.core.handlers import check_sync, of_messages
from ferromq.core.outcomes import say_redelivered, say_undecodable
from ferromq.core.payloads import Decode, DecodedMessage, Decoder, Encoder, M, T, plain, plain_all
from ferromq.core.progress import Ending, Progress
from ferromq.core.pull_plans import Pulled, Queue
from ferromq.core.receive_plans import ACKS_FIRST, Wish, check_count
from ferromq.core.requests import Decoded, decode_columns, decode_messages, decode_table, seconds
from ferromq.core.retry import Cause, cause_of
from ferromq.core.subscriptions import Start, Subscription, Topics, filters_of, start_text
from ferromq.core.watch import Watch, handled, receiving
from ferromq.errors import FerromqError, Reject, RetryAfter
from ferromq.message import MessageView
from ferromq.protocol import naming
from ferromq.tables import MessageTable, PulledTable, check_arrow, table_of
from ferromq.telemetry import Telemetry
from ferromq.terminal.objects import Shown

__all__ = ["Consumer"]


class Consumer(Shown, Generic[M]):
    """
    Receives messages on behalf of a consumer group; thread-safe.

    Use it in a `with`, or call `close`. *endpoint* is the gRPC address of a broker, `host:port`, or several joined by
    `;`. *topics* is a topic, a sequence of topics, or a mapping of topics to filters. *filter* is tags joined by `||`,
    or `Sql("price > 3")`, for topics without a filter of their own; the condition is checked here and by the broker,
    `IllegalFilter` names the position. All members of a group name the same topics and filters.

    *begin* counts at the first receive, and is where the group then begins in a topic of which it has no committed
    offset: `"first"`, `"last"`, or a time (messages stored then or later). The broker decides once for all members.
    Without it, the broker's rule counts: the first message. It raises `Unsupported` at brokers other than ferromq's.

    Each message is leased for *invisible_duration*; unless it is acknowledged until then it comes again, to any member
    of the group. Iteration goes on over restarts of brokers, and renews a message's lease until the next is asked for:

        for message in consumer:
            ...
            message.ack()  # travels with others; `consumer.ack(message)` waits for the broker

    Several threads may iterate over it, each in a loop of its own. In a group that keeps order, a message comes once
    those before it, of its message group or else of its queue, are acknowledged: nothing is received ahead, and
    iteration gives back what follows one that was not acknowledged, which comes again behind it. `run` calls a function
    instead. Both hold one message for each thread until they know how fast the threads are, then half a second's work
    at most; *prefetch* is an upper bound.

    *decode* makes values of bodies: a function of bytes, or a type that is read from JSON, as of `Producer`'s *encode*.
    Handlers, loops and `receive` are then given a `DecodedMessage`, whose `value` it is. A message whose body does not
    decode becomes a dead letter at its first delivery, with the error as its reason; loops and `receive` go on with the
    next one. A decoder may raise `Reject` or `RetryAfter`, as handlers do.

    Other calls than `receive` end within *timeout* seconds, repetitions and look-ups included; one attempt has at most
    3. *attempts* of 1 means no repetition. *tls* is as of `Producer`.

    Group and topics are in *namespace*, and are named without it; so are the topics of messages.
    """

    @overload
    def __init__(
        self: "Consumer[MessageView]",
        endpoint: str,
        group: str,
        topics: Topics,
        **options: Unpack[PlainConsumerOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: "Consumer[DecodedMessage[T]]",
        endpoint: str,
        group: str,
        topics: Topics,
        **options: Unpack[ConsumerOptions[T]],
    ) -> None: ...
    def __init__(
        self,
        endpoint: str,
        group: str,
        topics: Topics,
        *,
        filter: str | Sql = "*",  # noqa: A002 (what it is called everywhere)
        begin: Start | None = None,
        invisible_duration: timedelta | float = timedelta(seconds=30),
        timeout: timedelta | float = 10.0,
        attempts: int = 3,
        tls: bool | TlsFile | Tls = False,
        prefetch: int | None = None,
        decode: Decode[T] | None = None,
        telemetry: Telemetry | None = None,
        namespace: str = "",
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        naming.check_group(group, namespace)
        start = None if begin is None else start_text(begin)
        self._subscription = Subscription(group, filters_of(topics, filter, namespace), start, namespace=namespace)
        options = Options(
            endpoint, timeout, attempts, tls, namespace=namespace, access_key=access_key, secret_key=secret_key
        )
        self._client = Client("consumer", options, self._subscription.settings())
        self._invisible = lease(invisible_duration)
        self._decoder: Decoder[Any] = Decoder(decode)
        self._client.common.watch = None if telemetry is None else Watch(telemetry, endpoint, group, namespace)
        self._leases = Leases(self._client, self._subscription)
        self._running = threading.RLock()  # a handler of signals may pause
        self._runner: Runner | None = None
        self._prefetch = check_prefetch(prefetch)
        self._pulls = pull_plans.PullAhead()
        self._ahead = ReceiveAhead(self._client, self._subscription, self._leases, self._invisible, prefetch=prefetch)
        self._direct = DirectReceives(self._client, self._subscription, self._leases, self._ahead)

    def receive(
        self,
        max_messages: int = 32,
        *,
        wait: timedelta | float = timedelta(seconds=20),
        invisible_duration: timedelta | float | None = None,
    ) -> list[M]:
        """
        Receive up to *max_messages*, waiting for the first one; an empty list when none came in time.

        Acknowledgements that wait are sent first. It ends within *wait* and 3 seconds, whatever hangs. Raises
        `ConnectionFailed` or `RequestTimeout` where no broker answered for the whole wait.
        """
        self._client.check()
        check_count(max_messages)
        changed = None if invisible_duration is None else lease(invisible_duration)
        until = time.monotonic() + seconds(wait)
        if self._client.common.watch is None and not self._decoder.is_on:
            return cast("list[M]", self._receive(max_messages, until, changed))
        while True:
            with receiving(self._client.common.watch, self._subscription.topics) as received:
                received.extend(self._receive(max_messages, until, changed))
            if not self._decoder.is_on:
                return cast("list[M]", received)
            given = [each for message in received if (each := self._hand_out(message)) is not None]
            if given or not received or time.monotonic() >= until:
                return given

    def _receive(
        self,
        max_messages: int,
        until: float,
        changed: float | None,
        decode: Callable[..., Decoded[Any]] = decode_messages,
    ) -> Any:
        """Receive messages until a time (monotonic); *changed*: the invisible duration, if it is not the consumer's."""
        acks_until = time.monotonic() + ACKS_FIRST
        invisible = self._invisible if changed is None else changed
        received = self._direct.receive(max_messages, until, invisible, decode)
        if received is not None:
            return received
        self._leases.flush(acks_until)
        ahead = self._ahead.take_ahead(max_messages, until, changed)
        if ahead is not None:
            return ahead
        wish = Wish.before(until, time.monotonic(), max_messages, invisible, decode)
        return self._client.run(receive_plans.receive(self._client.common, self._subscription, wish, self._leases))

    def receive_arrow(
        self,
        max_messages: int = 4096,
        *,
        wait: timedelta | float = timedelta(seconds=20),
        invisible_duration: timedelta | float | None = None,
    ) -> MessageTable:
        """
        Receive up to *max_messages* as columns, waiting for the first one; an empty table when none came in time.

        It takes what `receive` takes, but `decode` does not count: bodies are bytes. Acknowledge the whole table with
        `ack`, or its `messages` one by one. Raises what `receive` raises, and `ConfigError` without pyarrow.
        """
        self._client.check()
        check_arrow()
        check_count(max_messages)
        changed = None if invisible_duration is None else lease(invisible_duration)
        until = time.monotonic() + seconds(wait)
        with receiving(self._client.common.watch, self._subscription.topics) as received:
            found = self._receive(max_messages, until, changed, decode_table)
            table = found if isinstance(found, MessageTable) else table_of(found)
            if self._client.common.watch is not None:
                received.extend(table)
        return table

    def receive_many(
        self,
        count: int,
        *,
        wait: timedelta | float = timedelta(seconds=10),
        invisible_duration: timedelta | float | None = None,
    ) -> list[M]:
        """
        Receive up to *count* messages, with as many receives as that takes; fewer when *wait* (float: seconds) is over.

        It fills up until *wait* is over, where `receive` returns what it finds first. A *wait* of zero takes what is
        there for one receive. The lease of each message begins when it arrives, so *wait* may be half of
        *invisible_duration* at most; raises `ValueError` for more. In a group that keeps order, the messages behind
        those of one receive come only after these are acknowledged.

        Raises what `receive` raises before the first message. An error after that ends the call with the messages that
        are there.
        """
        invisible = self._invisible if invisible_duration is None else lease(invisible_duration)
        many = Many(count, seconds(wait), invisible, time.monotonic())
        while (wish := many.next(time.monotonic())) is not None:
            size, left = wish
            try:
                many.add(self.receive(size, wait=left, invisible_duration=invisible_duration))
            except FerromqError:
                if not many.messages:
                    raise
                break
        return cast("list[M]", many.messages)

    def ack(self, messages: MessageView | Iterable[MessageView]) -> None:
        """
        Acknowledge messages and return once the broker has answered; what is acknowledged already costs no call.

        Raises the error of the first that was refused: `LeaseExpired` when its lease had ended, an `OutcomeUnknown`
        when an answer was lost and the repetition was refused. The others are acknowledged.
        """
        self._client.check()
        self._leases.ack(plain_all(messages))

    def change_invisible_duration(self, message: MessageView, duration: timedelta | float) -> None:
        """Let the lease of *message* end *duration* from now; zero gives it back at once."""
        self._client.check()
        self._leases.change_invisible_duration(plain(message), duration)

    def give_back(self, messages: MessageView | Iterable[MessageView]) -> None:
        """
        Give messages back: the group receives them again at once, which counts no attempt.

        Acknowledged ones are left out. Call it for a fetched set that cannot be worked on now; a handler of `run`
        raises `RetryAfter` instead. An expired lease is no error, because its message is redelivered anyway. Raises the
        first other failure once all were tried: those messages come again when their leases expire.
        """
        self._client.check()
        self._leases.return_all(plain_all(messages))

    def forward_to_dead_letter(self, message: MessageView, reason: str = "") -> None:
        """
        Put *message* into the group's dead letter queue, the topic `%DLQ%` + group, and end its life in the group.

        *reason* is the dead letter's property `DLQ_REASON`. Raises `LeaseExpired` where the lease had ended, as that
        of an acknowledged message has.
        """
        self._client.check()
        self._leases.forward_to_dead_letter(plain(message), Cause(text("reason", reason)))

    def reply(
        self,
        message: MessageView,
        body: Sendable,
        *,
        timeout: timedelta | float | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        """
        Reply to a request, a *message* that a producer sent with `request`, ours or RocketMQ's.

        The options are those of `Message`, without times, priority and message group; a *body* that is a `Message`
        brings its own. *timeout* (seconds) is for this call; None: the consumer's. The message is not acknowledged.

        Raises `RequesterGone` if the requester is not connected to the broker any more: in a handler of `run` that is
        logged, and the message is acknowledged; a handler of batches names it in `Failed`. Raises `ValueError` for a
        message that is no request.
        """
        self._client.check()
        common = self._client.common
        limit = common.timeout if timeout is None else seconds(timeout)
        answer = Encoder[Sendable](None).message(body, options)
        requests = self._client.requests
        self._client.run(requests.reply(common, self._subscription, plain(message), answer, limit))

    @overload
    def run(
        self,
        handler: Callable[[M], object],
        *,
        batch: None = None,
        linger: timedelta | float = 0.0,
        concurrency: int = 1,
        stop_timeout: timedelta | float = timedelta(seconds=30),
    ) -> None: ...
    @overload
    def run(
        self,
        handler: Callable[[list[M]], object],
        *,
        batch: int,
        linger: timedelta | float = 0.0,
        concurrency: int = 1,
        stop_timeout: timedelta | float = timedelta(seconds=30),
    ) -> None: ...
    def run(
        self,
        handler: Callable[[Any], object],
        *,
        batch: int | None = None,
        linger: timedelta | float = 0.0,
        concurrency: int = 1,
        stop_timeout: timedelta | float = timedelta(seconds=30),
    ) -> None:
        """
        Call *handler* with each message, on as many threads as *concurrency* says, until `stop` or `close` is called.

        A message is acknowledged when the handler returns. When it raises, the message comes again after the delay of
        the group's retry policy, and goes to the dead letter queue after the group's last attempt; the exception is
        logged. It may raise `Reject` or `RetryAfter` to say what becomes of the message. In a group that keeps order it
        is tried again in place, and what follows it waits. Leases are renewed while handlers work, however long.

        With *batch* the handler gets a list of up to so many messages. A batch is handed over when it is full, or
        *linger* (float: seconds) after its first message arrived. Each message is acknowledged when the handler
        returns. What the handler raises holds for each message of the batch; `Failed` names those that failed. In a
        group that keeps order a batch has messages of one message group, or else of one queue, and does not linger;
        what follows a failed message is handed out once more with it. Raises `ConfigError` for a *batch* below 1 or
        above the consumer's *prefetch*, and for a *linger* without one.

        In the main thread SIGTERM ends it, too, unless the program handles that signal. At the end handlers under way
        have *stop_timeout*. Messages that were not handled are given back. Raises what ended receiving, as `receive`
        does, and what a handler raised that is no `Exception`. Raises `TypeError` for an asynchronous handler, and for
        one whose result would have to be awaited.
        """
        self._client.check()
        check_sync(handler)
        whole_number("concurrency", concurrency, 1)
        check_batch(batch, seconds(linger), self._prefetch)
        runner = Runner(self._client, self._subscription, self._leases, self._invisible, self._prefetch)
        with self._running:
            if self._runner is not None:
                raise RuntimeError("run() is already active; raise concurrency, or create another consumer")
            self._runner = runner
            if self._ahead.is_paused:
                runner.pause()
        try:
            whole = (
                of_messages(handler, self._decoder)
                if batch is None
                else of_batches(handler, self._decoder, self._is_in_order)
            )
            runner.run(
                handled(whole, self._client.common.watch), concurrency, seconds(stop_timeout), batch, seconds(linger)
            )
        finally:
            self._runner = None

    def _is_in_order(self) -> bool:
        """Say whether the group keeps order, as the broker said last."""
        return self._client.retry.is_fifo

    def stop(self) -> None:
        """End `run`, from any thread: it returns once the handlers under way have ended. The consumer stays usable."""
        runner = self._runner
        if runner is not None and self._client.is_here:
            runner.stop()

    def pause(self) -> None:
        """
        Hand out no messages to loops and to `run` until `resume`, from any thread; a repeated call has no effect.

        The receive under way ends. What was received ahead is given back at once, without an attempt: other members
        receive it. Handlers under way go on, and the leases of their messages are renewed. In a group that keeps order
        a message that failed is given back, too, instead of being tried again in place. A pause is no idle time of
        `messages`. `receive` and `pull` are not affected.
        """
        self._client.check()
        with self._running:
            self._ahead.pause()
            if self._runner is not None:
                self._runner.pause()

    def resume(self) -> None:
        """Go on after `pause`, from any thread."""
        self._client.check()
        with self._running:
            self._ahead.resume()
            if self._runner is not None:
                self._runner.resume()

    @property
    def is_paused(self) -> bool:
        """Whether `pause` was called, and `resume` was not called since."""
        return self._ahead.is_paused

    def decode(self: "Consumer[DecodedMessage[T]]", message: MessageView) -> T:
        """
        Return the value of a body, for messages of `pull`. Others have it as `value`.

        Raises `Undecodable`, and `ConfigError` for a consumer without `decode`.
        """
        return cast("T", self._decoder.value(plain(message)))

    def _hand_out(self, message: MessageView) -> M | None:
        """Return what the caller is given; None if the body does not decode: then the message is a dead letter."""
        try:
            return cast("M", self._decoder.given(message))
        except (Reject, RetryAfter) as error:
            failure = error
        say_undecodable(message, failure)
        try:
            if isinstance(failure, RetryAfter):
                self._leases.change_invisible_duration(message, failure.seconds)
            else:
                self._leases.forward_to_dead_letter(message, cause_of(failure))
        except FerromqError as error:
            say_redelivered(message, error)
        return None

    def queues(self) -> list[Queue]:
        """Return the queues of all topics, for those who keep their own offsets."""
        self._client.check()
        return self._client.run(pull_plans.queues(self._client.common, self._subscription))

    def pull(self, queue: Queue, offset: int, max_messages: int = 32, *, wait: timedelta | float = 0.0) -> Pulled:
        """
        Read up to *max_messages* from *offset* on, waiting for the first; nothing is leased.

        The result says where the next pull begins: past what the filter passed over, too. Keep the offset yourself, or
        `commit_offset` it for the group. Where pulls of a queue follow each other, the next one is read ahead. A pull
        ends within *wait* and the consumer's `timeout`, whatever hangs. Raises `RequestError` for an offset the queue
        does not hold, saying which it holds.
        """
        self._client.check()
        check_count(max_messages)
        wish = Wish(max_messages, seconds(wait), 0.0, ahead=self._pulls)
        plan = pull_plans.pull(self._client.common, self._subscription, queue, offset, wish)
        return self._client.run(plan)

    def pull_arrow(
        self, queue: Queue, offset: int, max_messages: int = 16_384, *, wait: timedelta | float = 0.0
    ) -> PulledTable:
        """
        Read as `pull` does, as columns: a `pyarrow.Table` with those of `to_arrow`, and where the next pull begins.

        A broker answers about 4 MiB at most. Raises `ConfigError` without pyarrow.
        """
        self._client.check()
        check_arrow()
        check_count(max_messages)
        wish = Wish(max_messages, seconds(wait), 0.0, decode=decode_columns, ahead=self._pulls)
        plan = pull_plans.pull_table(self._client.common, self._subscription, queue, offset, wish)
        return self._client.run(plan)

    def offset_at(self, queue: Queue, when: datetime | int | Literal["begin", "end"]) -> int:
        """Return the offset of the first message stored at *when* or later, the min offset, or the max offset."""
        self._client.check()
        return self._client.run(pull_plans.offset_at(self._client.common, self._subscription, queue, when))

    def committed_offset(self, queue: Queue) -> int | None:
        """Return the next offset the group will read, None where it has read nothing of the queue."""
        self._client.check()
        return self._client.run(pull_plans.committed_offset(self._client.common, self._subscription, queue))

    def commit_offset(self, queue: Queue, offset: int) -> None:
        """
        Set the next offset the group will read. An offset behind the queue's end becomes its end.

        A message is in its queue a moment after its receipt.
        """
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

    def messages(
        self, *, idle: timedelta | float | None = None, until: Literal["end"] | datetime | int | None = None
    ) -> Iterator[M]:
        """
        Yield messages as they come, as iteration does, until the consumer is closed or the loop ends.

        *idle* ends it after so long without a message. *until* ends it once the group has acknowledged all messages
        that are stored when the loop begins (`"end"`), or of these the ones that were stored before a time. Messages
        that come meanwhile may be among those that it yields. Acknowledge each message before the next one: what is not
        acknowledged comes again when its lease ends. A loop with *until* that waits half a lease or more, and is then
        given only such messages of its own, ends and logs a warning; the message that shows it is given back, which
        counts no attempt. So `list(consumer.messages(until="end"))` ends after about a lease. For a list, call
        `receive_many`. Raises `Unsupported` for *until* at brokers other than ferromq's.
        """
        self._client.check()
        ending = Ending(self._subscription, None if idle is None else seconds(idle), until, self._invisible)
        return self._yielded(self._ahead.messages(ending))

    def progress(self) -> Progress:
        """
        Return the committed offset, the max offset and the lag of the group in each queue, and the whole lag.

        The lag counts from the lowest message that is not acknowledged, received or not. Raises `Unsupported` at
        brokers other than ferromq's.
        """
        self._client.check()
        return self._client.run(progress.progress(self._client.common, self._subscription))

    def __iter__(self) -> Iterator[M]:
        """Yield messages as they come, until the consumer is closed."""
        self._client.check()
        return self._yielded(self._ahead.messages())

    def _yielded(self, messages: Iteration) -> Iterator[M]:
        """Return *messages* as the caller gets them."""
        if self._decoder.is_on or self._client.common.watch is not None:
            return values(messages, self._hand_out, self._client.common.watch, self._subscription.topics)
        return cast("Iterator[M]", messages)

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

    @property
    def _state(self) -> str:
        return self._client.state

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield from self._client.facts()
        yield "group", self._subscription.group
        yield "topic", self._subscription.topics

    def __del__(self) -> None:
        if hasattr(self, "_client"):  # not if its arguments were refused
            self._client.warn_unclosed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
