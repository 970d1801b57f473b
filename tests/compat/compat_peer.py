"""Apache RocketMQ in a Java process of its own: building, starting, commands and killing."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Self

from compat_messages import Message, Placed

ROOT = Path(__file__).parents[2]
"""The project."""
SOURCES = Path(__file__).parent / "java"
"""Programs over RocketMQ's own classes."""
JARS = ROOT / ".cache" / "jars"
"""RocketMQ and its dependencies."""
JARS_4 = ROOT / ".cache" / "jars-4"
"""RocketMQ 4 and its dependencies."""
CLIENT_JARS = ROOT / ".cache" / "client-jars"
"""RocketMQ's gRPC client with its dependencies, apart from the servers' jars."""


class PeerError(RuntimeError):
    """The error that the Java side answered."""


def missing(*others: Path) -> str | None:
    """Return what is missing for a Java process, if anything; *others* are directories of jars that few tests need."""
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            return f"no {program} on the PATH: tests against Apache RocketMQ need a JDK"
    # Written last: without it the download is incomplete.
    for jars in (JARS, CLIENT_JARS, *others):
        if not jars.with_suffix(".stamp").is_file() or not any(jars.glob("rocketmq-*.jar")):
            return f"no jars of RocketMQ in .cache/{jars.name}: `make jars` fetches them (needs Maven and the network)"
    return None


def compiled(sources: Sequence[Path], jars: Path) -> Path:
    """Compile Java programs, once for each version of them, and return where the classes are."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    classes = ROOT / ".cache" / f"compat-{digest}"
    if not classes.is_dir():
        # Tests run side by side: each compiles for itself, one wins.
        partial = classes.with_name(f"{classes.name}.{os.getpid()}")
        command = ["javac", "-nowarn", "-proc:none", "-cp", f"{jars}/*", "-d", str(partial), *map(str, sources)]
        subprocess.run(command, check=True)
        try:
            partial.rename(classes)
        except OSError:
            shutil.rmtree(partial)
    return classes


def java(directory: Path) -> list[str]:
    """Return the command of a Java process."""
    return ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={directory}"]


class Driven:
    """A process of one of these programs, with a command a line."""

    def __init__(self, directory: Path, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._files = 0
        with (directory / "log").open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=directory,
                env={**os.environ, **(environment or {})},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def ask(self, command: str, name: str, *words: object) -> str:
        """Send a command and return its answer; raises `PeerError`."""
        send, answers = self._pipes()
        send.write("\t".join((command, name, *map(str, words))) + "\n")
        send.flush()
        verdict, _, answer = answers.readline().rstrip("\n").partition("\t")
        if verdict != "ok":
            raise PeerError(answer or f"the process ended; see {self._directory / 'log'}")
        return answer

    def kill(self) -> None:
        """Kill the process; it writes and flushes nothing more."""
        self._process.kill()
        self.end()

    def end(self) -> None:
        """End the process without closing its stores."""
        for pipe in self._pipes():
            pipe.close()
        self._process.wait()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        send, answers = self._process.stdin, self._process.stdout
        assert send is not None
        assert answers is not None
        return send, answers

    def file(self, lines: Iterable[str] = ()) -> Path:
        """Write lines to a new file of this process, and return it."""
        self._files += 1
        path = self._directory / f"lines-{self._files}"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path


def _ours(directory: Path, program: str) -> list[str]:
    return [
        *java(directory),
        # By default a consumer looks every 20 s for queues without a notice: those of its retry topic.
        *("-Drocketmq.log.root.level=ERROR", "-Drocketmq.client.rebalance.waitInterval=2000"),
        *("-cp", f"{compiled(sorted(SOURCES.glob('*.java')), JARS)}:{JARS}/*", program),
    ]


class Peer(Driven):
    """A Java process that holds stores of Apache RocketMQ."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, _ours(directory, "Peer"))

    def open(self, name: str, directory: Path, options: Mapping[str, object], *, broker: bool = False) -> None:
        """Open a store, or start a broker."""
        self.ask("broker" if broker else "open", name, directory, *(f"{key}={value}" for key, value in options.items()))

    def close(self, name: str) -> None:
        """Stop it, cleanly."""
        self.ask("close", name)

    def put(self, name: str, messages: Sequence[Message], store_host: str, *, crc: bool = False) -> list[Placed]:
        """Store messages, and wait until they are dispatched."""
        given, answered = self.file(message.line(store_host) for message in messages), self.file(())
        self.ask("put", name, given, answered)
        places = [tuple(map(int, line.split("\t"))) for line in answered.read_text().splitlines()]
        return [Placed(message, store_host, *place, crc) for message, place in zip(messages, places, strict=True)]

    def queues(self, name: str) -> list[str]:
        """Read every message of every queue."""
        answered = self.file(())
        self.ask("queues", name, answered)
        return answered.read_text().splitlines()

    def places(self, name: str, offsets: Sequence[int]) -> list[str]:
        """Read the message at each physical offset."""
        given, answered = self.file(map(str, offsets)), self.file(())
        self.ask("places", name, given, answered)
        return answered.read_text().splitlines()

    def sql(self, messages: Iterable[Mapping[str, str]], expressions: Iterable[str]) -> list[list[bool] | None]:
        """Return the messages, by their properties, that match each expression; None if it is refused."""
        lines = ["\t".join(f"{name}={value}" for name, value in each.items()) for each in messages]
        given, answered = self.file([*lines, "", *expressions]), self.file()
        self.ask("sql", "-", given, answered)
        answers = answered.read_text().splitlines()
        return [None if each == "refused" else [digit == "1" for digit in each] for each in answers]

    def keys(self, name: str, keys: Sequence[tuple[str, str]]) -> list[list[int]]:
        """Return the physical offsets of the messages of each topic and key."""
        given, answered = self.file(f"{topic}\t{key}" for topic, key in keys), self.file(())
        self.ask("keys", name, given, answered)
        return [[int(word) for word in line.split()] for line in answered.read_text().splitlines()]


class Clients(Driven):
    """A Java process with RocketMQ's remoting clients, by name; `java/Clients.java` has their commands."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, _ours(directory, "Clients"))

    def start(self, kind: str, name: str, *words: object) -> None:
        """Start a client."""
        self.ask(kind, name, *words)

    def send(self, name: str, how: str, *words: object) -> int:
        """Send messages: topic, prefix, count, size; return how many were taken."""
        return int(self.ask("send", name, how, *words))

    def wait_for(self, name: str, count: int, seconds: int = 60) -> int:
        """Wait until a consumer got *count* messages; return how many it has."""
        return int(self.ask("await", name, count, seconds))

    def taken(self, name: str) -> list["Taken"]:
        """Return the messages of a consumer."""
        answered = self.file()
        self.ask("taken", name, answered)
        lines = (line.split("\t") for line in answered.read_text().splitlines())
        return [Taken(body, topic, broker, *map(int, numbers)) for body, topic, broker, *numbers in lines]

    def queues(self, name: str) -> list[str]:
        """Return the queues a consumer has, as `BROKER:QUEUE`."""
        return [queue for queue in self.ask("queues", name).split(",") if queue]

    def admin(self, *words: object) -> str:
        """Run mqadmin; return what it printed."""
        answered = self.file()
        self.ask("admin", str(answered), *words)
        return answered.read_text()

    def signed_admin(self, keys: tuple[str, str], *words: object) -> str:
        """Run mqadmin with an access key and a secret key; return what it printed."""
        answered = self.file()
        self.ask("signed", str(answered), *keys, *words)
        return answered.read_text()


class Taken(NamedTuple):
    """A message a Java consumer got."""

    body: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    times_before: int
