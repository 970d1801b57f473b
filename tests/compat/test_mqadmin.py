"""RocketMQ's mqadmin prints the same facts of ferromq as it does of Apache RocketMQ."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mqadmin_script
import pytest
from compat_peer import Clients
from java_processes import JavaBroker, JavaNameServer
from mqadmin_script import BROKER, CLUSTER, Step

import ferromq
from ferromq._ferromq import RemotingClient

ROUTE = 105
# Of a store in RocksDB, and of delays of any length, which are not there yet.
_OTHERS = {"RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC", "rmq_sys_wheel_timer"}
# Asked of ours: at least what is there of these. RocketMQ names options of machinery that is not ours, too.
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


def _of_java(directory: Path) -> dict[str, str]:
    with (
        JavaNameServer(directory / "namesrv") as namesrv,
        JavaBroker(directory / "broker", namesrv.address, brokerName=BROKER, brokerClusterName=CLUSTER) as broker,
    ):
        _wait_for_registration(namesrv.address)
        return _run(directory, namesrv.address, broker.address)


def _of_ours(directory: Path) -> dict[str, str]:
    with ferromq.embedded(directory / "store", name=BROKER, cluster=CLUSTER) as mq:
        return _run(directory, mq.namesrv, mq.remoting)


def _run(directory: Path, namesrv: str, broker: str) -> dict[str, str]:
    clients = Clients(directory / "clients")
    try:
        return mqadmin_script.run(clients, namesrv, broker)
    finally:
        clients.end()


def _wait_for_registration(namesrv: str) -> None:
    """Wait until the name server knows the broker, whose name is a topic: Java's says that it serves before that."""
    client, pause = RemotingClient(), threading.Event()
    try:
        found = (client.call(namesrv, ROUTE, {"topic": BROKER}, timeout=20)[0] == 0 for _ in range(600))
        assert any(is_known or pause.wait(0.1) for is_known in found)
    finally:
        client.close()


def _difference(step: Step, expected: object, found: object) -> object:
    """Return what is not as it should be; nothing where all is well."""
    if step.words not in _AT_LEAST:
        return None if found == expected else {"expected": expected, "found": found}
    assert isinstance(expected, set)
    assert isinstance(found, set)
    wanted: set[str] = _AT_LEAST[step.words] or expected - _OTHERS
    return wanted - found


@pytest.mark.timeout(600)
def test_mqadmin_prints_the_same_facts(tmp_path: Path) -> None:
    """Command by command it ends as it does against the Java broker, and says the same."""
    # Side by side: most commands end after the three seconds that Java's client takes to close.
    with ThreadPoolExecutor() as threads:
        running = threads.submit(_of_java, tmp_path / "java"), threads.submit(_of_ours, tmp_path / "ours")
        java, ours = (side.result() for side in running)
    differences = {
        step.words: difference
        for step in mqadmin_script.STEPS
        if isinstance(step, Step)
        and (difference := _difference(step, step.facts(java[step.words]), step.facts(ours[step.words])))
    }
    assert not differences
