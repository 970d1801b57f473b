"""Names of topics and groups: RocketMQ's rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.errors import IllegalName
from ferromq.protocol import java_hash, naming

LEGAL = st.text(alphabet="%|abzABZ019_-", min_size=1, max_size=120)


@given(LEGAL)
def test_legal_characters_make_a_name(name: str) -> None:
    """Letters, digits and _ - % | are all there is."""
    naming.check_topic(name)
    naming.check_group(name)


@given(LEGAL, st.characters(exclude_characters="%|_-", exclude_categories=["Cs"]), st.integers(0, 120))
def test_one_other_character_breaks_it(name: str, character: str, place: int) -> None:
    """Wherever it stands; the error shows it."""
    if character.isascii() and character.isalnum():
        return
    broken = (name[:place] + character + name[place:])[:120]
    if character in broken and broken.strip():
        with pytest.raises(IllegalName, match="allowed are letters"):
            naming.check_topic(broken)


@pytest.mark.parametrize("name", ["", " ", "\t\n"])
def test_an_empty_name_is_refused(name: str) -> None:
    """Blank is empty."""
    with pytest.raises(IllegalName, match="empty"):
        naming.check_topic(name)


@pytest.mark.parametrize(
    ("prefix", "limit"),
    [("", 127), (naming.RETRY_PREFIX, 255), (naming.DLQ_PREFIX, 255)],
    ids=["topic", "retry", "dlq"],
)
def test_the_limit_is_named(prefix: str, limit: int) -> None:
    """127 characters for a topic, 255 where a group's name is part of it."""
    naming.check_topic(prefix + "a" * (limit - len(prefix)))
    with pytest.raises(IllegalName, match=str(limit)):
        naming.check_topic(prefix + "a" * (limit + 1 - len(prefix)))


def test_a_group_has_its_own_limit() -> None:
    """120, so that its retry topic's name fits."""
    naming.check_group("a" * 120)
    with pytest.raises(IllegalName, match="120"):
        naming.check_group("a" * 121)


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"])
def test_system_topics_are_known(name: str) -> None:
    """By name or by prefix."""
    assert naming.is_system_topic(name)
    assert not naming.is_system_topic("my_" + name)


@pytest.mark.parametrize(
    ("group", "queues"),
    [
        ("", [0, 0, 0, 0, 0, 0, 0, 0]),
        ("group-1", [0, 1, 1, 1, 7, 15, 36, 2_629]),
        ("größe", [0, 0, 0, 3, 4, 8, 73, 8_929]),
        ("😀", [0, 1, 1, 1, 4, 4, 31, 38_160]),
    ],
)
def test_a_message_group_has_the_queue_that_rocketmq_chooses(group: str, queues: list[int]) -> None:
    """These are the results of Guava 32.0.1."""
    assert [java_hash.queue_of_group(group, count) for count in (1, 2, 3, 4, 8, 16, 100, 65_536)] == queues
