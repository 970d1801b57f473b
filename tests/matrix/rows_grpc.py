"""The rows of gRPC clients."""

from collections.abc import Collection
from functools import partial
from pathlib import Path

from fetching import PROGRAMS, ROOT, copied, fetch, go_program, java_program, rust_program, sources, venv
from rows import Row

_ALL = (
    *(
        "send",
        "consume",
        "acknowledge",
        "tags",
        "sql",
        "order",
        "order_push",
        "delay",
        "transaction",
        "retry",
        "dead_letter",
    ),
    *("late_ack", "second_ack", "short_invisible", "long_delay", "unknown_topic", "big_body", "wrong_type"),
)


def _java(version: str, directory: Path) -> list[str]:
    client = f"org.apache.rocketmq:rocketmq-client-java:{version}"
    return java_program(directory, sources("java-grpc", ".java"), "Matrix", client)


def _java_row(version: str, *more: str) -> Row:
    return Row("java-grpc", version, (*_ALL, *more), partial(_java, version))


def _python(version: str, directory: Path) -> list[str]:
    pinned = (PROGRAMS / "python-grpc" / "requirements.txt").read_text().split()
    python = venv(directory, "--no-deps", f"rocketmq-python-client=={version}", *pinned)
    return [str(python), str(PROGRAMS / "python-grpc" / "matrix.py")]


def _python_row(version: str, *more: str, without: Collection[str] = ()) -> Row:
    checks = (*(check for check in _ALL if check not in without), *more)
    return Row("python-grpc", version, checks, partial(_python, version))


def _go(version: str, tags: str, directory: Path) -> list[str]:
    module = f"github.com/apache/rocketmq-clients/golang/v5@{version}"
    return go_program(directory, sources("go-grpc", ".go"), module, tags=tags)


def _go_row(version: str, tags: str, *more: str, without: Collection[str] = ()) -> Row:
    checks = (*(check for check in _ALL if check not in without), *more)
    return Row("go-grpc", version, checks, partial(_go, f"v{version}", tags))


def _node(directory: Path) -> list[str]:
    # The versions are those of the tests in tests/compat.
    pinned = [ROOT / "tests" / "compat" / "node" / name for name in ("package.json", "package-lock.json")]
    files = [*pinned, *sources("node-grpc", ".js")]
    flags = ("--ignore-scripts", "--no-audit", "--no-fund", "--silent")
    folder = copied(directory, "npm", files, lambda folder: fetch("npm", "ci", *flags, cwd=folder))
    return ["node", str(folder / "matrix.js")]


def _rust(directory: Path) -> list[str]:
    return rust_program(directory, sources("rust-grpc", ".rs", ".toml", ".lock"))


_PUSH = ("consume", "order_push", "retry", "dead_letter")
_RUST_ONLY = {"batch": "NORMAL", "wait": "NORMAL"}

ROWS: tuple[Row, ...] = (
    _java_row("5.0.0"),
    _java_row("5.0.3"),
    _java_row("5.0.5"),
    _java_row("5.1.0", "recall"),
    _java_row("5.2.0", "recall", "priority"),
    _python_row("5.0.1", without=_PUSH),
    _python_row("5.1.2", "recall", "priority"),
    _go_row("5.1.2", "", without=_PUSH),
    # A producer without topics hangs in it, on both sides.
    _go_row("5.1.4", "push,newer", "recall", "priority", without=("unknown_topic",)),
    Row("node-grpc", "1.0.8", (*_ALL, "recall", "priority"), _node),
    Row(
        "rust-grpc",
        "5.0.0",
        (*(check for check in _ALL if check not in _PUSH), *_RUST_ONLY),
        _rust,
        topics=_RUST_ONLY,
    ),
)
