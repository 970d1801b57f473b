"""Check-back at its limits: producers that read slowly, and half messages without space for their count."""

import check_peers
import pytest
from check_peers import DISCARDED, HALF, NOW, ROUND, Broker, answer, resume

from ferromq._ferromq import decode_records
from ferromq.broker.clients.client import Client
from ferromq.broker.transactions.check_back import CheckReport
from ferromq.config.transactions import TransactionConfig

broker = check_peers.broker


def test_a_check_that_was_not_sent_does_not_count(broker: Broker) -> None:
    """A producer with a full queue is not asked: the transaction is neither abandoned nor put back each round."""
    broker.config = TransactionConfig(transaction_check_max=2)
    broker.half(b"paid")
    broker.producers.room = 0
    assert [broker.round() for _ in range(5)] == [CheckReport(skipped=1)] * 5
    assert len(broker.seen(HALF, 0)) == 2
    broker.producers.room = None
    assert broker.round() == CheckReport(sent=1)
    assert len(broker.seen(HALF, 0)) == 2
    assert broker.round() == CheckReport(sent=1)
    times = [decode_records(body)[0].properties["TRANSACTION_CHECK_TIMES"] for *_, body in broker.producers.remoting]
    assert times == ["1", "2"]
    assert broker.round() == CheckReport(discarded=1)


def test_an_unchecked_transaction_still_ends(broker: Broker) -> None:
    """By its producer itself; or when it is older than the retention."""
    named = broker.half(b"paid")
    broker.half(b"old", UNIQ_KEY="old")
    broker.producers.room = 0
    assert broker.round() == CheckReport(skipped=2)
    assert broker.ends.end(named)
    assert broker.round(72 * 3_600_000) == CheckReport(discarded=1)
    assert [message.body for message in broker.seen(DISCARDED, 0)] == [b"old"]
    assert broker.round() == CheckReport()


def test_a_group_that_reads_too_slowly_keeps_no_other_waiting(broker: Broker) -> None:
    """The wait for it is bounded, and its unasked transactions are not put back."""
    client = Client("g", 9, "10.0.0.8:1", "PYTHON", 413, is_grpc=True)
    broker.table.produce("orders", client, NOW, stream=70)
    for number in range(200):
        broker.half(UNIQ_KEY=f"K{number}", PGROUP="orders")
    broker.half(UNIQ_KEY="other", PGROUP="nobody")
    broker.producers.room = 10
    assert broker.round() == CheckReport(sent=10, unreachable=1, skipped=190)
    assert broker.producers.pauses == 100
    assert len(broker.seen(HALF, 0)) == 201 + 64 + 1


def test_a_producer_that_reads_slowly_is_asked_all_in_one_round(broker: Broker) -> None:
    """Its queue has space again after a while."""
    for number in range(200):
        broker.half(UNIQ_KEY=f"K{number}")
    broker.producers.room, broker.producers.reads = 8, 8
    assert broker.round() == CheckReport(sent=200)
    assert sorted(fields["msgId"] for _, fields, _ in broker.producers.remoting) == sorted(
        f"K{number}" for number in range(200)
    )


def test_a_message_without_room_for_its_count_is_asked_about_where_it_is(broker: Broker) -> None:
    """Its properties are as long as a record takes."""
    named = broker.half(CHECK_IMMUNITY_TIME_IN_SECONDS="1", filler="x" * 32_000)
    room = 32_767 - len("".join(f"{n}\x01{v}\x02" for n, v in broker.seen(HALF, 0)[0].properties.items()))
    full = broker.half(CHECK_IMMUNITY_TIME_IN_SECONDS="1", filler="x" * (32_000 + room))
    assert broker.round() == CheckReport(sent=2)
    assert [int(fields["tranStateTableOffset"]) for _, fields, _ in broker.producers.remoting] == [2, 1]
    assert broker.ends.end(full)
    assert broker.ends.end(named)
    assert len(broker.seen()) == 2


@pytest.mark.parametrize("after", [ROUND, 72 * 3_600_000])
def test_a_message_without_room_for_its_count_is_given_up_too(broker: Broker, after: int) -> None:
    """After so many checks, or when it is older than the retention; it can be checked again, and ends once."""
    broker.config = TransactionConfig(transaction_check_max=3)
    broker.half()
    room = 32_767 - len("".join(f"{n}\x01{v}\x02" for n, v in broker.seen(HALF, 0)[0].properties.items()))
    broker.half(filler="x" * (room - len("filler__")), UNIQ_KEY="F")
    assert broker.round() == CheckReport(sent=2)
    if after == ROUND:
        assert [broker.round() for _ in range(2)] == [CheckReport(sent=2)] * 2
    assert broker.round(after) == CheckReport(discarded=2)
    (full,) = (message for message in broker.seen(DISCARDED, 0) if message.properties["UNIQ_KEY"] == "F")
    if after == ROUND:
        assert resume(broker, full.offset_message_id) == (0, None)
        assert broker.round() == CheckReport(sent=1)
        assert broker.ends.end(answer(broker))
        broker.begin()
        assert resume(broker, full.offset_message_id)[0] == 1
        assert [message.properties["UNIQ_KEY"] for message in broker.seen()] == ["F"]
