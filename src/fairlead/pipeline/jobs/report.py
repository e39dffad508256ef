"""`report`: writes the tables of a period as one HTML page."""

from __future__ import annotations

import os
from pathlib import Path

from fairlead.clock import Clock
from fairlead.data_folder import check_folder
from fairlead.errors import ConfigurationError
from fairlead.pipeline import durable
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.reading.snapshots import Snapshots
from fairlead.pipeline.report.data import Selection, gather
from fairlead.pipeline.report.page import render
from fairlead.pipeline.runs import JobRun, recorded
from fairlead.pipeline.warehouse.warehouse import Warehouse


def report(
    warehouse: Warehouse,
    clock: Clock,
    out: Path,
    selection: Selection = Selection(),  # noqa: B008 - frozen
) -> JobRun:
    """Write the page about the newest build to `out`, replacing an earlier one.

    Raise ConfigurationError if `out` cannot be written, if other users may replace it, or if the
    period has no rows; BrokenLake for damaged files, StoreUnavailable.
    """
    if not os.path.isdir(out.parent):
        raise ConfigurationError(f"--out {out}: there is no folder {out.parent}; create it first")
    check_folder("--out", out)
    params = {
        "out": str(out.absolute()),
        "since": selection.since and selection.since.isoformat(),
        "until": selection.until and selection.until.isoformat(),
        "top": selection.top,
        "hash_keys": selection.hash_keys,
    }
    with recorded(warehouse, clock, "report", params) as run:
        with Frames(warehouse, Snapshots(warehouse).read()) as tables:
            data = gather(tables, clock.now(), selection)
        page = render(data)
        try:
            durable.write(out, lambda path: path.write_text(page, encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(
                f"--out {out}: {error.strerror}; choose another file"
            ) from error
    return run
