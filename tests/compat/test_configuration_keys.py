"""The keys of RocketMQ's configuration, as its own classes have them."""

import re
import subprocess

import compat_peer
import pytest

from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.config.proxy_file import REFUSED_OF_PROXY, ProxyKeys
from ferromq.config.reader import Config
from ferromq.config.rocketmq_keys import NAME_SERVER_REFUSED, REFUSED

_REMOTING = (
    "org.apache.rocketmq.remoting.netty.NettyServerConfig",
    "org.apache.rocketmq.remoting.netty.NettyClientConfig",
)
BROKER = (
    "org.apache.rocketmq.common.BrokerConfig",
    "org.apache.rocketmq.common.BrokerIdentity",
    "org.apache.rocketmq.store.config.MessageStoreConfig",
    "org.apache.rocketmq.auth.config.AuthConfig",
    *_REMOTING,
)
# A proxy's file has the keys of access, too.
PROXY = ("org.apache.rocketmq.proxy.config.ProxyConfig", "org.apache.rocketmq.auth.config.AuthConfig")
# A name server reads the keys of the controller that may run in it from the same file.
NAME_SERVER = (
    "org.apache.rocketmq.common.namesrv.NamesrvConfig",
    "org.apache.rocketmq.common.ControllerConfig",
    "org.apache.rocketmq.common.JraftConfig",
    *_REMOTING,
)


def keys_of(classes: tuple[str, ...]) -> set[str]:
    """Return the keys that RocketMQ finds a setter for, the first letter of its name large."""
    jars = ":".join(map(str, sorted(compat_peer.JARS.glob("rocketmq-*.jar"))))
    shown = subprocess.run(["javap", "-cp", jars, "-public", *classes], capture_output=True, text=True, check=True)
    return {name[0].lower() + name[1:] for name in re.findall(r"void set(\w+)\(", shown.stdout)}


@pytest.mark.parametrize(
    ("kind", "classes", "refused", "least"),
    [
        (BrokerConfig, BROKER, REFUSED.keys(), 500),
        (ProxyKeys, PROXY, REFUSED_OF_PROXY.keys(), 170),
        (NameServerConfig, NAME_SERVER, NAME_SERVER_REFUSED.keys(), 80),
    ],
)
def test_every_key_is_of_one_class(
    kind: type[Config], classes: tuple[str, ...], refused: frozenset[str], least: int
) -> None:
    """It has an effect, is refused except for ferromq's value, or is listed as without effect."""
    keys = keys_of(classes)
    assert len(keys) > least
    joined = [key for group in kind.joined for key in group]
    of_class = [*(kind.properties.keys() - refused), *joined, *refused, *kind.without_effect]
    assert sorted(of_class) == sorted(set(of_class))
    assert keys - set(of_class) == set()
