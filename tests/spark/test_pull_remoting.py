"""Reading through a broker over both protocols: the same rows, with all columns."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import ferromq
from ferromq.errors import ConfigError, ServerError, TopicNotFound
from ferromq.spark.arrow import arrow_schema, record_batch
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read import over_grpc, over_remoting, pull
from ferromq.spark.read.over_grpc import GrpcBroker
from ferromq.spark.read.over_remoting import NameServers, RemotingBroker
from ferromq.spark.read.plan import Queue
from ferromq.spark.schema import SCHEMA
from ferromq.spark.topics import Topics

ARROW = arrow_schema(SCHEMA)
COUNT = 40


@pytest.fixture(scope="module")
def mq() -> Iterator[Any]:
    """Serve a topic of two queues with messages for all types of columns."""
    with ferromq.embedded() as mq:
        mq.admin().create_topic("orders", queues=2)
        with mq.producer() as producer:
            for number in range(COUNT):
                message = ferromq.Message(
                    b"body %d" % number,
                    keys=[f"k{number}", "all"],
                    tag="even" if number % 2 == 0 else "odd",
                    properties={"number": str(number)},
                )
                producer.send("orders", message)
        yield mq


def found(mq: Any, where: ClusterAddress) -> list[Queue]:
    """Return the queues once all messages are dispatched."""
    while True:
        queues = pull.queues(where, Topics(("orders",)))
        if sum(queue.max_offset for queue in queues) == COUNT:
            return queues


def read(queues: list[Queue], **wanted: Any) -> Any:
    """Return the rows of whole queues as a table in the order of queue and offset."""
    batches = [
        record_batch(columns, rows, ARROW)
        for queue in queues
        for rows, columns in pull.pull(queue.range(0, queue.max_offset), **wanted)
    ]
    return pa.Table.from_batches(batches, ARROW)


def test_both_protocols_give_the_same_rows(mq: Any) -> None:
    """The same decoder makes the columns."""
    over_grpc = read(found(mq, ClusterAddress(mq.endpoint)))
    over_remoting = read(found(mq, ClusterAddress(namesrv=mq.namesrv)))
    assert over_grpc.num_rows == COUNT
    assert over_grpc.equals(over_remoting)
    assert [name for name in over_grpc.column_names if over_grpc[name].null_count] == []
    assert sorted(over_grpc["body"].to_pylist()) == sorted(b"body %d" % number for number in range(COUNT))


@pytest.mark.parametrize("protocol", ["grpc", "remoting"])
def test_the_broker_filters_tags_and_the_reader_keys(mq: Any, protocol: str) -> None:
    """The rows do not depend on who filters."""
    queues = found(mq, ClusterAddress(mq.endpoint) if protocol == "grpc" else ClusterAddress(namesrv=mq.namesrv))
    even = read(queues, filter={"tags": ["even"]})
    assert even["tag"].to_pylist() == ["even"] * (COUNT // 2)
    assert read(queues, filter={"tags": ["even", "a|b"]}).equals(even)
    assert read(queues, filter={"keys": ["k7"]})["body"].to_pylist() == [b"body 7"]


@pytest.mark.parametrize("protocol", ["grpc", "remoting"])
def test_a_range_that_the_queue_does_not_hold_is_an_error(mq: Any, protocol: str) -> None:
    """Offsets beyond the end are not skipped."""
    queue = found(mq, ClusterAddress(mq.endpoint) if protocol == "grpc" else ClusterAddress(namesrv=mq.namesrv))[0]
    with pytest.raises(ServerError, match="aged out"):
        list(pull.pull(queue.range(0, queue.max_offset + 1)))


def test_name_servers_know_topics_by_pattern(mq: Any) -> None:
    """A pattern matches whole names; without a match it is an error, and so is an unknown name."""
    where = ClusterAddress(namesrv=mq.namesrv)
    assert {queue.topic for queue in pull.queues(where, Topics.matching("ord.*"))} == {"orders"}
    with pytest.raises(ConfigError, match="'topicPattern' is 'trains'"):
        pull.queues(where, Topics.matching("trains"))
    with pytest.raises(TopicNotFound, match="trains"):
        pull.queues(where, Topics(("trains",)))


def test_a_pattern_skips_a_topic_deleted_after_it_was_listed(mq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of topics and a topic's route are two requests."""
    monkeypatch.setattr(NameServers, "topics", lambda _: ["gone", "orders"])
    assert {queue.topic for queue in pull.queues(ClusterAddress(namesrv=mq.namesrv), Topics.matching(".*"))} == {
        "orders"
    }


def test_offsets_of_times_are_the_same_over_both_protocols(mq: Any) -> None:
    """Before the first message it is the min offset, after the last one the max offset."""
    for where in (ClusterAddress(mq.endpoint), ClusterAddress(namesrv=mq.namesrv)):
        queues = found(mq, where)
        assert pull.offsets_by_time([(queue, 0) for queue in queues]) == [0] * len(queues)
        ends = pull.offsets_by_time([(queue, 2**42) for queue in queues])
        assert ends == [queue.max_offset for queue in queues]


def test_each_queue_and_time_gets_its_own_answer(mq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any order, and with any number of concurrent requests."""
    monkeypatch.setattr(over_grpc, "MAX_OFFSET_REQUESTS", 3)
    monkeypatch.setattr(over_remoting, "MAX_OFFSET_REQUESTS", 3)
    (first, second), (third, fourth) = (
        found(mq, ClusterAddress(mq.endpoint)),
        found(mq, ClusterAddress(namesrv=mq.namesrv)),
    )
    late = 2**42
    wanted = [(first, late), (third, 0), (fourth, late), (second, 0), (third, late), (second, late), (first, 0)] * 2
    expected = [queue.max_offset if ms else 0 for queue, ms in wanted]
    assert pull.offsets_by_time(wanted) == expected
    assert expected.count(0) == 6


def test_times_of_many_queues_are_queried_over_remoting_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request waits for the answer to another; an error names its queue."""
    said: list[str] = []

    class Call:
        def __init__(self, queue_id: str) -> None:
            self._queue_id = queue_id

        def wait(self) -> tuple[int, str | None, dict[str, str], bytes]:
            said.append(f"wait {self._queue_id}")
            is_known = self._queue_id != "7"
            return (0, None, {"offset": self._queue_id}, b"") if is_known else (1, "who?", {}, b"")

    class Client:
        def __init__(self, **_options: object) -> None:
            pass

        def begin(self, _address: str, _code: int, fields: dict[str, str], *, timeout: float) -> Call:
            said.append(f"ask {fields['queueId']} {timeout:g}")
            return Call(fields["queueId"])

        def close(self) -> None:
            said.append("close")

    monkeypatch.setattr(over_remoting, "RemotingClient", Client)
    queues = [Queue("orders", "broker-a", "here:1", number, 0, 9, "remoting") for number in range(3)]
    assert pull.offsets_by_time([(queue, 5) for queue in queues]) == [0, 1, 2]
    assert said == ["ask 0 60", "ask 1 60", "ask 2 60", "wait 0", "wait 1", "wait 2", "close"]
    with pytest.raises(ServerError, match=r"queue 7 of topic 'orders' on broker-a: who\? \(code 1\)"):
        pull.offsets_by_time([(replace(queues[0], queue_id=number), 5) for number in (6, 7)])


@pytest.mark.parametrize("way", ["endpoint", "namesrv"])
def test_offsets_of_many_queues_take_few_requests(mq: Any, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """A trigger of a stream on 64 queues does not wait for 128 answers in turn."""
    with mq.admin() as admin:
        admin.create_topic("many", 64)
    waits: list[str] = []

    def noted(original: Any) -> Any:
        def ask(self: Any, *given: Any) -> Any:
            waits.append(str(given[0]))
            return original(self, *given)

        return ask

    monkeypatch.setattr(GrpcBroker, "ask", noted(GrpcBroker.ask))
    monkeypatch.setattr(RemotingBroker, "offsets_by_time", noted(RemotingBroker.offsets_by_time))
    many = pull.queues(ClusterAddress(**{way: getattr(mq, way)}), Topics.named(["many"]))
    assert [queue.queue_id for queue in many] == list(range(64))
    assert waits == (["QueryRoute"] if way == "endpoint" else [])
