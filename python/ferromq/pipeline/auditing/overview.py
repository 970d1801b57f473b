"""
Checks that need all files of a store: where its log ends, and what queues and index must hold.

It works on one row for each file or queue. `joins` compares the rows of records and entries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ferromq.pipeline.auditing import scan_queue, store_metadata
from ferromq.pipeline.auditing.findings import Finding
from ferromq.pipeline.auditing.store_files import StoreFiles
from ferromq.pipeline.auditing.store_metadata import StoreMetadata
from ferromq.pipeline.inputs import store_config

Figures = tuple[str, str | None, int | None, str | None, Mapping[str, Any]]
"""Kind, topic, queue id, file, and counts."""


def promised_to(files: StoreFiles) -> int | None:
    """
    Return the physical offset below which records must be in queues; None if all must be.

    A ferromq broker writes it to the checkpoint. A Java broker dispatches in the order of the log, so everything before
    its newest entry is dispatched.
    """
    if files.state == "closed":
        return None
    if files.is_ours:
        return files.durable_end
    return max(map(scan_queue.last_place, files.queues), default=0)


@dataclass
class StoreOverview:
    """The state of a store, from all its files."""

    files: StoreFiles
    limit: int | None
    index_limit: int | None
    """Physical offset below which records must be in the index; None: all."""
    end: int
    """The physical offset after the last record."""
    marks: StoreMetadata
    topics: set[str] | None
    totals: dict[str, int]
    queue_ends: dict[tuple[str, int], int]
    findings: list[Finding] = field(default_factory=list)

    @classmethod
    def of(cls, files: StoreFiles, figures: Sequence[Figures], limit: int | None) -> Self:
        """Combine the figures of the tasks."""
        logs = sorted((row[4] for row in figures if row[0] == "log"), key=lambda log: log["base"])
        queues = {(row[1] or "", row[2] or 0): row[4] for row in figures if row[0] == "queue"}
        index = sorted(((row[3] or "", row[4]) for row in figures if row[0] == "index"), key=lambda pair: pair[0])
        last = max((log for log in logs if log["records"]), key=lambda log: log["base"], default=None)
        index_limit = limit
        if limit is not None and not files.is_ours:
            # A Java broker indexes after it dispatches, and writes its position to the last header.
            index_limit = min(limit, next((row["last_place"] for _, row in reversed(index) if row["entries"]), 0))
        whole = cls(
            files=files,
            limit=limit,
            index_limit=index_limit,
            end=last["base"] + last["end"] if last else files.log_start,
            marks=store_metadata.read(files),
            topics=store_config.topics(files.directory),
            totals={
                "log_files": len(logs),
                "log_bytes": sum(log["bytes"] for log in logs),
                "records": sum(log["records"] for log in logs),
                "queues": len(queues),
                "queue_entries": sum(queue["entries"] for queue in queues.values()),
                "index_files": len(index),
                "index_entries": sum(row["entries"] for _, row in index),
            },
            queue_ends={name: queue["max_offset"] for name, queue in queues.items()},
            findings=list(files.findings),
        )
        whole._check_tails(logs, last)
        whole._check_offsets()
        return whole

    def _check_tails(self, logs: Sequence[Mapping[str, Any]], last: Mapping[str, Any] | None) -> None:
        """Check the bytes after the last record of each file; only the last file may end before its size."""
        paths = {file.base: file.path for file in self.files.log}
        for log in logs:
            is_inside = last is not None and log["base"] < last["base"]
            base, path = log["base"], paths.get(log["base"])
            if log["tail"] is not None and (is_inside or not self.files.is_open):
                kind, begin, end, reason = log["tail"]
                kind = kind if is_inside else "torn-tail"
                detail = f"{end - begin} bytes after the last record: {reason}"
                self.findings.append(Finding(kind, physical_offset=base + begin, file=path, detail=detail))
            begin = log["unwritten_from"]
            if is_inside and begin is not None:
                detail = "zeros to the end of the file; expected a record"
                self.findings.append(Finding("no-record", physical_offset=base + begin, file=path, detail=detail))
        if last is not None and last["continued"] and not self.files.is_open:
            detail = f"{last['continued']} records of a batch whose last record is missing"
            path = paths.get(last["base"])
            self.findings.append(Finding("unfinished", physical_offset=self.end, file=path, detail=detail))

    def _check_offsets(self) -> None:
        """Check that committed offsets and the checkpoint do not exceed the queues and the log."""
        if self.files.is_open:
            return
        path = str(self.files.directory / "config" / "consumerOffset.json")
        for (topic, group), queues in store_config.consumer_offsets(self.files.directory).items():
            for queue_id, offset in queues.items():
                end = self.queue_ends.get((topic, queue_id), 0)
                if offset > end:
                    detail = f"the group {group} has committed {offset}; the max offset is {end}"
                    self.findings.append(Finding("offset-beyond-queue", topic, queue_id, offset, None, path, detail))
        if self.files.durable_end > self.end:
            detail = f"durable up to {self.files.durable_end}, but the log ends at {self.end}"
            path = str(self.files.directory / "checkpoint")
            self.findings.append(Finding("checkpoint-beyond-log", None, None, None, self.end, path, detail))
