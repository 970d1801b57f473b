"""Files as they are written for RocketMQ: each starts a server, or is refused with what to write instead."""

import re
from pathlib import Path

import pytest

from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import ConfigError

COMMON = "brokerClusterName = DefaultCluster\nbrokerName = broker-a\ndeleteWhen = 04\nfileReservedTime = 48\n"
# As tutorials have it for a broker with tuned threads and paths of its own.
TUNED = """
brokerClusterName=rocketmq-cluster
brokerName=broker-a
brokerId=0
namesrvAddr=rocketmq-1:9876;rocketmq-2:9876
defaultTopicQueueNums=4
autoCreateTopicEnable=true
autoCreateSubscriptionGroup=true
listenPort=10911
deleteWhen=04
fileReservedTime=120
mappedFileSizeCommitLog=1073741824
mappedFileSizeConsumeQueue=300000
destroyMapedFileIntervalForcibly=120000
redeleteHangedFileInterval=120000
diskMaxUsedSpaceRatio=88
storePathRootDir=/data/store
storePathCommitLog=/data/store/commitlog
storePathConsumeQueue=/data/store/consumequeue
storePathIndex=/data/store/index
storeCheckpoint=/data/store/checkpoint
abortFile=/data/store/abort
maxMessageSize=65536
flushCommitLogLeastPages=4
flushConsumeQueueLeastPages=2
flushCommitLogThoroughInterval=10000
flushConsumeQueueThoroughInterval=60000
brokerRole=ASYNC_MASTER
flushDiskType=ASYNC_FLUSH
sendMessageThreadPoolNums=128
pullMessageThreadPoolNums=128
useReentrantLockWhenPutMessage=true
waitTimeMillsInSendQueue=400
"""
# As the most copied of them has it, written for RocketMQ 4.
OLD = TUNED + (
    "mapedFileSizeCommitLog=1073741824\nmapedFileSizeConsumeQueue=300000\ncheckTransactionMessageEnable=false\n"
    "diskMaxUsedSpaceRatio=98\n"
)
DLEDGER = COMMON + (
    "listenPort=30911\nnamesrvAddr=127.0.0.1:9876\nstorePathRootDir=/tmp/node00\nenableDLegerCommitLog=true\n"
    "dLegerGroup=RaftNode00\ndLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912\ndLegerSelfId=n0\n"
    "sendMessageThreadPoolNums=16\n"
)
CONTROLLER = COMMON + (
    "brokerId = -1\nbrokerRole = SLAVE\nenableControllerMode = true\ncontrollerAddr = 127.0.0.1:9878\n"
    "namesrvAddr = 127.0.0.1:9876\nallAckInSyncStateSet=true\nlistenPort=30911\n"
)
CONTAINED = COMMON + (
    "brokerId=0\nbrokerRole=SYNC_MASTER\nflushDiskType=ASYNC_FLUSH\nhaListenPort=10912\ntotalReplicas=2\n"
    "inSyncReplicas=2\nminInSyncReplicas=1\nenableAutoInSyncReplicas=true\nslaveReadEnable=true\n"
    "brokerHeartbeatInterval=1000\nbrokerNotActiveTimeoutMillis=5000\nsendHeartbeatTimeoutMillis=1000\n"
    "enableSlaveActingMaster=true\n"
)
CONTAINER = (
    "listenPort=10811\nnamesrvAddr=172.22.144.49:9876\nfetchNamesrvAddrByAddressServer=false\n"
    "brokerConfigPaths=/a/broker-a.conf:/a/broker-b.conf\n"
)
LICENSED = (
    '<!--\n  Licensed under the Apache License, Version 2.0 (the "License");\n      http://www.example.org\n  -->\n'
)


@pytest.mark.parametrize(
    "text",
    [
        COMMON + "brokerId = 0\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n",
        COMMON + "brokerId=1\nbrokerRole=SLAVE\nflushDiskType=ASYNC_FLUSH\n",
        # As charts and compose files write it, often with what the container's address is.
        COMMON + "brokerId=0\nbrokerRole=ASYNC_MASTER\nflushDiskType=SYNC_FLUSH\nbrokerIP1=10.0.0.7\n",
        COMMON + "enablePropertyFilter=true\naclEnable=false\ntraceTopicEnable=true\nwaitTimeMillsInSendQueue=2000\n",
        TUNED,
        OLD,
        LICENSED + COMMON,
    ],
)
def test_a_brokers_file_starts_one(tmp_path: Path, text: str) -> None:
    """Nothing in it is unknown or refused."""
    file = tmp_path / "broker.conf"
    file.write_text(text)
    config = BrokerConfig.load(file, environment={})
    assert config.name.startswith("broker-a")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            COMMON + "brokerId=0\nbrokerRole=SYNC_MASTER\nflushDiskType=ASYNC_FLUSH\n",
            ["no send waits for a slave; use ASYNC_MASTER"],
        ),
        (DLEDGER, ["enableDLegerCommitLog=true in line 8 of .*: .* logs are not replicated; use false"]),
        (
            CONTROLLER,
            [
                "enableControllerMode=true in line 7 of .* no controller that elects masters; use false",
                "allAckInSyncStateSet=true in line 10 of .*; use false",
                "brokerId=-1 in .*: a slave needs a brokerId above 0",
            ],
        ),
        (
            CONTAINED,
            [
                "totalReplicas=2 in .*; use 1",
                "inSyncReplicas=2 in .*; use 1",
                "enableAutoInSyncReplicas=true in .*; use false",
                "enableSlaveActingMaster=true in .*; use false",
                "SYNC_MASTER is not supported: .*; use ASYNC_MASTER",
            ],
        ),
        (CONTAINER, ["brokerConfigPaths=.* start a broker for each file"]),
        (COMMON + "transientStorePoolEnable=true\n", ["not only in memory; use false"]),
    ],
)
def test_a_file_that_asks_for_what_there_is_not_is_refused(tmp_path: Path, text: str, told: list[str]) -> None:
    """With one line for each key, each with a way out."""
    file = tmp_path / "broker.conf"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.load(file, environment={})
    lines = str(raised.value).splitlines()
    assert len(lines) == len(told)
    for expected in told:
        assert any(re.search(expected, line) for line in lines), (expected, lines)


@pytest.mark.parametrize(
    "keys", ["supportActingMaster=true\n", "listenPort = 9876\n", "kvConfigPath=/a/kvConfig.json\n"]
)
def test_a_name_servers_file_starts_one(tmp_path: Path, keys: str) -> None:
    """Nothing in it is unknown or refused."""
    file = tmp_path / "namesrv.conf"
    file.write_text(LICENSED + keys)
    NameServerConfig.load(file, environment={})


def test_a_controller_in_a_name_server_is_refused(tmp_path: Path) -> None:
    """Its other keys are known."""
    file = tmp_path / "namesrv.conf"
    file.write_text(
        LICENSED + "listenPort = 9876\nenableControllerInNamesrv = true\ncontrollerDLegerGroup = group1\n"
        "controllerDLegerPeers = n0-127.0.0.1:9878;n1-127.0.0.1:9868\ncontrollerDLegerSelfId = n0\n"
    )
    with pytest.raises(ConfigError, match=r"^enableControllerInNamesrv=true in line 6 of .*; use false$"):
        NameServerConfig.load(file, environment={})
