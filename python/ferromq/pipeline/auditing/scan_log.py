"""
Scans a commit-log file; Rust checks every record against its checksums.

`overview` checks the files together: where the log ends, and what is missing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ferromq._ferromq import LogFacts
from ferromq.pipeline.auditing import scan_rows
from ferromq.pipeline.auditing.store_files import RowFile

_INTS = ("queue_id", "sys_flag", "size")
_LONGS = ("queue_offset", "physical_offset", "tag_hash", "store_timestamp")


def scan(file: RowFile, until: int) -> Iterator[pa.RecordBatch]:
    """
    Yield the records of *file* that begin before the physical offset *until*, its findings, and its figures.

    Figures: `records`, `bytes`, `end` and `unwritten_from` as positions in the file, `last_time`, `continued`, and
    `tail`, (kind, first byte, end, reason) of the bytes after the last record.
    """
    total: dict[str, Any] = {"base": file.base, "length": file.length, "records": 0, "bytes": 0, "last_time": 0}
    total |= {"tail": None, "unwritten_from": None, "end": 0, "continued": 0}
    for found in LogFacts(file.path, file.base, until=until):
        rows = found["rows"]
        sizes = np.frombuffer(found["size"], np.int32)
        if rows:
            yield _records(file, found)
            times = np.frombuffer(found["store_timestamp"], np.int64)
            total["last_time"] = max(total["last_time"], int(times.max()))
        inner = [fault for fault in found["faults"] if not fault[-1]]
        total["tail"] = next((fault[:1] + fault[2:5] for fault in found["faults"] if fault[-1]), total["tail"])
        if inner:
            yield scan_rows.findings([_fault(file, found, fault) for fault in inner])
        total["records"] += rows
        total["bytes"] += int(sizes.sum(dtype=np.int64))
        if found["unwritten_from"] is not None:
            total["unwritten_from"] = found["unwritten_from"]
        total |= {"end": max(total["end"], found["end"]), "continued": found["continued"]}
    yield scan_rows.figures("log", total, file=file.path)


def _records(file: RowFile, found: Mapping[str, Any]) -> pa.RecordBatch:
    rows = found["rows"]
    codes = pa.array(np.frombuffer(found["topic"], np.int32))
    topics = pa.DictionaryArray.from_arrays(codes, pa.array(found["topics"], pa.string())).cast(pa.string())
    ends = np.concatenate([np.zeros(1, np.int32), np.frombuffer(found["key_ends"], np.int32)])
    keys = pa.array(np.frombuffer(found["keys"], np.int32), pa.int32())
    columns = {name: np.frombuffer(found[name], np.int32) for name in _INTS}
    columns |= {name: np.frombuffer(found[name], np.int64) for name in _LONGS}
    return scan_rows.batch(
        scan_rows.RECORD,
        rows,
        file.path,
        {
            **columns,
            "topic": topics,
            "hashes": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), keys),
            "hash": np.frombuffer(found["tag_key"], np.int32),
            "at": columns["physical_offset"] - file.base,
        },
    )


def _fault(file: RowFile, found: Mapping[str, Any], fault: tuple[Any, ...]) -> dict[str, Any]:
    kind, row, start, end, reason, _ = fault
    place = {"kind": kind, "physical_offset": file.base + start, "file": file.path, "at": start}
    if row is None:
        return {**place, "detail": f"{end - start} bytes: {reason}"}
    topic = found["topics"][_item(found, "topic", row, np.int32)]
    queue_id, queue_offset = _item(found, "queue_id", row, np.int32), _item(found, "queue_offset", row, np.int64)
    return {**place, "topic": topic, "queue_id": queue_id, "queue_offset": queue_offset, "detail": reason}


def _item(found: Mapping[str, Any], name: str, row: int, kind: type) -> int:
    return int(np.frombuffer(found[name], kind)[row])
