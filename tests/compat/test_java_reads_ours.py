"""A directory written by ferromq, opened by Apache RocketMQ's own store."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from compat_checks import (
    JAVAS,
    OURS,
    V4_BROKER,
    V6_BROKER,
    assert_java_finds_keys,
    assert_java_reads,
    assert_same,
    assert_we_find_keys,
    found_keys,
    killed_writer,
)
from compat_messages import (
    Log,
    Placed,
    bulk,
    lines_by_queue,
    odd_ones,
    open_ours,
    read_ours,
    rounds_of,
    store_ours,
)
from compat_peer import Peer

MANY = 100_000


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Placed]]:
    """Write a directory and close it: messages of every kind, IPv4 and IPv6, with and without property CRC."""
    directory = tmp_path_factory.mktemp("ours")
    placed: list[Placed] = []
    for number, (host, crc) in enumerate(
        [(V4_BROKER, False), (V6_BROKER, True), (V4_BROKER, True), (V6_BROKER, False)]
    ):
        options = {**OURS, "store_host": host, "property_crc": crc}
        store = open_ours(directory, options)
        placed += store_ours(store, [*bulk(MANY // 4, seed=number), *odd_ones()], options)
        store.close()
    return directory, placed


def test_java_reads_every_message_and_goes_on_after_a_clean_stop(
    written: tuple[Path, list[Placed]], peer: Peer, tmp_path: Path
) -> None:
    """Read by queue, by physical offset and by key; Java appends; we read and append; Java reads all of it."""
    directory, placed = tmp_path / "store", list(written[1])
    shutil.copytree(written[0], directory)
    assert len(placed) >= MANY
    assert len(list((directory / "commitlog").iterdir())) > 5
    assert len(list((directory / "index").iterdir())) > 2

    peer.open("clean", directory, JAVAS)
    assert_java_reads(peer, "clean", placed, Log(directory / "commitlog"))
    assert_java_finds_keys(peer, "clean", placed)
    placed += peer.put("clean", [*bulk(5_000, seed=10), *odd_ones()], V4_BROKER)
    placed += peer.put("clean", [*bulk(5_000, topic="new", seed=11), *odd_ones()], V6_BROKER)
    peer.close("clean")

    store = open_ours(directory, OURS)
    assert_same(read_ours(store), lines_by_queue(placed, Log(directory / "commitlog")))
    assert_we_find_keys(store, placed)
    placed += store_ours(store, [*bulk(5_000, seed=12), *odd_ones()], OURS)
    store.close()

    peer.open("again", directory, JAVAS)
    assert_java_reads(peer, "again", placed, Log(directory / "commitlog"))
    assert_java_finds_keys(peer, "again", placed)
    peer.close("again")


def test_java_reads_every_message_and_goes_on_after_a_kill(
    peer: Peer, new_peer: Callable[[], Peer], tmp_path: Path
) -> None:
    """As after a clean stop; it finds as many keys as in its own directory after the same kill."""
    directory = tmp_path / "ours"
    placed = killed_writer(directory, OURS, count=20_000, rounds=3, pause=2.5)
    assert (directory / "abort").exists()

    # The same messages and pauses with Java's own store.
    doomed, own = new_peer(), tmp_path / "own"
    doomed.open("own", own, JAVAS)
    own_placed: list[Placed] = []
    for messages in rounds_of(20_000, 3):
        own_placed += doomed.put("own", messages, V4_BROKER)
        threading.Event().wait(2.5)
    doomed.kill()
    peer.open("own", own, JAVAS)
    assert_java_reads(peer, "own", own_placed, Log(own / "commitlog"))
    expected = found_keys(peer, "own", own_placed)
    peer.close("own")

    peer.open("killed", directory, JAVAS)
    peer.ask("settle", "killed")
    assert_java_reads(peer, "killed", placed, Log(directory / "commitlog"))
    found = found_keys(peer, "killed", placed)
    assert not expected - found
    placed += peer.put("killed", [*bulk(5_000, seed=10), *odd_ones()], V6_BROKER)
    peer.close("killed")

    store = open_ours(directory, OURS)
    assert_same(read_ours(store), lines_by_queue(placed, Log(directory / "commitlog")))
    placed += store_ours(store, bulk(1_000, seed=11), OURS)
    assert_we_find_keys(store, placed)
    store.close()


def test_java_builds_the_index_again_where_we_built_none(peer: Peer, tmp_path: Path) -> None:
    """After a kill without one: indexed messages are found, every message is read, and new ones are found."""
    directory = tmp_path / "store"
    store = open_ours(directory, OURS)
    before = store_ours(store, [*bulk(2_000, topic="before", seed=1)], OURS)
    store.close()
    placed = before + killed_writer(directory, {**OURS, "index_enabled": False}, count=2_000, rounds=2, pause=2.5)

    peer.open("unindexed", directory, JAVAS)
    peer.ask("settle", "unindexed")
    assert_java_reads(peer, "unindexed", placed, Log(directory / "commitlog"))
    assert_java_finds_keys(peer, "unindexed", before)
    after = peer.put("unindexed", [*bulk(1_000, topic="after", seed=2)], V4_BROKER)
    assert_java_finds_keys(peer, "unindexed", after)
    peer.close("unindexed")

    store = open_ours(directory, OURS)
    assert_same(read_ours(store), lines_by_queue([*placed, *after], Log(directory / "commitlog")))
    assert_we_find_keys(store, [*before, *after])
    store.close()
