"""How many transactions a second end, and how long a check of 100,000 open ones takes, over both protocols."""

import json
import queue
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import ferromq
from ferromq._ferromq import Clock, Store
from ferromq._proto import messages as pb

BODY = b"x" * 1024
SEND, END_TRANSACTION, HEART_BEAT, RUNTIME_INFO = 310, 37, 34, 28
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
PRODUCERS, WINDOW, EACH = 2, 64, 8_192
OPEN = 100_000
# By protocol; a gRPC client's is the topic.
GROUPS = {"remoting": "payers", "gRPC": "bench"}
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
        """Return the header of the next answer or request."""
        return self._next()[0]

    def answer(self) -> bytes:
        """Return the body of the next answer."""
        return self._next()[1]

    def _next(self) -> tuple[bytes, bytes]:
        length, head = struct.unpack(">iI", self._input.read(8))
        content: bytes = self._input.read(length - 4)
        return content[: head & 0xFFFFFF], content[head & 0xFFFFFF :]


def frame(code: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    """Return a request."""
    header = {"code": code, "language": "JAVA", "version": 513, "opaque": 1, "flag": 0, "extFields": fields}
    encoded = json.dumps(header).encode()
    return struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


def half_frame(number: int, group: str = "payers") -> bytes:
    """Return a half message as Java's producer sends it."""
    properties = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": f"7F0000010001{number:020X}", "WAIT": "true"}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    names = {"a": group, "b": "bench", "c": "TBW102", "d": "8", "e": str(number % 8), "f": "4", "h": "0", "j": "0"}
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
    """Half message and commit, each answered, by two processes with 64 in flight, including their start."""
    firsts = iter(range(0, sys.maxsize, EACH))

    def transact() -> None:
        commands = [[sys.executable, __file__, str(next(firsts)), mq.broker.address] for _ in range(PRODUCERS)]
        producers = [subprocess.Popen(command) for command in commands]
        assert [producer.wait() for producer in producers] == [0] * PRODUCERS

    benchmark.pedantic(transact, rounds=5, warmup_rounds=1)
    rate = PRODUCERS * EACH / benchmark.stats.stats.median
    print(f"\nprepare, commit: {rate:,.0f} transactions/s")


@pytest.mark.parametrize("protocol", ["remoting", "gRPC"])
def test_check_of_many_open_ones(benchmark: Any, tmp_path: Any, protocol: str) -> None:
    """One round over 100,000 open half messages; all are put back, and another process is asked about them."""
    clock = Clock.manual(time.time_ns() // 1_000_000)
    with ferromq.embedded(tmp_path, clock=clock, transaction_check_max=1_000) as mq:
        command = [sys.executable, __file__, protocol, mq.broker.address, mq.endpoint]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as producer:
            assert producer.stdout is not None
            producer.stdout.readline()
            pipe = Pipe(mq.broker.address)
            for begin in range(0, OPEN, WINDOW):
                numbers = range(begin, min(begin + WINDOW, OPEN))
                pipe.send([half_frame(number, group=GROUPS[protocol]) for number in numbers])
                for _ in numbers:
                    pipe.header()
            _wait(mq.store, OPEN)
            before, asked = time.process_time(), _checked(pipe)
            benchmark.pedantic(lambda: mq.clock.advance(seconds=31), setup=lambda: _settle(mq.store), rounds=3)
            cpu, asked = time.process_time() - before, _checked(pipe) - asked
            producer.kill()
    print(f"\ncheck of {OPEN:,} open half messages, {protocol}: {benchmark.stats.stats.median:.2f} s")
    print(f"{asked:,} asked in 3 rounds; {cpu / max(asked, 1) * 1e6:.0f} us of the broker's CPU each")


def _checked(pipe: Pipe) -> int:
    pipe.send([frame(RUNTIME_INFO, {})])
    return int(json.loads(pipe.answer())["table"]["transactionChecked"])


def swallow_remoting(address: str) -> None:
    """Be a producer over remoting that reads its checks, and never answers."""
    pipe = Pipe(address)
    body = json.dumps({"clientID": "p@1", "producerDataSet": [{"groupName": "payers"}], "consumerDataSet": []})
    pipe.send([frame(HEART_BEAT, {}, body.encode())])
    pipe.header()
    print("ready", flush=True)
    while True:
        pipe.header()


def swallow_grpc(endpoint: str) -> None:
    """Be a producer over gRPC that reads its checks, and never answers."""
    channel = grpc.insecure_channel(endpoint)
    publishing = pb.Publishing(topics=[pb.Resource(name="bench")])
    settings = pb.Settings(client_type=pb.ClientType.PRODUCER, publishing=publishing)
    said = queue.SimpleQueue[bytes | None]()
    said.put(pb.TelemetryCommand(settings=settings).SerializeToString())
    told = channel.stream_stream("/apache.rocketmq.v2.MessagingService/Telemetry")(
        iter(said.get, None), metadata=(("x-mq-client-id", "payer@here"),)
    )
    next(told)
    print("ready", flush=True)
    for _ in told:
        pass


def _settle(store: Store) -> None:
    while (stats := store.stats())["dispatched_offset"] != stats["max_physical_offset"]:
        threading.Event().wait(0.001)


def _wait(store: Store, count: int) -> None:
    while store.max_offset(HALF, 0) < count:
        threading.Event().wait(0.01)


if __name__ == "__main__":
    kind, remoting, *others = sys.argv[1:]
    if kind == "remoting":
        swallow_remoting(remoting)
    elif kind == "gRPC":
        swallow_grpc(others[0])
    else:
        produce(remoting, int(kind))
