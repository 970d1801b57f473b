"""Planning and tasks against brokers and name servers that hang, are gone, or answer in part."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from fault_proxy import FAULTS, Fault, FaultProxy
from machine import in_load
from ports import kept_port

import ferromq
from ferromq.errors import OutcomeUnknown
from ferromq.spark.arrow import record_batch
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read import over_grpc, over_remoting, pull
from ferromq.spark.read.plan import QueueRange
from ferromq.spark.topics import Topics

SCHEMA = pa.schema([pa.field("queue_offset", pa.int64()), pa.field("body", pa.binary())])
FLIGHTS = Topics(("flights",))
BODIES = [b"%d" % number for number in range(20)]
TIMEOUT = 0.5
# For an idle machine; a call without a limit takes much longer.
SLACK = 1.5
PATIENCE = 10.0


class Talk:
    """A cluster behind proxies."""

    def __init__(self, protocol: str, mq: ferromq.Embedded, proxies: dict[str, FaultProxy]) -> None:
        self.where = (
            ClusterAddress(endpoint=mq.endpoint)
            if protocol == "grpc"
            else ClusterAddress(namesrv=proxies["namesrv"].address)
        )
        self.proxies = [proxies["grpc"]] if protocol == "grpc" else [proxies["remoting"], proxies["namesrv"]]

    def plan(self) -> list[Any]:
        """Return the queues that planning finds."""
        return pull.queues(self.where, FLIGHTS)

    def read(self, queue: Any) -> list[bytes]:
        """Return the bodies that a task reads from a queue."""
        wanted = QueueRange(
            queue.topic, queue.broker_name, queue.endpoint, queue.queue_id, 0, queue.max_offset, queue.protocol
        )
        answers = pull.pull(wanted, columns=SCHEMA.names)
        batches = [record_batch(columns, count, SCHEMA) for count, columns in answers]
        return [body for batch in batches for body in batch.column("body").to_pylist()]


@pytest.fixture(params=["grpc", "remoting"])
def talk(request: pytest.FixtureRequest) -> Iterator[Talk]:
    """Run a broker with messages behind proxies."""
    with kept_port() as one, kept_port() as two, FaultProxy(one) as grpc, FaultProxy(two) as remoting:
        addresses = {"listen": remoting.target, "advertise": remoting.address, "fast_listen": "off"}
        addresses |= {"grpc_listen": grpc.target, "grpc_advertise": grpc.address}
        with ferromq.embedded(**addresses) as mq, FaultProxy(mq.namesrv) as namesrv:
            with mq.admin() as admin, mq.producer() as producer:
                admin.create_topic("flights", 1)
                producer.send_all("flights", BODIES)
            give_up = time.monotonic() + PATIENCE
            while mq.store.max_offset("flights", 0) < len(BODIES) and time.monotonic() < give_up:
                time.sleep(0.01)
            yield Talk(request.param, mq, {"grpc": grpc, "remoting": remoting, "namesrv": namesrv})


def fails_in_time(call: Callable[[], object]) -> None:
    """Fail if a call of a reader with a short timeout succeeds, raises another error, or takes long."""
    begin = time.monotonic()
    with pytest.MonkeyPatch.context() as patches:
        for module in (over_grpc, over_remoting):
            patches.setattr(module, "TIMEOUT", TIMEOUT)
        with pytest.raises(OutcomeUnknown):
            call()
    assert time.monotonic() - begin < TIMEOUT + in_load(SLACK)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_planning_and_tasks_fail_in_time_and_read_everything_when_they_are_tried_again(
    talk: Talk, fault: Fault
) -> None:
    """Missing rows are always an error; Spark retries tasks."""
    (queue,) = talk.plan()
    assert talk.read(queue) == BODIES
    for proxy in talk.proxies:
        fault(proxy)
        fails_in_time(talk.plan)
        if proxy is talk.proxies[0]:
            fails_in_time(lambda: talk.read(queue))
            fails_in_time(lambda: pull.offsets_by_time([(queue, 0)]))
        proxy.resume()
        assert talk.plan() == [queue]
        assert talk.read(queue) == BODIES
