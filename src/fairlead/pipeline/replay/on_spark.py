"""Spark runner of replay candidates: each candidate is one Spark task, and every worker reads the
arrivals once from one file."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.lab.policies.arrivals import Arrivals, load, save
from fairlead.lab.policies.candidate import (
    Candidate,
    CandidateResult,
    OnProgress,
    Setup,
    longest_first,
    perform,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        self, candidates: Sequence[Candidate], setup: Setup, on_progress: OnProgress
    ) -> list[CandidateResult]:
        if not candidates:
            return []
        file, order = self._file, longest_first(candidates)
        # A partition for each candidate: Spark starts one task for each, in this order.
        ranked = self._context.parallelize([candidates[at] for at in order], len(order))
        replayed = ranked.map(lambda candidate: perform(candidate, _shipped(file), setup))
        found = dict(zip(order, replayed.collect(), strict=True))
        on_progress("runs", len(found))
        return [found[at] for at in range(len(candidates))]


@lru_cache(1)
def _shipped(file: str) -> Arrivals:
    """Return the arrivals, read once per Python worker, which Spark keeps for many tasks."""
    from pyspark import SparkFiles

    return load(Path(SparkFiles.get(file)))
