"""The options of a server's connections: limits and TLS, by RocketMQ's keys too."""

from pathlib import Path

import pytest

from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import ConfigError


def read(path: Path, text: str) -> NameServerConfig:
    """Return the configuration of a file in RocketMQ's format."""
    path.write_text(text)
    return NameServerConfig.from_properties(path)


def test_limits_have_rocketmqs_defaults_and_keys(tmp_path: Path) -> None:
    """Idle time, one-way requests and requests to clients; memory and connections are ours."""
    memory = {"memory": 256 << 20, "backlog": 4096, "frame": 16 << 20}
    assert NameServerConfig().connections.limits() == {"idle": 120.0, "one_way": 256, "calls": 64, **memory}
    keys = "serverChannelMaxIdleTimeSeconds=7\nserverOnewaySemaphoreValue=3\nserverAsyncSemaphoreValue=5\n"
    assert read(tmp_path / "n.conf", keys).connections.limits() == {
        "idle": 7.0,
        "one_way": 3,
        "calls": 5,
        **memory,
    }
    config = NameServerConfig.load(environment={"FERROMQ_NAMESRV_IDLE_TIME": "9s"}, flags={"call_limit": "2"})
    assert config.connections.limits() == {"idle": 9.0, "one_way": 256, "calls": 2, **memory}
    config = NameServerConfig.from_options({"network_memory": "1GiB", "max_connections": "7"})
    assert config.connections.limits()["memory"] == 1 << 30
    assert config.connections.limits()["max_connections"] == 7


def test_sockets_have_rocketmqs_keys(tmp_path: Path) -> None:
    """0, RocketMQ's default for the buffers, leaves them to the system."""
    keys = "serverSocketBacklog=9\nserverSocketSndBufSize=65536\nserverSocketRcvBufSize=32768\n"
    limits = read(tmp_path / "n.conf", keys + "max_connections_by_address=3\n").connections.limits()
    given = {name: limits.get(name) for name in ("backlog", "send_buffer", "receive_buffer")}
    assert given == {"backlog": 9, "send_buffer": 65_536, "receive_buffer": 32_768}
    assert limits["max_connections_by_address"] == 3
    assert (
        read(tmp_path / "n.conf", "serverSocketSndBufSize=0\n").connections.limits()
        == NameServerConfig().connections.limits()
    )
    for wrong in ("serverSocketBacklog=0", "serverSocketSndBufSize=-1", "serverSocketRcvBufSize=1073741824"):
        with pytest.raises(ConfigError, match=r"accept_backlog|serverSocketSndBufSize|receive_buffer"):
            read(tmp_path / "n.conf", wrong + "\n")


def test_the_largest_frame_has_rocketmqs_key_and_fits_into_the_share_of_a_connection(tmp_path: Path) -> None:
    """The error names both options."""
    key = "com.rocketmq.remoting.frameMaxLength"
    assert read(tmp_path / "n.conf", f"{key}=33554432\n").connections.limits()["frame"] == 32 << 20
    for wrong in (1 << 20, 300 << 20):
        with pytest.raises(ConfigError, match=f"frame_limit is {wrong} bytes; it may be 2097152 to 268435456"):
            read(tmp_path / "n.conf", f"{key}={wrong}\n")
    together = "frame_limit = 100_000_000\nnetwork_memory = 400_000_000\n"
    (tmp_path / "n.toml").write_text(together)
    assert NameServerConfig.load(tmp_path / "n.toml").connections.frame_limit == 100_000_000
    with pytest.raises(ConfigError, match=r"frame_limit is 33554432 bytes, .* may hold 16777216, .* network_memory"):
        NameServerConfig.from_options({"network_memory": "64MiB", "frame_limit": "32MiB"})


def test_too_little_memory_and_no_connections_are_refused() -> None:
    """A frame of 16 MiB must fit into the share of a connection."""
    with pytest.raises(ConfigError, match=r"network_memory is 1048576 bytes; it must be 67108864 or more"):
        NameServerConfig.from_options({"network_memory": "1MiB"})
    with pytest.raises(ConfigError, match="max_connections"):
        NameServerConfig.from_options({"max_connections": "0"})


def test_a_certificate_switches_tls_on_beside_plaintext(tmp_path: Path) -> None:
    """Unless the mode says otherwise; without one there is none."""
    assert NameServerConfig().connections.mode == "disabled"
    keys = "tls.server.certPath=/x/server.pem\ntls.server.keyPath=/x/server.key\n"
    assert read(tmp_path / "n.conf", keys).connections.mode == "permissive"
    assert read(tmp_path / "n.conf", keys + "tls.server.mode=enforcing\n").connections.mode == "enforcing"


def test_rocketmqs_tls_file_is_read(tmp_path: Path) -> None:
    """A key of the main file names it, like RocketMQ's `tls.properties`."""
    (tmp_path / "tls.properties").write_text(
        "tls.test.mode.enable=false\ntls.server.need.client.auth=require\ntls.server.authClient=true\n"
        "tls.server.certPath=/x/server.pem\ntls.server.keyPath=/x/server.key\ntls.server.trustCertPath=/x/ca.pem\n"
        "tls.client.trustCertPath=/x/ca.pem\n"
    )
    config = read(tmp_path / "n.conf", f"tls.config.file={tmp_path / 'tls.properties'}\n")
    connections = config.connections
    assert (connections.tls_certificate, connections.tls_key) == ("/x/server.pem", "/x/server.key")
    assert (connections.tls_client_auth, connections.tls_trust) == ("require", "/x/ca.pem")
    assert (connections.tls_outgoing, connections.tls_outgoing_trust) == (False, "/x/ca.pem")
    assert config.keys()["tls.server.need.client.auth"] == "require"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tls.test.mode.enable=true", "no test certificate is generated"),
        ("tls.server.keyPassword=secret", "encrypted keys are not supported"),
        ("tls.client.keyPassword=secret", "encrypted keys are not supported"),
        ("tls.server.mode=perhaps", "disabled, permissive, enforcing"),
        ("tls.server.need.client.auth=maybe", "none, optional, require"),
        ("tls.server.need.client.auth=require\ntls.server.authClient=false", "always checked"),
        ("tls.server.certpath=x", "did you mean tls.server.certPath"),
        ("serverOnewaySemaphoreValue=0", "more than 0"),
        ("tls.config.file=gone.properties", "gone.properties cannot be read"),
    ],
)
def test_a_setting_that_weakens_tls_is_an_error(tmp_path: Path, line: str, message: str) -> None:
    """Also unknown or invalid values; the error has the way out."""
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / "n.conf", line)
