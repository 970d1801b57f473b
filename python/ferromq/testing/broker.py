"""What a test has of its broker: names and clients of its own, captured messages, waits and assertions."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, Unpack, overload

from ferromq.admin import Admin
from ferromq.admin.settings import MessageType
from ferromq.client.consumer import Consumer
from ferromq.client.options import (
    ClientOptions,
    ConsumerOptions,
    MessageOptions,
    PlainConsumerOptions,
    PlainReaderOptions,
    ProducerOptions,
    ReaderOptions,
)
from ferromq.client.producer import Producer
from ferromq.client.reader import Reader
from ferromq.connecting import Connection, connect
from ferromq.core.batching import Sendable
from ferromq.core.payloads import DecodedMessage, T, V
from ferromq.core.requests import seconds
from ferromq.core.subscriptions import Topics
from ferromq.embedding import Embedded
from ferromq.message import MessageView, SendReceipt
from ferromq.process.clock import Clock
from ferromq.protocol import naming
from ferromq.terminal.objects import Shown
from ferromq.testing import captured, expectations
from ferromq.testing.expectations import Expected
from ferromq.testing.faults import Faults
from ferromq.testing.running import Running
from ferromq.testing.waiting import until

_CLOSING = 1.0
"""Seconds that each client has to unregister, even if the broker is down."""
_PATIENCE = timedelta(seconds=5)
_ANY_TIME = timedelta(0)
_MOST_SHOWN = 20


class Broker(Shown):
    """
    The fixture `ferromq_broker`: a name server and a broker inside the test's process.

    Clients of any kind connect to its addresses. What it shows of messages is read from its store, and changes nothing:
    no group, no lease, no offset. Everything that it created for the test is closed with it.
    """

    def __init__(self, running: Running, suffix: str = "", faults: Faults | None = None) -> None:
        """*suffix* makes names unique on a broker that other tests use, too."""
        self._running = running
        self._suffix = suffix
        self.faults = faults
        """The faults of this broker; None unless the test uses `ferromq_faults`."""
        self._marks = captured.Marks.of(running.store)
        self._closing = contextlib.ExitStack()
        self._admin: Admin | None = None
        self._producer: Producer | None = None

    def of_test(self, suffix: str) -> "Broker":
        """Return the same broker for one test: with names of its own, and without clients."""
        return Broker(self._running, suffix, self.faults)

    @property
    def endpoint(self) -> str:
        """`host:port` for gRPC clients, ferromq's own and those of RocketMQ 5."""
        return self._running.endpoint

    @property
    def remoting(self) -> str:
        """`host:port` of the broker for clients of RocketMQ 4."""
        return self._running.remoting

    @property
    def namesrv(self) -> str:
        """`host:port` of the name server, for clients of RocketMQ 4 and for `ferromq.Admin`."""
        return self._running.namesrv

    @property
    def clock(self) -> Clock:
        """The clock of the broker; with the fixture `ferromq_clock`, that one."""
        return self._running.clock

    @property
    def embedded(self) -> Embedded:
        """The embedded broker itself, with its store and its options. Raises `RuntimeError` while it is down."""
        return self._running.mq

    # --- names and clients

    def topic(self, name: str, *, queues: int | None = None, message_type: MessageType | None = None) -> str:
        """
        Return the name of a topic that no other test uses, such as `orders-7-main`; the same name within this test.

        A broker of the test's own returns *name* itself. With an option the topic is created; else its first message
        creates it. Raises `IllegalName`.
        """
        unique = self._unique(name, naming.check_topic)
        if queues is not None or message_type is not None:
            self.admin().create_topic(unique, queues, message_type=message_type)
        return unique

    def group(
        self,
        name: str,
        *,
        fifo: bool | None = None,
        retries: int | None = None,
        retry_delays: Sequence[timedelta | float] | None = None,
    ) -> str:
        """
        Return the name of a consumer group that no other test uses; the same name within this test.

        A broker of the test's own returns *name* itself. With an option the group is created, as by
        `Admin.create_group`; else its first consumer creates it. Raises `IllegalName`.
        """
        unique = self._unique(name, naming.check_group)
        if (fifo, retries, retry_delays) != (None, None, None):
            self.admin().create_group(unique, fifo=fifo, retries=retries, retry_delays=retry_delays)
        return unique

    def connect(self, **options: Unpack[ClientOptions]) -> Connection:
        """Return a new connection, for programs that are given one. The options are those of `ferromq.connect`."""
        made = connect(self.endpoint, **options)
        self._closing.callback(made.close, _CLOSING)
        return made

    def producer(self, *topics: str, **options: Unpack[ProducerOptions[V]]) -> Producer[V]:
        """Return a new producer with the broker's clock. The arguments are those of `ferromq.Producer`."""
        whole: ProducerOptions[V] = {"clock": self.clock, **options}
        made = Producer(self.endpoint, *topics, **whole)
        self._closing.callback(made.close, _CLOSING)
        return made

    @overload
    def consumer(
        self, group: str, topics: Topics, **options: Unpack[PlainConsumerOptions]
    ) -> Consumer[MessageView]: ...
    @overload
    def consumer(
        self, group: str, topics: Topics, **options: Unpack[ConsumerOptions[T]]
    ) -> Consumer[DecodedMessage[T]]: ...
    def consumer(self, group: str, topics: Topics, **options: Unpack[ConsumerOptions[Any]]) -> Consumer[Any]:
        """Return a new consumer in *group* of *topics*. The options are those of `ferromq.Consumer`."""
        made: Consumer[Any] = Consumer(self.endpoint, group, topics, **options)
        self._closing.callback(made.close, _CLOSING)
        return made

    @overload
    def reader(self, topics: Topics, **options: Unpack[PlainReaderOptions]) -> Reader[MessageView]: ...
    @overload
    def reader(self, topics: Topics, **options: Unpack[ReaderOptions[T]]) -> Reader[DecodedMessage[T]]: ...
    def reader(self, topics: Topics, **options: Unpack[ReaderOptions[Any]]) -> Reader[Any]:
        """Return a new reader of *topics*, which has no group. The options are those of `ferromq.Reader`."""
        made: Reader[Any] = Reader(self.endpoint, topics, **options)
        self._closing.callback(made.close, _CLOSING)
        return made

    def admin(self) -> Admin:
        """Return the test's administrator of this broker."""
        if self._admin is None:
            self._admin = self._closing.enter_context(Admin(self.namesrv))
        return self._admin

    def send(self, topic: str, body: Sendable, **options: Unpack[MessageOptions]) -> SendReceipt:
        """Send one message, and return its receipt. The arguments are those of `Producer.send`."""
        if self._producer is None:
            self._producer = self.producer()
        return self._producer.send(topic, body, **options)

    # --- captured messages

    def messages(self, topic: str) -> list[MessageView]:
        """
        Return the messages of a topic, in the order in which they were stored; of an unknown topic, none.

        Messages that wait for their time, or for the end of their transaction, are not in their topic yet.
        """
        return captured.messages(self._running.store, _name(topic))

    def sent(self, topic: str) -> list[MessageView]:
        """
        Return what producers sent to a topic, in the order of sending: its messages and those that wait for their time.

        A recalled message is not among them, nor is one whose transaction is open or was rolled back.
        """
        return captured.sent(self._running.store, _name(topic), self._marks)

    def dead_letters(self, group: str) -> list[MessageView]:
        """Return the dead letters of a group, in the order in which they were given up."""
        return self.messages(self.dead_letter_topic(group))

    def dead_letter_topic(self, group: str) -> str:
        """Return the name of the topic of a group's dead letters."""
        return f"{naming.DLQ_PREFIX}{_name(group)}"

    def unfinished(self, group: str, topic: str) -> list[MessageView]:
        """
        Return the messages of a topic that a group has not finished: acknowledged, or given up as dead letters.

        A group finishes each queue in order: messages behind the first unfinished one of their queue count as
        unfinished.
        """
        return captured.unfinished(self._running.store, _name(group), _name(topic))

    # --- waits

    def wait_for_messages(
        self, topic: str, count: int = 1, *, timeout: timedelta | float = _PATIENCE
    ) -> list[MessageView]:
        """
        Wait until a topic has at least *count* messages, and return all of them in the order in which they were stored.

        Raises `TimeoutError` with the messages that are there after *timeout* (float: seconds).
        """
        __tracebackhide__ = True
        return self._at_least(
            count, lambda: self.messages(topic), lambda found: f"{topic} has {found} of {count} messages", timeout
        )

    def wait_until_consumed(
        self, group: str, topic: str, *, count: int = 0, timeout: timedelta | float = _PATIENCE
    ) -> None:
        """
        Wait until a topic has at least *count* messages, and *group* has finished all that it has.

        A message is finished if it is acknowledged or a dead letter. Without *count*, a topic whose first message is
        still on its way counts as consumed. A client of RocketMQ 4 reports its progress every 5 seconds by default.

        Raises `TimeoutError` with the unfinished messages after *timeout* (float: seconds).
        """
        __tracebackhide__ = True
        left: list[MessageView] = []

        def is_consumed() -> bool:
            left[:] = self.unfinished(group, topic)
            return not left and (count == 0 or len(self.messages(topic)) >= count)

        if not until(is_consumed, seconds(timeout)):
            raise TimeoutError(f"{self._unfinished_text(group, topic, left, count, seconds(timeout))}{self._hint()}")

    def wait_for_failures(
        self, group: str, topic: str, count: int = 1, *, attempt: int = 1, timeout: timedelta | float = _PATIENCE
    ) -> list[MessageView]:
        """
        Wait until the broker knows that *attempt* at *count* messages failed, and return all that wait after it.

        A failed handler of `Consumer.run` tells the broker when its message comes again. From then on
        `ferromq_clock.advance` may move to that time. A lease that was renewed, or that ended, counts as a failed
        attempt, too. The last attempt makes a dead letter, see `assert_dead_letters`; a message of a group that keeps
        order is tried again by its consumer, and the broker hears nothing.

        Raises `TimeoutError` with the messages that failed after *timeout* (float: seconds).
        """
        __tracebackhide__ = True
        return self._at_least(
            count,
            lambda: captured.failed(self._running.store, _name(group), _name(topic), attempt),
            lambda found: f"attempt {attempt} of {group} failed at {found} of {count} messages of {topic}",
            timeout,
        )

    # --- assertions

    def assert_sent(
        self,
        topic: str,
        expected: Sequence[Expected],
        *,
        in_any_order: bool = False,
        timeout: timedelta | float = _ANY_TIME,
    ) -> None:
        """
        Fail unless exactly the *expected* messages were sent to a topic.

        An expected message is bytes, of which only the body counts; a `ferromq.Message`, of which every field counts;
        or a `Like`, of which the given fields count. *timeout* (float: seconds): how long they may take to come.
        """
        __tracebackhide__ = True
        self._compare(f"messages sent to {topic}", expected, lambda: self.sent(topic), in_any_order, timeout)

    def assert_dead_letters(
        self,
        group: str,
        expected: Sequence[Expected],
        *,
        in_any_order: bool = False,
        timeout: timedelta | float = _ANY_TIME,
    ) -> None:
        """Fail unless a group has exactly the *expected* dead letters; the arguments are those of `assert_sent`."""
        __tracebackhide__ = True
        self._compare(f"dead letters of {group}", expected, lambda: self.dead_letters(group), in_any_order, timeout)

    def assert_consumed(
        self,
        group: str,
        topic: str,
        expected: Sequence[Expected] | None = None,
        *,
        in_any_order: bool = False,
        timeout: timedelta | float = _ANY_TIME,
    ) -> None:
        """
        Fail unless a group has finished every message of a topic, and these are the *expected* ones, if any are given.

        *expected* and *in_any_order* are those of `assert_sent`. *timeout* (float: seconds): how long it may take.
        """
        __tracebackhide__ = True
        wanted = None if expected is None else expectations.checked(expected)
        limit = seconds(timeout)

        def failure() -> str:
            left = self.unfinished(group, topic)
            if left:
                return f"{self._unfinished_text(group, topic, left, 0, limit)}{self._hint()}"
            if wanted is None:
                return ""
            what = f"messages of {topic} that {group} has finished"
            return expectations.differences(what, wanted, self.messages(topic), in_any_order=in_any_order)

        _fail_unless_empty(failure, limit)

    def close(self) -> None:
        """Close the clients of the test. Idempotent."""
        self._closing.close()

    @property
    def _state(self) -> str:
        return "up" if self._running.is_up else "down"

    def _facts(self) -> Iterator[tuple[str, object]]:
        if self._running.is_up:
            yield from (("endpoint", self.endpoint), ("namesrv", self.namesrv))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _unique(self, name: str, check: Callable[[str], None]) -> str:
        check(name)
        unique = f"{name}{self._suffix}"
        check(unique)
        return unique

    def _at_least(
        self,
        count: int,
        read: Callable[[], list[MessageView]],
        describe: Callable[[int], str],
        timeout: timedelta | float,
    ) -> list[MessageView]:
        __tracebackhide__ = True
        found: list[MessageView] = []

        def are_there() -> bool:
            found[:] = read()
            return len(found) >= count

        limit = seconds(timeout)
        if not until(are_there, limit):
            raise TimeoutError(f"{describe(len(found))} after {limit:g} s{_listed(found)}{self._hint()}")
        return found

    def _compare(
        self,
        what: str,
        expected: Sequence[Expected],
        read: Callable[[], list[MessageView]],
        in_any_order: bool,
        timeout: timedelta | float,
    ) -> None:
        __tracebackhide__ = True
        wanted = expectations.checked(expected)
        _fail_unless_empty(
            lambda: expectations.differences(what, wanted, read(), in_any_order=in_any_order), seconds(timeout)
        )

    def _unfinished_text(self, group: str, topic: str, left: list[MessageView], count: int, limit: float) -> str:
        total = len(self.messages(topic))
        after = f" after {limit:g} s" if limit else ""
        if not left:
            return f"{topic} has {total} of {count} messages{after}; {group} has finished all of them"
        return f"{group} has not finished {len(left)} of {total} messages of {topic}{after}{_listed(left)}"

    def _hint(self) -> str:
        if not self.clock.is_manual:
            return ""
        return "\nthe clock stands still: delays, retries and leases end when ferromq_clock.advance reaches their time"


def _name(given: str) -> str:
    """Return the name of a topic or group. Raises `TypeError` for what is no text: it would have no messages."""
    name: object = given
    if not isinstance(name, str):
        raise TypeError(f"the name of a topic or group is a text, not {name!r}")
    return name


def _fail_unless_empty(failure: Callable[[], str], timeout: float) -> None:
    __tracebackhide__ = True
    text = ""

    def holds() -> bool:
        nonlocal text
        text = failure()
        return not text

    if not until(holds, timeout):
        raise AssertionError(text)


def _listed(messages: Sequence[MessageView]) -> str:
    lines = [
        f"\n  queue {message.queue_id}, offset {message.queue_offset}: {expectations.show(message)}"
        for message in messages[:_MOST_SHOWN]
    ]
    more = len(messages) - len(lines)
    return "".join([":" if lines else "", *lines, f"\n  … and {more} more" if more else ""])
