"""What triggers read, with a model of brokers and a model of Spark that is killed anywhere."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferromq.errors import ConfigError, ConnectionFailed, DataLost, ServerError, TopicNotFound
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read.plan import Queue
from ferromq.spark.stream.offsets import StreamOffsets
from ferromq.spark.stream.options import StreamOptions
from ferromq.spark.stream.plan import Offsets, QueueKey, flat
from ferromq.spark.stream.queue_monitor import QueueMonitor, RetryDeadline
from ferromq.spark.topics import Topics

UNLIMITED = 2**62


@dataclass
class Brokers:
    """Topics with queues `broker:id` that hold offsets [min, max); no route names brokers that are not in `up`."""

    topics: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    unreachable: bool = False
    looks: int = 0

    def ask(self, _: ClusterAddress, topics: Topics) -> Sequence[Queue]:
        """Behave like `pull.queues`."""
        self.looks += 1
        if self.unreachable:
            raise ConnectionFailed("connection refused")
        found = [queue for topic in self.topics for queue in self._queues(topic) if topics.includes(topic)]
        if not found:
            raise TopicNotFound(f"no topic {topics.names}") if topics.names else ConfigError("no topic matches")
        return found

    def check_whole(self, where: ClusterAddress, _: Topics) -> None:
        """Behave like `pull.check_whole`."""
        if where.namesrv is not None and self.down:
            raise ServerError(f"the broker {min(self.down)} is away and may have queues")

    def registered(self, _: ClusterAddress) -> set[str]:
        """Behave like name servers."""
        return {"a", "b"} - self.down

    def below(self, bound: int) -> set[tuple[QueueKey, int]]:
        """Return each message below the min offsets, or with 1, below the max offsets."""
        return {
            ((topic, queue), offset)
            for topic, queues in self.topics.items()
            for queue, bounds in queues.items()
            for offset in range(bounds[bound])
        }

    def _queues(self, topic: str) -> list[Queue]:
        parts = [(*name.split(":"), *bounds) for name, bounds in self.topics[topic].items()]
        return [
            Queue(topic, broker, f"{broker}:1", int(number), low, high)
            for broker, number, low, high in parts
            if broker not in self.down
        ]


def options(**given: str) -> StreamOptions:
    """Return a user's options."""
    where = {} if "topicPattern" in given else {"topics": "orders,trips"}
    place = {"namesrv": "ns:1"} if "topicPattern" in given else {"endpoint": "e:1"}
    return StreamOptions.parse({**place, **where, **given}, pyspark="4.3.0", has_admission=True)


def offsets(brokers: Brokers, clock: Any = lambda: 0.0, **given: str) -> StreamOffsets:
    """Return a run of a query that never waits."""
    chosen = options(**given)
    read, said = chosen.read, {"registered": brokers.registered, "check_whole": brokers.check_whole}
    monitor = QueueMonitor(read.address, read.topics, RetryDeadline(0.0), brokers.ask, **said)
    return StreamOffsets(chosen, monitor, by_time=lambda wanted: [queue.min_offset for queue, _ in wanted], clock=clock)


def through_json(offsets: Offsets) -> Offsets:
    """Return offsets after a round trip through the checkpoint."""
    return json.loads(json.dumps(offsets))  # type: ignore[no-any-return]


class Killed(Exception):  # noqa: N818 (no error)
    """The driver was killed."""


@dataclass
class Spark:
    """Runs triggers as Spark does, with a durable checkpoint and a sink that accepts each batch once."""

    brokers: Brokers
    given: dict[str, str]
    log: list[Offsets] = field(default_factory=list)
    committed: int = 0
    sink: dict[int, set[tuple[QueueKey, int]]] = field(default_factory=dict)
    offsets: StreamOffsets = field(init=False)
    is_alive: bool = True

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin a run; a planned but uncommitted batch runs first."""
        self.offsets = offsets(self.brokers, **self.given)
        if len(self.log) > self.committed:
            self._batch()

    def is_started(self) -> bool:
        """Try to begin a run; return false if brokers are unreachable."""
        try:
            self.start()
        except ConnectionFailed:
            self.is_alive = False
        else:
            self.is_alive = True
        return self.is_alive

    def trigger(self, max_rows: int | None, kill_at: str = "") -> bool:
        """Plan and run a batch; return false if nothing is new. Raises `Killed` at the given point."""
        start = through_json(self.log[-1] if self.log else self.offsets.initial())
        end = through_json(self.offsets.latest(start, max_rows))
        if self.log and json.dumps(end) == json.dumps(start):
            return False
        self.log.append(end)
        if kill_at == "planned":
            raise Killed
        self._batch(kill_at)
        return True

    def _batch(self, kill_at: str = "") -> None:
        number = self.committed
        start = self.log[number - 1] if number else self.offsets.initial()
        ranges = self.offsets.ranges(through_json(start), through_json(self.log[number]))
        rows = [
            ((part.topic, f"{part.broker_name}:{part.queue_id}"), offset)
            for part in ranges
            for offset in range(part.start, part.end)
        ]
        assert len(rows) == len(set(rows))
        self.sink[number] = set(rows)
        if kill_at == "written":
            raise Killed
        self.committed += 1

    def rows(self) -> list[tuple[QueueKey, int]]:
        """Return all rows in the sink."""
        return [row for batch in self.sink.values() for row in batch]


PLACES = [("orders", "a:0"), ("orders", "a:1"), ("orders", "b:0"), ("trips", "a:0")]
EVENTS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(PLACES), st.integers(1, 9)),
    st.tuples(st.just("trigger"), st.integers(1, 12), st.sampled_from(["", "", "planned", "written"])),
    st.tuples(st.just("age"), st.sampled_from(PLACES), st.integers(1, 5)),
    st.tuples(st.just("down"), st.booleans()),
    st.tuples(st.just("restart")),
)


def happen(event: tuple[Any, ...], brokers: Brokers, spark: Spark, *, may_age: bool) -> None:
    """Apply *event*."""
    match event:
        case ("send", (topic, queue), count):
            brokers.topics[topic].setdefault(queue, [0, 0])[1] += count
        case ("trigger", max_rows, kill_at) if spark.is_alive or spark.is_started():
            try:
                spark.trigger(max_rows, kill_at)
            except Killed:
                spark.is_alive = False
        case ("age", (topic, queue), count) if may_age and queue in brokers.topics[topic]:
            bounds = brokers.topics[topic][queue]
            bounds[0] = min(bounds[0] + count, bounds[1])
        case ("down", is_down):
            brokers.down = {"b"} if is_down else set()
        case ("restart",):
            spark.is_started()


@given(st.lists(EVENTS, max_size=40), st.sampled_from(["earliest", "latest"]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_each_message_is_read_once_whatever_is_killed(events: list[Any], begin: str, may_age: bool) -> None:
    """With new queues, and kills inside and between batches: no row twice, and only expired ones missing."""
    brokers = Brokers({"orders": {"a:0": [0, 3]}, "trips": {"a:0": [2, 5]}})
    spark = Spark(brokers, {"startingOffsets": begin, "failOnDataLoss": "false"})
    spark.trigger(UNLIMITED)
    before = (
        set()
        if begin == "earliest"
        else {(("orders", "a:0"), n) for n in range(3)} | {(("trips", "a:0"), n) for n in range(2, 5)}
    )
    for event in events:
        happen(event, brokers, spark, may_age=may_age)
    brokers.down = set()
    assert spark.is_alive or spark.is_started()
    while spark.trigger(7):
        pass
    rows, sent, aged = spark.rows(), brokers.below(1), brokers.below(0)
    assert len(rows) == len(set(rows))
    assert sent - set(rows) <= aged | before
    assert set(rows) <= sent - before


def started(brokers: Brokers, **given: str) -> Spark:
    """Return a query that has read the current messages."""
    spark = Spark(brokers, given)
    while spark.trigger(UNLIMITED):
        pass
    return spark


def test_aged_out_messages_fail_the_query_and_are_named() -> None:
    """With topic, queue, the expected and the current offsets, and the option that helps."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "trips": {"a:0": [0, 0]}})
    spark = started(brokers)
    brokers.topics["orders"]["a:0"] = [9, 12]
    with pytest.raises(DataLost) as raised:
        spark.trigger(UNLIMITED)
    for words in [
        "queue a:0 of topic 'orders'",
        "from queue offset 5",
        "holds 9 to 12",
        "4 rows lost",
        "failOnDataLoss",
    ]:
        assert words in str(raised.value)


def test_losses_are_counted_and_logged_once_where_they_are_allowed(caplog: pytest.LogCaptureFixture) -> None:
    """The query continues with what is left."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "trips": {"a:0": [0, 5]}})
    spark = started(brokers, failOnDataLoss="false")
    brokers.topics["orders"]["a:0"] = [9, 12]
    brokers.topics["trips"]["a:0"] = [6, 6]
    with caplog.at_level(logging.WARNING):
        while spark.trigger(UNLIMITED):
            pass
    assert spark.offsets.lost_rows == 5
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["rows lost rows=5 in_this_run=5"]
    assert {n for (topic, _), n in spark.rows() if topic == "orders"} == {0, 1, 2, 3, 4, 9, 10, 11}


def test_a_recreated_topic_is_a_loss_and_is_read_from_its_beginning() -> None:
    """The checkpoint's offset is beyond the max offset."""
    brokers = Brokers({"orders": {"a:0": [0, 50]}, "trips": {"a:0": [0, 0]}})
    strict, lenient = started(brokers), started(brokers, failOnDataLoss="false")
    brokers.topics["orders"]["a:0"] = [0, 3]
    with pytest.raises(DataLost, match=r"from queue offset 50, but now holds 0 to 3 \(the topic was created again"):
        strict.trigger(UNLIMITED)
    before = len(lenient.rows())
    while lenient.trigger(UNLIMITED):
        pass
    assert len(lenient.rows()) - before == 3


def test_a_queue_that_its_broker_has_no_more_is_gone() -> None:
    """The broker answered with other queues."""
    brokers = Brokers({"orders": {"a:0": [0, 5], "a:1": [0, 5]}, "trips": {"a:0": [0, 0]}})
    strict, lenient = started(brokers), started(brokers, failOnDataLoss="false")
    del brokers.topics["orders"]["a:1"]
    with pytest.raises(DataLost, match=r"queue a:1 of topic 'orders' .* but no longer exists"):
        strict.trigger(UNLIMITED)
    lenient.trigger(UNLIMITED)
    assert ("orders", "a:1") not in flat(lenient.log[-1])


def test_a_broker_that_no_route_names_is_not_gone(caplog: pytest.LogCaptureFixture) -> None:
    """Its queues keep their offsets, and are read when it is back; this is logged once."""
    brokers = Brokers({"orders": {"a:0": [0, 5], "b:0": [0, 5]}, "trips": {"a:0": [0, 0]}})
    spark = started(brokers, failOnDataLoss="false")
    brokers.down = {"b"}
    brokers.topics["orders"]["b:0"][1] = brokers.topics["orders"]["a:0"][1] = 8
    with caplog.at_level(logging.WARNING):
        while spark.trigger(UNLIMITED):
            pass
    assert [record.getMessage() for record in caplog.records if "unreachable" not in record.getMessage()] == []
    assert len(caplog.records) == 1
    assert flat(spark.log[-1])["orders", "b:0"] == 5
    brokers.down = set()
    while spark.trigger(UNLIMITED):
        pass
    assert len(spark.rows()) == 16
    assert spark.offsets.lost_rows == 0


def test_a_topic_that_is_gone_fails_a_query_and_is_kept_where_losses_are_allowed() -> None:
    """It may be deleted, or its only broker may be restarting."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "trips": {"a:0": [0, 5]}})
    strict, lenient = started(brokers), started(brokers, failOnDataLoss="false")
    del brokers.topics["trips"]
    brokers.topics["orders"]["a:0"][1] = 6
    with pytest.raises(
        DataLost, match=r"queue a:0 of topic 'trips' was to be read from queue offset 5, but no longer exists"
    ):
        strict.trigger(UNLIMITED)
    while lenient.trigger(UNLIMITED):
        pass
    assert flat(lenient.log[-1]) == {("orders", "a:0"): 6, ("trips", "a:0"): 5}


@pytest.mark.parametrize("given", [{}, {"topicPattern": ".*"}])
def test_a_broker_that_is_down_is_not_a_loss(given: dict[str, str]) -> None:
    """Otherwise users would start anew and read everything twice; a planned batch waits as well."""
    brokers = Brokers({"orders": {"a:0": [0, 5], "b:0": [0, 5]}, "trips": {"a:0": [0, 0]}})
    spark = started(brokers, **given)
    brokers.topics["orders"]["b:0"][1] = 9
    with pytest.raises(Killed):
        spark.trigger(UNLIMITED, "planned")
    brokers.down = {"b"}
    with pytest.raises(ConnectionFailed, match=r"queue b:0 of topic 'orders' could not .* Nothing is lost"):
        spark.start()
    brokers.down = set()
    spark.start()
    brokers.down = {"b"}
    with pytest.raises(ConnectionFailed, match=r"queue b:0 of topic 'orders' could not .* Nothing is lost"):
        spark.trigger(UNLIMITED)
    assert len(spark.rows()) == 14


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_unreachable_brokers_are_an_error_that_says_that_nothing_is_lost(allowed: str) -> None:
    """With either setting of the option: a missing answer is not a loss."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "trips": {"a:0": [0, 5]}})
    spark = started(brokers, failOnDataLoss=allowed)
    brokers.unreachable = True
    with pytest.raises(
        ConnectionFailed, match=r"e:1 could not be read for 0 s .* connection refused\. Nothing is lost"
    ):
        spark.trigger(UNLIMITED)


def test_a_batch_planned_before_a_kill_fails_where_its_rows_are_gone_meanwhile() -> None:
    """Replaying a batch from the checkpoint checks for losses, too."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "trips": {"a:0": [0, 5]}})
    spark = started(brokers)
    brokers.topics["orders"]["a:0"][1] = 20
    with pytest.raises(Killed):
        spark.trigger(UNLIMITED, "planned")
    brokers.topics["orders"]["a:0"][0] = 11
    with pytest.raises(DataLost, match="6 rows lost"):
        spark.start()


def test_latest_is_where_a_query_was_started_first() -> None:
    """Messages between a kill in the first batch and the restart are read."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "trips": {"a:0": [0, 5]}})
    spark = Spark(brokers, {"startingOffsets": "latest"})
    with pytest.raises(Killed):
        spark.trigger(UNLIMITED, "planned")
    brokers.topics["orders"]["a:0"][1] = 8
    spark.start()
    while spark.trigger(UNLIMITED):
        pass
    assert {n for _, n in spark.rows()} == {5, 6, 7}


@pytest.mark.parametrize("begin", ["earliest", '{"orders": {"0": 3}}', '{"orders": {"0": 4}}'])
def test_the_start_of_a_query_is_in_the_checkpoint_before_anything_is_read(begin: str) -> None:
    """A query killed in its first batch reads the same rows again, and fails if some have expired."""
    brokers = Brokers({"orders": {"a:0": [3, 9]}, "trips": {"a:0": [0, 5]}})
    spark = Spark(brokers, {"startingOffsets": begin})
    with pytest.raises(Killed):
        spark.trigger(UNLIMITED, "written")
    first = set(spark.sink[0])
    spark.start()
    assert spark.sink[0] == first
    assert len(first) == 6 + 5 - (begin[-3] == "4")
    again = Spark(brokers, {"startingOffsets": begin})
    with pytest.raises(Killed):
        again.trigger(UNLIMITED, "planned")
    brokers.topics["orders"]["a:0"] = [6, 12]
    with pytest.raises(
        DataLost, match=r"queue a:0 of topic 'orders' was to be read from queue offset [34], but now holds"
    ):
        again.start()


def test_the_first_batch_has_rows() -> None:
    """The checkpoint holds the next offsets, and the start of each queue that does not begin at 0."""
    brokers = Brokers({"orders": {"a:0": [0, 5], "a:1": [4, 9]}, "trips": {"a:0": [0, 5]}})
    spark = Spark(brokers, {})
    assert spark.trigger(UNLIMITED)
    assert spark.log == [{"orders": {"a:0": 5, "a:1": 9, "a:1 from": 4}, "trips": {"a:0": 5}}]
    assert len(spark.rows()) == 15
    assert not spark.trigger(UNLIMITED)
    brokers.topics["orders"]["a:1"][1] += 1
    assert spark.trigger(UNLIMITED)
    assert spark.log[-1] == {"orders": {"a:0": 5, "a:1": 10}, "trips": {"a:0": 5}}


def test_the_start_of_a_new_queue_is_in_the_checkpoint_before_anything_is_read() -> None:
    """Messages that expire between the plan and a restart are noticed."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "trips": {"a:0": [0, 5]}})
    spark = started(brokers)
    brokers.topics["orders"]["a:1"] = [4, 6]
    with pytest.raises(Killed):
        spark.trigger(UNLIMITED, "planned")
    brokers.topics["orders"]["a:1"] = [5, 9]
    with pytest.raises(DataLost, match=r"queue a:1 .* was to be read from queue offset 4, but now holds 5 to 9"):
        spark.start()


def test_available_now_has_a_fixed_end_and_takes_no_new_queues() -> None:
    """Later messages do not move its end."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "trips": {"a:0": [0, 5]}})
    spark = Spark(brokers, {"minOffsetsPerTrigger": "100"})
    spark.offsets.prepare()
    for _ in range(10):
        brokers.topics["orders"]["a:0"][1] += 1
        brokers.topics["orders"]["a:9"] = [0, 4]
        spark.trigger(3)
    assert len(spark.rows()) == 10
    assert not spark.trigger(3)


def test_trigger_once_reads_all_in_one_batch() -> None:
    """Spark asks without a limit, and only once."""
    brokers = Brokers({"orders": {"a:0": [2, 5]}, "trips": {"a:0": [0, 5]}})
    run = offsets(brokers, maxOffsetsPerTrigger="1")
    start = run.initial()
    end = run.latest(start, None)
    assert sum(map(len, run.ranges(start, end))) == 8


@pytest.mark.parametrize("starting", ["latest", '{"orders": {"0": "latest"}}'])
def test_trigger_once_from_latest_records_its_start_and_skips_nothing_after_a_kill(starting: str) -> None:
    """After the kill, `latest` would be later than the start of the first batch."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "trips": {"a:0": [0, 5]}})
    spark = Spark(brokers, {"startingOffsets": starting})
    with pytest.raises(Killed):
        spark.trigger(None, "planned")
    brokers.topics["orders"] = {"a:0": [0, 9], "a:1": [0, 3]}
    spark.start()
    spark.trigger(None)
    orders = {(queue, number) for (topic, queue), number in spark.rows() if topic == "orders"}
    assert orders == {("a:0", number) for number in range(5, 9)} | {("a:1", number) for number in range(3)}
    trips = [number for (topic, _), number in spark.rows() if topic == "trips"]
    assert len(trips) == (0 if starting == "latest" else 5)


def test_a_batch_waits_for_rows_but_not_for_ever() -> None:
    """For minOffsetsPerTrigger rows, or maxTriggerDelay since the first one was seen."""
    now = [0.0]
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "trips": {"a:0": [0, 0]}})
    run = offsets(brokers, lambda: now[0], minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    start = run.latest(run.initial(), 100)
    assert run.ranges({}, start) == []
    assert run.latest(start, 100) == start
    now[0] = 29.9
    assert run.latest(start, 100) == start
    now[0] = 30.0
    end = run.latest(start, 100)
    assert sum(flat(end).values()) == 5
    brokers.topics["orders"]["a:0"][1] = 14
    assert run.latest(end, 100) == end
    brokers.topics["orders"]["a:0"][1] = 15
    assert sum(flat(run.latest(end, 100)).values()) == 15


def test_name_servers_tell_a_deleted_topic_from_a_broker_that_is_down() -> None:
    """A broker that is registered without the topic has deleted it; an unregistered one is unknown."""
    brokers = Brokers({"orders": {"a:0": [0, 5], "b:0": [0, 5]}})
    spark = started(brokers, topicPattern=".*", failOnDataLoss="false")
    brokers.down = {"b"}
    brokers.topics = {"other": {"a:0": [0, 0]}}
    while spark.trigger(UNLIMITED):
        pass
    assert flat(spark.log[-1]) == {("orders", "b:0"): 5, ("other", "a:0"): 0}


def test_a_planned_batch_waits_for_a_broker_that_is_down_and_goes_on_without_a_deleted_topic() -> None:
    """Rows that may come back are not skipped, even if losses are allowed."""
    brokers = Brokers({"orders": {"a:0": [0, 5], "b:0": [0, 5]}, "trips": {"a:0": [0, 5]}})
    spark = started(brokers, failOnDataLoss="false")
    brokers.topics["orders"]["b:0"][1] = brokers.topics["trips"]["a:0"][1] = 8
    with pytest.raises(Killed):
        spark.trigger(UNLIMITED, "planned")
    brokers.down = {"b"}
    with pytest.raises(ConnectionFailed, match=r"queue b:0 of topic 'orders' could not be read .* Nothing is lost"):
        spark.start()
    brokers.down = set()
    del brokers.topics["trips"]
    spark.start()
    assert spark.offsets.lost_rows == 3
    assert len(spark.rows()) == 18


def test_topics_of_a_pattern_are_found_while_the_query_runs() -> None:
    """A new topic is read from its min offset."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "other": {"a:0": [0, 5]}})
    spark = started(brokers, topicPattern="or.*", startingOffsets="latest")
    brokers.topics["organs"] = {"a:0": [0, 2]}
    while spark.trigger(UNLIMITED):
        pass
    assert sorted(spark.rows()) == [(("organs", "a:0"), 0), (("organs", "a:0"), 1)]


def test_a_pattern_without_topics_is_an_error_only_at_the_start() -> None:
    """At the start it may be mistyped; later, its topics were deleted."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}})
    spark = started(brokers, topicPattern="or.*", failOnDataLoss="false")
    brokers.topics = {}
    while spark.trigger(UNLIMITED):
        pass
    assert spark.log[-1] == {}
    with pytest.raises(ConfigError, match="no topic matches"):
        started(brokers, topicPattern="or.*")


def test_a_topic_dropped_from_the_options_is_an_error() -> None:
    """The checkpoint has offsets of it."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "trips": {"a:0": [0, 5]}})
    spark = started(brokers)
    spark.given = {"topics": "orders"}
    spark.start()
    with pytest.raises(DataLost, match="the checkpoint has offsets of 'trips', but the options no longer include it"):
        spark.trigger(UNLIMITED)
    spark.given["failOnDataLoss"] = "false"
    spark.start()
    spark.trigger(UNLIMITED)
    assert spark.log[-1] == {"orders": {"a:0": 5}}


def test_a_new_query_names_an_unknown_topic() -> None:
    """It does not wait for a name that may be wrong."""
    run = offsets(Brokers({"orders": {"a:0": [0, 5]}}))
    start = run.initial()
    with pytest.raises(TopicNotFound, match="trips"):
        run.latest(start, UNLIMITED)


def test_a_trigger_queries_brokers_once() -> None:
    """Plan and partitions share the answer."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "trips": {"a:0": [0, 5]}})
    spark = started(brokers)
    brokers.topics["orders"]["a:0"][1] = 9
    before = brokers.looks
    assert spark.trigger(UNLIMITED)
    assert brokers.looks - before == 2  # one for each topic


def test_without_a_start_it_goes_on_from_the_batch_before() -> None:
    """PySpark 4.1 does not pass the start; after a restart it passes the checkpoint's end as an empty range."""
    brokers = Brokers({"orders": {"a:0": [0, 5], "b:0": [0, 5]}, "trips": {"a:0": [0, 0]}})
    run = offsets(brokers, failOnDataLoss="false")
    end = run.latest(None, None)
    assert sum(map(len, run.ranges(run.initial(), end))) == 10
    brokers.down = {"b"}
    again = offsets(brokers, failOnDataLoss="false")
    assert again.ranges(end, end) == []
    assert again.latest(None, None) == end


def test_the_reported_offsets_are_the_max_offsets() -> None:
    """Spark shows them as `latestOffset` next to `endOffset`."""
    brokers = Brokers({"orders": {"a:0": [0, 5]}, "trips": {"a:0": [0, 5]}})
    run = offsets(brokers)
    assert run.report() is None
    run.latest(run.initial(), 1)
    assert run.report() == {"orders": {"a:0": 5}, "trips": {"a:0": 5}}


def test_a_new_query_by_name_servers_waits_for_all_brokers_and_a_known_one_for_those_it_read() -> None:
    """A new query cannot know the queues of a broker that is down; later its checkpoint names them."""
    brokers = Brokers({"orders": {"a:0": [0, 5], "b:0": [0, 5]}}, down={"b"})
    for begin in ("latest", "prepare"):
        run = offsets(brokers, topicPattern="orders")
        start = run.initial()
        with pytest.raises(ConnectionFailed, match="the broker b is away"):
            run.latest(start, UNLIMITED) if begin == "latest" else run.prepare()
    assert flat(offsets(brokers, topicPattern="orders", failOnDataLoss="false").latest({}, UNLIMITED)).keys() == {
        ("orders", "a:0")
    }
    brokers.down = set()
    run = offsets(brokers, topicPattern="orders")
    end = run.latest(run.initial(), UNLIMITED)
    assert flat(end).keys() == {("orders", "a:0"), ("orders", "b:0")}
    brokers.topics["c"] = {"c:0": [0, 5]}
    brokers.down = {"c"}
    assert run.latest(end, UNLIMITED) == end
