"""Our own files beside RocketMQ's count only if no other broker used the store since."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from compat_checks import JAVAS, OURS, V4_BROKER
from compat_messages import Message
from compat_peer import Peer

import ferromq

HOUR = timedelta(hours=1)
EMBEDDED = {name: value for name, value in OURS.items() if name != "flush"}


def lease_some(directory: Path) -> None:
    """Serve ten messages of one queue and close while a consumer holds the first four for an hour."""
    with ferromq.embedded(directory, **EMBEDDED) as mq:
        mq.admin().create_topic("work", 1)
        with mq.producer() as producer:
            for number in range(10):
                producer.send("work", b"%d" % number)
        assert received(mq, 4) == [0, 1, 2, 3]


def received(mq: ferromq.Embedded, count: int) -> list[int]:
    """Receive the available messages for an hour."""
    consumer = mq.consumer("workers", "work", invisible_duration=HOUR)
    found = []
    while len(found) < count and (messages := consumer.receive(count - len(found), wait=10)):
        found += [one.queue_offset for one in messages]
    # Not closed: that would give the messages back.
    return sorted(found)


def test_our_leases_are_void_once_java_has_appended(peer: Peer, tmp_path: Path) -> None:
    """They are valid while the store is ours; after Java used it every message is delivered."""
    directory = tmp_path / "store"
    lease_some(directory)
    with ferromq.embedded(directory, **EMBEDDED) as mq:
        assert received(mq, 2) == [4, 5]
    peer.open("moved", directory, JAVAS)
    peer.put("moved", [Message("work", 0, {"KEYS": "theirs"})], V4_BROKER)
    peer.close("moved")
    with ferromq.embedded(directory, **EMBEDDED) as mq:
        assert received(mq, 11) == list(range(11))


def test_offsets_that_java_committed_count(new_peer: Callable[[], Peer], tmp_path: Path) -> None:
    """Java consumes without appending; our consumers go on behind it."""
    directory = tmp_path / "store"
    lease_some(directory)
    peer = new_peer()
    peer.open("consumed", directory, JAVAS, broker=True)
    assert peer.ask("committed", "consumed", "workers", "work", 0) in {"0", "-1"}
    peer.ask("commit", "consumed", "workers", "work", 0, 6)
    peer.close("consumed")
    with ferromq.embedded(directory, **EMBEDDED) as mq:
        assert received(mq, 4) == [6, 7, 8, 9]
