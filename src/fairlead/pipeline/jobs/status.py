"""`status`: how fresh everything is, without Spark."""

from __future__ import annotations

from datetime import datetime

import msgspec

from fairlead.errors import ConfigurationError
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.runs import last_runs
from fairlead.ports.history import START, HistoryStore, Position


class TableStatus(msgspec.Struct, frozen=True):
    """A table of the lake."""

    name: str
    rows: int
    parts: int
    newest: str
    """Its last partition; empty: none."""
    written_at: int | None
    """Microseconds."""


class RunStatus(msgspec.Struct, frozen=True):
    """The last run of a job."""

    job: str
    state: str
    started_at: int
    seconds: float
    rows_out: int
    error: str | None


class ReaderStatus(msgspec.Struct, frozen=True):
    """Somebody who follows the history of the store."""

    name: str
    kind: str
    updated_at: int
    behind: int
    """Attempts it has not read."""
    checked: str
    """Of a lake: up to which place it was compared with the store."""


class PipelineStatus(msgspec.Struct, frozen=True):
    """All of it."""

    tables: list[TableStatus]
    runs: list[RunStatus]
    readers: list[ReaderStatus]


def look(lake: Lake, history: HistoryStore | None) -> PipelineStatus:
    """The lake as it is; with a store, also who follows its history. Raises BrokenLake,
    StoreUnavailable."""
    tables = []
    for table in TABLES:
        manifest = lake.table(table).manifests.newest()
        newest = max(manifest.parts, default="")
        tables.append(
            TableStatus(
                table.name, manifest.rows, len(manifest.parts), newest, manifest.written_at or None
            )
        )
    runs = [
        RunStatus(
            job,
            row["state"],
            _micros(row["started_at"]),
            row["seconds"],
            row["rows_out"],
            row["error"],
        )
        for job, row in sorted(last_runs(lake).items())
    ]
    return PipelineStatus(tables, runs, [] if history is None else readers(history))


def readers(history: HistoryStore) -> list[ReaderStatus]:
    """Who follows the history of the store, and how far behind each is."""
    until: Position = history.database.read_now(history.horizon())
    last = Position(until.xid, until.seq - 1)
    found = []
    for reader in history.database.read_now(history.readers()):
        # People's events are few; how far attempts were read is what counts.
        behind = (
            0
            if reader.kind == "events"
            else history.database.read_now(history.attempts_between(reader.position, last)).rows
        )
        checked = "" if reader.kind != "lake" else str(reader.checked or START)
        found.append(ReaderStatus(reader.name, reader.kind, reader.updated_at, behind, checked))
    return found


def drop_reader(history: HistoryStore, name: str) -> None:
    """What it has not read may be cleaned. Raises ConfigurationError when there is none of that
    name."""
    known = history.database.read_now(history.readers())
    doomed = [reader.name for reader in known if reader.name in (name, f"{name}/events")]
    if not doomed:
        names = ", ".join(repr(reader.name) for reader in known) or "none"
        raise ConfigurationError(f"no reader is named {name!r}; there are: {names}")
    for each in doomed:
        history.database.run(history.drop_reader(each))


def _micros(instant: datetime) -> int:
    return round(instant.timestamp() * 1_000_000)
