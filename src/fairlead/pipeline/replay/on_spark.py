"""Spark runner of replay candidates: each candidate is one Spark task, and every worker reads the
arrivals once from one file."""

from __future__ import annotations

import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.lab.policies.arrivals import Arrivals, load, save
from fairlead.lab.policies.candidate import Candidate, CandidateResult, Setup, perform
from fairlead.lab.policies.runner import OnProgress, longest_first

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.5


class OnSpark:
    """Runner on Spark. The constructor ships the arrivals to the workers; leaving `with` deletes
    the local copy."""

    def __init__(self, spark: SparkSession, arrivals: Arrivals) -> None:
        self._context = spark.sparkContext
        self._folder = tempfile.TemporaryDirectory(prefix="fairlead-arrivals-")
        self._file = f"arrivals-{uuid.uuid4().hex}.parquet"
        path = Path(self._folder.name) / self._file
        save(arrivals, path)
        self._context.addFile(str(path))

    def __enter__(self) -> OnSpark:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def perform(
        self, candidates: Sequence[Candidate], setup: Setup, on_rows: OnProgress
    ) -> list[CandidateResult]:
        if not candidates:
            return []
        file, order = self._file, longest_first(candidates)
        # A partition for each candidate: Spark starts one task for each, in this order.
        ranked = self._context.parallelize([candidates[at] for at in order], len(order))
        replayed = ranked.map(lambda candidate: perform(candidate, _shipped(file), setup))
        with self._watched(on_rows):
            found = dict(zip(order, replayed.collect(), strict=True))
        return [found[at] for at in range(len(candidates))]

    @contextmanager
    def _watched(self, on_rows: OnProgress) -> Iterator[None]:
        """Report tasks as Spark completes them."""
        over = threading.Event()
        tracker = self._context.statusTracker()

        def watch() -> None:
            done: dict[int, int] = {}
            while not over.wait(_POLL_SECONDS):
                for stage in tracker.getActiveStageIds():
                    info = tracker.getStageInfo(stage)
                    if info is not None and info.numCompletedTasks > done.get(stage, 0):
                        on_rows("runs", info.numCompletedTasks - done.get(stage, 0))
                        done[stage] = info.numCompletedTasks

        watcher = threading.Thread(target=watch, name="fairlead-replay-watch", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


@lru_cache(1)
def _shipped(file: str) -> Arrivals:
    """Return the arrivals, read once per Python worker, which Spark keeps for many tasks."""
    from pyspark import SparkFiles

    return load(Path(SparkFiles.get(file)))
