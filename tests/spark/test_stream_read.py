"""The rows of a partition across failures of its broker, retry deadlines, and offsets for display."""

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from dispatching import dispatched
from hypothesis import given, settings
from hypothesis import strategies as st

import ferromq
from ferromq.errors import ConfigError, ConnectionFailed, DataLost, Forbidden, ServerError, TopicNotFound
from ferromq.protocol.route import BrokerData, QueueData, TopicRoute
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read import pull
from ferromq.spark.read.over_remoting import NameServers, RemotingBroker
from ferromq.spark.read.plan import Queue, QueueRange
from ferromq.spark.stream.group import GroupOffsets
from ferromq.spark.stream.queue_monitor import QueueMonitor, RetryDeadline, registered_brokers
from ferromq.spark.stream.retrying_reader import RetryingReader
from ferromq.spark.topics import Topics

WHERE = ClusterAddress(endpoint="e:1")


@dataclass
class Time:
    """A clock that advances when it is waited for."""

    now: float = 0.0
    waits: list[float] = field(default_factory=list)

    def deadline(self, seconds: float) -> RetryDeadline:
        """Return a retry deadline on this clock."""
        return RetryDeadline(seconds, lambda: self.now, self.wait)

    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self.waits.append(seconds)
        self.now += seconds


@dataclass
class Broker:
    """One queue of the offsets [low, high), at an endpoint that changes with every failure."""

    low: int = 0
    high: int = 100
    fails: list[int] = field(default_factory=list)
    """After how many rows each of the next pulls fails."""
    error: Exception = field(default_factory=lambda: ConnectionFailed("lost"))
    keeps: Callable[[int], bool] = lambda _: True
    on_failure: Callable[["Broker"], None] = lambda _: None
    restarts: int = 0

    def queue(self) -> Queue:
        """Return the queue as it is now."""
        return Queue("orders", "a", f"a:{self.restarts}", 0, self.low, self.high)

    def ask(self, _: ClusterAddress, topics: Topics) -> Sequence[Queue]:
        """Behave like `pull.queues`."""
        assert topics == Topics(("orders",))
        return [self.queue()]

    def pull(self, wanted: QueueRange) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield two rows at a time of the messages that pass the filter."""
        assert wanted.endpoint == f"a:{self.restarts}"
        left = self.fails.pop(0) if self.fails else 1 << 60
        if wanted.start < self.low or wanted.end > self.high:
            raise ServerError("aged out")
        for begin in range(wanted.start, wanted.end, 2):
            if left <= begin - wanted.start:
                self.restarts += 1
                self.on_failure(self)
                raise self.error
            offsets = [offset for offset in range(begin, min(begin + 2, wanted.end)) if self.keeps(offset)]
            yield len(offsets), {"queue_offset": (0, None, [struct.pack(f"<{len(offsets)}q", *offsets)])}


def read(broker: Broker, end: int = 20, seconds: float = 10.0, *, fail: bool = True) -> list[int]:
    """Return the queue offsets of the rows of a partition that begins at 3."""
    reader = RetryingReader(
        WHERE, Time().deadline(seconds), fail_on_data_loss=fail, pull_range=broker.pull, ask=broker.ask
    )
    wanted = broker.queue().range(3, end)
    parts = [columns["queue_offset"][2][0] for _, columns in reader.read(wanted)]
    return [offset for part in parts for (offset,) in struct.iter_unpack("<q", part)]


@given(st.lists(st.integers(0, 20), max_size=6), st.sets(st.integers(0, 30)))
@settings(deadline=None)
def test_rows_come_once_however_often_the_connection_breaks(fails: list[int], left_out: set[int]) -> None:
    """The read continues after the last row, at the broker's current endpoint; also with a filter."""
    broker = Broker(fails=list(fails), keeps=lambda offset: offset not in left_out)
    assert read(broker, seconds=1e6) == [offset for offset in range(3, 20) if offset not in left_out]


def test_the_deadline_restarts_with_every_row() -> None:
    """Failures with progress between them never exceed it; failures without do."""
    assert read(Broker(fails=[2] * 8), seconds=0.06) == list(range(3, 20))
    with pytest.raises(ConnectionFailed, match=r"queue 0 of topic 'orders' on a could not be read for 10 s .*lost"):
        read(Broker(fails=[0] * 1000))


def test_messages_that_expire_during_a_read_fail_it_or_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """The error and the log have the expected and the current offsets, and the number of lost rows."""

    def age(broker: Broker) -> None:
        broker.low = 9

    words = (
        r"up to queue offset 20: queue a:0 of topic 'orders' was to be read from queue offset 5, but now holds 9 to 100"
    )
    with pytest.raises(DataLost, match=words):
        read(Broker(fails=[2], on_failure=age))
    with caplog.at_level(logging.WARNING):
        assert read(Broker(fails=[2], on_failure=age), fail=False) == [3, 4, *range(9, 20)]
    assert caplog.records[0].getMessage().startswith("rows lost while a batch was read rows=4: queue a:0")


def test_a_queue_that_is_truncated_during_a_read_ends_at_its_max_offset() -> None:
    """The reader does not wait for rows that are gone."""

    def cut(broker: Broker) -> None:
        broker.high = 7

    assert read(Broker(fails=[2], on_failure=cut), fail=False) == [3, 4, 5, 6]
    with pytest.raises(DataLost, match="13 rows lost"):
        read(Broker(fails=[2], on_failure=cut))


def test_a_rejected_request_is_not_retried() -> None:
    """A permission does not come back by waiting."""
    with pytest.raises(Forbidden):
        read(Broker(fails=[2], error=Forbidden("no")))


def test_retries_back_off_up_to_the_option() -> None:
    """A broker that comes back in time is waited for."""
    time = Time()

    def ask(_: ClusterAddress, __: Topics) -> Sequence[Queue]:
        if time.now < 5:
            raise ConnectionFailed("not yet")
        return [Broker().queue()]

    assert QueueMonitor(WHERE, Topics(("orders",)), time.deadline(60), ask).look().queues.keys() == {("orders", "a:0")}
    assert time.waits == sorted(time.waits)
    assert max(time.waits) == 2.0
    time.now = -3600
    with pytest.raises(
        ConnectionFailed, match=r"e:1 could not be read for 60 s \(option 'unreachableTimeout'\): not yet"
    ):
        QueueMonitor(WHERE, Topics(("orders",)), time.deadline(60), ask).look()
    assert time.now == -3540


def test_an_unreachable_topic_is_waited_for_on_request() -> None:
    """A broker that registers again has not deleted it."""
    time = Time()

    def ask(_: ClusterAddress, __: Topics) -> Sequence[Queue]:
        if time.now < 5:
            raise TopicNotFound("orders")
        return [Broker().queue()]

    monitor = QueueMonitor(WHERE, Topics(("orders",)), time.deadline(60), ask)
    assert monitor.look([("orders", "a:0")]).away([("orders", "a:0")]) == {("orders", "a:0")}
    assert not time.waits
    assert not monitor.look([("orders", "a:0")], wait=True).away([("orders", "a:0")])


def test_a_slave_that_lags_behind_is_not_a_loss_to_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the master is down its queues are unreachable to a stream; a batch reads from the slave."""
    route = TopicRoute((QueueData("a", 1, 1),), (BrokerData("c", "a", {1: "127.0.0.1:1"}),))
    monkeypatch.setattr(NameServers, "_ask", lambda *_, **__: route.encode())
    monkeypatch.setattr(RemotingBroker, "held", lambda *_: {0: (0, 5)})
    where, topics, time = ClusterAddress(namesrv="127.0.0.1:1"), Topics(("orders",)), Time()
    assert [(queue.max_offset, queue.is_master) for queue in pull.queues(where, topics)] == [(5, False)]
    monitor = QueueMonitor(where, topics, time.deadline(0), registered=lambda _: ())
    assert monitor.look([("orders", "a:0")]).away([("orders", "a:0")]) == {("orders", "a:0")}

    def refused(_: QueueRange) -> Iterator[Any]:
        raise ServerError("it holds 0 to 5")

    wanted = QueueRange("orders", "a", "127.0.0.1:1", 0, 3, 9, "remoting")
    with pytest.raises(ConnectionFailed, match="it holds 0 to 5"):
        list(RetryingReader(where, time.deadline(0), fail_on_data_loss=False, pull_range=refused).read(wanted))


def test_wrong_options_are_not_retried() -> None:
    """Only errors that a retry may overcome are."""
    time = Time()

    def ask(_: ClusterAddress, __: Topics) -> Sequence[Queue]:
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        QueueMonitor(WHERE, Topics(("orders",)), time.deadline(60), ask).look()
    assert not time.waits


@pytest.mark.parametrize("protocol", ["grpc", "remoting"])
def test_a_group_shows_the_next_offset_to_read(mq: ferromq.Embedded, protocol: Any) -> None:
    """Over both protocols; it is not the last offset that was read."""
    with mq.producer() as producer:
        receipts = list(producer.send_all("orders", [ferromq.Message(b"m") for _ in range(9)]))
    dispatched(mq)
    with mq.admin() as admin:
        admin.create_group("display")  # over gRPC it would be created
    queue_id = receipts[0].queue_id
    endpoint = mq.endpoint if protocol == "grpc" else mq.remoting
    queue = Queue("orders", "broker-a", endpoint, queue_id, 0, 9, protocol)
    group = GroupOffsets("display", None)
    group.write([(queue, 1)])
    assert mq.store.committed_offset("display", "orders", queue_id) == 1
    group.write([(queue, 2)])
    group.close()
    assert mq.store.committed_offset("display", "orders", queue_id) == 2


def test_offsets_that_cannot_be_written_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A display group never stops a query."""
    queues = [Queue("orders", "a", "127.0.0.1:1", 0, 0, 9), Queue("orders", "a", "127.0.0.1:1", 0, 0, 9, "remoting")]
    group = GroupOffsets("display", None)
    with caplog.at_level(logging.WARNING):
        group.write([(queue, 5) for queue in queues])
        group.write([(queue, 6) for queue in queues])
    group.close()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "offsets not written for display group=display queues=2"
    ]


def test_name_servers_list_the_registered_brokers(mq: ferromq.Embedded) -> None:
    """The first one that answers counts; without an answer it is an error."""
    assert registered_brokers(ClusterAddress(namesrv=f"127.0.0.1:1;{mq.namesrv}")) == {"broker-a"}
    with pytest.raises(ConnectionFailed):
        registered_brokers(ClusterAddress(namesrv="127.0.0.1:1"))
