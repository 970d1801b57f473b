"""Lists the files of a store directory, in order, and its state. The scans read their content."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path

from ferromq._ferromq import inspect_store
from ferromq.pipeline.auditing.findings import Finding

ENTRY = 20
"""Bytes of an entry of a consume queue."""
_DIGITS = 20
_INDEX_DIGITS = 17


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file whose name is the offset of its first byte."""

    path: str
    base: int
    length: int

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.base + self.length


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """The files of a consume queue, in order."""

    topic: str
    queue_id: int
    files: Sequence[RowFile]


@dataclass(frozen=True)
class StoreFiles:
    """The state and the files of a store directory."""

    directory: Path
    state: str
    """`closed`, `open` or `killed`."""
    is_ours: bool
    """Last opened by a ferromq broker, or closed by any."""
    durable_end: int
    log: Sequence[RowFile]
    queues: Sequence[QueueFiles]
    index: Sequence[RowFile]
    findings: Sequence[Finding] = field(default_factory=list)
    """Missing and overlapping files."""

    @property
    def is_open(self) -> bool:
        """Whether a broker has the store open."""
        return self.state == "open"

    @property
    def log_start(self) -> int:
        """The first physical offset kept."""
        return self.log[0].base if self.log else 0


def listed(directory: str | PathLike[str], commit_log_paths: Sequence[str] = ()) -> StoreFiles:
    """
    List the files of the store in *directory*.

    It lists queues and index before the log, so that the log files they lead to are listed. Raises StoreError if the
    directory is not a readable store.
    """
    found = inspect_store(fspath(directory), commit_log_paths=list(commit_log_paths))
    root, findings = Path(found["directory"]), list[Finding]()
    is_open = found["state"] == "open"
    queues = [
        QueueFiles(topic.name, int(queue.name), _row(queue.iterdir(), ENTRY, findings, is_open=is_open))
        for topic in _sorted(root / "consumequeue")
        if topic.is_dir()
        for queue in _sorted(topic)
        if queue.name.isdecimal() and queue.is_dir()
    ]
    index = [
        RowFile(str(path), 0, path.stat().st_size)
        for path in _sorted(root / "index")
        if len(path.name) == _INDEX_DIGITS and path.name.isdecimal()
    ]
    logs = [Path(path) for path in found["log"]["paths"]] or [root / "commitlog"]
    log = _row((path for logs_in in logs for path in logs_in.iterdir()), 1, findings, is_open=is_open)
    checkpoint = found["checkpoint"]
    return StoreFiles(
        directory=root,
        state=found["state"],
        is_ours=(found["abort"] or "ferromq").startswith("ferromq"),
        durable_end=checkpoint["durable_end"] if checkpoint else 0,
        log=log,
        queues=queues,
        index=index,
        findings=findings,
    )


def log_start(files: StoreFiles) -> int:
    """Return the first physical offset that exists now: a running broker may have deleted files since the listing."""
    return min((file.base for file in files.log if Path(file.path).exists()), default=files.log_start)


def _sorted(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _row(paths: Iterable[Path], unit: int, findings: list[Finding], *, is_open: bool) -> list[RowFile]:
    """Return the files of a sequence in order, without overlapping ones; add problems to *findings*."""
    row: list[RowFile] = []
    names = [path for path in paths if len(path.name) == _DIGITS and path.name.isdecimal()]
    for path in sorted(names, key=lambda path: (path.name, path)):
        try:
            length = path.stat().st_size
        except FileNotFoundError:  # a running broker removed it
            continue
        base = int(path.name)
        if length == 0 and is_open:  # the broker is creating it
            continue
        if length == 0 or length % unit or base % unit:
            detail = f"{length} bytes at {base}; expected a multiple of {unit} bytes" if unit > 1 else "no bytes"
            findings.append(Finding("file-size", file=str(path), detail=detail))
            length -= length % unit
            if not length or base % unit:
                continue
        end = row[-1].end if row else base
        if base < end:
            detail = f"it begins at {base}; expected a file that begins at {end}"
            findings.append(Finding("file-size", file=str(path), detail=detail))
            continue
        if base > end:
            missing = path.with_name(f"{end:020}")
            detail = f"no file holds the bytes {end} to {base}"
            findings.append(
                Finding("missing-file", physical_offset=end if unit == 1 else None, file=str(missing), detail=detail)
            )
        row.append(RowFile(str(path), base, length))
    return row
