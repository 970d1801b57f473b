"""How a reader goes through queues, without I/O: run against a script."""

import logging
from typing import Any

import pytest
from client_script import LOST, ONE, TWO, Server

from ferromq._proto import messages as pb
from ferromq.core.pull_plans import Queue
from ferromq.core.reading import Reading
from ferromq.core.requests import Call, Packets, Stream
from ferromq.core.subscriptions import Start, filters_of
from ferromq.errors import ConnectionFailed, FerromqError, Forbidden, RequestError

Place = tuple[str, int]


class Log(Server):
    """Brokers with queues that have a first and a next offset."""

    def __init__(self, *brokers: str) -> None:
        super().__init__(*brokers)
        self.common.is_anonymous = True
        self.queues: dict[Place, tuple[int, int]] = {}
        self.silent: set[str] = set()
        self.script = [self.answer] * 10_000

    def answer(self, call: Call | Stream) -> Any:
        """Answer QueryOffset and PullMessage; a wait passes its time."""
        if call.endpoint in self.silent:
            return LOST
        if call.method == "QueryOffset":
            asked = pb.QueryOffsetRequest.FromString(call.request)
            first, behind = self.queues.get((call.endpoint, asked.message_queue.id), (0, 0))
            is_end = asked.query_offset_policy == pb.QueryOffsetPolicy.END
            ok = pb.Status(code=pb.OK)
            return pb.QueryOffsetResponse(status=ok, offset=behind if is_end else first).SerializeToString()
        assert call.method == "PullMessage"
        return self.pull(call.endpoint, pb.PullMessageRequest.FromString(call.request))

    def pull(self, endpoint: str, asked: pb.PullMessageRequest) -> Packets:
        """Answer with the messages of a queue."""
        first, behind = self.queues.get((endpoint, asked.message_queue.id), (0, 0))
        if not first <= asked.offset <= behind:
            parts = [pb.PullMessageResponse(status=pb.Status(code=pb.Code.ILLEGAL_OFFSET, message="out of range"))]
            return Packets([part.SerializeToString() for part in parts], packed=False)
        found = range(asked.offset, min(behind, asked.offset + asked.batch_size))
        if not found:
            self.now += 0.001 + asked.long_polling_timeout.ToTimedelta().total_seconds()
        parts = [pb.PullMessageResponse(status=pb.Status(code=pb.OK if found else pb.Code.MESSAGE_NOT_FOUND))]
        parts += [pb.PullMessageResponse(message=message(asked.message_queue.id, offset)) for offset in found]
        parts += [pb.PullMessageResponse(next_offset=found.stop if found else asked.offset)]
        return Packets([part.SerializeToString() for part in parts], packed=False)


def message(queue_id: int, offset: int) -> pb.Message:
    """Return a message whose body is its place."""
    properties = pb.SystemProperties(message_id=f"{queue_id}/{offset}", queue_id=queue_id, queue_offset=offset)
    return pb.Message(
        topic=pb.Resource(name="orders"), body=f"{queue_id}/{offset}".encode(), system_properties=properties
    )


def reading(begin: Start = "first") -> Reading:
    """Return a reader of one topic."""
    return Reading(filters_of("orders", "*"), begin)


def read(log: Log, reader: Reading, wait: float = 0.0, count: int = 32) -> list[str]:
    """Return the bodies of one read."""
    return [each.body.decode() for each in log.run(reader.read(log.common, count, wait))]


def loop(log: Log, reader: Reading, idle: float | None = None, until: str | None = None) -> list[str]:
    """Return the bodies of a loop to its end."""
    ends = None if until is None else log.run(reader.ends(log.common, until))
    found = []
    while True:
        taken = reader.take(1)
        if not taken and not log.run(reader.read_on(log.common, idle, ends)):
            return found
        found += [each.body.decode() for each in taken]


def queue(broker: str, queue_id: int) -> Queue:
    """Return a queue as readers name it."""
    return Queue(f"broker-{broker}", queue_id, "orders")


def test_a_reader_makes_itself_known_to_no_broker() -> None:
    """It pulls without a group."""
    log = Log()
    log.queues = {(ONE, 0): (0, 2)}
    assert read(log, reading()) == ["0/0", "0/1"]
    pulls = [pb.PullMessageRequest.FromString(call.request) for call in log.calls if call.method == "PullMessage"]
    assert {each.group.name for each in pulls} == {""}
    assert set(log.methods()) == {"QueryRoute", "QueryOffset", "PullMessage"}


def test_positions_are_behind_what_was_handed_out() -> None:
    """Not behind what was read: a loop that is left early loses nothing."""
    log = Log()
    log.queues = {(ONE, 0): (3, 9)}
    reader = reading()
    assert log.run(reader.read_on(log.common, None, None))
    assert [each.queue_offset for each in reader.take(2)] == [3, 4]
    assert reader.positions[queue(ONE, 0)] == 5
    assert read(log, reader) == ["0/5", "0/6", "0/7", "0/8"]
    assert reader.positions[queue(ONE, 0)] == 9


def test_a_loop_to_the_end_reads_what_was_there_when_it_began() -> None:
    """In all queues of all brokers, and nothing that comes meanwhile; the next read begins there."""
    log = Log(ONE, TWO)
    log.queues = {(ONE, 0): (0, 3), (ONE, 1): (2, 2), (TWO, 9): (1, 600)}
    reader = reading()
    ends = log.run(reader.ends(log.common, "end"))
    log.queues = {(ONE, 0): (0, 5), (ONE, 1): (2, 4), (TWO, 9): (1, 700)}
    found = []
    while log.run(reader.read_on(log.common, None, ends)):
        found += [each.body.decode() for each in reader.take(1)]
    assert sorted(found) == sorted([*(f"0/{n}" for n in range(3)), *(f"9/{n}" for n in range(1, 600))])
    assert (reader.positions[queue(ONE, 0)], reader.positions[queue(TWO, 9)]) == (3, 600)
    assert len(loop(log, reader, until="end")) == 2 + 2 + 100


def test_a_loop_ends_after_the_idle_limit() -> None:
    """Counted from the last message."""
    log = Log()
    log.queues = {(ONE, 0): (0, 1)}
    assert loop(log, reading(), idle=5.0) == ["0/0"]
    assert log.now == pytest.approx(5.0, abs=0.5)


def test_a_busy_queue_does_not_keep_the_others_waiting() -> None:
    """Queues take turns."""
    log = Log(ONE, TWO)
    log.queues = {(ONE, 0): (0, 1000), (ONE, 1): (0, 1000), (TWO, 0): (0, 1000)}
    reader = reading()
    seen = [read(log, reader, count=1)[0].partition("/")[0] for _ in range(12)]
    assert seen.count("1") == 4


@pytest.mark.parametrize(("begin", "expected"), [("first", ["0/4", "0/5"]), ("last", [])])
def test_a_reader_begins_where_it_should(begin: Start, expected: list[str]) -> None:
    """At the first message that is kept, or behind the last one."""
    log = Log()
    log.queues = {(ONE, 0): (4, 6)}
    assert read(log, reading(begin)) == expected


def test_a_queue_that_comes_later_is_read_from_its_first_message() -> None:
    """A reader that began at the end misses nothing of it."""
    log = Log()
    log.queues = {(ONE, 0): (0, 5)}
    reader = reading("last")
    assert read(log, reader) == []
    log.queue_ids = {ONE: (0, 1, 2)}
    log.queues[ONE, 2] = 0, 2
    log.now += 60
    assert read(log, reader) == ["2/0", "2/1"]


def test_a_reader_goes_on_with_other_brokers_while_one_is_away() -> None:
    """And reads that one where it should begin, once it answers."""
    log = Log(ONE, TWO)
    log.queues = {(ONE, 0): (0, 1), (TWO, 0): (0, 7)}
    log.silent = {TWO}
    reader = reading("last")
    assert read(log, reader) == []
    log.queues[ONE, 0] = 0, 2
    assert read(log, reader, wait=5.0) == ["0/1"]
    log.silent = set()
    log.now += 60
    assert read(log, reader) == []
    log.queues[TWO, 0] = 0, 8
    log.now += 60
    assert read(log, reader, wait=5.0) == ["0/7"]


def test_without_any_broker_a_read_fails_after_its_wait_and_a_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """The loop says so once."""
    log = Log()
    log.queues = {(ONE, 0): (0, 1)}
    reader = reading()
    read(log, reader)
    log.silent = {ONE}
    with pytest.raises(ConnectionFailed):
        read(log, reader, wait=5.0)
    assert 5.0 <= log.now <= 8.0
    log.queues[ONE, 0] = 0, 2
    steps = reader.read_on(log.common, None, None)
    with caplog.at_level(logging.INFO, "ferromq.client"):
        answer: Any = None
        failure: FerromqError | None = None
        try:
            while True:
                step = steps.send(answer) if failure is None else steps.throw(failure)
                answer = failure = None
                if log.now > 100:
                    log.silent = set()
                try:
                    answer = log.take(step)
                except FerromqError as error:
                    failure = error
        except StopIteration:
            pass
    texts = [record.getMessage() for record in caplog.records]
    assert [text.partition(" topic")[0] for text in texts] == ["no messages for now", "messages again"]
    assert [each.queue_offset for each in reader.take(9)] == [1]


def test_deleted_messages_are_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The reader was too slow; it goes on at the first message that is kept."""
    log = Log()
    log.queues = {(ONE, 0): (0, 9)}
    reader = reading()
    read(log, reader, count=2)
    log.queues[ONE, 0] = 7, 9
    assert read(log, reader, wait=1.0) == ["0/7", "0/8"]
    assert (
        "deleted before they were read topic=orders broker=broker-10.0.0.1:8081 queue=0 first=2 next=7" in caplog.text
    )


def test_a_position_behind_the_end_is_an_error() -> None:
    """The topic was made anew, or the position is another topic's."""
    log = Log()
    log.queues = {(ONE, 0): (0, 9)}
    reader = reading()
    reader.seek({queue(ONE, 0): 12})
    with pytest.raises(RequestError, match="out of range"):
        read(log, reader, wait=1.0)


def test_a_seek_reads_again_and_drops_what_was_read_ahead() -> None:
    """`restart` does so in all queues."""
    log = Log()
    log.queues = {(ONE, 0): (0, 4)}
    reader = reading()
    assert len(loop(log, reader, until="end")) == 4
    reader.seek({queue(ONE, 0): 2})
    log.run(reader.read_on(log.common, None, None))
    reader.seek({Queue(f"broker-{ONE}", 0): 3})
    assert loop(log, reader, until="end") == ["0/3"]
    reader.restart("first")
    assert len(loop(log, reader, until="end")) == 4
    with pytest.raises(ValueError, match="0 or more"):
        reader.seek({queue(ONE, 0): -1})
    with pytest.raises(RequestError, match="'prices'; subscribed are orders"):
        reader.seek({Queue("b", 0, "prices"): 1})
    with pytest.raises(ValueError, match="aware datetime"):
        reader.restart("begin")  # type: ignore[arg-type]


def test_a_seek_before_the_first_read_leaves_other_queues_at_their_first_message() -> None:
    """Those came after the positions were noted."""
    log = Log()
    log.queues = {(ONE, 0): (0, 4), (ONE, 1): (0, 2)}
    reader = reading("last")
    reader.seek({queue(ONE, 0): 3})
    assert sorted(loop(log, reader, until="end")) == ["0/3", "1/0", "1/1"]


def test_a_seek_while_a_pull_is_under_way_counts() -> None:
    """What the pull brings is dropped."""
    log = Log()
    log.queue_ids = {ONE: (0,)}
    log.queues = {(ONE, 0): (0, 4)}
    reader = reading()
    plan = reader.read(log.common, 1, 5.0)
    step = next(plan)
    while not (isinstance(step, Stream) and pb.PullMessageRequest.FromString(step.request).message_queue.id == 0):
        step = plan.send(log.take(step))
    answer = log.take(step)
    reader.seek({queue(ONE, 0): 3})
    step = plan.send(answer)
    bodies = []
    try:
        while True:
            step = plan.send(log.take(step))
    except StopIteration as end:
        bodies = [each.body for each in end.value]
    assert bodies == [b"0/3"]


def test_a_topic_without_a_readable_queue_says_so() -> None:
    """It is no empty topic."""
    log = Log()
    log.route = lambda: pb.QueryRouteResponse(status=pb.Status(code=pb.OK)).SerializeToString()  # type: ignore[method-assign]
    with pytest.raises(Forbidden, match="no queue of orders may be read"):
        read(log, reading())
