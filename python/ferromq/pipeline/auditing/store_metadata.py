"""
Reads the files in `DIR/ferromq/` about deleted queues, last known queues and the index: see docs/storage-format.md.

Unreadable files, and files that another broker's writes have invalidated, are ignored; `ferromq store verify` reports
them.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ferromq._ferromq import crc32
from ferromq.pipeline.auditing.store_files import StoreFiles

_ANCHOR = struct.Struct(">QqI")
_MAGIC = 8
_NO_RECORD = 2**64 - 1
_BORN_HOST_V6 = 16
_V6_LONGER = 12
_Read = TypeVar("_Read")


@dataclass
class StoreMetadata:
    """Metadata of queues by topic and id, and of the index."""

    deleted: dict[tuple[str, int], int] = field(default_factory=dict)
    """The physical offset below which the records of a deleted queue are ignored."""
    queues: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """The last known min and max offset."""
    unindexed: tuple[int, int] = (0, 0)
    """The physical offsets between which no index was built."""


def read(files: StoreFiles) -> StoreMetadata:
    """Read the files that are valid for this log."""
    return StoreMetadata(
        _sealed(files, "deleted", b"FMQDELE1", _deleted) or {},
        _sealed(files, "queues", b"FMQQUEU1", _queues) or {},
        _sealed(files, "unindexed", b"FMQUNIX1", _range) or (0, 0),
    )


def _sealed(files: StoreFiles, name: str, magic: bytes, parse: Callable[[bytes], _Read]) -> _Read | None:
    try:
        data = (files.directory / "ferromq" / name).read_bytes()
        end = len(data) - 4
        if data[:_MAGIC] != magic or crc32(data[:end]) != int.from_bytes(data[end:], "big"):
            return None
        place, time, body_crc = _ANCHOR.unpack_from(data, _MAGIC)
        return parse(data[_MAGIC + _ANCHOR.size : end]) if _is_held(files, place, time, body_crc) else None
    except (OSError, struct.error, UnicodeDecodeError):
        return None


def _is_held(files: StoreFiles, place: int, time: int, body_crc: int) -> bool:
    """Check that the log holds the record of an anchor, or has expired it."""
    if place == _NO_RECORD or place < files.log_start:
        return True
    file = next((file for file in files.log if file.base <= place < file.end), None)
    if file is None:
        return False
    with Path(file.path).open("rb") as stream:
        stream.seek(place - file.base)
        head = stream.read(80)
    flag = int.from_bytes(head[36:40], "big")
    time_at = 56 + (_V6_LONGER if flag & _BORN_HOST_V6 else 0)
    return (int.from_bytes(head[8:12], "big"), int.from_bytes(head[time_at : time_at + 8], "big")) == (body_crc, time)


def _deleted(data: bytes) -> dict[tuple[str, int], int]:
    found, at = {}, 0
    while at < len(data):
        topic, at = _text(data, at)
        queue_id, _, place = struct.unpack_from(">IQQ", data, at)
        found[topic, queue_id] = place
        at += 20
    return found


def _queues(data: bytes) -> dict[tuple[str, int], tuple[int, int]]:
    found = {}
    _, files = struct.unpack_from(">QI", data)
    at = 12 + files * 16
    while at < len(data):
        topic, at = _text(data, at)
        queue_id, least, most = struct.unpack_from(">IQQ", data, at)
        found[topic, queue_id] = (least, most)
        at += 20
    return found


def _range(data: bytes) -> tuple[int, int]:
    first, end = struct.unpack(">QQ", data)
    return first, end


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">H", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length
