"""
Counts how often messages are handled whose handlers take longer than their lease.

An embedded broker has `--messages` messages; a consumer with leases of `--lease` seconds works on each for `--work`
seconds, with 1 and 4 at once, on threads and on an event loop.

    python benches/faults/slow_handlers.py

It prints for each way how many messages were handled, how many of them more than once, how many are dead letters, and
the seconds it took. Exit code 1 where one was not handled exactly once.
"""

import argparse
import asyncio
import sys
import threading
import time
from collections import Counter

import ferromq
import ferromq.aio


def on_threads(mq: ferromq.Embedded, options: argparse.Namespace, at_once: int) -> Counter[str]:
    """Handle all on so many threads, and return how often each message was."""
    handled: Counter[str] = Counter()
    lock = threading.Lock()

    def handle(message: ferromq.MessageView) -> None:
        time.sleep(options.work)
        with lock:
            handled[message.message_id] += 1
            if len(handled) == options.messages:
                threading.Timer(options.lease, consumer.stop).start()

    with ferromq.Consumer(mq.endpoint, f"threads-{at_once}", "slow", invisible_duration=options.lease) as consumer:
        consumer.run(handle, concurrency=at_once)
    return handled


def on_a_loop(mq: ferromq.Embedded, options: argparse.Namespace, at_once: int) -> Counter[str]:
    """Handle all in so many tasks, and return how often each message was."""
    handled: Counter[str] = Counter()

    async def work() -> None:
        async with ferromq.aio.Consumer(
            mq.endpoint, f"asyncio-{at_once}", "slow", invisible_duration=options.lease
        ) as consumer:

            async def handle(message: ferromq.MessageView) -> None:
                await asyncio.sleep(options.work)
                handled[message.message_id] += 1
                if len(handled) == options.messages:
                    asyncio.get_running_loop().call_later(options.lease, consumer.stop)

            await consumer.run(handle, concurrency=at_once)

    asyncio.run(work())
    return handled


def main() -> int:
    """Measure each way and print a line."""
    parser = argparse.ArgumentParser(description="counts how often slow handlers get a message")
    parser.add_argument("--messages", type=int, default=40)
    parser.add_argument("--lease", type=float, default=2.0, help="seconds (default: 2)")
    parser.add_argument("--work", type=float, default=3.0, help="seconds for each message (default: 3)")
    options = parser.parse_args()
    is_once = True
    with ferromq.embedded() as mq:
        with mq.producer() as producer:
            producer.send_all("slow", [b"%d" % number for number in range(options.messages)])
        for at_once in (1, 4):
            for name, way in (("threads", on_threads), ("asyncio", on_a_loop)):
                begin = time.monotonic()
                handled = way(mq, options, at_once)
                twice = sum(count > 1 for count in handled.values())
                dead = mq.store.max_offset(f"%DLQ%{name}-{at_once}", 0)
                print(f"{name} at_once={at_once} handled={len(handled)} twice={twice}", end=" ")
                print(f"dead_letters={dead} seconds={time.monotonic() - begin:.1f}", flush=True)
                is_once = is_once and len(handled) == options.messages and not twice and not dead
    return 0 if is_once else 1


if __name__ == "__main__":
    sys.exit(main())
