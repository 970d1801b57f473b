"""
How far a replay is: what a run that is started again need not send.

A directory with a file for each task; the farthest counts. Written by the tasks, on a disk they share.
"""

import json
import os
from pathlib import Path
from typing import TypeAlias

from ferromq.errors import ConfigError
from ferromq.pipeline._places import make_folder, replace_file

Queue: TypeAlias = tuple[str, str, int]
"""Topic, store host, queue id."""


class Positions:
    """
    The queue offset before which all of a queue has been sent, for each queue of the source.

    ConfigError where the directory belongs to another *job*.
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
                self.note((topic, host, queue_id), offset)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} is no state of a replay; allowed: a directory of its own, or an empty one"
            ) from error
        if job != self._job:
            raise ConfigError(
                f"the state in {self._directory} is that of {job!r}, and this is {self._job!r}; "
                "allowed: the same replay again, or another directory"
            )

    def next_offset(self, queue: Queue) -> int:
        """Return the first queue offset of *queue* that is not known to be sent."""
        return self._known.get(queue, 0)

    def note(self, queue: Queue, offset: int) -> None:
        """Note that all of *queue* before *offset* has been sent."""
        self._known[queue] = max(offset, self._known.get(queue, 0))

    def save(self, task: int) -> None:
        """Write down for *task* all that is known; on disk at return."""
        # Queues of other tasks, too: a former run may have noted them in the file of this task.
        rows = [[*queue, offset] for queue, offset in sorted(self._known.items())]
        content = json.dumps({"job": self._job, "positions": rows}, indent=1).encode()
        replace_file(self._directory / f"task-{task:05d}.json", content)
