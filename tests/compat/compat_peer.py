"""Apache RocketMQ in a Java process of its own: how it is built, started, asked and killed."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from compat_messages import Message, Placed

_ROOT = Path(__file__).parents[2]
_SOURCES = Path(__file__).parent / "java"
JARS = _ROOT / ".cache" / "jars"
"""RocketMQ and what it needs."""


class PeerError(RuntimeError):
    """What the Java side answered that it could not do."""


def missing() -> str | None:
    """Say what is missing for a Java process, if anything is."""
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            return f"no {program} on the PATH: tests against Apache RocketMQ need a JDK"
    # Written last: without it a download did not come to its end.
    if not JARS.with_suffix(".stamp").is_file() or not any(JARS.glob("rocketmq-namesrv-*.jar")):
        return "no jars of Apache RocketMQ in .cache/jars: `make jars` fetches them (needs Maven and the network)"
    return None


def compiled() -> Path:
    """Compile the Java programs, once for each version of them, and return where the classes are."""
    sources = sorted(_SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    classes = _ROOT / ".cache" / f"compat-{digest}"
    if not classes.is_dir():
        # Tests run side by side: each compiles for itself, one wins.
        partial = classes.with_name(f"{classes.name}.{os.getpid()}")
        command = ["javac", "-nowarn", "-proc:none", "-cp", f"{JARS}/*", "-d", str(partial), *map(str, sources)]
        subprocess.run(command, check=True)
        try:
            partial.rename(classes)
        except OSError:
            shutil.rmtree(partial)
    return classes


class Peer:
    """A Java process that holds stores of Apache RocketMQ."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._files = 0
        command = [
            *("java", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={directory}"),
            *("-Drocketmq.log.root.level=ERROR", "-cp", f"{compiled()}:{JARS}/*", "Peer"),
        ]
        with (directory / "log").open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=directory
            )

    def ask(self, command: str, name: str, *words: object) -> str:
        """Send a command and return what it answered; raises `PeerError`."""
        send, answers = self._pipes()
        send.write("\t".join((command, name, *map(str, words))) + "\n")
        send.flush()
        verdict, _, answer = answers.readline().rstrip("\n").partition("\t")
        if verdict != "ok":
            raise PeerError(answer or f"the Java process ended; see {self._directory / 'log'}")
        return answer

    def open(self, name: str, directory: Path, options: Mapping[str, object], *, broker: bool = False) -> None:
        """Open a store, or start a broker."""
        self.ask("broker" if broker else "open", name, directory, *(f"{key}={value}" for key, value in options.items()))

    def close(self, name: str) -> None:
        """Stop it, cleanly."""
        self.ask("close", name)

    def put(self, name: str, messages: Sequence[Message], store_host: str, *, crc: bool = False) -> list[Placed]:
        """Store messages, and wait until they are dispatched."""
        given, answered = self._file(message.line(store_host) for message in messages), self._file(())
        self.ask("put", name, given, answered)
        places = [tuple(map(int, line.split("\t"))) for line in answered.read_text().splitlines()]
        return [Placed(message, store_host, *place, crc) for message, place in zip(messages, places, strict=True)]

    def queues(self, name: str) -> list[str]:
        """Read every message of every queue."""
        answered = self._file(())
        self.ask("queues", name, answered)
        return answered.read_text().splitlines()

    def places(self, name: str, offsets: Sequence[int]) -> list[str]:
        """Read the message at each physical offset."""
        given, answered = self._file(map(str, offsets)), self._file(())
        self.ask("places", name, given, answered)
        return answered.read_text().splitlines()

    def keys(self, name: str, keys: Sequence[tuple[str, str]]) -> list[list[int]]:
        """Return where the messages of each topic and key lie."""
        given, answered = self._file(f"{topic}\t{key}" for topic, key in keys), self._file(())
        self.ask("keys", name, given, answered)
        return [[int(word) for word in line.split()] for line in answered.read_text().splitlines()]

    def kill(self) -> None:
        """End the process with nothing written or flushed any more."""
        self._process.kill()
        self.end()

    def end(self) -> None:
        """End the process; what is still open is not closed."""
        for pipe in self._pipes():
            pipe.close()
        self._process.wait()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        send, answers = self._process.stdin, self._process.stdout
        assert send is not None
        assert answers is not None
        return send, answers

    def _file(self, lines: Iterable[str]) -> Path:
        self._files += 1
        path = self._directory / f"lines-{self._files}"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path
