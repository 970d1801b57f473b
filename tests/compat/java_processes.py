"""
Apache RocketMQ's name server, broker and `mqadmin` as processes of their own, on free ports of this machine.

Each writes into its given directory, its output to `output`
there and its logs below `home`.
"""

import contextlib
import json
import os
import random
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from compat_peer import JARS, JARS_4

from ferromq._ferromq import RemotingClient
from ferromq.errors import FerromqError

_HOST = "127.0.0.1"
# Below the ports that connections get by themselves.
_PORTS = range(12_000, 30_000, 10)
_BOOT_SECONDS = 120.0
_STOP_SECONDS = 30.0
_PAUSE = 0.1
_CLUSTERS, _CONFIGURE = 106, 25
"""GET_BROKER_CLUSTER_INFO and UPDATE_BROKER_CONFIG."""


def free_port() -> int:
    """Return a port that is free, with the two below it (a broker's fast port) and the one above (its HA port)."""
    choice = random.Random(os.urandom(8))
    for _ in range(1_000):
        port = choice.choice(_PORTS) + 5
        with contextlib.ExitStack() as bound, contextlib.suppress(OSError):
            for neighbour in range(port - 2, port + 2):
                bound.enter_context(contextlib.closing(socket.create_server((_HOST, neighbour))))
            return port
    raise RuntimeError(f"no four free ports in a row between {_PORTS.start} and {_PORTS.stop}")


def _java(directory: Path, heap: Sequence[str], jars: Path = JARS) -> list[str]:
    home = directory / "home"
    home.mkdir(parents=True, exist_ok=True)
    return [
        *("java", *heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
        *(f"-Duser.home={home}", f"-Drocketmq.home.dir={directory}", f"-Drocketmq.client.logRoot={home / 'logs'}"),
        *("-Djava.net.preferIPv4Stack=true", "--add-opens=java.base/java.nio=ALL-UNNAMED"),
        # The last is for RocketMQ 4, which deletes files with it.
        *("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED"),
        *("-cp", f"{jars}/*"),
    ]


def _configured(directory: Path, config: Mapping[str, object]) -> list[str]:
    """Write a server's configuration, and return the words that name it."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "server.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    return ["-c", str(file)]


def access_options(
    root: tuple[str, str], inner: tuple[str, str] | None = None, *, proxy: bool = False
) -> dict[str, str]:
    """
    Return the keys that turn access control on: of a broker, or of a proxy in cluster mode.

    *root* is a super user, *inner* signs the requests to other servers: *root* by default.
    """
    auth = "org.apache.rocketmq.auth"
    access_key, secret_key = inner or root
    metadata = "org.apache.rocketmq.proxy.auth.Proxy" if proxy else ""
    authentication, authorization = (
        f"{metadata}{kind}MetadataProvider" if proxy else f"{auth}.{kind.lower()}.provider.Local{kind}MetadataProvider"
        for kind in ("Authentication", "Authorization")
    )
    return {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{auth}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": authentication,
        "authorizationEnabled": "true",
        "authorizationProvider": f"{auth}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": authorization,
        "initAuthenticationUser": json.dumps({"username": root[0], "password": root[1]}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": access_key, "secretKey": secret_key}),
        **({"enableAclRpcHookForClusterMode": "true"} if proxy else {}),
    }


class JavaProcess:
    """A server of RocketMQ; it serves when the constructor returns. Raises `RuntimeError` with its output otherwise."""

    _ready = "boot success"
    jars = JARS

    def __init__(self, directory: Path, main: str, words: Sequence[str], heap: Sequence[str]) -> None:
        self.directory = directory
        self._output = directory / "output"
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [*_java(directory, heap, self.jars), main, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**os.environ, "ROCKETMQ_HOME": str(directory), "RMQ_PROXY_HOME": str(directory)},
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Kill it: a stop takes many seconds, and few tests need its last output."""
        self.kill()

    def output(self) -> str:
        """Return what it printed."""
        return self._output.read_text()

    def stop(self) -> None:
        """Stop it as an administrator does; it unregisters. Idempotent."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill it; it writes nothing more. Idempotent."""
        self._process.kill()
        self._process.wait()

    def _wait_until_ready(self) -> None:
        pause = threading.Event()
        for _ in range(int(_BOOT_SECONDS / _PAUSE)):
            if self._ready in self.output():
                return
            if self._process.poll() is not None:
                break
            pause.wait(_PAUSE)
        raise RuntimeError(f"{type(self).__name__} did not start: {self.output()[-2000:]}")


class JavaNameServer(JavaProcess):
    """RocketMQ's name server."""

    def __init__(self, directory: Path, *, port: int | None = None, **options: object) -> None:
        port = port or free_port()
        self.address = f"{_HOST}:{port}"
        """`host:port` of its listener."""
        config = {
            "listenPort": port,
            "kvConfigPath": directory / "kvConfig.json",
            "configStorePath": directory / "namesrv.properties",
            **options,
        }
        words = _configured(directory, config)
        super().__init__(directory, "org.apache.rocketmq.namesrv.NamesrvStartup", words, ("-Xms64m", "-Xmx256m"))


class JavaBroker(JavaProcess):
    """RocketMQ's broker, its store in `store` below the directory; *options* are keys of its configuration."""

    def __init__(self, directory: Path, namesrv: str, *, port: int | None = None, **options: object) -> None:
        port = port or free_port()
        self.address = f"{_HOST}:{port}"
        """`host:port` of its listener."""
        self.store = directory / "store"
        """Its store directory."""
        config = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-java",
            "brokerId": 0,
            "brokerIP1": _HOST,
            "brokerIP2": _HOST,
            "listenPort": port,
            "namesrvAddr": namesrv,
            "brokerRole": "ASYNC_MASTER",
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            "mappedFileSizeCommitLog": 16 << 20,
            "mappedFileSizeConsumeQueue": 20 * 10_000,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            "diskMaxUsedSpaceRatio": 98,
            # On two busy cores a send may wait longer than the default of 200 ms.
            "waitTimeMillsInSendQueue": 10_000,
            # Its service of these files keeps a core busy for the first of these intervals, which is ten seconds.
            "transactionMetricFlushInterval": 100,
            **options,
        }
        heap = ("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=1g")
        words = _configured(directory, config)
        super().__init__(directory, "org.apache.rocketmq.broker.BrokerStartup", words, heap)
        inner = json.loads(str(options.get("innerClientAuthenticationCredentials", "{}")))
        keys = (inner["accessKey"], inner["secretKey"]) if inner else None
        for name_server in namesrv.split(";"):
            self._wait_until_known(name_server, keys)

    def _wait_until_known(self, name_server: str, keys: tuple[str, str] | None) -> None:
        """
        Wait until *name_server*, if given, has it in a cluster.

        It registers when it starts, without effect if its connection is not there yet, and again after ten seconds.
        Until one arrives, name servers refuse its registrations of single topics. A change of its permission makes it
        register, too.
        """
        pause, client = threading.Event(), RemotingClient()
        with (
            contextlib.closing(client),
            contextlib.closing(RemotingClient(credentials=keys)) as admin,
            contextlib.suppress(ConnectionError, FerromqError, OSError),
        ):
            for _ in range(int(_BOOT_SECONDS / _PAUSE)):
                if self.address.encode() in client.call(name_server, _CLUSTERS, {}, timeout=20)[3]:
                    return
                admin.call(self.address, _CONFIGURE, {}, b"brokerPermission=6", timeout=20)
                pause.wait(_PAUSE)


def _without_logs(directory: Path, name: str) -> None:
    """Write the logging configuration without which a server of RocketMQ 4 does not start."""
    conf = directory / "conf"
    conf.mkdir(parents=True)
    (conf / f"logback_{name}.xml").write_text('<configuration><root level="OFF"/></configuration>')


class JavaNameServer4(JavaNameServer):
    """The name server of RocketMQ 4."""

    jars = JARS_4

    def __init__(self, directory: Path, **options: object) -> None:
        _without_logs(directory, "namesrv")
        super().__init__(directory, **options)


class JavaBroker4(JavaBroker):
    """The broker of RocketMQ 4."""

    jars = JARS_4

    def __init__(self, directory: Path, namesrv: str, **options: object) -> None:
        _without_logs(directory, "broker")
        super().__init__(directory, namesrv, **options)


class JavaServers(NamedTuple):
    """The addresses of RocketMQ's name server and of a broker behind it."""

    namesrv: str
    broker: str


class JavaProxy(JavaProcess):
    """RocketMQ's gRPC proxy in cluster mode, for the brokers that a name server knows."""

    _ready = "startup successfully"

    def __init__(self, directory: Path, namesrv: str, **options: object) -> None:
        port = free_port()
        self.address = f"{_HOST}:{port}"
        """`host:port` of its gRPC listener."""
        config = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "cluster",
            "namesrvAddr": namesrv,
            "grpcServerPort": port,
            "remotingListenPort": port + 1,
            **options,
        }
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "proxy.json"
        file.write_text(json.dumps(config))
        words = ("-pm", "cluster", "-n", namesrv, "-pc", str(file))
        heap = ("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=1g")
        try:
            super().__init__(directory, "org.apache.rocketmq.proxy.ProxyStartup", words, heap)
        except RuntimeError:
            # On a busy machine its topic is not created within its 3 s; the next start finds it there.
            super().__init__(directory, "org.apache.rocketmq.proxy.ProxyStartup", words, heap)


def mqadmin(directory: Path, *words: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run RocketMQ's `mqadmin` with *words*, and return its exit code and output."""
    return subprocess.run(
        [*_java(directory, ("-Xmx256m",)), "org.apache.rocketmq.tools.command.MQAdminStartup", *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=directory,
        env={**os.environ, "ROCKETMQ_HOME": str(directory)},
    )
