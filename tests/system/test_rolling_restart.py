"""Two brokers are restarted one after the other, while a client sends."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from rolling_brokers import RollingBrokers

import ferromq

PATIENCE = 30.0
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RollingBrokers]:
    """Run a name server and two brokers."""
    with contextlib.ExitStack() as stack:
        yield RollingBrokers(tmp_path, stack, drain="20s", drain_quiet="500ms")


class Sender:
    """Sends single messages on a thread until it is stopped."""

    def __init__(self, producer: ferromq.Producer, topic: str, **options: Any) -> None:
        self.places: list[str] = []
        self.failures: list[ferromq.FerromqError] = []
        self._ended = threading.Event()
        self._send = lambda number: producer.send(topic, b"%d" % number, **options)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(0.005):
            try:
                self.places.append(self._send(number).broker_name)
            except ferromq.FerromqError as error:
                self.failures.append(error)
            number += 1

    def stop(self) -> None:
        """Stop after the send under way."""
        self._ended.set()
        self._thread.join(PATIENCE * 2)


def test_no_send_fails(cluster: RollingBrokers, eventually: Eventually) -> None:
    """Unordered messages go to the other broker; message groups wait for theirs and stay there."""
    with ferromq.Admin(cluster.name_server.address) as admin:
        admin.create_topic("orders", queues=2)
        admin.create_topic("accounts", queues=2, message_type="FIFO")
    endpoints = ";".join(broker.endpoint for broker in cluster.brokers.values())
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(ferromq.Producer(endpoints))
        patient = stack.enter_context(ferromq.Producer(endpoints, timeout=PATIENCE))
        single = stack.enter_context(Sender(producer, "orders"))
        groups = [stack.enter_context(Sender(patient, "accounts", message_group=str(number))) for number in range(4)]
        for name, other in (("a", "b"), ("b", "a")):
            assert eventually(lambda: all(sender.places for sender in groups) and {"a", "b"} <= {*single.places[-50:]})
            cluster.restart(name)
            assert eventually(lambda last=other: last in single.places[-1:])
            # Else it looks for the restarted broker within 30 s.
            producer._client.common.routes.distrust_all()
        assert eventually(lambda: {"a", "b"} <= {*single.places[-50:]})
        counts = [len(sender.places) for sender in groups]
        assert eventually(lambda: all(len(s.places) > n for s, n in zip(groups, counts, strict=True)))
    senders = [single, *groups]
    assert [sender.failures for sender in senders] == [[]] * len(senders)
    assert all(len({*sender.places}) == 1 for sender in groups)
    assert {sender.places[0] for sender in groups} == {"a", "b"}
