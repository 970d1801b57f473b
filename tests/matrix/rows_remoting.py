"""The rows of remoting clients."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from fetching import copied, java_program, run, sources
from rows import Row

_EACH: Final = (
    *("send", "consume", "tags", "sql", "order", "delay", "transaction", "retry", "dead_letter", "big_body"),
    *("batch", "compressed", "broadcast", "pull"),
)
_JAVA: Final = ("no_progress", "query_by_key", "query_by_id", "from_timestamp")
_SINCE_46: Final = ("lite_pull", "request_reply", "namespace", "trace")
_TOPICS: Final = dict.fromkeys(("batch", "compressed", "broadcast", "pull", *_JAVA, *_SINCE_46), "NORMAL")
_FOLDER: Final = "java-remoting"


def _row(client: str, version: str, prepare: partial[Sequence[str]], *more: str) -> Row:
    checks = (*_EACH, *more)
    topics = {name: kind for name, kind in _TOPICS.items() if name in checks} | {"traces": "NORMAL"}
    return Row(client, version, checks, prepare, topics=topics)


def _java(version: str, newer: bool, directory: Path) -> Sequence[str]:
    files = [path for path in sources(_FOLDER, ".java") if newer or path.parent.name == _FOLDER]
    return java_program(directory, files, "Matrix", f"org.apache.rocketmq:rocketmq-client:{version}")


def _java_row(version: str, *more: str) -> Row:
    return _row("java-remoting", version, partial(_java, version, bool(more)), *_JAVA, *more)


def _go(directory: Path) -> Sequence[str]:
    def build(folder: Path) -> None:
        run("go", "build", "-o", "matrix", ".", cwd=folder)

    return [str(copied(directory, "program", sources("go-remoting", ".go", "go.mod", "go.sum"), build) / "matrix")]


ROWS: tuple[Row, ...] = (
    _java_row("4.3.0"),
    _java_row("4.9.8", *_SINCE_46),
    _java_row("5.1.4", *_SINCE_46),
    _java_row("5.5.0", *_SINCE_46),
    _row("go-remoting", "2.1.2", partial(_go), *_SINCE_46),
)
