"""
A progress bar over the tasks that Spark runs for a pipeline.

It only looks, through Spark's status tracker, and only where a terminal shows it.
"""

import sys
import threading
import uuid
from types import TracebackType
from typing import Any, Self, TextIO

from pyspark.sql import SparkSession

from ferromq.terminal.progress import Progress

_LOOK = 0.2
"""Seconds between two looks at the tracker."""


class TaskProgress:
    """
    Shows how many tasks are done, of the jobs that the thread starts while it is entered.

    More stages become known as Spark plans them, so the total grows. Nothing is shown where *stream* is no terminal,
    with *is_quiet*, and where the session has no status tracker (Spark Connect).
    """

    def __init__(self, spark: SparkSession, what: str, stream: TextIO | None = None, *, is_quiet: bool = False) -> None:
        stream = sys.stderr if stream is None else stream
        self._context = None if is_quiet or not stream.isatty() else getattr(spark, "_sc", None)
        self._bar = Progress(what, 0, stream, is_quiet=self._context is None)
        self._group = f"ferromq-{what}-{uuid.uuid4().hex[:8]}"
        self._what = what
        self._ended = threading.Event()
        self._looking: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._context is not None:
            self._context.setJobGroup(self._group, f"ferromq pipeline {self._what}")
            self._looking = threading.Thread(target=self._look, name="ferromq-tasks", daemon=True)
            self._looking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._context is None or self._looking is None:
            return
        self._ended.set()
        self._looking.join()
        with self._bar:
            self._bar.update(self._count(self._context.statusTracker()))
        for name in ("spark.jobGroup.id", "spark.job.description"):
            self._context.setLocalProperty(name, None)

    def _look(self) -> None:
        assert self._context is not None
        tracker = self._context.statusTracker()
        while not self._ended.wait(_LOOK):
            self._bar.update(self._count(tracker))

    def _count(self, tracker: Any) -> int:
        """Return the tasks done, and set the total to those known; of jobs that ended, what ran counts."""
        done = total = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            if info is None:
                continue
            for stage in filter(None, map(tracker.getStageInfo, info.stageIds)):
                done += stage.numCompletedTasks
                total += stage.numTasks if info.status == "RUNNING" else stage.numCompletedTasks
        self._bar.total = total
        return done
