"""Half messages that a RocketMQ broker put back, whose copies lack their first place: each is one transaction."""

from dataclasses import replace
from typing import Any, cast

import check_peers
import pytest
from check_peers import GROUP, HALF, NOW, Broker

from ferromq._ferromq import StoredMessage
from ferromq.broker.transactions.check_back import CheckReport
from ferromq.broker.transactions.end_transaction import Decision, EndRequest, op_message
from ferromq.broker.transactions.half_message_index import HalfMessageIndex

broker = check_peers.broker


def java_commit(broker: Broker, named: EndRequest, topic: str = "orders", queue_id: int = 3, **properties: str) -> None:
    """Store RocketMQ's first record of a commit; the op message comes up to three seconds later."""
    half = broker.store.message_at(named.physical_offset)
    assert half is not None
    broker.store.append(
        topic,
        queue_id,
        half.body,
        {"UNIQ_KEY": half.properties["UNIQ_KEY"], **properties},
        sys_flag=Decision.COMMIT,
        born_timestamp=half.born_timestamp,
        prepared_transaction_offset=named.physical_offset,
    )


def test_what_rocketmq_committed_before_it_was_killed_is_committed_once(broker: Broker) -> None:
    """Its op message is missing; the committed message names the half message, visible or not."""
    ends = [broker.half(b"%d" % number, UNIQ_KEY=f"K{number}") for number in range(3)]
    ends.append(broker.half(b"3", UNIQ_KEY="K3", DELAY="2"))
    ends.append(broker.half(b"4", UNIQ_KEY="K4", TIMER_DELAY_SEC="9"))
    java_commit(broker, ends[1])
    java_commit(broker, ends[3], "SCHEDULE_TOPIC_XXXX", 1, DELAY="2", REAL_TOPIC="orders", REAL_QID="3")
    java_commit(broker, ends[4], "rmq_sys_wheel_timer", 0, TIMER_OUT_MS="9", REAL_TOPIC="orders", REAL_QID="3")
    broker.begin()
    assert broker.round() == CheckReport(sent=2)
    assert [broker.ends.end(end) for end in ends] == [True, False, True, False, False]
    assert sorted(message.body for message in broker.seen()) == [b"0", b"1", b"2"]


def test_what_rocketmq_put_back_and_committed_under_its_old_place_is_committed_once(broker: Broker) -> None:
    """A late answer: the committed message names the earlier place; repeated sends of producers do not."""
    old = broker.half(UNIQ_KEY="K1")
    broker.settle()
    broker.store.commit_offset(GROUP, HALF, 0, 1)
    copy = broker.half(UNIQ_KEY="K1", TRANSACTION_CHECK_TIMES="1")
    java_commit(broker, old)
    broker.clock.advance(1)
    again = broker.half(UNIQ_KEY="K1")
    broker.begin()
    assert [broker.ends.end(end) for end in (old, copy, again)] == [False, False, True]


def java_put_back(broker: Broker, named: EndRequest, *, is_passed: bool = True, **changed: str) -> EndRequest:
    """Store RocketMQ's copy of an open half message: without an op message and its first place."""
    broker.settle()
    half = broker.store.message_at(named.physical_offset)
    assert half is not None
    properties = {**half.properties, **changed}
    queue_offset, physical_offset = broker.store.append(
        HALF, 0, half.body, properties, born_timestamp=half.born_timestamp, born_host=half.born_host
    )
    if is_passed:
        broker.store.commit_offset(GROUP, HALF, 0, half.queue_offset + 1)
    return replace(named, physical_offset=physical_offset, queue_offset=queue_offset)


@pytest.mark.parametrize("decision", [Decision.COMMIT, Decision.ROLLBACK])
@pytest.mark.parametrize("is_passed", [False, True])
@pytest.mark.parametrize("copies", [1, 2])
def test_what_rocketmq_ended_by_the_first_place_of_a_message_that_waited_stays_ended(
    broker: Broker, decision: Decision, copies: int, *, is_passed: bool
) -> None:
    """The op message names the first place, whose copy names it too."""
    first = place = broker.half(CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    for _ in range(copies):
        prepared = {"TRAN_PREPARED_QUEUE_OFFSET": str(first.queue_offset)}
        place = java_put_back(broker, place, is_passed=is_passed, **prepared)
    if decision is Decision.COMMIT:
        java_commit(broker, first)
    broker.store.append_as_one([op_message(first.queue_offset)])
    broker.begin()
    for _ in range(4):
        assert broker.round() == CheckReport()
    ends = [replace(end, decision=decision) for end in (first, place)]
    assert [broker.ends.end(end) for end in ends] == [False, False]
    assert len(broker.seen()) == (decision is Decision.COMMIT)


@pytest.mark.parametrize("is_passed", [False, True])
@pytest.mark.parametrize("key", [{"UNIQ_KEY": "K"}, {"UNIQ_KEY": ""}])
@pytest.mark.parametrize("changed", ["TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"])
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_an_end_that_names_a_place_before_rocketmqs_copy_ends_the_transaction(
    broker: Broker, changed: str, rounds: int, key: dict[str, str], *, is_passed: bool
) -> None:
    """The copy lacks our property of its place; with and without another put-back here."""
    if not key["UNIQ_KEY"] and changed == "TRANSACTION_CHECK_TIMES":
        pytest.skip("nothing says then what it is a copy of")
    broker.half(b"other", UNIQ_KEY="other")
    assert broker.round() == CheckReport(sent=1)
    first = broker.half(**key)
    value = "1" if changed == "TRANSACTION_CHECK_TIMES" else str(first.queue_offset)
    copy = java_put_back(broker, first, is_passed=False, **{changed: value})
    if is_passed:
        broker.store.append_as_one([op_message(1)])
        broker.store.commit_offset(GROUP, HALF, 0, first.queue_offset + 1)
    broker.begin()
    for _ in range(rounds):
        broker.round()
        broker.begin()
    assert broker.ends.end(first)
    assert [broker.ends.end(end) for end in (first, copy)] == [False, False]
    broker.begin()
    assert [broker.ends.end(end) for end in (first, copy)] == [False, False]
    assert [message.body for message in broker.seen()] == [b"paid"]


def test_a_message_that_waits_tells_rocketmq_where_it_lay_first(broker: Broker) -> None:
    """Over all its copies; the put-back of the first place does not end it here."""
    broker.half(b"other", UNIQ_KEY="other")
    first = broker.half(CHECK_IMMUNITY_TIME_IN_SECONDS="90")
    for _ in range(2):
        assert broker.round() == CheckReport(sent=1, waiting=1)
        broker.begin()
    (copy,) = [message for message in broker.seen(HALF, 0)[-2:] if message.body == b"paid"]
    assert copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "1"
    java_put_back(broker, replace(first, physical_offset=copy.physical_offset), is_passed=False)
    broker.begin()
    assert broker.ends.end(first)
    assert not broker.ends.end(first)


def test_a_message_cannot_end_another_by_the_place_it_claims(broker: Broker) -> None:
    """Any producer may write the property; it counts where the place is one of the same message."""
    other = broker.half(b"other", UNIQ_KEY="other")
    false = broker.half(b"false", UNIQ_KEY="false", TRAN_PREPARED_QUEUE_OFFSET="0")
    broker.begin()
    assert [broker.ends.end(end) for end in (other, false)] == [True, True]
    assert sorted(message.body for message in broker.seen()) == [b"false", b"other"]


def test_at_start_only_index_files_since_an_open_message_was_stored_are_looked_at(broker: Broker) -> None:
    """Its commit came after that, with an hour's margin for clocks that went back; for a copy it is unknown."""
    broker.clock.advance(3_600_000)
    broker.half()
    broker.half(UNIQ_KEY="copy", TRANSACTION_CHECK_TIMES="1")
    broker.settle()
    begins = dict[str, int]()

    class Asked:
        def __getattr__(self, name: str) -> Any:
            return getattr(broker.store, name)

        def query_by_unique_key(self, topic: str, key: str, *rest: int, begin_ms: int = 0) -> list[StoredMessage]:
            if topic == "orders":
                begins[key] = begin_ms
            return broker.store.query_by_unique_key(topic, key, *rest, begin_ms=begin_ms)

    HalfMessageIndex(cast("Any", Asked()))
    assert begins == {"K": NOW, "copy": 0}
