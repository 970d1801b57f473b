"""The two sides of the matrix, each a name server, a broker and its gRPC endpoint as processes."""

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from java_processes import JavaBroker, JavaNameServer, JavaProxy, access_options, free_port
from rows import DEAD_AFTER, ORDERED, RETRY_DELAYS, Row

import ferromq

_HOST: Final = "127.0.0.1"
_QUEUES: Final = 4
_START_S: Final = 60.0
_ROOT: Final = ("root", "a long secret")
_PAUSE_S: Final = 0.1
# The same on both sides. RocketMQ looks for open transactions every 30 s.
_BROKER: Final[Mapping[str, object]] = {
    "transactionTimeOut": 10_000,
    "transactionCheckInterval": 3_000,
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
}

# RocketMQ notes the end of a transaction after 3 s; on a busy machine it checks it before.
# A send that waits longer than 200 ms is refused as busy by default.
_ORIGINAL: Final[Mapping[str, object]] = {"transactionOpBatchInterval": 500, "waitTimeMillsInSendQueue": 10_000}


@dataclass(frozen=True)
class Side:
    """One of the two: where its clients find it."""

    name: str
    """`original` or `ours`."""
    namesrv: str
    endpoint: str
    is_closed: bool = False
    """Whether it has access control."""

    def _admin(self) -> ferromq.Admin:
        keys = dict(zip(("access_key", "secret_key"), _ROOT, strict=True)) if self.is_closed else {}
        return ferromq.Admin(self.namesrv, timeout=_START_S, **keys)

    def admit(self, users: Iterable[tuple[str, str]], entitled: str, names: Sequence[str]) -> None:
        """Create users; one is entitled to use the topics and groups of these names."""
        with self._admin() as admin:
            for user, secret in users:
                admin.create_user(user, secret)
            admin.create_acl(entitled, [f"Topic:{name}" for name in names], ["Pub", "Sub", "Get"])
            admin.create_acl(entitled, [f"Group:{name}" for name in names], "Sub")

    def create(self, row: Row, run: str) -> None:
        """Create the topics and groups of a row."""
        with self._admin() as admin:
            created = []
            for name, kind in row.kinds().items():
                word = f"{name}_{run}"
                admin.create_group(
                    word, fifo=name in ORDERED, retries=DEAD_AFTER.get(name), retry_delays=list(RETRY_DELAYS)
                )
                if kind is not None:
                    admin.create_topic(word, _QUEUES, message_type=kind)
                    created.append(word)
            self._wait_for(admin, set(created))

    def _wait_for(self, admin: ferromq.Admin, topics: set[str]) -> None:
        """Wait until the name server knows the topics: RocketMQ's proxy caches missing ones."""
        pause = threading.Event()
        for _ in range(int(_START_S / _PAUSE_S)):
            if topics <= set(admin.topics()):
                return
            pause.wait(_PAUSE_S)
        raise RuntimeError(f"the name server of {self.name} does not know {topics - set(admin.topics())}")


@contextlib.contextmanager
def original(directory: Path, *, is_closed: bool = False) -> Iterator[Side]:
    """Run RocketMQ's name server, broker and proxy in cluster mode; *is_closed*: with access control."""
    with contextlib.ExitStack() as stack:
        namesrv = stack.enter_context(JavaNameServer(directory / "namesrv"))
        access = access_options(_ROOT) if is_closed else {}
        stack.enter_context(JavaBroker(directory / "broker", namesrv.address, **_BROKER, **_ORIGINAL, **access))
        access = access_options(_ROOT, proxy=True) if is_closed else {}
        proxy = stack.enter_context(JavaProxy(directory / "proxy", namesrv.address, **access))
        yield Side("original", namesrv.address, proxy.address, is_closed)
    shutil.rmtree(directory / "broker" / "store", ignore_errors=True)


@contextlib.contextmanager
def ours(directory: Path, compat: str, *, is_closed: bool = False) -> Iterator[Side]:
    """
    Run `ferromq namesrv` and `ferromq broker`.

    *compat* is the broker's option, "" for its default; *is_closed*: with access control.
    """
    directory.mkdir(parents=True, exist_ok=True)
    namesrv, broker, endpoint = (f"{_HOST}:{free_port()}" for _ in range(3))
    config = directory / "broker.conf"
    access = access_options(_ROOT) if is_closed else {}
    config.write_text("".join(f"{key}={value}\n" for key, value in {**_BROKER, **access}.items()))
    listeners = ("--listen", broker, "--grpc-listen", endpoint, "--store", str(directory / "store"))
    options = ("--set", f"compat={compat}") if compat else ()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_process(directory, "namesrv", namesrv, "--listen", namesrv))
        stack.enter_context(
            _process(directory, "broker", endpoint, "--namesrv", namesrv, "-c", str(config), *listeners, *options)
        )
        yield Side("ours", namesrv, endpoint, is_closed)
    shutil.rmtree(directory / "store", ignore_errors=True)


@contextlib.contextmanager
def _process(directory: Path, command: str, address: str, *words: str) -> Iterator[None]:
    """Run a command of `ferromq` that listens on *address*."""
    output = directory / f"{command}.log"
    with output.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ferromq", command, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        _wait_until_open(process, address, output)
        yield
    finally:
        process.terminate()
        try:
            process.wait(_START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_open(process: subprocess.Popen[bytes], address: str, output: Path) -> None:
    host, _, port = address.rpartition(":")
    pause = threading.Event()
    for _ in range(int(_START_S / _PAUSE_S)):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return
        if process.poll() is not None:
            break
        pause.wait(_PAUSE_S)
    raise RuntimeError(f"nothing listens on {address}: {output.read_text()[-2_000:]}")
