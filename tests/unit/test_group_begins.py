"""Where a group begins is decided once, by the broker."""

import threading
from types import SimpleNamespace
from typing import Any, cast

from ferromq._proto import messages as pb
from ferromq.broker.administration.grpc_offsets import GrpcOffsets
from ferromq.core.requests import BEGIN, resource

_WAIT = 0.2
"""Seconds in which a second member would have begun, if the first one did not keep it waiting."""


def nothing() -> None:
    """Do nothing."""


class Store:
    """One queue, whose end moves on with each question."""

    def __init__(self) -> None:
        self.committed: int | None = None
        self.commits: list[int] = []
        self.end = 0
        self.meanwhile = nothing
        """Called once, when the first member has asked for the end."""

    def committed_offset(self, _group: str, _topic: str, _queue_id: int) -> int | None:
        """Return the group's offset."""
        return self.committed

    def commit_offset(self, _group: str, _topic: str, _queue_id: int, offset: int) -> None:
        """Set it."""
        self.committed = offset
        self.commits.append(offset)

    def max_offset(self, _topic: str, _queue_id: int) -> int:
        """Return the end."""
        self.end += 1
        end, meanwhile = self.end, self.meanwhile
        self.meanwhile = nothing
        meanwhile()
        return end


def test_members_that_start_at_once_get_the_same_offset() -> None:
    """The second one waits for the first: nothing that was stored in between is skipped."""
    store = Store()
    tables = cast("Any", SimpleNamespace(get=lambda _name: SimpleNamespace(read_queues=1)))
    offsets = GrpcOffsets(cast("Any", store), tables, tables, lambda: None)
    request = cast("Any", SimpleNamespace(fields={BEGIN: "last"}))
    message = pb.GetOffsetRequest(
        group=resource("billing"), message_queue=pb.MessageQueue(topic=resource("orders"), id=0)
    )
    answers: list[int] = []

    def begin() -> None:
        answers.append(offsets.get_offset(message, request).offset)

    second = threading.Thread(target=begin)

    def while_the_first_begins() -> None:
        second.start()
        second.join(_WAIT)

    store.meanwhile = while_the_first_begins
    begin()
    second.join()
    assert answers == [1, 1]
    assert store.commits == [1]
