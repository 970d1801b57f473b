"""Tests of messages that come days later; each takes milliseconds."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from reminders import Reminders

from ferromq.testing import Broker, Faults, Like, VirtualClock


@pytest.fixture
def reminders(ferromq_broker: Broker) -> Iterator[Reminders]:
    """Yield the service, connected to the test's broker."""
    service = Reminders(ferromq_broker.endpoint, ferromq_broker.topic("reminders"))
    yield service
    service.close()


def test_a_reminder_comes_a_day_before_the_appointment(
    ferromq_broker: Broker, ferromq_clock: VirtualClock, reminders: Reminders
) -> None:
    """Not an hour earlier."""
    appointment = ferromq_clock.now() + timedelta(days=3)
    reminders.plan("anna", appointment)
    ferromq_broker.assert_sent("reminders", [Like(delivery_timestamp=appointment - timedelta(days=1))])
    ferromq_clock.advance(days=1, hours=23)
    assert ferromq_broker.messages("reminders") == []
    ferromq_clock.advance(hours=1)
    (reminder,) = ferromq_broker.messages("reminders")
    assert reminder.body.startswith(b"anna: ")


def test_a_cancelled_appointment_reminds_of_nothing(
    ferromq_broker: Broker, ferromq_clock: VirtualClock, reminders: Reminders
) -> None:
    """The others stay."""
    appointment = ferromq_clock.now() + timedelta(days=2)
    reminders.plan("anna", appointment)
    reminders.plan("ben", appointment)
    reminders.cancel("anna")
    ferromq_clock.advance(days=2)
    ferromq_broker.assert_sent("reminders", [Like(body=f"ben: {appointment:%d %B %H:%M}".encode())])


def test_a_reminder_survives_a_restart_of_the_broker(
    ferromq_broker: Broker, ferromq_clock: VirtualClock, ferromq_faults: Faults, reminders: Reminders
) -> None:
    """What became due while the broker was away comes when it is back."""
    reminders.plan("anna", ferromq_clock.now() + timedelta(days=2))
    ferromq_faults.crash()
    ferromq_clock.advance(days=2)
    ferromq_faults.restart()
    ferromq_broker.wait_for_messages("reminders")
