"""RocketMQ's checksum over whole records, in a property: each side checks the other's."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from compat_checks import JAVAS, OURS, V4_BROKER, V6_BROKER, assert_same, killed_writer
from compat_messages import Log, Placed, bulk, lines_by_queue, odd_ones, open_ours, read_ours
from compat_peer import Peer

CHECKED = {**JAVAS, "enabledAppendPropCRC": "true", "forceVerifyPropCRC": "true", "checkCRCOnRecover": "true"}
SUMMED = {**OURS, "property_crc": True}


def change_last(directory: Path, placed: Sequence[Placed]) -> Placed:
    """Change a letter among the properties of the last record, which no other checksum covers."""
    last = max(placed, key=lambda one: one.physical_offset)
    file = max(path for path in (directory / "commitlog").iterdir() if int(path.name) <= last.physical_offset)
    end = last.physical_offset - int(file.name) + len(Log(directory / "commitlog").record(last.physical_offset))
    with file.open("r+b") as content:
        content.seek(end - 24)
        (letter,) = content.read(1)
        content.seek(end - 24)
        content.write(bytes([letter ^ 1]))
    return last


def test_java_accepts_our_checksums_and_cuts_a_damaged_record(peer: Peer, tmp_path: Path) -> None:
    """Java checks each record of its walk after a kill, and requires the checksum."""
    whole, changed = tmp_path / "whole", tmp_path / "changed"
    placed = killed_writer(whole, SUMMED, count=2_000, rounds=1, pause=0)
    shutil.copytree(whole, changed)
    last = change_last(changed, placed)

    peer.open("whole", whole, CHECKED)
    assert_same(peer.queues("whole"), lines_by_queue(placed, Log(whole / "commitlog")))
    peer.open("changed", changed, CHECKED)
    assert int(peer.ask("settle", "changed")) == last.physical_offset
    kept = [one for one in placed if one != last]
    assert_same(peer.queues("changed"), lines_by_queue(kept, Log(whole / "commitlog")))
    peer.close("whole")
    peer.close("changed")


def test_we_accept_javas_checksums_and_cut_a_damaged_record(new_peer: Callable[[], Peer], tmp_path: Path) -> None:
    """We check every checksum, independent of the option for new records."""
    whole, changed = tmp_path / "whole", tmp_path / "changed"
    doomed = new_peer()
    doomed.open("java", whole, CHECKED)
    placed = doomed.put("java", [*bulk(2_000), *odd_ones()], V6_BROKER, crc=True)
    placed += doomed.put("java", list(bulk(100, seed=2)), V4_BROKER, crc=True)
    doomed.kill()
    shutil.copytree(whole, changed)
    last = change_last(changed, placed)
    log = Log(whole / "commitlog")

    store = open_ours(whole, OURS)
    assert_same(read_ours(store), lines_by_queue(placed, log))
    store.close()
    store = open_ours(changed, OURS)
    assert_same(read_ours(store), lines_by_queue([one for one in placed if one != last], log))
    assert store.stats()["max_physical_offset"] == last.physical_offset
    store.close()
