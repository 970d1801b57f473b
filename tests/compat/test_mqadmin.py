"""
RocketMQ's mqadmin prints the same facts about ferromq and about Apache RocketMQ.

And `ferromq mqadmin` prints what it prints, about either.
"""

import queue
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import mqadmin_script
from compat_peer import Clients
from java_processes import JavaBroker, JavaNameServer
from mqadmin_script import BROKER, CLUSTER, FAILED, Step, alike, own

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq._proto import messages as pb
from ferromq.cli.mqadmin import app
from ferromq.cli.mqadmin.options import usage

ROUTE = 105
# Of a store in RocksDB, and of delays of any length, which are not there yet; the last one is made by a tool in Java.
_OTHERS = {
    "%RETRY%TOOLS_CONSUMER",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    "rmq_sys_wheel_timer",
}
# ferromq lists at least its own of these; RocketMQ also lists options of parts that ferromq lacks.
_AT_LEAST = {
    "topicList": None,
    "brokerStatus -b {broker}": None,
    "getBrokerConfig -b {broker}": {
        *("brokerName", "brokerClusterName", "brokerId", "brokerPermission", "defaultTopicQueueNums", "listenPort"),
        *("autoCreateTopicEnable", "autoCreateSubscriptionGroup", "flushDiskType", "fileReservedTime", "deleteWhen"),
        *("namesrvAddr", "storePathRootDir", "mappedFileSizeCommitLog", "maxMessageSize", "brokerRole"),
    },
    "getNamesrvConfig": {"listenPort", "scanNotActiveBrokerInterval", "orderMessageEnable", "kvConfigPath"},
}


# They show sizes and offsets of records, which depend on the ids that a tool makes.
_OF_RECORDS = ("queryCq", "printMsg", "queryMsgById", "queryMsgByUniqueKey", "queryMsgByOffset")


def _of_java(directory: Path) -> tuple[dict[str, str], dict[str, str]]:
    with (
        JavaNameServer(directory / "namesrv") as namesrv,
        JavaBroker(directory / "broker", namesrv.address, brokerName=BROKER, brokerClusterName=CLUSTER) as broker,
        Clients(directory / "clients") as clients,
    ):
        _wait_for_registration(namesrv.address)
        return mqadmin_script.run(clients, namesrv.address, broker.address, clients.admin, own)


def _of_ours(directory: Path) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return what RocketMQ's tool printed, what ours printed about the same, and what ours printed alone."""
    with Clients(directory / "clients") as clients:
        with ferromq.embedded(directory / "store", name=BROKER, cluster=CLUSTER) as mq:
            java, beside = mqadmin_script.run(clients, mq.namesrv, mq.remoting, clients.admin, own)
        with ferromq.embedded(directory / "other", name=BROKER, cluster=CLUSTER) as mq:
            alone, _ = mqadmin_script.run(clients, mq.namesrv, mq.remoting, own)
    return java, beside, alone


def _wait_for_registration(namesrv: str) -> None:
    """Wait until the name server knows the broker, whose name is a topic: Java's reports its start earlier."""
    client, pause = RemotingClient(), threading.Event()
    try:
        found = (client.call(namesrv, ROUTE, {"topic": BROKER}, timeout=20)[0] == 0 for _ in range(600))
        assert any(is_known or pause.wait(0.1) for is_known in found)
    finally:
        client.close()


def _difference(step: Step, expected: object, found: object) -> object:
    """Return the differences."""
    if step.words not in _AT_LEAST:
        return None if found == expected else {"expected": expected, "found": found}
    assert isinstance(expected, set)
    assert isinstance(found, set)
    wanted: set[str] = _AT_LEAST[step.words] or expected - _OTHERS
    return wanted - found


def _between_tools(java: dict[str, str], ours: dict[str, str]) -> dict[str, object]:
    """Return the commands about which two tools print different things, at the same cluster and nearly at once."""
    pairs = {words: (alike(words, java[words]), alike(words, text)) for words, text in ours.items()}
    return {words: pair for words, pair in pairs.items() if pair[0] != pair[1]}


def _alone(java: dict[str, str], ours: dict[str, str]) -> dict[str, object]:
    """Return the commands that did something else when ours did all."""
    found: dict[str, object] = {}
    for step in mqadmin_script.STEPS:
        if isinstance(step, Step) and not step.words.startswith(_OF_RECORDS):
            expected, text = java[step.words], ours[step.words]
            if FAILED in expected or FAILED in text:
                difference = None if (FAILED in expected) == (FAILED in text) else (expected, text)
            else:
                facts = mqadmin_script.without_decimals if step.facts is mqadmin_script.lines else step.facts
                difference = _difference(step, facts(expected), facts(text))
            found |= {step.words: difference} if difference else {}
    return found


def test_mqadmin_prints_the_same_facts(tmp_path: Path) -> None:
    """Each command has the exit code and the output that it has against the Java broker; ours prints the same."""
    # Side by side: servers take long to start.
    with ThreadPoolExecutor() as threads:
        with_java, with_ours = threads.submit(_of_java, tmp_path / "java"), threads.submit(_of_ours, tmp_path / "ours")
        (java, beside_java), (ours, beside_ours, alone) = with_java.result(), with_ours.result()
    differences = {
        step.words: difference
        for step in mqadmin_script.STEPS
        if isinstance(step, Step)
        and (difference := _difference(step, step.facts(java[step.words]), step.facts(ours[step.words])))
    }
    assert not differences
    assert not _between_tools(java, beside_java)
    assert not _between_tools(ours, beside_ours)
    assert not _alone(ours, alone)


def test_usages_are_rocketmqs(clients: Clients) -> None:
    """Of each command that is there, to the letter."""
    listed = clients.admin()
    for name, command in app.COMMANDS.items():
        assert f"   {name:<35} {command.help}\n" in listed
        expected, found = clients.admin("help", name).rstrip(), usage(command).rstrip()
        if name == "printMsg":  # RocketMQ's names of its options have a blank at their end
            expected, found = (re.sub(" +", " ", text) for text in (expected, found))
        assert found == expected


class GrpcConsumer:
    """A gRPC consumer with only a telemetry stream, which answers commands as configured."""

    def __init__(self, endpoint: str, group: str, topic: str) -> None:
        self._channel = grpc.insecure_channel(endpoint)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = self._channel.stream_stream("/apache.rocketmq.v2.MessagingService/Telemetry")
        self._incoming = call(iter(self._outgoing.get, None), metadata=(("x-mq-client-id", "me@here"),))
        entry = pb.SubscriptionEntry(topic=pb.Resource(name=topic))
        wanted = pb.Subscription(group=pb.Resource(name=group), subscriptions=[entry])
        self._say(settings=pb.Settings(client_type=pb.ClientType.PUSH_CONSUMER, subscription=wanted))
        assert pb.TelemetryCommand.FromString(next(self._incoming)).status.code == pb.Code.OK
        self._answering = threading.Thread(target=self._answer)
        self._answering.start()

    def _say(self, **command: Any) -> None:
        self._outgoing.put(pb.TelemetryCommand(**command).SerializeToString())

    def _answer(self) -> None:
        done = pb.Status(code=pb.Code.OK)
        for each in self._incoming:
            command = pb.TelemetryCommand.FromString(each)
            if command.WhichOneof("command") == "print_thread_stack_trace_command":
                nonce = command.print_thread_stack_trace_command.nonce
                trace = pb.ThreadStackTrace(nonce=nonce, thread_stack_trace="worker-7: waits")
                self._say(status=done, thread_stack_trace=trace)
            elif command.WhichOneof("command") == "verify_message_command":
                nonce = command.verify_message_command.nonce
                self._say(status=done, verify_message_result=pb.VerifyMessageResult(nonce=nonce))

    def close(self) -> None:
        """End the stream."""
        self._outgoing.put(None)
        self._answering.join()
        self._channel.close()


def test_mqadmin_asks_a_grpc_client(clients: Clients, tmp_path: Path) -> None:
    """Its subscriptions, the stacks of its threads, and its result for a message."""
    with ferromq.embedded(tmp_path / "store") as mq:
        consumer = GrpcConsumer(mq.endpoint, "askers", "asked")
        with mq.producer() as producer, mq.admin() as admin:
            sent, pause = producer.send("asked", b"x"), threading.Event()
            assert any(admin.query_by_id("asked", sent.message_id) or pause.wait(0.1) for _ in range(100))
        try:
            status = clients.admin("consumerStatus", "-g", "askers", "-i", "me@here", "-s", "-n", mq.namesrv)
            our_status = own("consumerStatus", "-g", "askers", "-i", "me@here", "-s", "-n", mq.namesrv)
            place = ("-t", "asked", "-i", sent.message_id, "-g", "askers", "-d", "me@here")
            verified = clients.admin("queryMsgById", *place, "-n", mq.namesrv)
            ours_verified = own("queryMsgById", *place, "-n", mq.namesrv)
        finally:
            consumer.close()
    assert "worker-7: waits" in status
    assert "asked" in status
    assert "CR_SUCCESS" in verified
    assert alike("consumerStatus", our_status) == alike("consumerStatus", status)
    assert (
        re.sub(r"spentTimeMills=\d+", "", ours_verified).strip() == re.sub(r"spentTimeMills=\d+", "", verified).strip()
    )
