"""A progress bar over the tasks that Spark runs for a pipeline, from Spark's status tracker."""

import sys
import threading
import uuid
from types import TracebackType
from typing import Any, Self, TextIO

from pyspark.sql import SparkSession

from ferromq.terminal.progress import Progress

_INTERVAL = 0.2
"""Seconds between two updates of the bar."""


class TaskProgress:
    """
    Shows how many tasks have ended, of the jobs that this thread starts inside the context.

    The total grows as Spark plans more stages. Nothing is shown if *stream* is not a terminal, if *is_quiet*, or if the
    session has no status tracker (Spark Connect).
    """

    def __init__(self, spark: SparkSession, what: str, stream: TextIO | None = None, *, is_quiet: bool = False) -> None:
        stream = sys.stderr if stream is None else stream
        self._context = None if is_quiet or not stream.isatty() else getattr(spark, "_sc", None)
        self._bar = Progress(what, 0, stream, is_quiet=self._context is None)
        self._group = f"ferromq-{what}-{uuid.uuid4().hex[:8]}"
        self._what = what
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._context is not None:
            self._context.setJobGroup(self._group, f"ferromq pipeline {self._what}")
            self._thread = threading.Thread(target=self._watch, name="ferromq-tasks", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._context is None or self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._bar.update(self._count(self._context.statusTracker()))
        self._bar.__exit__(kind, error, trace)
        for name in ("spark.jobGroup.id", "spark.job.description"):
            self._context.setLocalProperty(name, None)

    def _watch(self) -> None:
        assert self._context is not None
        tracker = self._context.statusTracker()
        while not self._ended.wait(_INTERVAL):
            self._bar.update(self._count(tracker))

    def _count(self, tracker: Any) -> int:
        """Return how many tasks have ended, and set the total. Of an ended job only the tasks that ran count."""
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
