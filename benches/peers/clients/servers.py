"""
Starts the servers of the peers, each in processes of its own, on free ports of 127.0.0.1, and stops them.

All write to the page cache and leave the flush to the system or to a timer; `FLUSH` names how.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import ferromq

QUEUES = 4
READY = 120.0
STOP = 20.0
HEAP = "2g"
FLUSH = {
    "ferromq": "flush=interval",
    "rocketmq": "flushDiskType=ASYNC_FLUSH",
    "kafka": "flush by the system (Kafka's default), acks=1",
    "nats": "file storage, sync_interval of 2 min (NATS's default)",
}
OPENED = ("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED")


class Missing(Exception):  # noqa: N818 (what it is; the peer is skipped)
    """Something that a server needs is not there; the text says what and how to get it."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs: where clients connect, its processes, and what makes a topic."""

    address: str
    pids: list[int]
    create: Callable[[str, str], None]
    """Makes a topic and a group."""


def free_port(*beside: int) -> int:
    """Return a free port, so that those at the distances *beside* are free, too."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                for distance in beside:
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + distance))
            except (OSError, OverflowError):
                continue
            return port


class Processes:
    """The processes of one server, and its directory."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self._stack = stack

    def start(self, name: str, port: int, *command: str, **environment: str) -> int:
        """Start a program, wait until it listens on *port*, and return its process id."""
        log = self._stack.enter_context((self.directory / f"{name}.log").open("wb"))
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
        self._stack.callback(stop, process)
        give_up = time.monotonic() + READY
        while True:
            with socket.socket() as attempt:
                if not attempt.connect_ex(("127.0.0.1", port)):
                    return process.pid
            if process.poll() is not None or time.monotonic() > give_up:
                end = (self.directory / f"{name}.log").read_text(errors="replace").strip().splitlines()[-1:]
                raise Missing(f"{name} does not listen: {' '.join(end)}")
            time.sleep(0.1)

    def write(self, name: str, *lines: str) -> str:
        """Write a configuration file and return its path."""
        path = self.directory / name
        path.write_text("\n".join(lines) + "\n")
        return str(path)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, by force if it does not end in its time."""
    process.terminate()
    try:
        process.wait(STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def java(jars: str, what: str) -> list[str]:
    """Return the beginning of a command. Raises `Missing`."""
    if not any(Path(jars).glob("*.jar")):
        raise Missing(f"the jars of {what} are not in {jars}: make bench-clients fetches them")
    return ["java", *OPENED, "-cp", f"{jars}/*"]


def creates(name_server: str) -> Callable[[str, str], None]:
    """Return what makes a topic and a group of RocketMQ or ferromq; RocketMQ's proxy refuses an unknown group."""

    def create(topic: str, group: str) -> None:
        with ferromq.Admin(name_server) as admin:
            if topic not in admin.topics():
                admin.create_topic(topic, QUEUES)
            admin.create_group(group)

    return create


def until_created(create: Callable[[str, str], None], topic: str, group: str) -> None:
    """Make a topic and a group once the servers know each other."""
    give_up = time.monotonic() + READY
    while True:
        try:
            create(topic, group)
        except ferromq.FerromqError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.2)
        else:
            return


@contextmanager
def start_ferromq(directory: Path, brokers: int = 1) -> Iterator[Server]:
    """Start a name server and brokers of one cluster."""
    with ExitStack() as stack:
        processes = Processes(directory, stack)
        program = (sys.executable, "-m", "ferromq")
        port = free_port()
        name_server = f"127.0.0.1:{port}"
        processes.start("namesrv", port, *program, "namesrv", "--listen", name_server)
        pids, addresses = [], []
        for number in range(brokers):
            grpc = free_port()
            addresses.append(f"127.0.0.1:{grpc}")
            options = {
                "--store": str(directory / f"store{number}"),
                "--name": f"broker{number}",
                "--namesrv": name_server,
                "--listen": f"127.0.0.1:{free_port()}",
                "--grpc-listen": addresses[-1],
                "--flush": "interval",
            }
            words = [word for option in options.items() for word in option]
            pids.append(processes.start(f"broker{number}", grpc, *program, "broker", *words))
        create = creates(name_server)
        until_created(create, "ready", "ready")
        yield Server(";".join(addresses), pids, create)


@contextmanager
def start_rocketmq(directory: Path, jars: str) -> Iterator[Server]:
    """Start Apache RocketMQ's name server, and its proxy with the broker in one process."""
    with ExitStack() as stack:
        processes = Processes(directory, stack)
        home = [*java(jars, "RocketMQ"), f"-Duser.home={directory}", f"-Drocketmq.home.dir={directory}"]
        environment = {"ROCKETMQ_HOME": str(directory)}
        names, broker, grpc, remoting = free_port(), free_port(-2, 1), free_port(), free_port()
        name_server = f"127.0.0.1:{names}"
        file = processes.write("namesrv.conf", f"listenPort={names}")
        program = (
            *home[:1],
            "-Xms256m",
            "-Xmx256m",
            *home[1:],
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            "-c",
            file,
        )
        processes.start("namesrv", names, *program, **environment)
        broker_file = processes.write(
            "broker.conf",
            *("brokerClusterName=DefaultCluster", "brokerName=peer", "brokerIP1=127.0.0.1"),
            *(f"listenPort={broker}", f"haListenPort={broker + 1}", f"namesrvAddr={name_server}"),
            *("flushDiskType=ASYNC_FLUSH", f"storePathRootDir={directory}/store", "mappedFileSizeCommitLog=268435456"),
        )
        proxy = {"rocketMQClusterName": "DefaultCluster", "namesrvAddr": name_server, "localServeAddr": "127.0.0.1"}
        proxy_file = processes.write(
            "proxy.json", json.dumps({**proxy, "grpcServerPort": grpc, "remotingListenPort": remoting})
        )
        proxy_main = ("org.apache.rocketmq.proxy.ProxyStartup", "-pm", "local", "-n", name_server)
        heap = (f"-Xms{HEAP}", f"-Xmx{HEAP}")
        command = (*home[:1], *heap, *home[1:], *proxy_main, "-bc", broker_file, "-pc", proxy_file)
        pid = processes.start("proxy", grpc, *command, **environment)
        create = creates(name_server)
        until_created(create, "ready", "ready")
        yield Server(f"127.0.0.1:{grpc}", [pid], create)


@contextmanager
def start_kafka(directory: Path, jars: str) -> Iterator[Server]:
    """Start Apache Kafka: one process that is broker and controller."""
    try:
        from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415 (may be missing)
    except ImportError as error:
        raise Missing(f"confluent-kafka, which makes Kafka's topics, is not installed: {error}") from None
    with ExitStack() as stack:
        processes = Processes(directory, stack)
        program = java(jars, "Kafka")
        port, controller = free_port(), free_port()
        file = processes.write(
            "server.properties",
            *("process.roles=broker,controller", "node.id=1", f"controller.quorum.voters=1@127.0.0.1:{controller}"),
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            *("controller.listener.names=CONTROLLER", f"log.dirs={directory}/logs", f"num.partitions={QUEUES}"),
            *("offsets.topic.replication.factor=1", "transaction.state.log.replication.factor=1"),
            *("transaction.state.log.min.isr=1", "group.initial.rebalance.delay.ms=0"),
        )
        formatting = [*program, "kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", file]
        subprocess.run(formatting, check=True, stdout=subprocess.DEVNULL, timeout=READY)
        heap = (f"-Xms{HEAP}", f"-Xmx{HEAP}")
        pid = processes.start("kafka", port, *program[:1], *heap, *program[1:], "kafka.Kafka", file)

        def create(topic: str, _group: str) -> None:
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
            if topic not in admin.list_topics(timeout=READY).topics:
                for made in admin.create_topics([NewTopic(topic, QUEUES, 1)]).values():
                    made.result(READY)

        yield Server(f"127.0.0.1:{port}", [pid], create)


@contextmanager
def start_nats(directory: Path, program: str) -> Iterator[Server]:
    """Start nats-server with JetStream. Its clients make their streams themselves."""
    if not os.access(program, os.X_OK):
        raise Missing(f"nats-server is not at {program}: make bench-clients builds it if Go is installed")
    with ExitStack() as stack:
        port = free_port()
        words: Sequence[str] = ("-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory / "store"))
        pid = Processes(directory, stack).start("nats", port, program, *words)
        yield Server(f"127.0.0.1:{port}", [pid], lambda _topic, _group: None)
