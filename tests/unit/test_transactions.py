"""Transactions end once, as their producer decided, over a real store."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq._ferromq import Clock, Store
from ferromq.broker.transactions import end_transaction
from ferromq.broker.transactions.end_transaction import Decision, EndRefused, EndRequest, TransactionEnder
from ferromq.broker.transactions.half_message_index import EndedHalfMessages, HalfMessageIndex
from ferromq.broker.transactions.half_records import GROUP
from ferromq.protocol.codes import ResponseCode

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
NOW = 1_700_000_000_000


@pytest.fixture
def clock() -> Clock:
    """Return time that stands still."""
    return Clock.manual(NOW)


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    """Yield an empty store, closed by the fixture."""
    opened = open_store(tmp_path, clock)
    yield opened
    opened.close()


def open_store(directory: Path, clock: Clock) -> Store:
    """Open it with small files, and answers only once on disk."""
    return Store(str(directory), clock, commit_log_file_size=1 << 20, index_slots=100, index_entries=400, flush="group")


def half(store: Store, body: bytes = b"paid", **properties: str) -> EndRequest:
    """Store a half message as the send path does, and return its commit."""
    given = {"PGROUP": "payers", "TRAN_MSG": "true", "TAGS": "t", "REAL_TOPIC": "orders", "REAL_QID": "3"}
    queue_offset, physical_offset = store.append(
        HALF, 0, body, {**given, **properties}, flag=7, born_timestamp=NOW, born_host="10.0.0.9:1234"
    )
    return EndRequest("payers", physical_offset, queue_offset, Decision.COMMIT)


def settle(store: Store) -> None:
    """Wait until readers see what was stored: they are a moment behind."""
    for _ in range(60_000):
        stats = store.stats()
        if stats["dispatched_offset"] == stats["max_physical_offset"]:
            return
        threading.Event().wait(0.001)
    pytest.fail(f"readers never saw it: {store.stats()}")


def seen(store: Store, topic: str = "orders", queue_id: int = 3) -> list[Any]:
    """Return all messages of a queue."""
    settle(store)
    messages = store.get(topic, queue_id, 0, 1000)[1]
    assert len(messages) == store.max_offset(topic, queue_id)
    return messages


def allow_all(*_request: object) -> bool:
    """Let every user send to every topic."""
    return True


def transactions(store: Store) -> TransactionEnder:
    """Restart from the stored state."""
    settle(store)
    return TransactionEnder(store, HalfMessageIndex(store), allows=allow_all)


def changed(end: EndRequest, **fields: Any) -> EndRequest:
    """Return it with other fields."""
    values = {name: getattr(end, name) for name in EndRequest.__slots__}
    return EndRequest(**{**values, **fields})


def test_a_committed_message_is_the_half_one_at_its_destination(store: Store, clock: Clock) -> None:
    """With the bits and the offset RocketMQ gives it, and an op message with tag d beside it."""
    end = half(store)
    assert transactions(store).end(end)
    (message,) = seen(store)
    assert message.properties == {"PGROUP": "payers", "TAGS": "t", "TRAN_MSG": "true"}
    assert (message.body, message.flag, message.sys_flag & 12) == (b"paid", 7, Decision.COMMIT)
    assert (message.born_timestamp, message.born_host) == (NOW, "10.0.0.9:1234")
    assert message.prepared_transaction_offset == end.physical_offset
    (op,) = seen(store, OP, 0)
    assert (op.body, op.tag) == (b"0", "d")


def test_a_user_ends_transactions_of_topics_that_it_may_send_to(store: Store) -> None:
    """The topic of the half message counts, and not one that the request names."""
    end, allowed = half(store), set[str]()
    settle(store)
    ends = TransactionEnder(
        store, HalfMessageIndex(store), allows=lambda _request, topic, action: action == "Pub" and topic in allowed
    )
    fields = {
        "producerGroup": end.group,
        "commitLogOffset": str(end.physical_offset),
        "tranStateTableOffset": str(end.queue_offset),
        "commitOrRollback": "8",
        "topic": "mine",
    }
    request: Any = SimpleNamespace(fields=fields, peer="10.0.0.9:1234")
    allowed.add("mine")
    code, remark, _, _ = ends.end_transaction(request)
    assert code == ResponseCode.NO_PERMISSION
    assert remark is not None
    assert "orders" not in remark
    assert seen(store) == []
    allowed.add("orders")
    assert ends.end_transaction(request)[0] == ResponseCode.SUCCESS
    assert len(seen(store)) == 1


def test_a_rollback_leaves_only_the_op_message(store: Store, clock: Clock) -> None:
    """Nothing is visible."""
    assert transactions(store).end(changed(half(store), decision=Decision.ROLLBACK))
    assert seen(store) == []
    assert len(seen(store, OP, 0)) == 1


def test_ends_are_counted_by_a_bounded_number_of_topics(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever topics come and go: those beyond it are counted together."""
    monkeypatch.setattr(end_transaction, "_COUNTED", 3)
    ends = transactions(store)
    for number in range(6):
        for _ in range(2):
            assert ends.end(half(store, REAL_TOPIC=f"topic-{number}"))
    assert ends.ended() == {**{("COMMIT", f"topic-{number}"): 2 for number in range(3)}, ("COMMIT", ""): 6}


def test_a_transaction_ends_once(tmp_path: Path, clock: Clock) -> None:
    """However often it is committed, before and after a restart, and nothing after a rollback."""
    store = open_store(tmp_path, clock)
    ends = [half(store, b"%d" % number) for number in range(3)]
    ends[1] = changed(ends[1], decision=Decision.ROLLBACK)
    mine = transactions(store)
    assert [mine.end(end) for end in ends] == [True] * 3
    assert [mine.end(end) for end in ends] == [False] * 3
    store.close()
    store = open_store(tmp_path, clock)
    mine = transactions(store)
    assert [mine.end(changed(end, decision=Decision.COMMIT)) for end in ends] == [False] * 3
    assert [message.body for message in seen(store)] == [b"0", b"2"]
    store.close()


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("first", [Decision.COMMIT, Decision.ROLLBACK])
def test_the_other_decision_is_refused(store: Store, clock: Clock, first: Decision, is_restarted: bool) -> None:
    """At once, and after a restart; the same decision is accepted."""
    end, mine = changed(half(store, UNIQ_KEY="K"), decision=first), transactions(store)
    assert mine.end(end)
    if is_restarted:
        mine = transactions(store)
    assert not mine.end(end)
    second = Decision.ROLLBACK if first is Decision.COMMIT else Decision.COMMIT
    with pytest.raises(EndRefused, match=r"the transaction was (committed|rolled back) before") as refused:
        mine.end(changed(end, decision=second))
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert len(seen(store)) == (first is Decision.COMMIT)


def test_a_transaction_committed_by_many_at_once_is_visible_once(store: Store, clock: Clock) -> None:
    """Sixteen threads, four of them for each half message."""
    ends = [half(store, b"%d" % number) for number in range(4)]
    mine, start, outcomes = transactions(store), threading.Barrier(16), list[bool]()

    def commit(end: EndRequest) -> None:
        start.wait()
        outcomes.append(mine.end(end))

    threads = [threading.Thread(target=commit, args=(end,)) for end in ends * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] * 12 + [True] * 4
    assert sorted(message.body for message in seen(store)) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("body", [b"0", b"0,", b"5,0,99999999999999999999", b"0,5"])
def test_op_messages_of_rocketmq_count(store: Store, clock: Clock, body: bytes) -> None:
    """Of 4.x with one offset, of 5.x with several."""
    end = half(store)
    store.append(OP, 0, body, {"TAGS": "d"})
    assert not transactions(store).end(end)
    assert seen(store) == []


def test_an_invalid_op_message_ends_nothing(store: Store, clock: Clock) -> None:
    """Another tag, or a body that is no number."""
    end = half(store)
    store.append(OP, 0, b"0", {"TAGS": "x"})
    store.append(OP, 0, b"zero", {"TAGS": "d"})
    assert transactions(store).end(end)


def test_half_messages_rocketmq_has_looked_through_are_done_with(store: Store, clock: Clock) -> None:
    """Below its group's committed offset."""
    first, second = half(store), half(store)
    # An offset beyond what readers see is not taken.
    settle(store)
    store.commit_offset(GROUP, HALF, 0, 1)
    mine = transactions(store)
    assert [mine.end(first), mine.end(second)] == [False, True]


def test_a_committed_message_with_a_delay_level_waits(store: Store, clock: Clock) -> None:
    """It is delivered when due, to the producer's queue."""
    transactions(store).end(half(store, DELAY="2"))
    assert seen(store) == []
    (waiting,) = seen(store, "SCHEDULE_TOPIC_XXXX", 1)
    assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("orders", "3")
    assert waiting.sys_flag & 12 == Decision.COMMIT


def test_a_committed_message_with_a_time_of_its_own_waits(store: Store, clock: Clock) -> None:
    """In the timer topic; a time too far ahead is refused, and the transaction stays open."""
    mine = transactions(store)
    assert mine.end(half(store, TIMER_DELAY_SEC="5"))
    (waiting,) = seen(store, "rmq_sys_wheel_timer", 0)
    assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("orders", "3")
    assert waiting.sys_flag & 12 == Decision.COMMIT
    far = half(store, TIMER_DELAY_SEC="999999999")
    with pytest.raises(EndRefused) as refused:
        mine.end(far)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert mine.end(changed(far, decision=Decision.ROLLBACK))


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"group": "others"}, "The producer group wrong"),
        ({"queue_offset": 1}, "The transaction state table offset wrong"),
        ({"physical_offset": 5}, "Find prepared transaction message failed"),
        ({"physical_offset": -1}, "Find prepared transaction message failed"),
    ],
)
def test_an_end_that_names_another_message_is_refused(
    store: Store, clock: Clock, fields: dict[str, Any], remark: str
) -> None:
    """With RocketMQ's code and text; the transaction stays open."""
    end, mine = half(store), transactions(store)
    with pytest.raises(EndRefused, match=remark) as refused:
        mine.end(changed(end, **fields))
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert mine.end(end)


def test_an_ordinary_message_is_not_committed(store: Store, clock: Clock) -> None:
    """A physical offset of an ordinary message."""
    _, physical_offset = store.append("orders", 3, b"x", {"PGROUP": "payers", "REAL_TOPIC": "a", "REAL_QID": "0"})
    with pytest.raises(EndRefused, match="Find prepared"):
        transactions(store).end(EndRequest("payers", physical_offset, 0, Decision.COMMIT))


@pytest.mark.parametrize("decision", [Decision.COMMIT, Decision.ROLLBACK])
def test_an_end_counts_however_late_it_comes(store: Store, clock: Clock, decision: Decision) -> None:
    """Even after the producer's immunity time; without a check the message would be lost."""
    end = changed(half(store, CHECK_IMMUNITY_TIME_IN_SECONDS="1"), decision=decision)
    clock.advance(86_400_000)
    assert transactions(store).end(end)
    assert len(seen(store)) == (decision is Decision.COMMIT)


def test_a_commit_that_could_not_be_stored_may_be_tried_again(store: Store, clock: Clock) -> None:
    """The queue is closed for a while."""
    end, mine = half(store), transactions(store)
    store.set_queue_access("orders", 3, "read_only")
    with pytest.raises(EndRefused) as refused:
        mine.end(end)
    assert refused.value.code == ResponseCode.NO_PERMISSION
    store.set_queue_access("orders", 3, "open")
    assert mine.end(end)


@given(st.lists(st.integers(0, 40)), st.integers(0, 10), st.integers(0, 50))
def test_ended_halves_are_a_set_with_a_bound(offsets: list[int], below: int, forgotten: int) -> None:
    """Against a plain set, also after all below an offset count as ended."""
    ended, model = EndedHalfMessages(below), set(range(below))
    for offset in offsets:
        ended.add(offset)
        model.add(offset)
    assert [offset for offset in range(60) if offset in ended] == sorted(model)
    assert ended.first_open() == min(set(range(60)) - model)
    assert ended.forget(forgotten) == len(set(range(forgotten)) - model)
    assert [offset for offset in range(60) if offset in ended] == sorted(model | set(range(forgotten)))
