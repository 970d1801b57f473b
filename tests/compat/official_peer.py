"""RocketMQ's official gRPC clients in processes of their own: Java's and Node's, with the same commands."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import compat_peer
from compat_peer import CLIENT_JARS, ROOT, Driven

NODE = ROOT / ".cache" / "node"
"""Where `make node-client` puts the Node client."""
_HERE = Path(__file__).parent


def missing_node() -> str | None:
    """Return what is missing for the Node client, if anything."""
    if shutil.which("node") is None:
        return "no node on the PATH: tests with the official Node client need Node 16.19 or newer"
    if not NODE.with_suffix(".stamp").is_file():
        return "no official Node client in .cache/node: `make node-client` fetches it (needs npm and the network)"
    return None


class Got(NamedTuple):
    """A message a consumer got."""

    message_id: str
    topic: str
    body: str
    tag: str
    keys: tuple[str, ...]
    group: str
    deliver_at: str
    priority: str
    attempt: int
    properties: dict[str, str]


class Sent(NamedTuple):
    """The outcome of a sent message."""

    message_id: str
    recall_handle: str


class Official(Driven):
    """A process with official clients, by name; `java5/Official.java` has their commands."""

    largest_body = 4 << 20
    """The largest body that the client can receive."""
    securities: tuple[str, ...] = ("tls", "plain")
    """How it can reach a broker with a self-made certificate."""

    def producer(
        self, name: str, endpoint: str, *topics: str, security: str = "plain", verdict: str = "commit"
    ) -> None:
        """Start a producer; *verdict* is its answer to a check of a transaction."""
        self.ask("producer", name, endpoint, security, verdict, *topics)

    def send(self, name: str, messages: Iterable[tuple[str, str, dict[str, object]]]) -> list[Sent]:
        """Send messages: topic, body, and options of `java5/OfficialProducer.java`. Raises `PeerError`."""
        lines = (
            "\t".join((topic, body, *(f"{word}={value}" for word, value in words.items())))
            for topic, body, words in messages
        )
        given, answered = self.file(lines), self.file()
        self.ask("send", name, given, answered)
        return [Sent(*line.split("\t")) for line in answered.read_text().splitlines()]

    def simple(
        self,
        name: str,
        endpoint: str,
        group: str,
        topic: str,
        *,
        expression: str = "*",
        kind: str = "tag",
        wait_ms: int = 2_000,
        security: str = "plain",
    ) -> None:
        """Start a simple consumer; *kind* is `tag` or `sql`."""
        self.ask("simple", name, endpoint, security, group, wait_ms, topic, expression, kind)

    def push(
        self,
        name: str,
        endpoint: str,
        group: str,
        topic: str,
        *,
        expression: str = "*",
        kind: str = "tag",
        security: str = "plain",
    ) -> None:
        """Start a push consumer."""
        self.ask("push", name, endpoint, security, group, topic, expression, kind)

    def receive(self, name: str, count: int = 32, invisible_ms: int = 60_000) -> int:
        """Let a simple consumer receive once; return how many it has in all."""
        return int(self.ask("receive", name, count, invisible_ms))

    def receive_until(
        self, name: str, is_enough: Callable[[list[Got]], bool], *, invisible_ms: int = 60_000, rounds: int = 150
    ) -> list[Got]:
        """Let a simple consumer receive until it has enough, or so often at most, and return what it got."""
        for _ in range(rounds):
            self.receive(name, 32, invisible_ms)
            if is_enough(self.taken(name)):
                break
        return self.taken(name)

    def wait_for(self, name: str, count: int, seconds: int = 60) -> int:
        """Wait until a push consumer got *count* messages; return how many it got."""
        return int(self.ask("await", name, count, seconds))

    def taken(self, name: str) -> list[Got]:
        """Return what a consumer got, in the order it came."""
        answered = self.file()
        self.ask("taken", name, answered)
        return [_got(line.split("\t")) for line in answered.read_text().splitlines()]


def _got(words: list[str]) -> Got:
    message_id, topic, body, tag, keys, group, deliver_at, priority, attempt, *properties = words
    return Got(
        *(message_id, topic, body, tag, tuple(key for key in keys.split(",") if key), group, deliver_at, priority),
        int(attempt),
        dict(word.split("=", 1) for word in properties),
    )


def java_client(directory: Path) -> Official:
    """Start a process of the Java client."""
    sources = [*sorted((_HERE / "java5").glob("*.java")), compat_peer.SOURCES / "Commands.java"]
    classes = compat_peer.compiled(sources, CLIENT_JARS)
    return Official(directory, [*compat_peer.java(directory), "-cp", f"{classes}:{CLIENT_JARS}/*", "Official"])


def node_client(directory: Path) -> Official:
    """Start a process of the Node client."""
    program = str(_HERE / "node" / "official.js")
    client = Official(directory, ["node", program], {"NODE_PATH": str(NODE / "node_modules"), "HOME": str(directory)})
    # It has no means to raise the limit of its gRPC library: 4 MiB for a whole answer.
    client.largest_body = (4 << 20) - (4 << 10)
    # Nor to trust such a certificate.
    client.securities = ("plain",)
    return client
