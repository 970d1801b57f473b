"""What a task of `replay` sends and records, without Spark."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pipeline_rows import row

import ferromq
from ferromq.errors import ConfigError, FerromqError
from ferromq.pipeline.replay import _TaskReplay
from ferromq.pipeline.replaying.ordered_sender import OrderedSender
from ferromq.pipeline.replaying.rate_limit import RateLimit
from ferromq.pipeline.replaying.sent_offsets import SentOffsets

HOST = "127.0.0.1:10911"


def send(mq: ferromq.Embedded, rows: Sequence[dict[str, Any]], **options: Any) -> None:
    """Send *rows* like a task that gets them in one batch."""
    columns: dict[str, list[Any]] = {name: [made[name] for made in rows] for name in rows[0]}
    columns["properties"] = [list(made["properties"].items()) for made in rows]
    columns["at"] = [int(made["store_timestamp"].timestamp() * 1e6) for made in rows]
    columns["born"] = columns["stored"] = [at // 1000 for at in columns["at"]]
    sent_offsets, writer = options.get("sent_offsets"), options.get("writer")
    with OrderedSender(mq.endpoint, writer=writer) as sender:
        _TaskReplay(sender, RateLimit(), "again", sent_offsets, 0, writer=writer).send(columns)


def stored(mq: ferromq.Embedded) -> int:
    """Return how many messages the topic `again` has, once all are in their queues."""
    pause = threading.Event()
    while mq.store.stats()["dispatched_offset"] < mq.store.stats()["max_physical_offset"]:
        pause.wait(0.01)
    return sum(
        mq.store.max_offset("again", queue) - mq.store.min_offset("again", queue)
        for queue in range(2 * mq.broker.config.default_queues)
    )


def test_messages_of_a_numbered_write_are_all_sent(mq: ferromq.Embedded) -> None:
    """With the sequence of their first write, brokers would drop them as duplicates."""
    rows = [
        row(offset, queue_id=queue, properties={"FERROMQ_SEQUENCE": f"query/{queue % 2}/3/{100 - offset}"})
        for queue in range(4)
        for offset in range(10)
    ]
    send(mq, rows)
    assert (stored(mq), mq.store.stats()["duplicates"]) == (40, 0)


def test_a_writer_stores_each_message_once(mq: ferromq.Embedded) -> None:
    """Repeated messages are stored once; source queues of different brokers are kept apart."""
    rows = [
        row(offset, queue_id=queue, store_host=host)
        for host in (HOST, "10.0.0.1:10911")
        for queue in range(3)
        for offset in range(10)
    ]
    send(mq, rows[:25], writer="once")
    assert stored(mq) == 25
    send(mq, rows, writer="once")
    assert (stored(mq), mq.store.stats()["duplicates"]) == (60, 25)
    send(mq, rows, writer="another")
    assert stored(mq) == 120


def test_a_writer_stores_each_message_once_if_queues_are_added_between_runs(mq: ferromq.Embedded) -> None:
    """The second run uses the first one's queues; if one of them is gone, nothing is sent."""
    rows = [row(offset, queue_id=queue) for queue in range(8) for offset in range(10)]
    send(mq, rows[:45], writer="once")
    queues = mq.broker.config.default_queues
    with mq.admin() as admin:
        admin.alter_topic("again", queues=2 * queues)
        send(mq, rows, writer="once")
        assert stored(mq) == 80
        admin.alter_topic("again", queues=queues - 1)
        with pytest.raises(ConfigError, match=r"had other queues when this batch was first tried.*without a writer"):
            send(mq, rows, writer="once")
    assert stored(mq) == 80


def test_a_repeated_offset_is_an_error_if_the_message_would_be_lost(mq: ferromq.Embedded, tmp_path: Path) -> None:
    """With a state or a writer; without them, both are sent."""
    rows = [row(0), row(1), row(1)]
    for options in ({"writer": "once"}, {"sent_offsets": SentOffsets(tmp_path / "state", "job")}):
        with pytest.raises(FerromqError, match=r"queue offset 1: there are two messages of this offset"):
            send(mq, rows, **options)
    assert stored(mq) == 0
    send(mq, rows)
    assert stored(mq) == 3


def test_progress_survives_another_division_into_tasks(tmp_path: Path) -> None:
    """If the next run gives queues to other tasks, no task overwrites another one's progress."""
    first = SentOffsets(tmp_path, "job")
    for queue in range(2):
        first.record(("orders", HOST, queue), 100)
    first.save(0)
    second = SentOffsets(tmp_path, "job")
    second.record(("orders", HOST, 0), 150)
    second.save(0)
    other = SentOffsets(tmp_path, "job")
    assert [other.next_offset(("orders", HOST, queue)) for queue in range(2)] == [150, 100]
