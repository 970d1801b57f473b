"""Writing tasks and replays against a broker that hangs, is gone, answers in part, or restarts."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from fault_proxy import FAULTS, Fault, FaultProxy
from machine import in_load
from ports import kept_port
from pyspark.sql.types import StringType, StructField, StructType

import ferromq
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.errors import OutcomeUnknown
from ferromq.message import Message
from ferromq.pipeline.replaying import ordered_sender
from ferromq.pipeline.replaying.ordered_sender import OrderedSender
from ferromq.process.clock import Clock
from ferromq.spark.write.layouts import FirstLayouts
from ferromq.spark.write.options import WriteOptions
from ferromq.spark.write.plan import BLOCK
from ferromq.spark.write.send import AtLeastOnceBatching, Sender, layouts
from ferromq.spark.write.writer import BatchWriter

TIMEOUT = 1
PATIENCE = 30
"""The timeout of calls that must succeed."""
# For an idle machine: closing takes up to two seconds; a call without a limit takes much longer.
SLACK = 4.0
BLOCKS = 12
FAULTY = 4
"""The block before which the fault comes."""
ROWS = BLOCKS * BLOCK


class Talk:
    """A broker behind a proxy, which can restart at its address."""

    def __init__(self, config: BrokerConfig, proxy: FaultProxy) -> None:
        self._config = config
        self._clock = Clock.manual(1_700_000_000_000)
        self.proxy = proxy
        self.broker = BrokerController(config, clock=self._clock)

    def restart(self) -> None:
        """Stop the broker, and start it again."""
        self.broker.close()
        self.broker = BrokerController(self._config, clock=self._clock)

    def options(self, *, is_once: bool, timeout: int = TIMEOUT) -> WriteOptions:
        """Return the options of a write."""
        return WriteOptions(self.proxy.address, "orders", is_once, "w" if is_once else None, timeout)

    def write(self, options: WriteOptions, between: Callable[[int], object] = lambda _: None) -> None:
        """Run an attempt at the only task of a batch; *between* is called before each block."""

        def batches() -> Iterator[pa.RecordBatch]:
            for number in range(BLOCKS):
                between(number)
                first = number * BLOCK
                yield pa.record_batch({"body": [str(row) for row in range(first, first + BLOCK)]})

        task = BatchWriter(options, StructType([StructField("body", StringType())]))
        task._write(batches(), SimpleNamespace(partitionId=lambda: 0), 0, options.writer)

    def stored(self) -> Counter[int]:
        """Return how often each row is stored, once all messages are dispatched."""
        store = self.broker.store
        while store.stats()["dispatched_offset"] < store.stats()["max_physical_offset"]:
            time.sleep(0.001)
        found: Counter[int] = Counter()
        for queue in range(self._config.default_queues):
            offset, end = 0, store.max_offset("orders", queue)
            while offset < end:
                _, messages, offset = store.get("orders", queue, offset, 1000)
                found.update(int(message.body) for message in messages)
        return found


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    """Run a broker behind a proxy."""
    with kept_port() as grpc, FaultProxy(grpc) as proxy:
        options = {"listen": "127.0.0.1:0", "fast_listen": "off", "commit_log_file_size": "4MiB"}
        options |= {"grpc_listen": grpc, "grpc_advertise": proxy.address}
        talk = Talk(BrokerConfig.from_options({"store": tmp_path / "store", **options}), proxy)
        yield talk
        proxy.resume()
        talk.broker.close()


def fails_in_time(call: Callable[[], object], seconds: float = TIMEOUT) -> str:
    """Return the error of a call; fail if it succeeds, raises another error, or takes long."""
    begin = time.monotonic()
    with pytest.raises(OutcomeUnknown) as caught:
        call()
    assert time.monotonic() - begin < seconds + in_load(SLACK)
    return str(caught.value)


ONCE = dict.fromkeys(range(ROWS), 1)
faults = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
two_faults = pytest.mark.parametrize("fault", [FAULTS["hang"], FAULTS["cut"]], ids=["hang", "cut"])
"""One that is noticed at its end, and one at once."""


@pytest.mark.parametrize(
    ("fault", "is_once"), [*((fault, True) for fault in FAULTS.values()), (FAULTS["cut"], False)], ids=[*FAULTS, "each"]
)
def test_a_task_fails_in_time_and_the_next_attempt_stores_the_rest(talk: Talk, fault: Fault, *, is_once: bool) -> None:
    """The error names rows; with exactly-once no row is repeated, however the first attempt ended."""
    options = talk.options(is_once=is_once)

    def between(number: int) -> None:
        if number == FAULTY:
            fault(talk.proxy)

    error = fails_in_time(lambda: talk.write(options, between))
    assert "rows " in error
    assert "to topic orders" in error
    talk.proxy.resume()
    assert len(talk.stored()) < ROWS
    talk.write(talk.options(is_once=is_once, timeout=PATIENCE))
    found = talk.stored()
    assert found.keys() == ONCE.keys()
    if is_once:
        assert found == ONCE


@faults
def test_a_task_waits_for_a_broker_that_comes_back(talk: Talk, fault: Fault) -> None:
    """Requests whose answers were lost are sent again, and stored once."""
    later = threading.Timer(0.3, talk.proxy.resume)

    def between(number: int) -> None:
        if number == FAULTY:
            fault(talk.proxy)
            later.start()

    talk.write(talk.options(is_once=True, timeout=PATIENCE), between)
    later.join()
    assert talk.stored() == ONCE


def test_a_task_waits_for_a_broker_that_restarts(talk: Talk) -> None:
    """The broker restores the rows' sequences and the layout."""
    talk.write(
        talk.options(is_once=True, timeout=PATIENCE),
        lambda number: talk.restart() if number in {FAULTY, 2 * FAULTY} else None,
    )
    assert talk.stored() == ONCE
    talk.restart()
    talk.write(talk.options(is_once=True, timeout=PATIENCE))
    assert talk.stored() == ONCE


@two_faults
def test_layouts_fail_in_time_and_do_not_change(talk: Talk, fault: Fault) -> None:
    """Neither plan nor task uses an incomplete layout; a failed request stores no other one."""
    options, patient = talk.options(is_once=True), talk.options(is_once=True, timeout=PATIENCE)
    planned = layouts(patient, ["orders"])
    sender = Sender(options, batching=AtLeastOnceBatching())
    with contextlib.closing(sender):
        fault(talk.proxy)
        fails_in_time(lambda: layouts(options, ["orders"]))
        first = FirstLayouts("w", 0, planned, is_placed=False)
        error = fails_in_time(lambda: first.of(sender._client, "orders"))
        assert "the first layout of topic orders for this batch" in error
        talk.proxy.resume()
        sender._client.common.timeout = PATIENCE
        assert first.of(sender._client, "orders") == planned["orders"] == layouts(patient, ["orders"])["orders"]


@two_faults
def test_a_replay_fails_in_time_and_the_next_one_stores_the_rest(talk: Talk, fault: Fault) -> None:
    """After a failure no message of that ordering key is sent; with a writer nothing is stored twice."""
    lanes, count = 4, 200
    rows = [
        (f"queue-{lane}", Message(b"%d" % (lane * count + row), properties={"FERROMQ_SEQUENCE": f"w:{lane}/0/0/{row}"}))
        for row in range(count)
        for lane in range(lanes)
    ]
    half = len(rows) // 2
    with OrderedSender(talk.proxy.address, writer="w") as sender:
        sender.send("orders", rows[:half])
        sender._client.common.timeout = TIMEOUT
        fault(talk.proxy)
        fails_in_time(lambda: sender.send("orders", rows[half:]))
    talk.proxy.resume()
    with OrderedSender(talk.proxy.address, writer="w") as sender:
        sender.send("orders", rows)
    assert talk.stored() == dict.fromkeys(range(lanes * count), 1)


def test_a_replay_of_a_hung_topic_closes_in_time(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a sender takes no longer than its timeout for unregistering."""
    monkeypatch.setattr(ordered_sender, "_UNREGISTER_TIMEOUT", 0.5)
    sender = OrderedSender(talk.proxy.address)
    sender.send("orders", [("queue-0", ferromq.Message(b"1"))])
    talk.proxy.hang()
    begin = time.monotonic()
    sender.__exit__(None, None, None)
    assert time.monotonic() - begin < in_load(SLACK)
