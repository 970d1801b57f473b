"""Messages are gathered within the limits and never reordered."""

from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq._ferromq import Message
from ferromq.core.batching import MAX_BYTES, MAX_MESSAGES, Linger, batches


@given(st.lists(st.sampled_from([1, 1000, 300_000, MAX_BYTES, 2 * MAX_BYTES]), max_size=20), st.integers(0, 600))
def test_batches_hold_all_messages_in_order_within_the_limits(sizes: list[int], small: int) -> None:
    """Only a message that is too large for any batch is alone in one."""
    messages = [bytes(size) for size in sizes] + [b"x"] * small
    parts = list(batches(iter(messages)))
    assert [number for part in parts for number in part.numbers] == list(range(len(messages)))
    cut = [part.messages for part in parts]
    assert [message for batch in cut for message in batch] == messages
    for batch in cut:
        assert 0 < len(batch) <= MAX_MESSAGES
        assert len(batch) == 1 or sum(map(len, batch)) <= MAX_BYTES


def test_small_messages_fill_their_batches() -> None:
    """No batch is smaller than it must be."""
    assert [len(part.messages) for part in batches([b"x"] * (2 * MAX_MESSAGES + 1))] == [MAX_MESSAGES, MAX_MESSAGES, 1]


def test_delayed_messages_travel_one_by_one() -> None:
    """The broker takes one of them a request; other messages are still batched."""
    delayed = Message(b"later", delay=1.0)
    parts = list(batches([b"a", delayed, b"b", delayed]))
    assert sorted(len(part.messages) for part in parts) == [1, 1, 2]
    assert [len(batch.messages) for batch in Linger[int](1.0).add("topic", delayed, 5, 0, 0.0)] == [1]


def test_a_wrong_type_of_message_is_refused() -> None:
    """The error describes a message."""
    with pytest.raises(TypeError, match="Message or bytes, not str"):
        list(batches(["text"]))  # type: ignore[list-item]


def test_an_error_of_what_makes_the_messages_is_its_own() -> None:
    """Also a `TypeError`, while messages of several lanes are gathered."""

    def made() -> Iterator[Message]:
        for number in range(MAX_MESSAGES + 1):
            yield Message(b"x", message_group=str(number % 2))
        raise TypeError("no JSON")

    with pytest.raises(TypeError, match=r"^no JSON$"):
        list(batches(made()))


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([1, MAX_BYTES // 2]), st.floats(0, 1)), max_size=50)
)
def test_lingering_messages_leave_in_order_and_in_time(additions: list[tuple[str, int, float]]) -> None:
    """Each topic's messages leave in their order, none late, batches within the limits."""
    linger: Linger[int] = Linger(1.0)
    out: dict[str, list[int]] = {"a": [], "b": []}
    times = list(accumulate(pause for _, _, pause in additions))
    for number, (now, (topic, length, _)) in enumerate(zip(times, additions, strict=True)):
        leaving = linger.due(now)
        due = linger.next_due()
        assert due is None or due > now
        leaving += linger.add(topic, Message(bytes(length)), length, number, now)
        for batch in leaving:
            assert batch.bytes <= MAX_BYTES
            assert len(batch.messages) <= MAX_MESSAGES
            out[batch.topic] += batch.futures
    for batch in linger.all():
        out[batch.topic] += batch.futures
    assert linger.next_due() is None
    for topic, numbers in out.items():
        assert numbers == [n for n, (name, _, _) in enumerate(additions) if name == topic]


def test_a_batch_taken_apart_keeps_its_futures() -> None:
    """Each message is alone with its own future."""
    linger: Linger[int] = Linger(1.0)
    for number in range(3):
        linger.add("t", Message(b"x" * (number + 1)), number + 1, number, 0.0)
    (batch,) = linger.all()
    apart = batch.apart()
    assert [(alone.futures, len(alone.messages), alone.bytes) for alone in apart] == [
        ([2], 1, 3),
        ([1], 1, 2),
        ([0], 1, 1),
    ]
