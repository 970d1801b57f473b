"""The wait between a send and a read that does not wait: a message is in its queue a moment after the answer."""

import threading

import ferromq
from ferromq._ferromq import Store
from ferromq.broker.controller import BrokerController

PATIENCE = 20.0
PAUSE = 0.005


def dispatched(mq: ferromq.Embedded | BrokerController | Store) -> None:
    """Return once every stored message is in its queue."""
    store = mq if isinstance(mq, Store) else mq.store
    end = store.stats()["max_physical_offset"]
    pause = threading.Event()
    for _ in range(int(PATIENCE / PAUSE)):
        if store.stats()["dispatched_offset"] >= end:
            return
        pause.wait(PAUSE)
    raise AssertionError(f"what was stored before {end} is not in its queues: {store.stats()}")
