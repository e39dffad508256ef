"""The section about the data itself."""

from __future__ import annotations

from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.grids import GridColumn, grid
from fairlead.pipeline.report.section import Section

_FRESHNESS = (
    GridColumn("table", "table"),
    GridColumn("rows", "rows", "count"),
    GridColumn("newest row", "newest", "instant"),
    GridColumn("changed", "written_at", "instant"),
)
_RUNS = (
    GridColumn("job", "job"),
    GridColumn("last run", "started_at", "instant"),
    GridColumn("took", "us", "duration"),
    GridColumn("state", "state", "state"),
    GridColumn("checks", "checks", "count"),
    GridColumn("failure", "complaint", "text"),
)
_QUARANTINED = (
    GridColumn("reason", "reason", "text"),
    GridColumn("table", "source"),
    GridColumn("rows", "rows", "count"),
    GridColumn("last", "last_seen", "text"),
)


def quality(data: ReportData) -> Section:
    """Return the tables of the lake, the last runs of the jobs, and the quarantined rows."""
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
