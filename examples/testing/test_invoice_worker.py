"""Tests of a worker: progress, duplicates, retries over hours, and dead letters."""

import json
import queue
import threading
from collections.abc import Callable, Iterator

import pytest
from invoice_worker import Book, InvoiceWorker

from ferromq.testing import Broker, Faults, Like, VirtualClock

Start = Callable[[Book], None]


@pytest.fixture
def start(ferromq_broker: Broker) -> Iterator[Start]:
    """Return a function that starts the worker with the given books; it stops with the test."""
    started: list[tuple[InvoiceWorker, threading.Thread]] = []
    topic = ferromq_broker.topic("invoices")
    group = ferromq_broker.group("booking", retries=2, retry_delays=[60, 3600])

    def start(book: Book) -> None:
        worker = InvoiceWorker(ferromq_broker.endpoint, group, topic, book)
        thread = threading.Thread(target=worker.run)
        thread.start()
        started.append((worker, thread))

    yield start
    for worker, thread in started:
        worker.stop()
        thread.join()
        worker.close()


def send(broker: Broker, customer: str, cents: int) -> None:
    """Send an invoice."""
    broker.send(broker.topic("invoices"), json.dumps({"customer": customer, "cents": cents}).encode())


def test_every_invoice_is_booked(ferromq_broker: Broker, start: Start) -> None:
    """The worker acknowledges what it has booked."""
    booked: list[tuple[str, int]] = []
    start(lambda customer, cents: booked.append((customer, cents)))
    send(ferromq_broker, "anna", 250)
    send(ferromq_broker, "ben", 399)
    ferromq_broker.wait_until_consumed(ferromq_broker.group("booking"), ferromq_broker.topic("invoices"), count=2)
    assert sorted(booked) == [("anna", 250), ("ben", 399)]


def test_a_duplicate_is_booked_once(ferromq_broker: Broker, ferromq_faults: Faults, start: Start) -> None:
    """A producer that lost an answer sends the invoice again."""
    booked: list[str] = []
    send(ferromq_broker, "anna", 250)
    ferromq_faults.duplicate(ferromq_broker.messages("invoices")[0])
    start(lambda customer, _cents: booked.append(customer))
    ferromq_broker.wait_until_consumed("booking", "invoices", count=2)
    assert booked == ["anna"]


def test_an_invoice_is_retried_until_the_books_are_open(
    ferromq_broker: Broker, ferromq_clock: VirtualClock, start: Start
) -> None:
    """The second retry comes an hour after the first; the test does not wait for it."""
    attempts = queue.SimpleQueue[int]()
    opens_at = ferromq_clock.now_ms() + 1_800_000

    def book(_customer: str, _cents: int) -> None:
        attempts.put(ferromq_clock.now_ms())
        if ferromq_clock.now_ms() < opens_at:
            raise OSError("the books are closed")

    start(book)
    send(ferromq_broker, "anna", 250)
    for step in (60, 3600):
        attempts.get(timeout=5)
        ferromq_clock.advance(seconds=step)
    ferromq_broker.wait_until_consumed("booking", "invoices")
    ferromq_broker.assert_dead_letters("booking", [])


def test_an_invoice_that_cannot_be_booked_is_a_dead_letter(ferromq_broker: Broker, start: Start) -> None:
    """At once, with the reason, and without a call of the books."""
    start(lambda _customer, _cents: pytest.fail("it was booked"))
    send(ferromq_broker, "anna", -5)
    ferromq_broker.assert_dead_letters(
        ferromq_broker.group("booking"),
        [Like(json={"customer": "anna", "cents": -5}, properties={"DLQ_REASON": "an invoice of -5 cents"})],
        timeout=5,
    )
