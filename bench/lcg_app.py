"""The application of the submitter and the workers of pipeline_lcg.py: one task, which notes its
run."""

from __future__ import annotations

import os
import pathlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import fairlead

QUEUE = "lcg"
FOLDER = "BENCH_LCG_FOLDER"
"""Environment variable with the folder in which a worker notes its runs."""


def application(url: str | None = None) -> tuple[fairlead.App, Any]:
    """Return the application on this URL ($FAIRLEAD_URL by default), and its task."""
    app = fairlead.App(url, name="lcg", lake="")
    app.queue(QUEUE)
    notes: list[int] = []

    @app.task(queue=QUEUE)
    async def run_job(job: int) -> None:
        if not notes:
            path = pathlib.Path(os.environ[FOLDER]) / f"{os.getpid()}.runs"
            notes.append(
                os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            )
        # Written without any buffer of this process, so that a kill loses no line.
        os.write(notes[0], b"%d\n" % job)

    return app, run_job


def judge(submitted: Iterable[int], notes: Iterable[pathlib.Path]) -> tuple[int, int]:
    """Compare the submitted job numbers with the lines of the files that the task wrote; return the
    numbers of lost jobs and of runs beyond the first of a job."""
    expected, noted = Counter(submitted), Counter[int]()
    for path in notes:
        with path.open("rb") as lines:
            noted.update(map(int, lines))
    return (expected - noted).total(), (noted - expected).total()


app, _ = application()
