"""
Measures what creating a topic costs where there are many, and what sends cost then.

Starts a name server and a broker, creates topics of 8 queues one after the other and with many requests under way,
and measures sends with few topics and with all of them.

    python benches/faults/many_topics.py --topics 10000
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from ferromq._ferromq import RemotingClient
from ferromq.broker.controller import BrokerController
from ferromq.config import BrokerConfig, NameServerConfig
from ferromq.namesrv.server import NamesrvController

PUT_TOPIC, SEND = 17, 310
FREE = "127.0.0.1:0"
LINE = 100
"""Topics created one after the other at each measuring point."""


def create(client: RemotingClient, address: str, name: str) -> None:
    """Create a topic of 8 queues."""
    fields = {"topic": name, "readQueueNums": "8", "writeQueueNums": "8", "perm": "6", "order": "false"}
    code, remark, _, _ = client.call(address, PUT_TOPIC, fields, timeout=30)
    assert code == 0, remark


def send(client: RemotingClient, address: str, topic: str) -> None:
    """Send a message of 100 bytes."""
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    code, remark, _, _ = client.call(address, SEND, fields, b"x" * 100)
    assert code == 0, remark


def rate(what: str, number: int, act: Callable[[], None]) -> None:
    """Print how many a second *act* does, which does *number*; and the processor time, of client and servers."""
    begin, used = time.perf_counter(), time.process_time()
    act()
    seconds, used = time.perf_counter() - begin, time.process_time() - used
    each = f"{seconds / number * 1000:.2f} ms each, {used / number * 1000:.2f} ms of it processor time"
    print(f"{what}: {number / seconds:,.0f}/s ({each})", flush=True)


def sends(client: RemotingClient, address: str, topics: list[str], number: int) -> None:
    """Print percentiles of sends to *topics* in turn."""
    for topic in topics:
        send(client, address, topic)
    times = []
    for index in range(number):
        begin = time.perf_counter()
        send(client, address, topics[index % len(topics)])
        times.append((time.perf_counter() - begin) * 1000)
    centiles = statistics.quantiles(times, n=100)
    print(f"sends to {len(topics)} topics: p50 {centiles[49]:.2f} ms, p99 {centiles[98]:.2f} ms", flush=True)


def main(total: int, width: int, number: int) -> None:
    """Measure all of it."""
    with tempfile.TemporaryDirectory() as directory:
        name_server = NamesrvController(NameServerConfig(listen=FREE))
        options = {"store": Path(directory), "namesrv": name_server.address, "listen": FREE, "grpc_listen": FREE}
        broker = BrokerController(BrokerConfig.from_options(options))
        client, numbers = RemotingClient(), count()

        def line() -> None:
            for _ in range(LINE):
                create(client, broker.address, f"topic-{next(numbers)}")

        def together(until: int) -> None:
            def work() -> None:
                while (mine := next(numbers)) < until:
                    create(client, broker.address, f"topic-{mine}")

            threads = [threading.Thread(target=work) for _ in range(width)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        rate("one after the other, none before", LINE, line)
        sends(client, broker.address, [f"topic-{index}" for index in range(10)], number)
        rate(f"{width} under way, up to {total}", total - LINE, lambda: together(total))
        rate(f"one after the other, {total} before", LINE, line)
        sends(client, broker.address, [f"topic-{index}" for index in range(10)], number)
        known = broker.topics.content
        assert sum(name.startswith("topic-") for name in known.entries) >= total
        begin = time.perf_counter()
        broker.close()
        print(f"close: {time.perf_counter() - begin:.2f} s")
        client.close()
        name_server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--sends", type=int, default=2_000)
    given = parser.parse_args()
    main(given.topics, given.width, given.sends)
