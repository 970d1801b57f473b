"""Directories that Apache RocketMQ wrote, opened without it: see tests/fixtures/store/README.md."""

import json
import shutil
import zlib
from pathlib import Path

import pytest

import ferromq
from ferromq._ferromq import Clock, Store

FIXTURES = Path(__file__).parents[1] / "fixtures" / "store"


@pytest.mark.parametrize("name", ["stopped", "killed", "property-crc"])
def test_every_message_key_and_offset_is_found(name: str, tmp_path: Path) -> None:
    """By queue offset, by place and by key, before and after we appended."""
    directory = tmp_path / "store"
    shutil.copytree(FIXTURES / name, directory)
    lines = [line.split("\t") for line in (FIXTURES / f"{name}.txt").read_text().splitlines()]
    messages = [line for line in lines if line[0] in {"queued", "kept"}]
    assert len(messages) > 170
    for round_number in range(2):
        store = Store(str(directory), Clock.system())
        for kind, place, crc, topic, queue_id, queue_offset, *_ in messages:
            stored = store.message_at(int(place))
            assert stored is not None
            assert zlib.crc32(stored.raw) == int(crc)
            if kind == "queued":
                found = store.get(topic, int(queue_id), int(queue_offset), 1)[1]
                assert found[0].raw == stored.raw
        for _, topic, key, places in (line for line in lines if line[0] == "key"):
            found = store.query_by_key(topic, key, 100)
            assert sorted(one.physical_offset for one in found) == [int(place) for place in places.split()]
        for topic, queues in store.queues().items():
            for queue_id in queues:
                count = sum(line[0] == "queued" and line[3:5] == [topic, str(queue_id)] for line in messages)
                assert store.max_offset(topic, queue_id) == count + (topic == "bulk" and queue_id == 0) * round_number
        store.append("bulk", 0, b"ours")
        store.close()


def test_a_broker_goes_on_with_its_topics_groups_and_offsets(tmp_path: Path) -> None:
    """`config/*.json` of a Java broker are read; a consumer begins at its group's offset."""
    directory = tmp_path / "store"
    shutil.copytree(FIXTURES / "stopped", directory)
    told = next(line for line in (FIXTURES / "stopped.txt").read_text().splitlines() if line.startswith("broker\t"))
    expected = json.loads(told.split("\t")[1])
    with ferromq.embedded(directory) as mq:
        topic, group = mq.broker.topics.get(expected["topic"]), mq.broker.groups.get("workers")
        assert topic is not None
        assert group is not None
        assert (topic.read_queues, topic.message_type, group.retries) == (
            expected["queues"],
            "FIFO",
            expected["retries"],
        )
        received: list[ferromq.MessageView] = []
        with mq.consumer("workers", "bulk") as consumer:
            # One receive ends where the next message is not in memory.
            while {one.queue_id for one in received} != {0, 1}:
                more = consumer.receive(100)
                assert more
                received += more
        for queue_id in range(2):
            offsets = [one.queue_offset for one in received if one.queue_id == queue_id]
            assert offsets[:1] == [expected[f"workers@bulk@{queue_id}"]]
