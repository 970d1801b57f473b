"""Send many messages at once, and one by one in the background; print the rates."""

import time

import ferromq

COUNT = 50_000


def main(count: int = COUNT) -> int:
    """Return how many places in the topic's queues the messages took."""
    body = b"x" * 1024
    with ferromq.embedded() as mq, mq.producer() as producer:
        begin = time.perf_counter()
        receipts = producer.send_all("batches", (ferromq.Message(body, keys=f"k-{n}") for n in range(count)))
        report("send_all", len(receipts), begin)

        # submit returns at once; messages within the linger share a request.
        begin = time.perf_counter()
        futures = [producer.submit("batches", body) for _ in range(count)]
        stored = [future.result() for future in futures]
        report("submit", len(stored), begin)
        return len({(receipt.queue_id, receipt.queue_offset) for receipt in [*receipts, *stored]})


def report(what: str, count: int, begin: float) -> None:
    """Print a rate."""
    print(f"{what}: {count:,} messages, {count / (time.perf_counter() - begin):,.0f} a second")


if __name__ == "__main__":
    main()
