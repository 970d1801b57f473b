"""A consume queue that cannot be written: other topics go on, and it is completed later."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ferromq


def eventually(what: str, condition: Callable[[], bool]) -> None:
    """Wait for what no event tells, a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_a_queue_that_cannot_be_written_stops_no_other_topic(tmp_path: Path) -> None:
    """Neither at run time nor at the next start; sends to it fail with the reason."""

    def opened() -> ferromq.Embedded:
        return ferromq.embedded(tmp_path, default_queues=1, consume_queue_file_entries=20, disk_reserve=1 << 20)

    directory = tmp_path / "consumequeue" / "orders" / "0"
    with opened() as mq, mq.producer(attempts=1) as producer:
        for number in range(15):
            producer.send("orders", b"%d" % number)
        eventually("dispatched", lambda: mq.store.max_offset("orders", 0) == 15)
        # Nothing can be written to where the next file belongs.
        next_file = directory / f"{20 * 20:020}"
        next_file.mkdir()
        (next_file / "in the way").touch()
        sent = 21
        for number in range(15, sent):
            producer.send("orders", b"%d" % number)
        eventually("set aside", lambda: mq.store.stats()["set_aside_queues"] == 1)
        with pytest.raises(ferromq.FerromqError, match=r"queue 0 of topic orders is set aside: .*00000400"):
            producer.send("orders", b"refused")
        producer.send("others", b"seen")
        with mq.consumer("readers", "others") as consumer:
            (message,) = consumer.receive(1, wait=5)
            consumer.ack(message)
        assert mq.store.stats()["set_aside_queues"] == 1
        assert [damage[0] for damage in mq.store.damages()] == [directory]
    with opened() as mq, mq.producer() as producer:
        assert [damage[0] for damage in mq.store.damages()] == [directory]
        producer.send("others", b"seen again")
        eventually("dispatched", lambda: mq.store.max_offset("others", 0) == 2)
        (next_file / "in the way").unlink()
        next_file.rmdir()
        eventually("complete", lambda: mq.store.stats()["set_aside_queues"] == 0)
        assert mq.store.damages() == []
        producer.send("orders", b"%d" % sent)
        with mq.consumer("readers", "orders") as consumer:
            received: list[int] = []
            while len(received) <= sent:
                batch = consumer.receive(64, wait=20)
                assert batch
                received += (int(message.body) for message in batch)
                consumer.ack(batch)
            assert consumer.receive(wait=0) == []
        assert received == list(range(sent + 1))
