"""Flush policies: what a receipt promises about the disk, also after a change while the broker runs."""

import math
import time
from pathlib import Path

import pytest

import ferromq


def flushes(mq: ferromq.Embedded, count: int, topic: str = "orders") -> tuple[int, int]:
    """
    Send *count* messages one after the other; return how many flushes that took, and how many at most were for others.

    The store checkpoints once a second, with two flushes at the most: how many fall in between depends on the machine.
    """
    before, began = mq.store.stats()["flushes"], time.monotonic()
    with mq.producer() as producer:
        for _ in range(count):
            producer.send(topic, b"x" * 100)
    others = 5 + 2 * math.ceil(time.monotonic() - began)
    return mq.store.stats()["flushes"] - before, others


def is_flushed(mq: ferromq.Embedded) -> bool:
    """Say whether everything written is on disk."""
    stats = mq.store.stats()
    return stats["flushed_offset"] == stats["max_physical_offset"]


@pytest.mark.parametrize("policy", ["each", "group"])
def test_a_synchronous_policy_flushes_before_the_receipt(tmp_path: Path, policy: str) -> None:
    """One sender after the other: a flush each."""
    with ferromq.embedded(tmp_path, flush=policy) as mq:
        taken, _ = flushes(mq, 50)
        assert taken >= 50
        assert is_flushed(mq)


def test_a_count_bounds_what_is_not_flushed(tmp_path: Path) -> None:
    """`every 10`: at least each tenth message waits for a flush, and most wait for none."""
    with ferromq.embedded(tmp_path, flush="every 10 interval 60s", default_queues=1) as mq:
        taken, others = flushes(mq, 100)
        # A flush that was asked for at the tenth message may begin later, and the next one with fewer.
        assert 9 <= taken <= 50 + others


def test_the_policy_changes_while_the_broker_runs(tmp_path: Path) -> None:
    """Without a restart, both ways; earlier writes are flushed first."""
    with ferromq.embedded(tmp_path, flush="interval 60s", default_queues=1) as mq:
        taken, others = flushes(mq, 100)
        assert taken <= others
        mq.configure(flush="group")
        assert is_flushed(mq)
        taken, _ = flushes(mq, 50)
        assert taken >= 50
        assert mq.store.options()["flush"] == "group"
        mq.configure(flush="interval 60s")
        taken, others = flushes(mq, 100)
        assert taken <= others


def test_a_topic_has_a_threshold_of_its_own(tmp_path: Path) -> None:
    """
    It counts that topic's messages, whatever the policy; it comes and goes while the broker runs.

    Two messages may be unflushed and the third waits, so a flush covers at most three messages of one sender.
    """
    with ferromq.embedded(tmp_path, flush="interval 60s", flush_every={"orders": 2}, default_queues=1) as mq:
        for counted, other in (("orders", "clicks"), ("clicks", "orders")):
            mq.configure(flush_every={counted: 2})
            taken, _ = flushes(mq, 50, counted)
            assert taken >= 50 // 3
            taken, others = flushes(mq, 50, other)
            assert taken <= others


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"flush": "sync"}, "flush is 'sync'; it must be `each`, `group`, `every N`, `interval`"),
        ({"flush_every": {"orders": 0}}, "flush_every is {'orders': 0}; a limit of 0"),
        ({"flush": "every 0"}, "flush is 'every 0'"),
    ],
)
def test_an_unknown_policy_is_named(tmp_path: Path, options: dict[str, object], told: str) -> None:
    """With the valid ones, at the start and at run time; the old one stays."""
    with pytest.raises(ferromq.ConfigError, match=told):
        ferromq.embedded(tmp_path, **options)
    with ferromq.embedded(tmp_path, flush="group") as mq:
        with pytest.raises(ferromq.ConfigError, match=told):
            mq.configure(**options)
        assert mq.store.options()["flush"] == "group"
