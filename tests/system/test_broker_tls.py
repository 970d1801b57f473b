"""A broker whose remoting connections are encrypted."""

from pathlib import Path

import pytest

from ferromq._ferromq import RemotingClient
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.errors import ConnectionFailed

TOPICS = 21
SUCCESS = 0
FILES = Path(__file__).parents[1] / "fixtures" / "tls"


def test_a_broker_can_enforce_tls(tmp_path: Path) -> None:
    """By RocketMQ's keys; a plaintext client gets nothing."""
    file = tmp_path / "broker.conf"
    file.write_text(
        f"storePathRootDir={tmp_path / 'store'}\nmappedFileSizeCommitLog=1048576\ntls.server.mode=enforcing\n"
        f"tls.server.certPath={FILES / 'first.pem'}\ntls.server.keyPath={FILES / 'first.key'}\n"
    )
    free = {"listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0"}
    broker = BrokerController(BrokerConfig.load(file, environment={}, flags=free))
    encrypted, plain = RemotingClient(tls=True, trust=FILES / "ca.pem"), RemotingClient()
    try:
        assert encrypted.call(broker.address, TOPICS)[0] == SUCCESS
        with pytest.raises(ConnectionFailed):
            plain.call(broker.address, TOPICS)
    finally:
        encrypted.close()
        plain.close()
        broker.close()
