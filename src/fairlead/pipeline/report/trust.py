"""Findings about the data of the report: how fresh and how complete it is."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pandas as pd

from fairlead.clock import MICROS, to_datetime, to_micros
from fairlead.pipeline.bronze import ATTEMPTS, QUARANTINE
from fairlead.pipeline.report import numbers
from fairlead.pipeline.report.data import ReportData
from fairlead.pipeline.report.findings import BAD, LOOK, OK, Tile

_OLD_US = 86_400 * MICROS
"""Microseconds without a finished attempt after which the report warns."""


def trust(data: ReportData) -> list[Tile]:
    """Return one finding for each check of the data."""
    return [_fresh(data), _exported(data), _built(data), _sound(data), _jobs(data)]


def _fresh(data: ReportData) -> Tile:
    newest = _of_table(data, ATTEMPTS.name)["newest"]
    if _is_none(newest):
        return Tile(
            "Newest attempt",
            "none",
            "`fairlead pipeline ingest` brings attempts into the lake",
            LOOK,
        )
    age = data.made_at - to_micros(newest.replace(tzinfo=UTC))
    note = f"before this report: {numbers.instant(newest)}"
    return Tile("Newest attempt", numbers.duration(age), note, LOOK if age > _OLD_US else OK)


def _exported(data: ReportData) -> Tile:
    if data.unexported is None:
        return Tile("Not yet exported", "not known", "the store was not asked", OK)
    note = (
        "finished attempts that are not in the lake"
        if data.unexported
        else "every finished attempt is in the lake"
    )
    return Tile(
        "Not yet exported", numbers.count(data.unexported), note, LOOK if data.unexported else OK
    )


def _built(data: ReportData) -> Tile:
    if not data.built_until:
        return Tile(
            "Tables built",
            "never",
            "`fairlead pipeline build` builds them",
            BAD if data.exported_until else LOOK,
        )
    until = f"with all rows exported until {numbers.instant(to_datetime(data.built_until))}"
    if data.exported_until > data.built_until:
        return Tile("Tables built", "behind", f"{until}; more was exported since", LOOK)
    return Tile("Tables built", "up to date", until, OK)


def _sound(data: ReportData) -> Tile:
    quarantined, attempts = (
        _of_table(data, table.name)["rows"] for table in (QUARANTINE, ATTEMPTS)
    )
    note = (
        f"{numbers.percent(quarantined / attempts)} of the attempts are not valid"
        if quarantined
        else "every attempt is valid"
    )
    return Tile(
        "In quarantine",
        numbers.count(quarantined),
        note if attempts else "no attempts yet",
        LOOK if quarantined else OK,
    )


def _jobs(data: ReportData) -> Tile:
    runs = data.runs
    failed = runs[(runs["state"] == "failed") | (runs["failed_checks"] != "")]
    if len(failed):
        return Tile("Jobs", "failed", ", ".join(failed["job"]), BAD)
    if not len(runs):
        return Tile("Jobs", "none", "no job has run yet", LOOK)
    return Tile("Jobs", "done", f"{numbers.count(runs['checks'].sum())} checks hold", OK)


def _of_table(data: ReportData, name: str) -> pd.Series:
    return data.freshness.set_index("table").loc[name]


def _is_none(value: Any) -> bool:
    return value is None or value != value
