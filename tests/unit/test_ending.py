"""When a loop of a consumer ends, without I/O: run against a script."""

from typing import Any

import pytest
from client_script import LOST, ONE, Server

from ferromq._proto import messages as pb
from ferromq.core.progress import Ending
from ferromq.core.requests import Call, Stream
from ferromq.core.subscriptions import Subscription, filters_of
from ferromq.errors import ConnectionFailed

SUBSCRIPTION = Subscription("billing", filters_of("orders", "*"))


class Offsets(Server):
    """A broker with one queue to write and one that is closed: first, behind the last, and committed offset."""

    def __init__(self, first: int, behind: int) -> None:
        super().__init__(ONE)
        self.first, self.behind = first, behind
        self.committed: int | None = None
        self.queue_ids = {ONE: ()}
        self.script = [self.answer] * 1000

    def answer(self, call: Call | Stream) -> Any:
        """Answer QueryOffset and GetOffset."""
        ok = pb.Status(code=pb.OK)
        if call.method == "QueryOffset":
            policy = pb.QueryOffsetRequest.FromString(call.request).query_offset_policy
            offset = self.behind if policy == pb.QueryOffsetPolicy.END else self.first
            return pb.QueryOffsetResponse(status=ok, offset=offset).SerializeToString()
        if self.committed is None:
            missing = pb.Status(code=pb.Code.OFFSET_NOT_FOUND)
            return pb.GetOffsetResponse(status=missing).SerializeToString()
        return pb.GetOffsetResponse(status=ok, offset=self.committed).SerializeToString()


def test_the_end_is_reached_once_the_committed_offset_is_there() -> None:
    """The end is that of the beginning."""
    server = Offsets(0, 5)
    ending = Ending(SUBSCRIPTION, None, "end", 30.0)
    server.run(ending.begin(server.common))
    server.behind = 9
    assert not server.run(ending.look(server.common))
    server.committed = 4
    assert not server.run(ending.look(server.common))
    server.committed = 5
    assert server.run(ending.look(server.common))


@pytest.mark.parametrize(("first", "behind"), [(0, 0), (7, 7)])
def test_a_queue_without_messages_is_at_its_end(first: int, behind: int) -> None:
    """Also one whose messages were all deleted, of which the group never commits an offset."""
    server = Offsets(first, behind)
    ending = Ending(SUBSCRIPTION, None, "end", 30.0)
    server.run(ending.begin(server.common))
    assert server.run(ending.look(server.common))


def test_a_loop_asks_less_often_the_longer_it_waits() -> None:
    """And again soon after a message."""
    server = Offsets(0, 5)
    ending = Ending(SUBSCRIPTION, 60.0, "end", 30.0)
    server.run(ending.begin(server.common))
    ending.waits(server.now)
    pauses = []
    for _ in range(7):
        assert not ending.must_look(server.now)
        pauses.append(ending.wakes() - server.now)
        server.now = ending.wakes()
        assert ending.must_look(server.now)
        assert not server.run(ending.look(server.common))
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    ending.waits(server.now)
    assert ending.wakes() - server.now == pytest.approx(0.05)
    server.script = [LOST] * 1000
    with pytest.raises(ConnectionFailed):
        server.run(ending.look(server.common))
    assert not ending.must_look(server.now)


def test_without_an_end_only_the_idle_limit_counts() -> None:
    """It begins anew with each message."""
    ending = Ending(SUBSCRIPTION, 5.0, None, 30.0)
    ending.waits(10.0)
    assert ending.wakes() == 15.0
    assert not ending.is_idle(14.9)
    assert ending.is_idle(15.0)
    assert not ending.must_look(1000.0)
    ending.waits(20.0)
    assert not ending.is_idle(24.0)


class Came:
    """What a loop sees of a message."""

    endpoint, topic, message_id = ONE, "orders", "id"

    def __init__(self, offset: int, attempt: int = 1, queue_id: int = 0, *, is_settled: bool = False) -> None:
        self.queue_offset, self.delivery_attempt, self.queue_id = offset, attempt, queue_id
        self.is_settled = is_settled


class Loop:
    """A loop until the end with a lease of 30 s: what came to it, and when."""

    def __init__(self) -> None:
        self.ending = Ending(SUBSCRIPTION, None, "end", 30.0)
        server = Offsets(0, 9)
        server.run(self.ending.begin(server.common))
        self.before: Any = None
        self.paused_until = -1.0

    def ends_with(self, came: Any, asked: float, now: float) -> bool:
        """Say whether it ends, given a message at a time that it has asked for before."""
        self.ending.waits(asked, self.before)
        self.before = came
        return self.ending.waits_in_vain(came, now, lambda _now: self.paused_until)


def test_a_loop_ends_when_it_waited_half_a_lease_for_what_it_left() -> None:
    """However many redelivered messages it took to wait for so long."""
    loop = Loop()
    assert not loop.ends_with(Came(3), 0.0, 0.0)
    assert not loop.ends_with(Came(4), 0.0, 1.0)
    assert not loop.ends_with(Came(3, 2), 1.0, 15.9)
    assert loop.ends_with(Came(4, 2), 15.9, 16.0)


def test_a_loop_goes_on_as_long_as_others_come() -> None:
    """New messages, and those that another member left: it counts from them on."""
    for other in (Came(6), Came(2, 2), Came(6, 2), Came(4, 2, queue_id=1)):
        loop = Loop()
        assert not loop.ends_with(Came(3), 0.0, 0.0)
        assert not loop.ends_with(Came(5, is_settled=True), 0.0, 0.0)
        assert not loop.ends_with(Came(3, 2), 0.0, 14.0)
        assert not loop.ends_with(other, 14.0, 29.0)
        assert not loop.ends_with(Came(3, 3), 29.0, 43.0)
        assert loop.ends_with(Came(3, 4), 43.0, 44.0)


def test_the_time_of_handling_and_of_a_pause_is_no_wait() -> None:
    """Else a slow loop ended with messages that it has not seen."""
    loop = Loop()
    assert not loop.ends_with(Came(3), 0.0, 0.0)
    assert not loop.ends_with(Came(3, 2), 100.0, 100.0)
    loop.paused_until = 290.0
    assert not loop.ends_with(Came(3, 3), 200.0, 304.0)
    assert loop.ends_with(Came(3, 4), 304.0, 305.0)


def test_a_loop_without_an_end_waits_for_what_it_left() -> None:
    """For ever, as a consumer of a service does."""
    ending = Ending(SUBSCRIPTION, 1000.0, None, 30.0)
    message: Any = Came(3)
    ending.waits(0.0, message)
    again: Any = Came(3, 2)
    assert not ending.waits_in_vain(again, 900.0, lambda _now: -1.0)
