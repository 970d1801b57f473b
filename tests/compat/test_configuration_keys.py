"""The keys of RocketMQ's configuration, as its own classes have them."""

import re
import subprocess

import compat_peer

from ferromq.config import BrokerConfig

CLASSES = (
    "org.apache.rocketmq.common.BrokerConfig",
    "org.apache.rocketmq.common.BrokerIdentity",
    "org.apache.rocketmq.store.config.MessageStoreConfig",
    "org.apache.rocketmq.remoting.netty.NettyServerConfig",
    "org.apache.rocketmq.remoting.netty.NettyClientConfig",
    "org.apache.rocketmq.auth.config.AuthConfig",
)


def test_no_key_of_a_broker_is_unknown() -> None:
    """Each has an effect here, or is warned of; a broker.conf that starts a Java broker names none else."""
    jars = ":".join(map(str, sorted(compat_peer.JARS.glob("rocketmq-*.jar"))))
    shown = subprocess.run(["javap", "-cp", jars, "-public", *CLASSES], capture_output=True, text=True, check=True)
    setters = set(re.findall(r"void set(\w+)\(", shown.stdout))
    assert len(setters) > 400
    # RocketMQ finds the setter by the key, its first letter large.
    assert {name[0].lower() + name[1:] for name in setters} - set(BrokerConfig.keys_known()) == set()
