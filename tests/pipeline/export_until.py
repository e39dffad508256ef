"""A process that exports attempts and kills itself when a step was done a number of times.

Arguments: URL LAKE STEP TIMES. With the step `never` the process exports until it gets a signal.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.connect import task_store
from fairlead.errors import StoreUnavailable
from fairlead.pipeline import durable, export
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.manifest import Manifests
from fairlead.pipeline.lake.table import LakeTable

ROWS = 7
"""Rows in a batch."""

KILLED = 9


def _is_manifest(path: Any, *_: Any) -> bool:
    return Path(path).parent.name == "_manifest" and Path(path).stem != "0" * 12


STEPS: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "registered": (SqlHistory, SqlHistory.advance.__name__, lambda *_args: True),
    "read": (SqlHistory, SqlHistory.attempts.__name__, lambda *_args: True),
    "temporary file written": (
        durable,
        "sync",
        lambda path: path.name.startswith(".") and path.parent.name != "_manifest",
    ),
    "renamed": (os, "replace", lambda *_args: True),
    "flushed": (durable, "write", lambda *_args: True),
    "all files written": (LakeTable, LakeTable.write.__name__, lambda *_args: True),
    "temporary manifest written": (
        durable,
        "sync",
        lambda path: _is_manifest(path) and path.is_file(),
    ),
    "manifest linked": (os, "link", lambda source, path: _is_manifest(path)),
    "manifest flushed": (durable, "create", _is_manifest),
    "old manifests dropped": (Manifests, Manifests.drop_superseded.__name__, lambda *_args: True),
    "files count": (LakeTable, LakeTable.append.__name__, lambda *_args: True),
    "position reported": (
        export.Exporter,
        export.Exporter._save_position.__name__,
        lambda *_args: True,
    ),
    "events read": (SqlHistory, SqlHistory.events.__name__, lambda *_args: True),
    "submits read": (SqlHistory, SqlHistory.submitted.__name__, lambda *_args: True),
}
"""Function whose return ends a step, and a condition on its arguments, by step."""


def die_after(step: str, times: int) -> None:
    """Kill the process after the step has been done `times` times."""
    owner, name, is_meant = STEPS[step]
    real, taken = getattr(owner, name), 0

    def then_dies(*args: Any, **kwargs: Any) -> Any:
        nonlocal taken
        result = real(*args, **kwargs)
        taken += is_meant(*args)
        if taken == times and is_meant(*args):
            os._exit(KILLED)
        return result

    setattr(owner, name, then_dies)


def export_until_killed(exporter: export.Exporter) -> None:
    """Export in a loop; a line says when it begins."""
    print("exporting", flush=True)
    while True:
        try:
            exporter.round()
        except StoreUnavailable as error:  # SQLite on a busy machine
            print(error, flush=True)
        time.sleep(0.002)  # an exporter of rounds without pause would leave SQLite to nobody


def main(url: str, lake: str, step: str, times: str) -> None:
    exporter = export.Exporter(
        SqlHistory(task_store(url).database), Lake(lake), SYSTEM_CLOCK, rows=ROWS
    )
    if step != "never":
        die_after(step, int(times))
        exporter.round()
        return
    export_until_killed(exporter)


if __name__ == "__main__":
    main(*sys.argv[1:])
