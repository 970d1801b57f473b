"""The servers of Apache RocketMQ that other tests talk to."""

from pathlib import Path

from java_processes import JavaBroker, JavaNameServer, mqadmin


def test_javas_own_broker_registers_with_its_name_server(tmp_path: Path) -> None:
    """The base of later comparisons: name server, broker and mqadmin start, find each other and end."""
    with (
        JavaNameServer(tmp_path / "namesrv") as name_server,
        JavaBroker(tmp_path / "broker", name_server.address) as broker,
    ):
        done = mqadmin(tmp_path / "admin", "clusterList", "-n", name_server.address)
        assert done.returncode == 0
        assert broker.address in done.stdout
