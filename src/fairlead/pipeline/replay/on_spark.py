"""Spark runner of replay candidates: each candidate is one Spark task, and every worker reads the
arrivals once from one file."""

from __future__ import annotations

import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fairlead.lab.policies.arrivals import Arrivals, load, save
from fairlead.lab.policies.candidate import Candidate, CandidateResult, Setup, perform
from fairlead.lab.policies.runner import OnProgress, longest_first

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.5
_CANDIDATES, _RESULTS = "rank int, candidate string", "rank int, found string"


class OnSpark:
    """Runner on Spark. The constructor ships the arrivals to the workers; leaving `with` deletes
    the local copy."""

    def __init__(self, spark: SparkSession, arrivals: Arrivals) -> None:
        self._spark = spark
        self._folder = tempfile.TemporaryDirectory(prefix="fairlead-arrivals-")
        self._file = f"arrivals-{uuid.uuid4().hex}.parquet"
        path = Path(self._folder.name) / self._file
        save(arrivals, path)
        spark.sparkContext.addFile(str(path))

    def __enter__(self) -> OnSpark:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def perform(
        self, candidates: Sequence[Candidate], setup: Setup, on_rows: OnProgress
    ) -> list[CandidateResult]:
        if not candidates:
            return []
        from pyspark.sql import functions as F

        file, encoded = self._file, msgspec.json.encode(setup)
        order = longest_first(candidates)
        rows = [
            (rank, msgspec.json.encode(candidates[at]).decode()) for rank, at in enumerate(order)
        ]

        def replay(batches: Iterable[pd.DataFrame]) -> Iterable[pd.DataFrame]:
            import pandas as pd

            arrivals, sent = _shipped(file), msgspec.json.decode(encoded, type=Setup)
            for batch in batches:
                for rank, text in zip(batch["rank"], batch["candidate"], strict=True):
                    found = perform(msgspec.json.decode(text, type=Candidate), arrivals, sent)
                    yield pd.DataFrame(
                        {"rank": [rank], "found": [msgspec.json.encode(found).decode()]}
                    )

        # Use the rank as the partition, so that Spark starts one task per candidate in this order.
        ranked = self._spark.createDataFrame(rows, _CANDIDATES).repartitionById(
            len(rows), F.col("rank")
        )
        with self._watched(on_rows):
            results = ranked.mapInPandas(replay, _RESULTS).collect()  # a row for each candidate
        by_index = {order[row["rank"]]: row["found"] for row in results}
        return [
            msgspec.json.decode(by_index[at], type=CandidateResult) for at in range(len(candidates))
        ]

    @contextmanager
    def _watched(self, on_rows: OnProgress) -> Iterator[None]:
        """Report tasks as Spark completes them."""
        over = threading.Event()
        tracker = self._spark.sparkContext.statusTracker()

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
