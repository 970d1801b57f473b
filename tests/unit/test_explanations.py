"""What became of a message with copies and dead letters on several brokers."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ferromq.admin import explanations
from ferromq.admin.asking import Ask
from ferromq.errors import FerromqError, Forbidden, RequestTimeout, TopicNotFound
from ferromq.protocol.naming import DLQ_PREFIX

GROUP = "billing"
COPIES = {"a": [(10, "m")], "b": [(30, "m")]}
"""The message and its copy, which was stored last: the store times by broker."""


def explained(
    monkeypatch: pytest.MonkeyPatch, letters: Mapping[str, Sequence[int] | FerromqError]
) -> tuple[explanations.InGroup, list[str], list[tuple[str, int]]]:
    """
    Explain the copy at `b`, of which the group is past.

    *letters*: the store times of the dead letters at each broker, or how it fails. Returns also the brokers that did
    not tell them, and the broker and the share of each question about them.
    """
    shares: list[tuple[str, int]] = []

    def stored(time: int) -> Any:
        found = {"message_id": "m", "topic": "orders", "queue_id": 0, "queue_offset": 0, "reconsume_times": 1}
        return SimpleNamespace(**found, store_timestamp=time, properties={})

    def query_at(ask: Ask, topic: str, _key: str, _most: int, *, unique: bool) -> list[Any]:
        assert unique
        if topic == "orders":
            return [stored(time) for time, _ in COPIES.get(ask.address, ())]
        if topic != DLQ_PREFIX + GROUP:
            raise TopicNotFound(f"there is no topic {topic}")
        shares.append((ask.address, ask._share))
        found = letters.get(ask.address, ())
        if isinstance(found, FerromqError):
            raise found
        return [stored(time) for time in found]

    monkeypatch.setattr(explanations.messages, "query_at", query_at)
    monkeypatch.setattr(explanations, "readers", lambda _ask, _topic: [GROUP])
    place = explanations.progress.Delivery(1, None, None, None)
    monkeypatch.setattr(explanations.progress, "delivery", lambda _ask, _group, _message: place)
    calls: Any = None
    found, unreachable = explanations.explain(calls, ["a", "b", "c"], "orders", "m", "")
    assert found is not None
    assert found.broker == "b"
    (group,) = found.groups
    return group, [each.address for each in unreachable], shares


def placed(group: explanations.InGroup) -> tuple[str, int] | None:
    """Return the broker and the store time of a dead letter."""
    letter = group.dead_letter
    return None if letter is None else (letter.broker, letter.message.store_timestamp)


def test_a_copy_is_dead_whatever_other_brokers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter of an earlier copy may have been stored later, elsewhere."""
    group, _, _ = explained(monkeypatch, {"a": [50], "b": [40]})
    assert (group.state, placed(group)) == ("dead", ("b", 40))


def test_a_letter_of_an_earlier_copy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest one, at any broker; the copy is not dead."""
    group, _, _ = explained(monkeypatch, {"a": [15, 50], "b": [20]})
    assert (group.state, placed(group)) == ("behind", ("a", 50))
    group, _, _ = explained(monkeypatch, {"b": [20]})
    assert (group.state, placed(group)) == ("behind", ("b", 20))
    group, _, _ = explained(monkeypatch, {})
    assert (group.state, placed(group)) == ("behind", None)


@pytest.mark.parametrize("failure", [RequestTimeout("no answer"), Forbidden("refused", code=16, remark="no")])
def test_a_broker_that_tells_no_letters_is_named(monkeypatch: pytest.MonkeyPatch, failure: FerromqError) -> None:
    """The others are asked, each within its share of the time."""
    group, unreachable, shares = explained(monkeypatch, {"a": failure, "c": [20]})
    assert (group.state, placed(group), unreachable) == ("behind", ("c", 20), ["a"])
    assert shares == [("b", 1), ("a", 2), ("c", 1)]
