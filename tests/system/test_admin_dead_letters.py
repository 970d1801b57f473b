"""The administrator lists the dead letters of a group, and sends them again to where they came from."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

import ferromq
from ferromq import Message, aio

PATIENCE = 20.0


@pytest.fixture(params=["name servers", "endpoint"])
def admin(mq: ferromq.Embedded, request: pytest.FixtureRequest) -> Iterator[ferromq.Admin]:
    """Yield an administrator of either kind."""
    by_endpoint = request.param == "endpoint"
    with ferromq.Admin(endpoint=mq.endpoint) if by_endpoint else ferromq.Admin(mq.namesrv) as admin:
        yield admin


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker."""
    with ferromq.embedded() as embedded:
        yield embedded


def bury(mq: ferromq.Embedded, count: int, topic: str = "orders") -> None:
    """Send numbered messages, one by one in time, and make each a dead letter of the group `billing`."""
    with mq.producer() as producer, mq.consumer("billing", topic) as consumer:
        for number in range(count):
            producer.send(topic, b"%d" % number, keys=f"k-{number}", tag="new", properties={"a": str(number)})
            (message,) = consumer.receive(wait=PATIENCE)
            consumer.forward_to_dead_letter(message, f"no customer: {number}")


def received(mq: ferromq.Embedded, group: str, count: int, topic: str = "orders") -> list[ferromq.MessageView]:
    """Return the messages of a group."""
    with mq.consumer(group, topic) as consumer:
        found = consumer.receive_many(count, wait=PATIENCE / 2, invisible_duration=2 * PATIENCE)
        consumer.ack(found)
        return found


def test_dead_letters_are_listed_by_age_over_several_pages(
    mq: ferromq.Embedded, admin: ferromq.Admin, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """Newest or oldest first, with origin, reason and attempts; no lease is taken, so a listing may be repeated."""
    assert list(admin.dead_letters("billing")) == []
    bury(mq, 70)
    assert eventually(lambda: len(list(admin.dead_letters("billing"))) == 70)
    assert [int(letter.message.body) for letter in admin.dead_letters("billing")] == list(reversed(range(70)))
    oldest = list(islice(admin.dead_letters("billing", newest_first=False), 40))
    assert [int(letter.message.body) for letter in oldest] == list(range(40))
    letter = oldest[3]
    assert (letter.topic, letter.reason, letter.attempts, letter.group) == ("orders", "no customer: 3", 1, "billing")
    assert letter.origin_message_id == letter.message_id
    assert eventually(lambda: admin.query_by_id("%DLQ%billing", letter.message_id) is not None)


def test_letters_that_are_sent_again_are_the_messages_they_were(
    mq: ferromq.Embedded, admin: ferromq.Admin, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """Each once, though it is given twice, and without the properties of a dead letter."""
    bury(mq, 5)
    assert eventually(lambda: len(list(admin.dead_letters("billing"))) == 5)
    letters = list(admin.dead_letters("billing", newest_first=False))[1:4]
    results = admin.resend_dead_letters([*letters, letters[0]])
    assert [(each.letter, each.topic, each.error) for each in results] == [
        (letter, "orders", None) for letter in letters
    ]
    again = received(mq, "billing", 3)
    places = {(each.queue_id, each.queue_offset) for each in results}
    assert {(message.queue_id, message.queue_offset) for message in again} == places
    assert sorted(
        (message.body, message.keys, message.tag, message.message_id, message.delivery_attempt) for message in again
    ) == [(b"%d" % n, (f"k-{n}",), "new", letters[n - 1].message_id, 1) for n in (1, 2, 3)]
    assert all(set(message.properties) == {"a"} for message in again)


def test_a_letter_keeps_its_message_group_and_a_large_body(
    mq: ferromq.Embedded, admin: ferromq.Admin, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """It goes behind its message in the queue of the message group; a body that was compressed is readable."""
    body = b"large" * 4000
    with mq.producer() as producer, mq.consumer("billing", "accounts") as consumer:
        receipt = producer.send("accounts", Message(body, message_group="anna"))
        (message,) = consumer.receive(wait=PATIENCE)
        consumer.forward_to_dead_letter(message)
    assert eventually(lambda: len(list(admin.dead_letters("billing"))) == 1)
    (result,) = admin.resend_dead_letters(admin.dead_letters("billing"))
    assert (result.error, result.queue_id, result.queue_offset) == (None, receipt.queue_id, receipt.queue_offset + 1)
    (again,) = received(mq, "billing", 1, "accounts")
    assert (again.body, again.message_group) == (body, "anna")


def test_a_letter_without_a_place_to_go_is_reported_and_the_others_go(
    mq: ferromq.Embedded, admin: ferromq.Admin, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """Its topic was deleted; another topic takes it."""
    bury(mq, 1, "gone")
    bury(mq, 1)
    assert eventually(lambda: len(list(admin.dead_letters("billing"))) == 2)
    admin.delete_topic("gone")
    lost, sent = admin.resend_dead_letters(admin.dead_letters("billing", newest_first=False))
    assert lost.error is not None
    assert (lost.topic, lost.queue_offset) == ("gone", None)
    assert sent.error is None
    (result,) = admin.resend_dead_letters([lost.letter], topic="orders")
    assert result.error is None
    assert len(received(mq, "other", 3)) == 3


def test_the_asynchronous_administrator_lists_and_sends_again(
    mq: ferromq.Embedded, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """The names and the results are those of the synchronous one."""
    bury(mq, 3)
    with mq.admin() as admin:
        assert eventually(lambda: len(list(admin.dead_letters("billing"))) == 3)

    async def main() -> list[bytes]:
        async with aio.Admin(mq.namesrv) as admin:
            letters = [letter async for letter in admin.dead_letters("billing")]
            results = await admin.resend_dead_letters(letters[:2])
            assert [each.error for each in results] == [None, None]
            return [letter.message.body for letter in letters]

    assert asyncio.run(main()) == [b"2", b"1", b"0"]
    assert {message.body for message in received(mq, "billing", 2)} == {b"2", b"1"}
