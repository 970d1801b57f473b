"""Clients of name servers and Java brokers without a proxy: each verb against Apache RocketMQ."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from java_processes import JavaBroker, JavaNameServer

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))
from namesrv_verbs import Cluster, NamesrvVerbs

CHECKS = {"transactionCheckInterval": 1000, "transactionTimeOut": 1000, "transactionOpBatchInterval": 50}
"""The end of a transaction is noted before the next check: RocketMQ commits twice what is committed twice."""
SWITCHES = {"enablePropertyFilter": "true", "recallMessageEnable": "true"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run RocketMQ's broker and name server."""
    directory = tmp_path_factory.mktemp("servers")
    with (
        JavaNameServer(directory / "namesrv") as names,
        JavaBroker(directory / "broker", names.address, **CHECKS, **SWITCHES) as broker,
    ):
        yield Cluster(names.address, broker.address, "broker-java")


class TestOfRocketMQ(NamesrvVerbs):
    """Against RocketMQ's released jars."""
