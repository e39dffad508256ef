"""`fairlead pipeline status` and `tables`: the freshness of the lake, and its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from fairlead.backends.sql.history import SqlHistory
from fairlead.cli.options import Json
from fairlead.cli.output import as_json, as_table, say, time_of
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.clock import to_micros
from fairlead.errors import ConfigurationError, NotSupported
from fairlead.pipeline.commands.access import existing_lake, history_of
from fairlead.pipeline.commands.options import LakeOptions, Url
from fairlead.pipeline.commands.output import failures

if TYPE_CHECKING:
    from fairlead.pipeline.warehouse.warehouse import Warehouse


class TableStatus(msgspec.Struct, frozen=True):
    """Status of a table of the lake."""

    name: str
    rows: int = 0
    parts: int = 0
    newest: str = ""
    """Last partition; empty without one."""
    written_at: int | None = None
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


class StatusOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline status`."""

    at: LakeOptions
    url: Url = None
    forget: Annotated[
        str | None,
        typer.Option(
            help="Drop this reader of the history, so that the store does not keep history for it."
        ),
    ] = None
    json: Json = False


@with_options
def status(options: StatusOptions) -> None:
    """Show the freshness of each table, the last run of each job, and the lag of each reader of the
    history.

    Example: fairlead pipeline status --lake lake --json
    """
    with failures():
        try:
            history = history_of(options.url)
        except (ConfigurationError, NotSupported):
            if options.forget is not None or options.url is not None:
                raise
            history = None
        if options.forget is not None and history is not None:
            _drop_reader(history, options.forget)
        lake = existing_lake(options.at.lake, options.at.catalog)
        readers = [] if history is None else _readers(history)
        found = PipelineStatus(_tables(lake), _runs(lake), readers)
        if options.json:
            as_json(found)
            return
        as_table(
            ("table", "rows", "partitions", "newest", "written"),
            [
                (t.name, f"{t.rows:,}", t.parts, t.newest, time_of(t.written_at))
                for t in found.tables
            ],
        )
        as_table(
            ("job", "state", "when", "seconds", "rows", "error"),
            [
                (r.job, r.state, time_of(r.started_at), r.seconds, f"{r.rows_out:,}", r.error)
                for r in found.runs
            ],
        )
        if history is not None:
            rows = [
                (r.name, r.kind, time_of(r.updated_at), f"{r.behind:,}", r.checked)
                for r in found.readers
            ]
            as_table(("reader", "kind", "read", "behind", "checked"), rows)


def _tables(lake: Warehouse) -> list[TableStatus]:
    from fairlead.pipeline.models import TABLES
    from fairlead.pipeline.reading.snapshots import Snapshots

    found = {table: TableStatus(table.name) for table in TABLES}
    for table, at in Snapshots(lake).read().tables.items():
        parts = {file.part for file in at.files}
        rows, newest = sum(file.rows for file in at.files), max(parts, default="")
        found[table] = TableStatus(table.name, rows, len(parts), newest, at.written_at)
    return list(found.values())


def _runs(lake: Warehouse) -> list[RunStatus]:
    from fairlead.pipeline.runs import last_runs

    runs = [run for _, run in sorted(last_runs(lake).items())]
    return [
        msgspec.convert(run | {"started_at": to_micros(run["started_at"])}, RunStatus)
        for run in runs
    ]


def _readers(history: SqlHistory) -> list[ReaderStatus]:
    """Return the readers of the store's history, with the attempts that each has not read."""
    from fairlead.model.history import START, Position

    ask = history.database.read_now
    until: Position = ask(history.horizon())
    last = Position(until.xid, until.seq - 1)
    found = []
    for reader in ask(history.readers()):
        # Count attempts only, because events by people are few.
        unread = history.attempts_between(reader.position, last)
        behind = 0 if reader.kind == "events" else ask(unread).rows
        checked = "" if reader.kind != "lake" else str(reader.checked or START)
        found.append(ReaderStatus(reader.name, reader.kind, reader.updated_at, behind, checked))
    return found


def _drop_reader(history: SqlHistory, name: str) -> None:
    """Drop a reader, so that history it has not read may be cleaned. Raise ConfigurationError if
    there is no reader of that name."""
    known = [reader.name for reader in history.database.read_now(history.readers())]
    dropped = [each for each in known if each in (name, f"{name}/events")]
    if not dropped:
        names = ", ".join(map(repr, known)) or "none"
        raise ConfigurationError(f"no reader is named {name!r}; readers: {names}")
    for each in dropped:
        history.database.run(history.drop_reader(each))


class TablesOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline tables`."""

    dbt: Annotated[bool, typer.Option("--dbt", help="Print a file sources.yml of dbt.")] = False
    json: Json = False


@with_options
def tables(options: TablesOptions) -> None:
    """Print the data dictionary: every table with its key and columns.

    Example: fairlead pipeline tables --json
    """
    with failures():
        from fairlead.pipeline.dictionary import as_dbt_sources, as_markdown
        from fairlead.pipeline.models import TABLES

        if options.json:
            columns = {table: [each._asdict() for each in table.columns] for table in TABLES}
            as_json([table._asdict() | {"columns": columns[table]} for table in TABLES])
        else:
            say(as_dbt_sources() if options.dbt else as_markdown())
