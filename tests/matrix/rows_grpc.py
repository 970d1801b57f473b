"""The rows of gRPC clients."""

from functools import partial
from pathlib import Path

from fetching import java_program, sources
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


ROWS: tuple[Row, ...] = (
    _java_row("5.0.0"),
    _java_row("5.0.3"),
    _java_row("5.0.5"),
    _java_row("5.1.0", "recall"),
    _java_row("5.2.0", "recall", "priority"),
)
