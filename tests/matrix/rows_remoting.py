"""The rows of remoting clients, and of clients before RocketMQ's own proxy before either side."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import rows_grpc
from fetching import PROGRAMS, build, copied, fetch, java_program, sources
from rows import Row

_EACH: Final = (
    *("send", "consume", "tags", "sql", "order", "delay", "transaction", "retry", "dead_letter", "big_body"),
    *("batch", "compressed", "broadcast", "pull"),
)
_JAVA: Final = ("no_progress", "query_by_key", "query_by_id", "from_timestamp")
_SINCE_46: Final = ("lite_pull", "request_reply", "namespace", "trace")
_TOPICS: Final = dict.fromkeys(("batch", "compressed", "broadcast", "pull", *_JAVA, *_SINCE_46), "NORMAL")
_TOOLS: Final = (
    *("cluster", "traffic", "topics", "topic_stats", "group_stats", "connections", "running_info", "statistics"),
    *("runtime", "options", "messages", "consume_directly", "reset_offset", "create_and_delete"),
)
"""The calls of rocketmq-exporter and of rocketmq-dashboard's REST interface."""
_PROXIED: Final = ("5.0.3", "5.2.0")
"""The versions of the Java client for RocketMQ's proxy in front of either side."""
_OVER_PROXY: Final = ("consume", "tags", "retry")
"""The checks over the proxy's remoting listener, which checks message types."""
_PROXIED_LIMIT_S: Final = 230.0
"""Its start takes a while."""
_OLD_NETTY: Final = (
    *("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-opens=java.base/java.lang=ALL-UNNAMED", "-Dio.netty.noUnsafe=true"),
)
"""The network library of client 4.3.0 is older than Java 17."""
_FOLDER: Final = "java-remoting"
_SIGNED_BY_ACL: Final = ("4.9.8", "5.1.4")


def _row(client: str, version: str, prepare: partial[Sequence[str]], *more: str) -> Row:
    checks = (*_EACH, *more)
    topics = {name: kind for name, kind in _TOPICS.items() if name in checks} | {"traces": "NORMAL"}
    return Row(client, version, checks, prepare, topics=topics)


def _java(version: str, newer: bool, directory: Path) -> Sequence[str]:
    files = [path for path in sources(_FOLDER, ".java") if newer or path.parent.name == _FOLDER]
    # The class that signs is in an artifact of its own, until it moved into the client.
    signing = [f"org.apache.rocketmq:rocketmq-acl:{version}"] if version in _SIGNED_BY_ACL else []
    java, *words = java_program(directory, files, "Matrix", f"org.apache.rocketmq:rocketmq-client:{version}", *signing)
    return [java, *_OLD_NETTY, *words]


def _java_row(version: str, *more: str) -> Row:
    return _row("java-remoting", version, partial(_java, version, bool(more)), *_JAVA, *more)


def _go(directory: Path) -> Sequence[str]:
    def finish(folder: Path) -> None:
        fetch("go", "mod", "download", cwd=folder)
        build("go", "build", "-o", "matrix", ".", cwd=folder)

    return [str(copied(directory, "program", sources("go-remoting", ".go", "go.mod", "go.sum"), finish) / "matrix")]


def _behind_proxy(row: Row, words: Sequence[str], directory: Path) -> Sequence[str]:
    """Return the command of a row with its own RocketMQ proxy on the side's name server."""
    return [sys.executable, str(PROGRAMS / "java-proxy" / "proxied.py"), *row.prepare(directory), *words]


def _proxied(client: str, row: Row, *checks: str) -> Row:
    """Return a row behind the proxy; its program makes only these checks, if given."""
    prepare = partial(_behind_proxy, row, checks)
    return replace(row, client=client, checks=checks or row.checks, prepare=prepare, limit_s=_PROXIED_LIMIT_S)


_CLIENTS: tuple[Row, ...] = (
    _java_row("4.3.0"),
    _java_row("4.9.8", *_SINCE_46),
    _java_row("5.1.4", *_SINCE_46),
    _java_row("5.5.0", *_SINCE_46),
    _row("go-remoting", "2.1.2", partial(_go), *_SINCE_46),
)


def _tools(directory: Path) -> Sequence[str]:
    return java_program(
        directory, sources("admin-tools", ".java"), "Matrix", "org.apache.rocketmq:rocketmq-tools:5.5.0"
    )


ROWS: tuple[Row, ...] = (
    *_CLIENTS,
    Row("admin-tools", "5.5.0", _TOOLS, _tools, topics={**dict.fromkeys(_TOOLS), "admin": "NORMAL"}),
    *(_proxied("java-proxy", row) for row in rows_grpc.ROWS if row.client == "java-grpc" and row.version in _PROXIED),
    *(_proxied("java-proxy-remoting", row, *_OVER_PROXY) for row in _CLIENTS if row.version == "5.5.0"),
)
