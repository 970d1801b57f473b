"""RocketMQ's mqadmin prints the same facts of ferromq as it does of Apache RocketMQ."""

from pathlib import Path

import mqadmin_script
import pytest
from compat_peer import Clients
from java_processes import JavaBroker, JavaNameServer
from mqadmin_script import BROKER, CLUSTER, Step

import ferromq

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


def _of_java(directory: Path, clients: Clients) -> dict[str, str]:
    with (
        JavaNameServer(directory / "namesrv") as namesrv,
        JavaBroker(directory / "broker", namesrv.address, brokerName=BROKER, brokerClusterName=CLUSTER) as broker,
    ):
        return mqadmin_script.run(clients, namesrv.address, broker.address)


def _of_ours(directory: Path, clients: Clients) -> dict[str, str]:
    with ferromq.embedded(directory, name=BROKER, cluster=CLUSTER) as mq:
        return mqadmin_script.run(clients, mq.namesrv, mq.remoting)


def _difference(step: Step, expected: object, found: object) -> object:
    """Return what is not as it should be; nothing where all is well."""
    if step.words not in _AT_LEAST:
        return None if found == expected else {"expected": expected, "found": found}
    assert isinstance(expected, set)
    assert isinstance(found, set)
    wanted: set[str] = _AT_LEAST[step.words] or expected - _OTHERS
    return wanted - found


@pytest.mark.timeout(600)
def test_mqadmin_prints_the_same_facts(tmp_path: Path, clients: Clients) -> None:
    """Command by command it ends as it does against the Java broker, and says the same."""
    java, ours = _of_java(tmp_path / "java", clients), _of_ours(tmp_path / "ours", clients)
    differences = {
        step.words: difference
        for step in mqadmin_script.STEPS
        if isinstance(step, Step)
        and (difference := _difference(step, step.facts(java[step.words]), step.facts(ours[step.words])))
    }
    assert not differences
