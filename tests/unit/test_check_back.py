"""Check-back: which producer is asked about which open transaction, and when; nothing is lost or doubled."""

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import check_peers
import pytest
from check_peers import DISCARDED, HALF, NOW, OP, Broker, answer, resume

from ferromq._ferromq import StoredMessage, decode_records
from ferromq._proto import messages as pb
from ferromq.broker.clients.client import Client
from ferromq.broker.transactions.check_back import CheckReport, CheckRules
from ferromq.broker.transactions.end_transaction import Decision, EndRefused
from ferromq.broker.transactions.half_message_index import HalfMessageIndex
from ferromq.broker.transactions.half_records import GROUP
from ferromq.config.transactions import TransactionConfig
from ferromq.protocol.codes import RequestCode

broker = check_peers.broker


def test_an_open_transaction_is_asked_about_and_ends_as_the_producer_says(broker: Broker) -> None:
    """The request is RocketMQ's: its fields name the half message, its body is the message as it was meant."""
    named = broker.half(b"paid", TAGS="t")
    assert broker.round(5_000) == CheckReport()
    assert broker.round() == CheckReport(sent=1)
    ((connection, fields, body),) = broker.producers.remoting
    (copy,) = broker.seen(HALF, 0)[1:]
    assert connection == 7
    assert fields == {
        # RocketMQ names the half topic, whose name its client 5.5 repeats, and is refused.
        "topic": "orders",
        "commitLogOffset": str(copy.physical_offset),
        "tranStateTableOffset": "1",
        "msgId": "K",
        "transactionId": "K",
        "offsetMsgId": copy.offset_message_id,
        "bname": "broker-a",
    }
    (message,) = decode_records(body)
    assert (message.topic, message.queue_id, message.body) == ("orders", 3, b"paid")
    assert (message.queue_offset, message.physical_offset) == (copy.queue_offset, copy.physical_offset)
    assert message.properties == copy.properties
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert (named.physical_offset, copy.prepared_transaction_offset) == (0, -1)
    assert broker.ends.end(answer(broker))
    assert [found.body for found in broker.seen()] == [b"paid"]
    assert broker.round() == CheckReport()


def test_a_grpc_producer_is_asked_over_its_telemetry_stream(broker: Broker) -> None:
    """With an id that ends the transaction, and the message as consumers will see it."""
    client = Client("g", 9, "10.0.0.8:1", "PYTHON", 413, is_grpc=True)
    broker.table.produce("orders", client, NOW, stream=70)
    broker.half(b"paid", PGROUP="orders", TAGS="t", KEYS="a b", colour="red")
    assert broker.round() == CheckReport(sent=1)
    ((stream, command),) = broker.producers.telemetry
    asked = command.recover_orphaned_transaction_command
    copy = broker.seen(HALF, 0)[-1]
    assert stream == 70
    assert asked.transaction_id == f"{copy.physical_offset:016X}{copy.queue_offset:016X}"
    system = asked.message.system_properties
    assert (asked.message.topic.name, asked.message.body, system.message_id) == ("orders", b"paid", "K")
    assert (system.tag, list(system.keys), system.message_type) == ("t", ["a", "b"], pb.MessageType.TRANSACTION)
    assert asked.message.user_properties["colour"] == "red"


def test_producers_take_turns_and_one_that_is_gone_is_passed_over(broker: Broker) -> None:
    """If one of the group can be reached, it is asked."""
    broker.table.produce("payers", Client("q", 8, "10.0.0.9:1235", "JAVA", 513), NOW)
    for _ in range(4):
        broker.half()
    assert broker.round() == CheckReport(sent=4)
    assert sorted(connection for connection, _, _ in broker.producers.remoting) == [7, 7, 8, 8]
    broker.producers.gone = {8}
    assert broker.round() == CheckReport(sent=4)
    assert {connection for connection, _, _ in broker.producers.remoting[4:]} == {7}


def test_only_producers_whose_user_may_send_to_the_topic_get_its_half_messages(broker: Broker) -> None:
    """Any client can name a producer group; without another member the check counts as one that reached no producer."""
    broker.table.produce("payers", Client("q", 8, "10.0.0.9:1235", "JAVA", 513, user="eve"), NOW)
    for _ in range(4):
        broker.half()
    broker.producers.strangers = {"eve"}
    assert broker.round() == CheckReport(sent=4)
    assert {connection for connection, _, _ in broker.producers.remoting} == {7}
    broker.producers.strangers = {"eve", None}
    assert broker.round() == CheckReport(unreachable=4)
    assert len(broker.producers.remoting) == 4


def test_a_producer_that_need_not_say_who_it_is_is_asked(broker: Broker) -> None:
    """If white lists have the request with which it introduced itself; one that signed is held to its rights."""
    broker.table.produce("payers", Client("g", 9, "10.0.0.8:1", "PYTHON", 413, is_grpc=True), NOW, stream=70)
    broker.table.produce("payers", Client("q", 8, "10.0.0.9:1235", "JAVA", 513, user="eve"), NOW)
    broker.producers.strangers = {"eve", None}
    for _ in range(3):
        broker.half()
    assert broker.round() == CheckReport(unreachable=3)
    broker.producers.open = {RequestCode.HEART_BEAT}
    assert broker.round() == CheckReport(sent=3)
    assert {connection for connection, _, _ in broker.producers.remoting} == {7}
    broker.producers.open = {"Telemetry"}
    assert broker.round() == CheckReport(sent=3)
    assert {stream for stream, _ in broker.producers.telemetry} == {70}


def test_a_producer_whose_connection_fails_stops_no_other_check(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next of its group is asked, and the round's other checks go on."""
    broker.table.produce("payers", Client("q", 8, "10.0.0.9:1235", "JAVA", 513), NOW)
    push = broker.producers.push

    def fail(connection: int, *given: Any) -> bool:
        if connection == 8:
            raise OSError("the connection is odd")
        return push(connection, *given)

    monkeypatch.setattr(broker.producers, "push", fail)
    for _ in range(4):
        broker.half()
    assert broker.round() == CheckReport(sent=4)
    assert [connection for connection, _, _ in broker.producers.remoting] == [7] * 4


@pytest.mark.parametrize("decision", [Decision.COMMIT, Decision.ROLLBACK])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("rounds", [1, 3])
def test_an_end_that_names_an_older_place_ends_the_transaction(
    broker: Broker, decision: Decision, rounds: int, *, is_killed: bool
) -> None:
    """It was put back since, once or often; every later end, by any place, is refused."""
    broker.half(b"other", UNIQ_KEY="other")
    named = [replace(broker.half(UNIQ_KEY="named"), decision=decision)]
    for _ in range(rounds):
        assert broker.round() == CheckReport(sent=2)
        named.append(answer(broker, decision))
    if is_killed:
        broker.begin()
    assert [broker.ends.end(end) for end in named] == [True] + [False] * rounds
    assert [message.body for message in broker.seen()] == ([b"paid"] if decision is Decision.COMMIT else [])
    assert broker.round() == CheckReport(sent=1)
    broker.begin()
    assert [broker.ends.end(end) for end in named] == [False] * (rounds + 1)


def test_the_first_record_of_a_log_is_found_wherever_it_was_put_back_to(broker: Broker) -> None:
    """Its physical offset is 0, which means "none" as a prepared transaction offset."""
    half = broker.half()
    assert half.physical_offset == 0
    for _ in range(3):
        broker.round()
        broker.begin()
    assert broker.ends.end(half)
    assert not broker.ends.end(half)


def test_after_so_many_checks_a_transaction_is_given_up_and_kept(broker: Broker) -> None:
    """With or without a producer to ask; the log reports it."""
    broker.config = TransactionConfig(transaction_check_max=2)
    broker.half(b"paid", TAGS="t")
    assert broker.round() == CheckReport(sent=1)
    broker.table.close_connection(7)
    assert broker.round() == CheckReport(unreachable=1)
    assert broker.round() == CheckReport(discarded=1)
    assert broker.round() == CheckReport()
    (kept,) = broker.seen(DISCARDED, 0)
    assert (kept.body, kept.properties["TRANSACTION_CHECK_TIMES"], kept.tag) == (b"paid", "2", "t")
    assert (kept.properties["REAL_TOPIC"], kept.properties["REAL_QID"]) == ("orders", "3")
    assert broker.checks.total == CheckReport(sent=1, unreachable=1, discarded=1)
    with pytest.raises(EndRefused, match="discarded"):
        broker.ends.end(answer(broker))
    assert not broker.ends.end(answer(broker, Decision.ROLLBACK))
    assert broker.seen() == []


def test_a_transaction_that_was_given_up_can_be_asked_about_again(broker: Broker) -> None:
    """As RocketMQ's tools do; only once, and not if it was committed since."""
    broker.config = TransactionConfig(transaction_check_max=1)
    broker.half(b"other", UNIQ_KEY="other")
    first = broker.half(b"paid")
    assert broker.round() == CheckReport(sent=2)
    assert broker.round() == CheckReport(discarded=2)
    given_up = broker.seen(DISCARDED, 0)[1].offset_message_id
    assert resume(broker, given_up) == (0, None)
    assert resume(broker, given_up) == (0, None)
    broker.begin()
    assert resume(broker, given_up) == (0, None)
    assert broker.round() == CheckReport(sent=1)
    assert broker.ends.end(answer(broker))
    assert [message.body for message in broker.seen()] == [b"paid"]
    assert resume(broker, given_up) == (1, f"the transaction of {given_up} was committed")
    assert not broker.ends.end(first)
    wrong = broker.seen()[0].offset_message_id
    assert resume(broker, wrong) == (1, f"{wrong} is not a message in {DISCARDED}")


def test_a_transaction_that_was_given_up_is_known_without_an_index(tmp_path: Path) -> None:
    """A late commit is refused, and a committed one is not checked again, also after a restart."""
    broker = Broker(tmp_path, is_indexed=False)
    broker.table.produce("payers", Client("p", 7, "10.0.0.9:1234", "JAVA", 513), NOW)
    broker.config = TransactionConfig(transaction_check_max=1)
    first = broker.half(b"paid")
    assert broker.round() == CheckReport(sent=1)
    assert broker.round() == CheckReport(discarded=1)
    (kept,) = broker.seen(DISCARDED, 0)
    with pytest.raises(EndRefused, match="discarded"):
        broker.ends.end(first)
    assert resume(broker, kept.offset_message_id) == (0, None)
    assert broker.round() == CheckReport(sent=1)
    assert broker.ends.end(answer(broker))
    broker.begin()
    assert resume(broker, kept.offset_message_id) == (1, f"the transaction of {kept.offset_message_id} was committed")
    assert not broker.ends.end(first)
    broker.store.close()


def test_a_transaction_older_than_what_is_kept_is_given_up(broker: Broker) -> None:
    """Its log file may be deleted at any time."""
    broker.half()
    assert broker.round(72 * 3_600_000 + 1) == CheckReport(discarded=1)
    assert len(broker.seen(DISCARDED, 0)) == 1


def test_a_half_message_that_goes_nowhere_is_given_up(broker: Broker) -> None:
    """It could never be committed."""
    broker.store.append(HALF, 0, b"lost", {"PGROUP": "payers"}, born_timestamp=NOW)
    assert broker.round() == CheckReport(discarded=1)


def test_a_message_can_delay_its_first_check(broker: Broker) -> None:
    """Until then it delays no other one, and skipped checks are not counted."""
    named = broker.half(b"slow", CHECK_IMMUNITY_TIME_IN_SECONDS="61")
    broker.half(b"quick", UNIQ_KEY="Q")
    assert broker.round() == CheckReport(waiting=1, sent=1)
    assert broker.round() == CheckReport(waiting=1, sent=1)
    assert broker.round() == CheckReport(sent=2)
    slow = next(message for message in broker.seen(HALF, 0)[-2:] if message.body == b"slow")
    assert slow.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert broker.ends.end(named)
    assert [message.body for message in broker.seen()] == [b"slow"]


def test_a_message_may_be_asked_about_sooner_than_others(broker: Broker) -> None:
    """Its own time counts if it is shorter."""
    broker.half(CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    assert broker.round(2_000) == CheckReport(sent=1)


def test_a_fresh_message_waits_for_a_later_round(broker: Broker) -> None:
    """Six seconds are the producer's."""
    broker.half()
    assert broker.round(6_000) == CheckReport()
    assert broker.round(1) == CheckReport(sent=1)


def test_both_offsets_of_the_group_move_on(broker: Broker) -> None:
    """All half messages below have ended; no op message below concerns one above."""
    ends = [broker.half(b"%d" % number) for number in range(4)]
    for number in (0, 3):
        assert broker.ends.end(ends[number])
    broker.round(5_000)
    assert broker.committed() == (1, 1)
    assert broker.ends.end(ends[1])
    assert broker.ends.end(ends[2])
    broker.settle()
    broker.round(0)
    assert broker.committed() == (4, 4)
    broker.half(b"4")
    assert broker.round() == CheckReport(sent=1)
    broker.round(0)
    assert broker.committed() == (5, 5)


def test_what_was_committed_bounds_what_is_read_at_start(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Op messages of old ends are not read again."""
    for _ in range(20):
        assert broker.ends.end(broker.half())
    broker.round(1)
    named = broker.half(b"open")
    broker.settle()
    reads: list[int] = []
    monkeypatch.setattr(
        "ferromq.broker.transactions.half_message_index.op_offsets",
        lambda message: reads.append(message.queue_offset) or (),
    )
    broker.begin()
    assert reads == []
    assert broker.ends.end(named)


def test_op_messages_count_though_the_two_offsets_are_of_two_moments(broker: Broker) -> None:
    """A kill may leave the one of half messages older than the one of op messages."""
    ends = [broker.half(b"%d" % number) for number in range(4)]
    for end in ends[:3]:
        broker.clock.advance(1)
        assert broker.ends.end(end)
    broker.settle()
    broker.store.commit_offset(GROUP, OP, 0, 3)
    broker.store.commit_offset(GROUP, HALF, 0, 1)
    broker.begin()
    assert [broker.ends.end(end) for end in ends] == [False, False, False, True]


def test_a_transaction_that_cannot_be_put_back_stays_open(broker: Broker) -> None:
    """The next round checks it; here the queue of half messages is closed for a while."""
    named = broker.half()
    broker.settle()
    broker.store.set_queue_access(HALF, 0, "read_only")
    assert broker.round() == CheckReport()
    broker.store.set_queue_access(HALF, 0, "open")
    assert broker.round() == CheckReport(sent=1)
    assert broker.ends.end(named)


def test_a_slave_checks_no_transaction(broker: Broker) -> None:
    """Its messages are its master's."""
    broker.half()
    checks: Any = broker.checks
    checks._is_slave = lambda: True
    assert broker.round() == CheckReport()


@pytest.mark.parametrize("name", ["CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_CHECK_TIMES", "REAL_QID"])
@pytest.mark.parametrize("text", ["9" * 5_000, "9" * 12, "9" * 25, "-7", "x", "", "²"])
def test_one_message_with_a_senseless_number_keeps_no_other_waiting(broker: Broker, name: str, text: str) -> None:
    """For any value of the property: every other transaction is checked, and this one is abandoned."""
    broker.config = TransactionConfig(transaction_check_max=2)
    bad = broker.half(b"bad", UNIQ_KEY="bad", **{name: text})
    broker.half(b"good", UNIQ_KEY="good")
    broker.round()
    assert "good" in [fields["msgId"] for _, fields, _ in broker.producers.remoting]
    if name == "REAL_QID":
        assert [message.body for message in broker.seen(DISCARDED, 0)] == [b"bad"]
    broker.round(72 * 3_600_000 + 1)
    assert sorted(message.body for message in broker.seen(DISCARDED, 0)) == [b"bad", b"good"]
    with pytest.raises(EndRefused, match="discarded"):
        broker.ends.end(bad)


def test_a_time_of_its_own_that_is_no_number_is_the_timeout_of_all(broker: Broker) -> None:
    """As in RocketMQ: it does not end the round."""
    broker.config = TransactionConfig(transaction_timeout=timedelta(seconds=60))
    broker.half(CHECK_IMMUNITY_TIME_IN_SECONDS="soon")
    broker.half(CHECK_IMMUNITY_TIME_IN_SECONDS="1", UNIQ_KEY="Q")
    assert broker.round() == CheckReport(waiting=1, sent=1)
    assert broker.round(31_000) == CheckReport(sent=2)


def test_a_failing_transaction_is_given_up_and_the_round_goes_on(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if the fault is ours."""
    broker.half(b"bad", UNIQ_KEY="bad")
    broker.half(b"good", UNIQ_KEY="good")
    real = CheckRules.judge

    def judge(rules: CheckRules, half: StoredMessage, *rest: Any) -> Any:
        if half.body == b"bad":
            raise OverflowError
        return real(rules, half, *rest)

    monkeypatch.setattr(CheckRules, "judge", judge)
    assert broker.round() == CheckReport(sent=1, discarded=1)
    assert "cannot be judged" in caplog.text


def test_of_two_that_resume_and_a_commit_between_them_nothing_is_visible_twice(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second found the transaction uncommitted, and puts it back only after the commit."""
    broker.config = TransactionConfig(transaction_check_max=1)
    first = broker.half()
    assert broker.round() == CheckReport(sent=1)
    assert broker.round() == CheckReport(discarded=1)
    given_up = broker.seen(DISCARDED, 0)[0].offset_message_id
    real, is_inner = HalfMessageIndex.is_committed, False

    def is_committed(halves: HalfMessageIndex, half: StoredMessage, *, is_thorough: bool = False) -> bool:
        nonlocal is_inner
        found = real(halves, half, is_thorough=is_thorough)
        if not is_inner:
            is_inner = True
            others = threading.Thread(target=lambda: (resume(broker, given_up), broker.ends.end(first)))
            others.start()
            others.join(0.2)
            threads.append(others)
        return found

    threads: list[threading.Thread] = []
    monkeypatch.setattr(HalfMessageIndex, "is_committed", is_committed)
    assert resume(broker, given_up) == (0, None)
    for thread in threads:
        thread.join()
    broker.round()
    for number in range(len(broker.producers.remoting)):
        broker.ends.end(answer(broker, number=number))
    assert [message.body for message in broker.seen()] == [b"paid"]
