"""The wait between a send and a read that does not wait: a message is in its queue a moment after the answer."""

import threading

import ferromq

PATIENCE = 20.0
PAUSE = 0.005


def dispatched(mq: ferromq.Embedded) -> None:
    """Return once every stored message is in its queue."""
    end = mq.store.stats()["max_physical_offset"]
    pause = threading.Event()
    for _ in range(int(PATIENCE / PAUSE)):
        if mq.store.stats()["dispatched_offset"] >= end:
            return
        pause.wait(PAUSE)
    raise AssertionError(f"what was stored before {end} is not in its queues: {mq.store.stats()}")
