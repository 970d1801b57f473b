"""A consumer renews its leases at each broker separately: a slow one does not delay the others."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from ferromq.client.renewing import Renewer
from ferromq.core.ahead import Held
from ferromq.errors import RequestTimeout

PATIENCE = 30
LEASE = 3600.0


class Brokers:
    """Stands for brokers that renew leases; one that hangs answers a call when it may."""

    def __init__(self) -> None:
        self.hung = {"slow:1"}
        self.may_answer = threading.Semaphore(0)
        self.asked: queue.Queue[Any] = queue.Queue()
        self.failing = set[str]()

    def change(self, message: Any, _duration: float, _timeout: float) -> None:
        """Renew a lease."""
        self.asked.put(message)
        if message.endpoint in self.hung:
            assert self.may_answer.acquire(timeout=PATIENCE)
        if message.endpoint in self.failing:
            raise RequestTimeout("no answer")

    def next(self) -> Any:
        """Return the message that is renewed next."""
        return self.asked.get(timeout=PATIENCE)


class Message:
    """Stands for a message."""

    is_settled = False

    def __init__(self, endpoint: str) -> None:
        self.endpoint = self.message_id = endpoint


def due(endpoint: str, until: float = 0.0) -> Held:
    """Return a message in use whose lease is to be renewed; one whose lease ends first is renewed first."""
    now = time.monotonic()
    message: Any = Message(endpoint)
    return Held(message, now, now + LEASE + until, now)


def renewed_next(brokers: Brokers, renewer: Renewer, held: list[Held]) -> Any:
    """Begin rounds until a message is renewed: the round before may end a moment after its last answer."""
    for _ in range(PATIENCE * 20):
        renewer._renew_all(held, PATIENCE)
        with suppress(queue.Empty):
            return brokers.asked.get(timeout=0.05)
    raise AssertionError("no lease was renewed")


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    """Yield brokers, of which none hangs in the end."""
    brokers = Brokers()
    yield brokers
    brokers.hung.clear()
    brokers.may_answer.release(100)


@pytest.fixture
def renewer(brokers: Brokers) -> Renewer:
    """Return a renewer of leases at them."""
    leases: Any = brokers
    return Renewer(leases, LEASE, lambda: None, {})


def test_a_broker_that_answers_slowly_delays_no_renewal_at_another(brokers: Brokers, renewer: Renewer) -> None:
    """It gets one renewal after the other."""
    slow = [due("slow:1", 1), due("slow:1", 0)]
    renewer._renew_all(slow, PATIENCE)
    assert brokers.next() is slow[1].message
    for _ in range(3):
        fine = due("fine:1")
        assert renewed_next(brokers, renewer, [*slow, fine]) is fine.message
    brokers.may_answer.release()
    assert brokers.next() is slow[0].message
    assert brokers.asked.empty()


def test_a_lease_that_was_renewed_meanwhile_is_not_renewed_again(brokers: Brokers, renewer: Renewer) -> None:
    """It is due again after a share of the lease."""
    renewed, held = due("fine:1"), due("fine:1")
    renewed.renewed(time.monotonic(), LEASE)
    renewer._renew_at("fine:1", [renewed, held], PATIENCE, time.monotonic() + PATIENCE)
    assert brokers.next() is held.message
    assert brokers.asked.empty()


def test_a_round_of_renewals_ends_in_its_time(brokers: Brokers, renewer: Renewer) -> None:
    """The rest is sorted again by the end of the leases."""
    renewer._renew_at("fine:1", [due("fine:1")], PATIENCE, time.monotonic())
    assert brokers.asked.empty()


def test_a_broker_that_does_not_answer_is_in_the_log_once(
    brokers: Brokers, renewer: Renewer, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it has answered again."""
    brokers.failing.add("fine:1")

    def renew() -> None:
        renewer._renew_at("fine:1", [due("fine:1"), due("fine:1")], PATIENCE, time.monotonic() + PATIENCE)

    renew()
    renew()
    assert brokers.asked.qsize() == 2
    assert len(caplog.records) == 1
    brokers.failing.clear()
    renew()
    brokers.failing.add("fine:1")
    renew()
    assert len(caplog.records) == 2


def test_leases_are_renewed_where_no_thread_starts_any_more(
    brokers: Brokers, renewer: Renewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter ends, and messages are in use until it has."""

    def refuse(_thread: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(2):
        held = due("fine:1")
        renewer._renew_all([held], PATIENCE)
        assert brokers.next() is held.message
