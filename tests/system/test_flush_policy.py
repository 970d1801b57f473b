"""Flush policies: what a receipt says about the disk, and that this can change while the broker runs."""

from pathlib import Path

import pytest

import ferromq

FEW = 5
"""Flushes the store may do by itself meanwhile: a checkpoint a second."""


def flushes(mq: ferromq.Embedded, count: int, topic: str = "orders") -> int:
    """Send *count* messages one after the other and return how many flushes that took."""
    before = mq.store.stats()["flushes"]
    with mq.producer() as producer:
        for _ in range(count):
            producer.send(topic, b"x" * 100)
    return mq.store.stats()["flushes"] - before


def is_flushed(mq: ferromq.Embedded) -> bool:
    """Say whether everything written is on disk."""
    stats = mq.store.stats()
    return stats["flushed_offset"] == stats["max_physical_offset"]


@pytest.mark.parametrize("policy", ["each", "group"])
def test_a_synchronous_policy_flushes_before_the_receipt(tmp_path: Path, policy: str) -> None:
    """One sender after the other: a flush each."""
    with ferromq.embedded(tmp_path, flush=policy) as mq:
        assert flushes(mq, 50) >= 50
        assert is_flushed(mq)


def test_a_count_bounds_what_is_not_flushed(tmp_path: Path) -> None:
    """`every 10`: at least each tenth message waits for a flush."""
    with ferromq.embedded(tmp_path, flush="every 10 interval 60s", default_queues=1) as mq:
        assert 9 <= flushes(mq, 100) <= 20 + FEW


def test_the_policy_changes_while_the_broker_runs(tmp_path: Path) -> None:
    """Without a restart, both ways; what was written before is flushed first."""
    with ferromq.embedded(tmp_path, flush="interval 60s", default_queues=1) as mq:
        assert flushes(mq, 100) <= FEW
        mq.configure(flush="group")
        assert is_flushed(mq)
        assert flushes(mq, 50) >= 50
        assert mq.store.options()["flush"] == "group"
        mq.configure(flush="interval 60s")
        assert flushes(mq, 100) <= FEW


def test_a_topic_has_a_threshold_of_its_own(tmp_path: Path) -> None:
    """It counts that topic's messages, whatever the policy; it comes and goes while the broker runs."""
    with ferromq.embedded(tmp_path, flush="interval 60s", flush_every={"orders": 5}, default_queues=1) as mq:
        assert flushes(mq, 50, "orders") >= 9
        assert flushes(mq, 50, "clicks") <= FEW
        mq.configure(flush_every={"clicks": 5})
        assert flushes(mq, 50, "orders") <= FEW
        assert flushes(mq, 50, "clicks") >= 9


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"flush": "sync"}, "flush is 'sync'; it must be `each`, `group`, `every N`, `interval`"),
        ({"flush_every": {"orders": 0}}, "flush_every is {'orders': 0}; a threshold of 0"),
        ({"flush": "every 0"}, "flush is 'every 0'"),
    ],
)
def test_a_policy_that_is_none_is_named(tmp_path: Path, options: dict[str, object], told: str) -> None:
    """With what it may be, at the start and while running; the old one stays."""
    with pytest.raises(ferromq.ConfigError, match=told):
        ferromq.embedded(tmp_path, **options)
    with ferromq.embedded(tmp_path, flush="group") as mq:
        with pytest.raises(ferromq.ConfigError, match=told):
            mq.configure(**options)
        assert mq.store.options()["flush"] == "group"
