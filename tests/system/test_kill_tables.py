"""Kill -9 in the middle of changes: answered changes are there, and offsets except the last interval."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from remoting_peer import Peer

import ferromq
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.topics import TopicTable
from ferromq.config.broker import BrokerConfig

Eventually = Callable[[Callable[[], bool]], bool]

ROUNDS = 4
SERVER = """
import sys, time, ferromq
with ferromq.embedded(sys.argv[1], progress_interval="200ms") as mq:
    mq.broker.store.append("read", 0, b"x")
    mq.broker.store.append("read", 0, b"y")
    while mq.broker.store.max_offset("read", 0) < 2:
        time.sleep(0.005)
    print(mq.remoting, flush=True)
    for line in sys.stdin:
        mq.broker.store.commit_offset("g", "read", 0, int(line))
        print("committed", flush=True)
"""


@contextlib.contextmanager
def served(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a broker in a process of its own; yield it with its remoting address."""
    command = [sys.executable, "-c", SERVER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the broker did not start on what the kill before left"
        try:
            yield process, address
        finally:
            process.kill()


def change_until_killed(address: str, prefix: str, answered: list[str]) -> None:
    """Make topics and groups by turns; note each that was answered."""
    with contextlib.suppress(OSError, ConnectionError), Peer(address) as peer:
        for number in range(100_000):
            name = f"{prefix}-{number}"
            if number % 2:
                code = peer.call(200, body={"groupName": name}).code
            else:
                code = peer.call(17, {"topic": name, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}).code
            assert code == 0
            answered.append(name)


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_no_answered_topic_or_group_is_lost(tmp_path: Path) -> None:
    """Kills while four clients change: each answered one is in RocketMQ's files, which are whole."""
    answered: list[str] = []
    for round_number in range(ROUNDS):
        before = len(answered)
        with served(tmp_path) as (process, address):
            threads = [
                threading.Thread(target=change_until_killed, args=(address, f"r{round_number}-{client}", answered))
                for client in range(4)
            ]
            for thread in threads:
                thread.start()
            # As many as that, however fast the machine is.
            while len(answered) < before + 20 * (round_number + 1):
                threading.Event().wait(0.005)
            process.send_signal(signal.SIGKILL)
            for thread in threads:
                thread.join()
        topics = TopicTable(BrokerConfig, tmp_path, lambda: 0, lambda *_: None, lambda *_: None)
        groups = GroupTable(BrokerConfig, tmp_path, lambda: 0, lambda *_: None)
        lost = [name for name in answered if topics.get(name) is None and groups.get(name) is None]
        assert not lost, f"{len(lost)} of {len(answered)} are lost, first {lost[0]}"


@pytest.mark.crash
@pytest.mark.timeout(120)
def test_of_offsets_the_last_interval_alone_is_lost(tmp_path: Path, eventually: Eventually) -> None:
    """Offsets of consumerOffset.json stay; later ones may be there or not."""
    file = tmp_path / "config" / "consumerOffset.json"
    with served(tmp_path) as (process, _):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("1\n")
        process.stdin.flush()
        assert process.stdout.readline() == "committed\n"
        # Nothing is closed: only the interval writes it.
        assert eventually(lambda: file.exists() and '"read@g"' in file.read_text())
        process.stdin.write("2\n")
        process.stdin.flush()
        assert process.stdout.readline() == "committed\n"
        process.send_signal(signal.SIGKILL)
    with ferromq.embedded(str(tmp_path)) as mq, Peer(mq.remoting) as peer:
        answer = peer.call(14, {"consumerGroup": "g", "topic": "read", "queueId": "0", "setZeroIfNotFound": "false"})
        assert answer.fields["offset"] in {"1", "2"}
        assert json.loads(peer.call(43).body)["offsetTable"]["read@g"]["0"] in {1, 2}
