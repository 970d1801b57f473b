"""What both sides must read from a directory, and options that make both write files of the same sizes."""

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compat_messages import Log, Placed, java_hash, line_of, lines_by_queue, places_by_key, rounds_of
from compat_peer import Peer

from ferromq._ferromq import Store

V6_BROKER, V4_BROKER = "[2001:db8::99]:10911", "127.0.0.1:10911"
OURS = {
    "commit_log_file_size": 8 << 20,
    "consume_queue_file_entries": 5_000,
    "index_slots": 20_000,
    "index_entries": 80_000,
    "flush": "interval",
}
JAVAS = {
    "mappedFileSizeCommitLog": 8 << 20,
    "mappedFileSizeConsumeQueue": 5_000 * 20,
    "maxHashSlotNum": 20_000,
    "maxIndexNum": 80_000,
}


def assert_java_reads(peer: Peer, name: str, placed: Sequence[Placed], log: Log) -> None:
    """Check every message by queue offset and by physical offset, byte for byte and field for field."""
    lines = {one.physical_offset: line_of(one, log.record(one.physical_offset)) for one in placed}
    assert len(lines) == len(placed)
    assert_same(peer.queues(name), lines_by_queue(placed, log, lines))
    assert_same(peer.places(name, list(lines)), list(lines.values()))


def assert_same(found: Sequence[str], expected: Sequence[str]) -> None:
    """Compare two lists; show only the first difference."""
    different = next((pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]), None)
    assert different is None
    assert len(found) == len(expected)


def assert_java_finds_keys(peer: Peer, name: str, placed: Sequence[Placed]) -> None:
    """
    Check that every key and unique key finds its newest 64 messages, as many as Java returns at once.

    Java compares only the hash of topic and key, so keys of one hash are found together.
    """
    places = places_by_key(placed)
    by_hash: dict[int, list[int]] = {}
    for (topic, key), where in places.items():
        by_hash.setdefault(java_hash(f"{topic}#{key}"), []).extend(where)
    for (topic, key), found in zip(places, peer.keys(name, list(places)), strict=True):
        assert found == sorted(set(by_hash[java_hash(f"{topic}#{key}")]))[-64:], (topic, key)


def found_keys(peer: Peer, name: str, placed: Sequence[Placed]) -> set[tuple[str, str, int]]:
    """Return topic and key of each message that Java finds by it, with its number among those of the key."""
    places = places_by_key(placed)
    return {
        (topic, key, number)
        for (topic, key), found in zip(places, peer.keys(name, list(places)), strict=True)
        for number, place in enumerate(places[topic, key][-64:])
        if place in found
    }


def assert_we_find_keys(store: Store, placed: Sequence[Placed]) -> None:
    """Check that every key finds its messages in our store."""
    for (topic, key), expected in places_by_key(placed).items():
        found = store.query_by_key(topic, key, 1_000)
        assert sorted(one.physical_offset for one in found) == expected, (topic, key)


def killed_writer(
    directory: Path, options: Mapping[str, Any], *, count: int, rounds: int, pause: float
) -> list[Placed]:
    """Write in a process of its own, with pauses between the rounds, and kill it."""
    command = [sys.executable, str(Path(__file__).with_name("writer.py")), str(directory), json.dumps(options)]
    placed: list[Placed] = []
    crc = bool(options.get("property_crc"))
    with subprocess.Popen(
        [*command, str(count), str(rounds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for number, messages in enumerate(rounds_of(count, rounds)):
            places = json.loads(writer.stdout.readline())
            placed += [Placed(message, V4_BROKER, *place, crc) for message, place in zip(messages, places, strict=True)]
            if number < rounds - 1:
                # Checkpoints are written every second, without a signal.
                threading.Event().wait(pause)
                writer.stdin.write("\n")
                writer.stdin.flush()
        writer.kill()
    return placed
