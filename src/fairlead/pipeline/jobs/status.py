"""`status`: reads the freshness of tables, jobs and readers, without Spark."""

from __future__ import annotations

import msgspec

from fairlead.clock import to_micros
from fairlead.errors import ConfigurationError
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.reading.snapshots import Snapshots, TableAt
from fairlead.pipeline.runs import last_runs
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.history import START, HistoryStore, Position


class TableStatus(msgspec.Struct, frozen=True):
    """Status of a table of the lake."""

    name: str
    rows: int
    parts: int
    newest: str
    """Last partition; empty without one."""
    written_at: int | None
    """Microseconds since the epoch; None if never written."""


class RunStatus(msgspec.Struct, frozen=True):
    """Status of the last run of a job."""

    job: str
    state: str
    started_at: int
    seconds: float
    rows_out: int
    error: str | None


class ReaderStatus(msgspec.Struct, frozen=True):
    """Status of a reader of the store's history."""

    name: str
    kind: str
    updated_at: int
    behind: int
    """Attempts that the reader has not read."""
    checked: str
    """Position up to which the lake was compared with the store; empty for other readers."""


class PipelineStatus(msgspec.Struct, frozen=True):
    """Status of the pipeline."""

    tables: list[TableStatus]
    runs: list[RunStatus]
    readers: list[ReaderStatus]


def read_status(lake: Warehouse, history: HistoryStore | None) -> PipelineStatus:
    """Return the status of the lake, and of the readers of the history if given. Raise BrokenLake,
    StoreUnavailable."""
    seen = Snapshots(lake).look().tables
    tables = [_table_status(table, seen.get(table)) for table in TABLES]
    runs = [
        RunStatus(
            job,
            row["state"],
            to_micros(row["started_at"]),
            row["seconds"],
            row["rows_out"],
            row["error"],
        )
        for job, row in sorted(last_runs(lake).items())
    ]
    return PipelineStatus(tables, runs, [] if history is None else readers(history))


def _table_status(table: Table, at: TableAt | None) -> TableStatus:
    """Return the status of a table at a snapshot."""
    if at is None:
        return TableStatus(table.name, 0, 0, "", None)
    parts = {file.part for file in at.files}
    rows = sum(file.rows for file in at.files)
    return TableStatus(table.name, rows, len(parts), max(parts, default=""), at.written_at)


def readers(history: HistoryStore) -> list[ReaderStatus]:
    """Return the readers of the store's history, with the attempts that each has not read."""
    until: Position = history.database.read_now(history.horizon())
    last = Position(until.xid, until.seq - 1)
    found = []
    for reader in history.database.read_now(history.readers()):
        # Count attempts only, because events by people are few.
        behind = (
            0
            if reader.kind == "events"
            else history.database.read_now(history.attempts_between(reader.position, last)).rows
        )
        checked = "" if reader.kind != "lake" else str(reader.checked or START)
        found.append(ReaderStatus(reader.name, reader.kind, reader.updated_at, behind, checked))
    return found


def drop_reader(history: HistoryStore, name: str) -> None:
    """Drop a reader, so that history it has not read may be cleaned. Raise ConfigurationError if
    there is no reader of that name."""
    known = history.database.read_now(history.readers())
    dropped = [reader.name for reader in known if reader.name in (name, f"{name}/events")]
    if not dropped:
        names = ", ".join(repr(reader.name) for reader in known) or "none"
        raise ConfigurationError(f"no reader is named {name!r}; readers: {names}")
    for each in dropped:
        history.database.run(history.drop_reader(each))
