"""The section about the data itself."""

from __future__ import annotations

from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.grids import Shown, grid
from fairlead.pipeline.report.sections import Section

_FRESHNESS = (
    Shown("table", "table"),
    Shown("rows", "rows", "count"),
    Shown("newest row", "newest", "instant"),
    Shown("changed", "written_at", "instant"),
)
_RUNS = (
    Shown("job", "job"),
    Shown("last run", "started_at", "instant"),
    Shown("took", "us", "duration"),
    Shown("state", "state", "state"),
    Shown("checks", "checks", "count"),
    Shown("what failed", "complaint", "text"),
)
_QUARANTINED = (
    Shown("reason", "reason", "text"),
    Shown("table", "source"),
    Shown("rows", "rows", "count"),
    Shown("last", "last_seen", "text"),
)


def quality(data: ReportData) -> Section:
    """What is in the lake, what the jobs did, what was put aside."""
    runs = data.runs
    rows = runs.assign(
        us=runs["seconds"] * 1e6, complaint=runs["error"].fillna(runs["failed_checks"])
    )
    return Section(
        [
            grid("Tables", data.freshness, _FRESHNESS),
            grid("Last run of each job", rows, _RUNS),
            grid("Rows in quarantine, by reason", data.quarantined, _QUARANTINED),
        ]
    )
