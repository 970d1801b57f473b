"""A directory written by a broker of Apache RocketMQ, opened by ferromq."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from compat_checks import (
    JAVAS,
    OURS,
    V4_BROKER,
    V6_BROKER,
    assert_same,
    assert_we_find_keys,
)
from compat_messages import Log, Message, Placed, bulk, lines_by_queue, odd_ones, open_ours, read_ours, store_ours
from compat_peer import Peer, PeerError
from waiting import eventually

import ferromq
from ferromq.files import json_file

WAITING = "SCHEDULE_TOPIC_XXXX"


def serve(peer: Peer, name: str, directory: Path) -> list[str]:
    """Run a broker with topics, groups, consumers' offsets and delayed messages; return its messages."""
    peer.open(name, directory, JAVAS, broker=True)
    peer.ask("topic", name, "orders", 4, "message.type=FIFO")
    peer.ask("topic", name, "bulk", 4)
    peer.ask("group", name, "workers", 3)
    # Topics of more than 127 bytes are for groups' retries only, where a whole broker checks what it stores.
    usual = [one for one in odd_ones() if not one.topic.startswith("long-") or len(one.topic) == 127]
    retry = Message("%RETRY%".ljust(200, "r"), 0, {"KEYS": "wide"})
    peer.put(name, [*bulk(3_000), *bulk(400, topic="orders"), *usual, retry], V4_BROKER)
    peer.put(name, [*bulk(1_000, seed=2), *usual], V6_BROKER)
    # Level 18 waits for two hours; level 1 is delivered after a second, and the progress of that is noted.
    peer.put(name, [Message("orders", 0, {"DELAY": level, "KEYS": f"late{level}"}) for level in ("18", "1")], V4_BROKER)
    for queue_id in range(4):
        peer.ask("commit", name, "workers", "orders", queue_id, 10 + queue_id)

    def is_delivered() -> bool:
        (places,) = peer.keys(name, [("orders", "late1")])
        return len(places) == 1

    assert eventually(is_delivered)

    def is_noted() -> bool:
        peer.ask("persist", name)
        return delay_offsets(directory).get("1") == 1

    assert eventually(is_noted)
    peer.ask("settle", name)
    return peer.queues(name)


def delay_offsets(directory: Path) -> dict[str, int]:
    """Return each delay level's offset, from the file."""
    content = json_file.read(directory / "config" / "delayOffset.json") or {}
    return dict(content.get("offsetTable") or {})


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_store_moves_from_a_java_broker_to_us_and_back(
    new_peer: Callable[[], Peer], tmp_path: Path, *, is_killed: bool
) -> None:
    """We take over messages, keys, topics, groups and offsets, and it takes them back with ours."""
    directory = tmp_path / "store"
    peer = new_peer()
    lines = serve(peer, "java", directory)
    offsets = [int(line.split("\t")[3]) for line in lines]
    waiting = next(line for line in lines if line.startswith(f"{WAITING}\t17\t"))
    if is_killed:
        peer.kill()
        peer = new_peer()
    else:
        peer.close("java")
    delays = delay_offsets(directory)

    with ferromq.embedded(directory) as mq:
        assert_same(read_ours(mq.store), lines)
        for offset in offsets[::50]:
            assert mq.store.message_at(offset).physical_offset == offset
        late = mq.store.query_by_key(WAITING, "late18")
        assert [one.physical_offset for one in late] == [int(waiting.split("\t")[3])]
        assert {"orders", "bulk"} <= set(mq.admin().topics())
        assert mq.broker.topics.get("orders").message_type == "FIFO"
        assert mq.broker.groups.get("workers").retries == 3
        with mq.consumer("workers", "bulk") as consumer:
            (first,) = consumer.receive(1)
            consumer.ack(first)
        assert [mq.store.committed_offset("workers", "orders", queue) for queue in range(4)] == [10, 11, 12, 13]
        with mq.consumer("workers", "orders") as consumer:
            seen = [one.queue_offset - one.queue_id for one in consumer.receive(4)]
            assert seen
            assert all(offset >= 10 for offset in seen)
        mq.admin().create_topic("ours", 2)
        mq.store.commit_offset("workers", "orders", 1, 20)
        placed = store_ours(mq.store, bulk(500, topic="ours", queues=2), {"store_host": mq.remoting})
    now = delay_offsets(directory)
    # A message due in two hours waits; a due one was delivered.
    assert now["18"] == delays.get("18", 0)
    assert all(now[level] >= offset for level, offset in delays.items())
    log = Log(directory / "commitlog")
    everything = sorted([*lines, *lines_by_queue(placed, log)], key=_place)

    peer.open("again", directory, JAVAS, broker=True)
    peer.ask("settle", "again")
    assert_same(sorted(peer.queues("again"), key=_place), everything)
    assert peer.ask("committed", "again", "workers", "orders", 1) == "20"
    assert peer.ask("committed", "again", "workers", "orders", 3) == "13"
    names = peer.ask("names", "again").split("\t")
    assert {"ours=2{}", "orders=4{message.type=FIFO}", "group workers=3"} <= set(names)
    peer.close("again")


def _place(line: str) -> tuple[str, int, int]:
    topic, queue_id, queue_offset = line.split("\t")[:3]
    return topic, int(queue_id), int(queue_offset)


def test_consume_queues_made_anew_are_javas_byte_for_byte(peer: Peer, tmp_path: Path) -> None:
    """We derive the same as Java from its log: offsets, sizes, tag hashes, delivery times."""
    directory = tmp_path / "store"
    peer.open("derived", directory, JAVAS)
    waiting = [Message(WAITING, level % 18, {"DELAY": str(level), "TAGS": "t"}) for level in (0, 1, 5, 18, 30)]
    peer.put("derived", [*bulk(20_000), *odd_ones(), *waiting], V4_BROKER)
    peer.close("derived")
    theirs = _files(directory / "consumequeue")
    shutil.rmtree(directory / "consumequeue")
    open_ours(directory, OURS).close()
    ours = _files(directory / "consumequeue")
    assert theirs.keys() == ours.keys()
    assert [name for name in theirs if theirs[name] != ours[name]] == []


def _files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_log_in_several_directories_is_read_and_goes_on(peer: Peer, tmp_path: Path) -> None:
    """Java spreads its log files over a list of paths; we read all of them, write to them, and Java reads it again."""
    directory, paths = tmp_path / "store", [tmp_path / "disk-1", tmp_path / "disk-2"]
    options = {**JAVAS, "mappedFileSizeCommitLog": 1 << 20, "storePathCommitLog": ",".join(map(str, paths))}
    ours = {**OURS, "commit_log_file_size": 1 << 20, "commit_log_paths": [str(path) for path in paths]}
    peer.open("spread", directory, options)
    placed: list[Placed] = peer.put("spread", list(bulk(15_000)), V4_BROKER)
    peer.close("spread")
    assert all(len(list(path.iterdir())) > 1 for path in paths)

    store = open_ours(directory, ours)
    assert_same(read_ours(store), lines_by_queue(placed, Log(*paths)))
    assert_we_find_keys(store, placed)
    placed += store_ours(store, bulk(15_000, seed=2), ours)
    store.close()
    assert not (directory / "commitlog").exists() or not list((directory / "commitlog").iterdir())

    peer.open("spread", directory, options)
    assert_same(peer.queues("spread"), lines_by_queue(placed, Log(*paths)))
    peer.close("spread")


def test_a_store_that_is_open_is_closed_to_the_other_side(peer: Peer, tmp_path: Path) -> None:
    """The lock excludes Java from our open store and us from Java's; its holder goes on undisturbed."""
    directory = tmp_path / "store"
    options = {**OURS, "commit_log_file_size": 64 << 10, "index_slots": 500, "index_entries": 2_000}
    javas = {**JAVAS, "mappedFileSizeCommitLog": 64 << 10, "maxHashSlotNum": 500, "maxIndexNum": 2_000}
    store = open_ours(directory, options)
    placed = store_ours(store, bulk(3_000), options)
    with pytest.raises(PeerError, match="Lock failed"):
        peer.open("refused", directory, javas)
    # Java reads the files, and may remove some, before it takes the lock.
    placed += store_ours(store, bulk(3_000, seed=2), options)
    store.close()
    store = open_ours(directory, options)
    assert_same(read_ours(store), lines_by_queue(placed, Log(directory / "commitlog")))
    assert_we_find_keys(store, placed)
    store.close()

    peer.open("theirs", directory, javas)
    before = _files(directory / "consumequeue")
    with pytest.raises(ferromq.errors.StoreLocked):
        open_ours(directory, options)
    assert _files(directory / "consumequeue") == before
    placed += peer.put("theirs", list(bulk(1_000, seed=3)), V4_BROKER)
    assert_same(peer.queues("theirs"), lines_by_queue(placed, Log(directory / "commitlog")))
    peer.close("theirs")
