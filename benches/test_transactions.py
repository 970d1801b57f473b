"""How many transactions a second end, half message and commit, and how long a check of 100,000 open ones takes."""

import json
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import ferromq
from ferromq._ferromq import Clock, Store

BODY = b"x" * 1024
SEND, END_TRANSACTION, HEART_BEAT = 310, 37, 34
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
PRODUCERS, WINDOW, EACH = 2, 64, 8_192
OPEN = 100_000
_ANSWER = re.compile(rb'"(msgId|queueOffset)":"(\w+)"')


class Pipe:
    """Sends requests without waiting for answers, with headers in JSON made once."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._input = self._socket.makefile("rb", 1 << 20)

    def send(self, frames: list[bytes]) -> None:
        """Send frames in one piece."""
        self._socket.sendall(b"".join(frames))

    def header(self) -> bytes:
        """Return the header of the next answer."""
        length, head = struct.unpack(">iI", self._input.read(8))
        content: bytes = self._input.read(length - 4)
        return content[: head & 0xFFFFFF]


def frame(code: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    """Return a request."""
    header = {"code": code, "language": "JAVA", "version": 513, "opaque": 1, "flag": 0, "extFields": fields}
    encoded = json.dumps(header).encode()
    return struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


def half_frame(number: int) -> bytes:
    """Return a half message as Java's producer sends it."""
    properties = {"TRAN_MSG": "true", "PGROUP": "payers", "UNIQ_KEY": f"7F0000010001{number:020X}", "WAIT": "true"}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    names = {"a": "payers", "b": "bench", "c": "TBW102", "d": "8", "e": str(number % 8), "f": "4", "h": "0", "j": "0"}
    return frame(SEND, {**names, "g": str(time.time_ns() // 1_000_000), "i": text, "k": "false", "m": "false"}, BODY)


def commit_frame(answer: bytes) -> bytes:
    """Return the request that commits the half message of an answer."""
    found = dict(_ANSWER.findall(answer))
    fields = {
        "producerGroup": "payers",
        "tranStateTableOffset": found[b"queueOffset"].decode(),
        "commitLogOffset": str(int(found[b"msgId"][16:], 16)),
        "commitOrRollback": "8",
    }
    return frame(END_TRANSACTION, fields)


def produce(address: str, first: int) -> None:
    """Prepare and commit transactions, a window of them at a time."""
    pipe = Pipe(address)
    for begin in range(first, first + EACH, WINDOW):
        pipe.send([half_frame(number) for number in range(begin, begin + WINDOW)])
        pipe.send([commit_frame(pipe.header()) for _ in range(WINDOW)])
        for _ in range(WINDOW):
            assert b'"code":0' in pipe.header()


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Yield a broker."""
    with ferromq.embedded() as mq:
        yield mq


def test_complete_transactions(benchmark: Any, mq: ferromq.Embedded) -> None:
    """Half message and commit, each answered, by two processes with 64 under way, whose start is in it."""
    firsts = iter(range(0, sys.maxsize, EACH))

    def transact() -> None:
        commands = [[sys.executable, __file__, mq.broker.address, str(next(firsts))] for _ in range(PRODUCERS)]
        producers = [subprocess.Popen(command) for command in commands]
        assert [producer.wait() for producer in producers] == [0] * PRODUCERS

    benchmark.pedantic(transact, rounds=5, warmup_rounds=1)
    rate = PRODUCERS * EACH / benchmark.stats.stats.median
    print(f"\nprepare, commit: {rate:,.0f} transactions/s")


def test_check_of_many_open_ones(benchmark: Any, tmp_path: Any) -> None:
    """One round over 100,000 half messages nobody ended; all are put back and asked about."""
    clock = Clock.manual(time.time_ns() // 1_000_000)
    with ferromq.embedded(tmp_path, clock=clock, transaction_check_max=1_000) as mq:
        pipe = Pipe(mq.broker.address)
        body = json.dumps({"clientID": "p@1", "producerDataSet": [{"groupName": "payers"}], "consumerDataSet": []})
        pipe.send([frame(HEART_BEAT, {}, body.encode())])
        pipe.header()
        threading.Thread(target=_swallow, args=(pipe,), daemon=True).start()
        for begin in range(0, OPEN, WINDOW):
            pipe.send([half_frame(number) for number in range(begin, min(begin + WINDOW, OPEN))])
        _wait(mq.store, OPEN)
        benchmark.pedantic(lambda: mq.clock.advance(seconds=31), setup=lambda: _settle(mq.store), rounds=3)
    print(f"\ncheck of {OPEN:,} open half messages: {benchmark.stats.stats.median:.2f} s")


def _swallow(pipe: Pipe) -> None:
    try:
        while True:
            pipe.header()
    except (OSError, struct.error):
        return


def _settle(store: Store) -> None:
    while (stats := store.stats())["dispatched_offset"] != stats["max_physical_offset"]:
        threading.Event().wait(0.001)


def _wait(store: Store, count: int) -> None:
    while store.max_offset(HALF, 0) < count:
        threading.Event().wait(0.01)


if __name__ == "__main__":
    produce(sys.argv[1], int(sys.argv[2]))
