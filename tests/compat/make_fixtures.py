"""
Makes the directories in tests/fixtures/store anew, with Apache RocketMQ: see the README there.

Usage: python tests/compat/make_fixtures.py, after `make jars`.
"""

import json
import shutil
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from compat_checks import V4_BROKER, V6_BROKER, assert_same
from compat_messages import (
    LONG_TOPICS,
    SYS_FLAGS,
    V4,
    V6,
    Log,
    Message,
    Placed,
    bulk,
    line_of,
    lines_by_queue,
    places_by_key,
)
from compat_peer import Peer

_TARGET = Path(__file__).parents[1] / "fixtures" / "store"
_SIZES = {
    "mappedFileSizeCommitLog": 16 << 10,
    "mappedFileSizeConsumeQueue": 20 * 20,
    "maxHashSlotNum": 50,
    "maxIndexNum": 200,
    # Without it the kill may come before anything is on disk.
    "flushConsumeQueueThoroughInterval": 1000,
}
# Files of a whole broker beside the store: large, or useless here.
_LEFT_OUT = ("timerwheel", "timerlog", "rocksdbstore", "compaction")


def messages(*, is_checked: bool) -> list[Message]:
    """Make few messages of every kind; a whole broker checks topics and stores long ones for retries only."""
    topics = ("odd", "%RETRY%".ljust(200, "r")) if is_checked else ("odd", *LONG_TOPICS[:3])
    odd = [
        Message(
            topics[number % len(topics)],
            number % 2,
            {"KEYS": f"odd{number} odd", "UNIQ_KEY": f"U{number:08X}", "TAGS": f"t{number % 3}"},
            number * 7,
            number,
            flag=-number,
            sys_flag=sys_flag,
            born_host=host,
            reconsume_times=number % 4,
            prepared=number if sys_flag & 12 else 0,
        )
        for number, (sys_flag, host) in enumerate((sys_flag, host) for sys_flag in SYS_FLAGS for host in (V4, V6))
    ]
    sizes = [Message("sizes", 0, {"KEYS": f"size{length}"}, length) for length in (0, 1, 4096, 9000)]
    return [*bulk(60, queues=2), *odd, *sizes]


def expected(placed: Sequence[Placed], log: Log) -> list[str]:
    """Return what a reader must find: each message, and the messages of each key."""
    lines = []
    for one in sorted(placed, key=lambda one: one.physical_offset):
        words = line_of(one, log.record(one.physical_offset)).split("\t")
        properties = dict(one.message.properties)
        if one.has_property_crc:
            properties["__CRC32#"] = log.record(one.physical_offset)[-11:-1].decode()
        text = "".join(f"{name}\x01{value}\x02" for name, value in sorted(properties.items()) if value)
        words[1] = str(zlib.crc32(log.record(one.physical_offset)))
        words[15:] = str(zlib.crc32(one.message.body)), str(zlib.crc32(text.encode()))
        lines.append("\t".join(("queued" if one.message.is_queued else "kept", *words)))
    for (topic, key), places in places_by_key(placed).items():
        lines.append("\t".join(("key", topic, key, " ".join(map(str, places)))))
    return lines


def make(name: str, directory: Path, peer: Peer, *, is_broker: bool, is_killed: bool, crc: bool) -> None:
    """Let Java write one directory, check that Java reads what is expected, and keep it."""
    options = {**_SIZES, "enabledAppendPropCRC": str(crc).lower()}
    peer.open(name, directory, options, broker=is_broker)
    if is_broker:
        peer.ask("topic", name, "bulk", 2, "message.type=FIFO")
        peer.ask("group", name, "workers", 3)
    placed = peer.put(name, messages(is_checked=is_broker), V4_BROKER, crc=crc)
    placed += peer.put(name, messages(is_checked=is_broker), V6_BROKER, crc=crc)
    if is_broker:
        for queue_id in range(2):
            peer.ask("commit", name, "workers", "bulk", queue_id, 3 + queue_id)
        peer.ask("persist", name)
    assert_same(peer.queues(name), lines_by_queue(placed, Log(directory / "commitlog")))
    if is_killed:
        peer.kill()
    else:
        peer.close(name)
        peer.end()
    lines = expected(placed, Log(directory / "commitlog"))
    if is_broker:
        committed = {f"workers@bulk@{queue_id}": 3 + queue_id for queue_id in range(2)}
        lines.append("\t".join(("broker", json.dumps({"topic": "bulk", "queues": 2, "retries": 3, **committed}))))
    shutil.rmtree(_TARGET / name, ignore_errors=True)
    shutil.copytree(directory, _TARGET / name, ignore=shutil.ignore_patterns(*_LEFT_OUT, "*.bak"))
    (_TARGET / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def main() -> None:
    """Make all of them."""
    _TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        for name, is_broker, is_killed, crc in (
            ("stopped", True, False, False),
            ("killed", False, True, False),
            ("property-crc", False, False, True),
        ):
            peer = Peer(Path(work) / f"{name}-peer")
            make(name, Path(work) / name, peer, is_broker=is_broker, is_killed=is_killed, crc=crc)


if __name__ == "__main__":
    main()
