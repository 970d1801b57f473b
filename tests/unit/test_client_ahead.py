"""How many messages a consumer prefetches, by its workers' rate; time is an argument."""

from types import SimpleNamespace
from typing import Any

import pytest

from ferromq._ferromq import InUse
from ferromq.core.ahead import MAX_BATCH, Ahead, Held, check_prefetch, sort_out
from ferromq.errors import ConfigError, LeaseExpired, OutcomeUnknown

LEASE = 30.0


class Work:
    """Workers that take available messages, and a broker that always has more."""

    def __init__(self, workers: int, *, lease: float = LEASE, prefetch: int | None = None) -> None:
        self.ahead = Ahead(lease, prefetch)
        self.workers = workers
        self.now = 0.0
        self.most = 0
        self.using: list[Held] = []
        self.given: list[Any] = []

    def fill(self) -> None:
        """Let idle workers take messages, and receive as requested."""
        while True:
            while len(self.using) < self.workers and (held := self.ahead.take(self.now)) is not None:
                self.using.append(held)
            room = self.ahead.room(self.workers - len(self.using))
            if not room:
                break
            messages: list[Any] = [SimpleNamespace(endpoint="e") for _ in range(room)]
            self.ahead.add(messages, self.now)
            self.most = max(self.most, len(self.ahead.waiting) + len(self.ahead.in_use))

    def handle(self, count: int, seconds: float) -> None:
        """Let messages take their time, one after the other, with maintenance of leases."""
        done = 0
        while done < count:
            self.fill()
            self.now += seconds
            using, self.using = self.using, []
            for held in using:
                self.ahead.end(held, self.now)
            done += len(using)

    def look_after(self) -> list[Held]:
        """Give back messages that wait too long, and return those to renew."""
        renewed, given = self.ahead.aging(self.now, keep=False)
        self.given += given
        for held in renewed:
            held.renewed(self.now, LEASE)
        return renewed


@pytest.mark.parametrize("workers", [1, 4])
def test_slow_workers_prefetch_one_each(workers: int) -> None:
    """A handler of half a second leaves everything else to others."""
    work = Work(workers)
    work.handle(40, 0.5)
    assert work.most == workers


@pytest.mark.parametrize("lease", [0.5, 2.0, 30.0])
@pytest.mark.parametrize("seconds", [0.0001, 0.001, 0.01, 0.1])
def test_no_more_is_prefetched_than_is_finished_in_half_a_lease(lease: float, seconds: float) -> None:
    """Nor than is finished in half a second."""
    work = Work(2, lease=lease)
    work.handle(3000, seconds)
    rate = 2 / seconds
    assert work.most <= max(2, rate * lease / 2)
    assert work.most <= 2 + rate * 0.6


def test_fast_workers_are_never_short_of_messages() -> None:
    """Batches grow to the largest there is, within a few thousand messages."""
    work = Work(1)
    work.handle(10_000, 0.00001)
    assert work.most > MAX_BATCH


@pytest.mark.parametrize("prefetch", [1, 7, 100])
def test_prefetch_is_an_upper_bound(prefetch: int) -> None:
    """However fast the workers are."""
    work = Work(8, prefetch=prefetch)
    work.handle(5000, 0.00001)
    assert work.most == prefetch


def test_workers_that_become_slower_keep_what_they_still_finish() -> None:
    """The rest is given back at once, when the second of the slow ones ends."""
    work = Work(1)
    work.handle(10_000, 0.0001)
    assert len(work.ahead.waiting) > 100
    work.handle(2, 1.0)
    assert work.ahead.has_surplus()
    work.look_after()
    assert not work.ahead.has_surplus()
    assert len(work.ahead.waiting) <= 1


def test_a_waiting_message_is_given_back_after_a_third_of_its_lease() -> None:
    """Although no worker has finished: messages in use are renewed, again and again."""
    work = Work(1)
    work.handle(10_000, 0.0001)
    work.fill()
    waiting = len(work.ahead.waiting)
    work.now += LEASE / 3 - 1
    assert (work.look_after(), work.given) == ([], [])
    for _ in range(3):
        work.now += LEASE / 3
        assert work.look_after() == work.using
    assert len(work.given) == waiting
    assert work.ahead.take(work.now) is None


def test_an_expired_message_is_not_used() -> None:
    """As after the machine slept: it is redelivered."""
    work = Work(1)
    work.ahead.add([SimpleNamespace()], 0.0)  # type: ignore[list-item]
    assert work.ahead.take(LEASE + 1) is None


def some(count: int) -> list[Any]:
    """Return what stands for messages."""
    return [SimpleNamespace(number=number) for number in range(count)]


def test_a_loop_uses_a_message_until_it_takes_the_next() -> None:
    """What ends leases finds the use by the message."""
    in_use, messages = InUse(), some(3)
    ahead = Ahead(LEASE, None, in_use)
    ahead.is_receiving = True  # nothing else is due
    ahead.add(messages, 0.0)
    loop = ahead.loop(0.0)
    for message in messages:
        assert next(loop) is message
        assert [held.message for held in in_use.values()] == [message]
        assert in_use.get(message) is not None
    assert next(loop, None) is None
    assert (len(in_use), ahead.in_use, loop.leave()) == (0, [], None)


def test_a_loop_that_is_left_leaves_its_message_in_use() -> None:
    """Its owner ends it."""
    ahead = Ahead(LEASE)
    ahead.add(some(2), 0.0)
    loop = ahead.loop(0.0)
    next(loop)
    held = loop.leave()
    assert held is not None
    assert ahead.in_use == [held]
    loop.hold(held)
    assert loop.leave() is held
    ahead.end(held, 1.0)
    assert (ahead.in_use, ahead.count) == ([], 1)


@pytest.mark.parametrize("way", ["stopped", "due", "ordered", "expired"])
def test_a_loop_takes_nothing_where_something_else_comes_first(way: str) -> None:
    """It goes on when that is done."""
    ahead = Ahead(LEASE)
    ahead.add(some(1), 0.0, object() if way == "ordered" else None)
    loop = ahead.loop(LEASE + 1 if way == "expired" else 0.0)
    if way == "stopped":
        ahead.stop()
    ahead.is_due = way == "due"
    assert next(loop, None) is None
    assert ahead.count == (0 if way == "expired" else 1)
    if way == "due":
        ahead.is_due = False
        assert next(loop) is not None


def test_what_waits_is_the_same_whenever_it_is_looked_at() -> None:
    """So a message can be taken out of turn, or be put back."""
    ahead = Ahead(LEASE)
    ahead.add(some(3), 0.0)
    first, second, third = ahead.waiting
    assert ahead.waiting == [first, second, third]
    assert ahead.take_one(second, 1.0) is second
    taken = ahead.take_some(1, 1.0)
    ahead.put_back(taken)
    assert (taken, ahead.waiting) == ([first], [first, third])
    assert ahead.take(1.0) is first
    assert {held.message.number for held in ahead.finish()} == {0, 1}  # type: ignore[attr-defined]
    assert ahead.in_use == []


@pytest.mark.parametrize("prefetch", [0, -1])
def test_at_least_one_message_is_prefetched(prefetch: int) -> None:
    """A bound of none would receive nothing."""
    with pytest.raises(ConfigError, match="at least 1"):
        check_prefetch(prefetch)


@pytest.mark.parametrize(
    ("failed", "in_order", "sorted_out"),
    [
        ({}, True, ("abc", "", "")),
        ({"a": LeaseExpired}, False, ("bc", "", "")),
        ({"a": LeaseExpired}, True, ("", "", "bc")),
        ({"b": LeaseExpired}, True, ("a", "", "c")),
        ({"b": OutcomeUnknown}, False, ("ac", "b", "")),
        ({"b": OutcomeUnknown}, True, ("a", "bc", "")),
        ({"a": OutcomeUnknown, "b": LeaseExpired}, True, ("", "a", "c")),
    ],
)
def test_in_order_no_message_overtakes_a_redelivered_one(
    failed: dict[Any, Any], in_order: bool, sorted_out: tuple[str, str, str]
) -> None:
    """An unchanged one is kept, an expired one is redelivered; in order, the next ones wait for it."""
    taken: list[Any] = [SimpleNamespace(message=name) for name in "abc"]
    failures = {name: error("why") for name, error in failed.items()}
    parts = sort_out(taken, failures, in_order=in_order)
    assert tuple("".join(str(held.message) for held in part) for part in parts) == sorted_out
