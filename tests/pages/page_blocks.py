"""
Runs the code blocks of a page: Python, shell, TOML and RocketMQ's configuration files.

A page is run from top to bottom, as a reader would: its Python shares one namespace, its shell one directory. Addresses
stand for servers of the test: each port has a free one instead, on 127.0.0.1. Unless the page starts servers itself,
`ferromq dev` serves the ports 9876, 10911 and 8081. Absolute paths lead into the directory of the run.

Comments in the page give instructions that its readers do not need:

    <!-- not run: WHY -->     the next block cannot run here
    <!-- output -->           the next block, `text`, is what the block before it prints; `…` stands for anything
    <!-- setup CODE -->       Python that is run here
"""

import contextlib
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferromq import BrokerConfig, NameServerConfig

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/reference").glob("*.md"))]
RUN = {"python", "sh", "toml", "properties"}
"""The languages of blocks that are run."""
SHOWN = {"text", "json", "sql", "yaml", "dockerfile", "xml"}
"""The languages of blocks that are only shown."""

_PART = re.compile(
    r"^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$|^<!-- (?P<note>not run|output|setup):?\s*(?P<said>.*?)\s*-->$",
    re.MULTILINE | re.DOTALL,
)
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}:(\d{2,5})\b")
_PATH = re.compile(r"(?<=[\s\"'=])/(?=(?:var|srv|data|etc)/)")
_SERVER = re.compile(r"(ferromq (dev|broker|namesrv)|mqbroker|mqnamesrv)\b")
_ONLY_SHOWS = {"-p", "-m", "--help"}
_PATIENCE = 60.0


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    language: str
    text: str
    line: int
    """Of its first line, from 1."""
    not_run: str = ""
    """Why it is not run."""
    output: str | None = None
    """What it prints."""


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page in order; a setup is a block of Python."""
    found: list[Block] = []
    note, said = "", ""
    for part in _PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 2
        if part["note"]:
            note, said = part["note"], part["said"]
            if note == "setup":
                found.append(Block("python", said + "\n", line))
            continue
        block = Block(part["language"].strip(), part["text"], line, not_run=said if note == "not run" else "")
        if note == "output":
            before = found.pop()
            block = Block(before.language, before.text, before.line, before.not_run, part["text"])
        found.append(block)
        note = ""
    return found


def is_run(block: Block) -> bool:
    """Say whether a block is run."""
    return block.language in RUN and not block.not_run


class Page:
    """Runs the blocks of one page in a directory."""

    def __init__(self, path: Path, directory: Path, command: Callable[[list[str]], None] | None = None) -> None:
        """Lines of the shell that call `ferromq pipeline` go to *command*, if it is given."""
        self._path = path
        self._directory = directory
        self._command = command
        self._ports: dict[str, int] = {}
        self._kept = contextlib.ExitStack()
        self._names: dict[str, Any] = {"__name__": "page"}
        self._servers: list[tuple[subprocess.Popen[str], str]] = []
        self._text = path.read_text()

    def run(self) -> None:
        """Run all blocks; an error has the line of the page."""
        try:
            todo = [block for block in blocks(self._text) if is_run(block)]
            serves_itself = any(_is_server(line) for block in todo if block.language == "sh" for line in _lines(block))
            if not serves_itself and any(_ADDRESS.search(b.text) for b in todo if b.language in {"python", "sh"}):
                self._start("ferromq dev --store store")
            for block in todo:
                self._run(block)
        finally:
            with self._kept:
                self._stop()

    def _run(self, block: Block) -> None:
        printed = io.StringIO()
        try:
            {"python": self._python, "sh": self._shell, "toml": self._file, "properties": self._file}[block.language](
                block, printed
            )
            if block.output is not None:
                _compare(printed.getvalue(), self._own(block.output))
        except BaseException as error:
            error.add_note(f"{self._path}:{block.line}: this block of {block.language} failed; {printed.getvalue()!r}")
            raise

    def _own(self, text: str) -> str:
        """Return the text with addresses and paths of this run."""
        text = _ADDRESS.sub(lambda found: f"127.0.0.1:{self._port(found[1])}", text)
        text = re.sub(r"\bs3a?://", f"file://{self._directory}/s3/", text)
        return _PATH.sub(f"{self._directory}/", text)

    def _port(self, port: str) -> int:
        if port not in self._ports:
            # A bound socket keeps the port from other programs; it does not listen, and a server can beside it.
            keeper = self._kept.enter_context(socket.socket())
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            keeper.bind(("127.0.0.1", 0))
            self._ports[port] = keeper.getsockname()[1]
        return self._ports[port]

    def _python(self, block: Block, printed: io.StringIO) -> None:
        code = "\n" * (block.line - 1) + self._own(block.text)
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(self._path), "exec"), self._names)

    def _file(self, block: Block, _printed: io.StringIO) -> None:
        """Check a configuration; if its first line is a comment with a name, it is saved under that name."""
        named = re.match(r"# (\S+\.(?:toml|conf|properties))", block.text)
        suffix = ".toml" if block.language == "toml" else ".conf"
        file = self._directory / (named[1] if named else f"page-{block.line}{suffix}")
        file.write_text(self._own(block.text))
        (NameServerConfig if "namesrv" in file.name else BrokerConfig).load(file, environment={})

    def _shell(self, block: Block, printed: io.StringIO) -> None:
        plain: list[str] = []
        for line in _lines(block):
            line = self._own(line)  # noqa: PLW2901 (the same line)
            if self._command is not None and line.startswith("ferromq pipeline "):
                self._command(shlex.split(line, comments=True)[1:])
            elif _is_server(line):
                self._bash(plain, printed)
                plain = []
                self._start(line)
            else:
                plain.append(line)
        self._bash(plain, printed)

    def _bash(self, lines: list[str], printed: io.StringIO) -> None:
        if lines:
            done = subprocess.run(
                ["bash", "-euc", "\n".join(lines)],
                check=False,
                capture_output=True,
                text=True,
                env=self._environment(),
                cwd=self._directory,
                timeout=_PATIENCE,
            )
            printed.write(done.stdout)
            assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout}{done.stderr}"

    def _start(self, line: str) -> None:
        """Start a server, and wait until it is ready."""
        # A file: nothing reads its log while the page runs, and a pipe would fill up.
        log = tempfile.NamedTemporaryFile("w+", dir=self._directory, suffix=".log", delete=False)  # noqa: SIM115
        words = shlex.split(line, comments=True)
        server = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment(), cwd=self._directory
        )
        self._servers.append((server, line))
        assert server.stdout is not None
        ready = any("ready" in said for said in server.stdout)
        assert ready, f"{line} did not start: {Path(log.name).read_text()}"

    def _environment(self) -> Mapping[str, str]:
        here = Path(sys.executable).parent
        return {
            **os.environ,
            "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
            "FERROMQ_LOG": "warn",
            "FERROMQ_NAMESRV_LISTEN": f"127.0.0.1:{self._port('9876')}",
            "FERROMQ_BROKER_LISTEN": f"127.0.0.1:{self._port('10911')}",
            "FERROMQ_BROKER_GRPC_LISTEN": f"127.0.0.1:{self._port('8081')}",
            "FERROMQ_BROKER_FAST_LISTEN": "off",
            "FERROMQ_CONTEXTS": str(self._directory / "contexts.json"),
        }

    def _stop(self) -> None:
        for server, _ in reversed(self._servers):
            server.send_signal(signal.SIGTERM)
        for server, line in self._servers:
            with server:
                assert server.wait(_PATIENCE) == 0, f"{line} ended with {server.returncode}"


def _lines(block: Block) -> Iterator[str]:
    """Return the lines of a shell block, continued ones as one."""
    yield from block.text.replace("\\\n", " ").splitlines()


def _is_server(line: str) -> bool:
    return _SERVER.match(line) is not None and not _ONLY_SHOWS & set(line.split())


def _compare(printed: str, expected: str) -> None:
    """Fail unless the expected lines were printed."""
    pattern = re.escape(textwrap.dedent(expected).strip()).replace("…", ".*")
    assert re.fullmatch(pattern, printed.strip()), f"printed {printed!r}, the page says {expected!r}"
