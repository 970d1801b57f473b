"""Clients of RocketMQ's proxy: each verb that it has, and the reason for each that it has not."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from java_processes import JavaBroker, JavaNameServer, JavaProxy

import ferromq
from ferromq import MessageView, SendReceipt

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))
import verbs
from verbs import Cluster, Verbs, connected

CHECKS = {"transactionCheckInterval": 3000, "transactionTimeOut": 10_000, "transactionOpBatchInterval": 50}
SWITCHES = {"enablePropertyFilter": "true", "recallMessageEnable": "true"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a name server, a broker and a proxy, which tells the broker at once who answers for transactions."""
    directory = tmp_path_factory.mktemp("servers")
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(JavaNameServer(directory / "namesrv"))
        broker = stack.enter_context(JavaBroker(directory / "broker", names.address, **CHECKS, **SWITCHES))
        proxy = JavaProxy(directory / "proxy", names.address, transactionHeartbeatPeriodSecond=1)
        stack.enter_context(proxy)
        yield Cluster(names.address, broker.address, "broker-java", proxy.address)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for messages: a new group often gets nothing for 20 s."""
    monkeypatch.setattr(verbs, "PATIENCE", 90.0)


class TestOfRocketMQsProxy(Verbs):
    """Against RocketMQ's released jars."""

    BEGIN: ClassVar[dict[str, Any]] = {}
    DURABILITY = None
    LEAST_WAIT = 3.0
    REFUSED = ("No topic route info.*unknown_topic", "property is used by system: DELAY")

    def place(self, stored: MessageView | SendReceipt) -> tuple[Any, int]:
        """RocketMQ's proxy chooses the queue, and does not tell it."""
        return stored.message_id, stored.queue_offset

    def test_what_the_proxy_does_not_answer_is_named(self, cluster: Cluster, kind: str, names: Any) -> None:
        """Where a group begins, offsets, readers, progress and requests: an error, with the way out."""
        topic, group = names(queues=1)
        with (
            connected(kind, cluster) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic) as consumer,
            mq.consumer(group, topic, begin="last") as begins,
            mq.reader(topic) as reader,
        ):
            (queue,) = consumer.queues()
            for told, call in (
                ("GetOffset.*begin= needs brokers of ferromq", lambda: begins.receive(wait=5)),
                ("PullMessage.*namesrv=", lambda: consumer.pull(queue, 0)),
                ("QueryOffset.*namesrv=", lambda: consumer.offset_at(queue, "end")),
                ("GetOffset.*namesrv=", lambda: consumer.committed_offset(queue)),
                ("UpdateOffset.*namesrv=", lambda: consumer.commit_offset(queue, 0)),
                ("GetOffset.*namesrv=", consumer.progress),
                ("QueryOffset.*namesrv=", lambda: list(consumer.messages(until="end"))),
                ("QueryOffset.*namesrv=", lambda: reader.read(wait=5)),
                ("DescribeBroker.*namesrv=", lambda: producer.request(topic, b"x")),
                ("not enough for polling.*wait=3 or more", lambda: consumer.receive(wait=0)),
            ):
                with pytest.raises(ferromq.Unsupported, match=told):
                    call()
