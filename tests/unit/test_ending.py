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
    ending = Ending(SUBSCRIPTION, None, "end")
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
    ending = Ending(SUBSCRIPTION, None, "end")
    server.run(ending.begin(server.common))
    assert server.run(ending.look(server.common))


def test_a_loop_asks_less_often_the_longer_it_waits() -> None:
    """And again soon after a message."""
    server = Offsets(0, 5)
    ending = Ending(SUBSCRIPTION, 60.0, "end")
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
    ending = Ending(SUBSCRIPTION, 5.0, None)
    ending.waits(10.0)
    assert ending.wakes() == 15.0
    assert not ending.is_idle(14.9)
    assert ending.is_idle(15.0)
    assert not ending.must_look(1000.0)
    ending.waits(20.0)
    assert not ending.is_idle(24.0)
