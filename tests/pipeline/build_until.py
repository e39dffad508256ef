"""A build in its own process, killed at a point: `python build_until.py LAKE POINT`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.jobs import build as job_module
from fairlead.pipeline.jobs import checks, layers
from fairlead.pipeline.jobs.build import FolderJob
from fairlead.pipeline.jobs.build import build_folder as build
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.table import LakeTable
from fairlead.pipeline.parquet import ParquetTables
from fairlead.pipeline.session import session
from tests.pipeline.test_build import SETTINGS


def die(*_args: Any, **_kwargs: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def after_first(function: Any) -> Any:
    """Return a function that calls `function` once and kills the process at the second call."""
    calls: list[int] = []

    def called(*args: Any, **kwargs: Any) -> Any:
        if calls:
            die()
        calls.append(1)
        return function(*args, **kwargs)

    return called


def main(lake: Path, point: int) -> None:
    if point == 0:
        ParquetTables.replace = after_first(ParquetTables.replace)  # type: ignore[method-assign]
    elif point == 1:
        layers.Build._gold = die  # type: ignore[method-assign]
    elif point == 2:
        checks.bronze_checks = die
    elif point == 3:
        LakeTable.replace = after_first(LakeTable.replace)  # type: ignore[method-assign]
    else:
        job_module.built = die
    build(FolderJob(session("local[2]"), Lake(lake), None, SYSTEM_CLOCK), SETTINGS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
