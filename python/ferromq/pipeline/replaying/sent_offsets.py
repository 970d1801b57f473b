"""
The progress of a replay, so that a restarted run skips what an earlier run sent.

A shared directory holds a file for each task. For each queue the highest offset counts.
"""

import json
import os
from pathlib import Path
from typing import TypeAlias

from ferromq.errors import ConfigError
from ferromq.pipeline.archiving.location import make_folder, replace_file

Queue: TypeAlias = tuple[str, str, int]
"""Topic, store host, queue id."""


class SentOffsets:
    """
    For each queue of the source, the queue offset below which all messages have been sent.

    Raises ConfigError if the directory belongs to another *job*.
    """

    def __init__(self, directory: str | os.PathLike[str], job: str) -> None:
        self._directory, self._job = Path(directory).absolute(), job
        self._known: dict[Queue, int] = {}
        make_folder(self._directory)
        for path in sorted(self._directory.glob("*.json")):
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            content = json.loads(path.read_bytes())
            job, rows = content["job"], content["positions"]
            for topic, host, queue_id, offset in rows:
                self.record((topic, host, queue_id), offset)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} is not the state of a replay; allowed: the directory of a replay, or an empty one"
            ) from error
        if job != self._job:
            raise ConfigError(
                f"the state in {self._directory} belongs to {job!r}, but this replay is {self._job!r}; "
                "allowed: the same replay, or another directory"
            )

    def next_offset(self, queue: Queue) -> int:
        """Return the first queue offset of *queue* that is not recorded as sent."""
        return self._known.get(queue, 0)

    def record(self, queue: Queue, offset: int) -> None:
        """Record that all of *queue* below *offset* has been sent."""
        self._known[queue] = max(offset, self._known.get(queue, 0))

    def save(self, task: int) -> None:
        """Write all recorded offsets to the file of *task*, and sync it to disk."""
        # This includes the queues of other tasks: an earlier run may have recorded them in this file.
        rows = [[*queue, offset] for queue, offset in sorted(self._known.items())]
        content = json.dumps({"job": self._job, "positions": rows}, indent=1).encode()
        replace_file(self._directory / f"task-{task:05d}.json", content)
