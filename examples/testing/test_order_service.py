"""Tests of a service that sends: what it sends, and what a lost answer and a restart of the broker do to it."""

import threading
from collections.abc import Iterator

import pytest
from order_service import Order, OrderService

from ferromq.testing import Broker, Faults, Like

TEA = Order("o-1", "anna", ("tea",))


@pytest.fixture
def service(ferromq_broker: Broker) -> Iterator[OrderService]:
    """Yield the service, connected to the test's broker."""
    service = OrderService(ferromq_broker.endpoint, ferromq_broker.topic("orders"))
    yield service
    service.close()


def test_an_order_is_announced_with_its_number_as_key(ferromq_broker: Broker, service: OrderService) -> None:
    """Consumers filter by tag, and find the order by its key."""
    service.place(TEA)
    service.place(Order("o-2", "ben", ("tea", "milk", "cake")))
    ferromq_broker.assert_sent(
        ferromq_broker.topic("orders"),
        [
            Like(json={"number": "o-1", "customer": "anna", "items": ["tea"]}, keys="o-1", tag="small"),
            Like(keys="o-2", tag="large", properties={"customer": "ben"}),
        ],
    )


def test_an_order_without_items_is_not_announced(ferromq_broker: Broker, service: OrderService) -> None:
    """The caller gets an error instead."""
    with pytest.raises(ValueError, match="o-3 has no items"):
        service.place(Order("o-3", "anna", ()))
    ferromq_broker.assert_sent(ferromq_broker.topic("orders"), [])


def test_a_lost_answer_makes_a_duplicate_with_the_same_id(
    ferromq_broker: Broker, ferromq_faults: Faults, service: OrderService
) -> None:
    """Consumers can tell, because the producer repeats the message under its id."""
    ferromq_faults.lose_answer(containing=b"o-1")
    message_id = service.place(TEA)
    sent = ferromq_broker.messages("orders")
    assert [message.message_id for message in sent] == [message_id, message_id]


def test_an_order_waits_for_a_broker_that_was_killed(
    ferromq_broker: Broker, ferromq_faults: Faults, service: OrderService
) -> None:
    """It is announced once the broker is back, which still has what was announced before."""
    service.place(TEA)
    ferromq_faults.crash()
    restart = threading.Thread(target=ferromq_faults.restart)
    restart.start()
    service.place(Order("o-2", "ben", ("milk",)))
    restart.join()
    ferromq_broker.assert_sent("orders", [Like(keys="o-1"), Like(keys="o-2")])
