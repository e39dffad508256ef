"""`fairlead pipeline`: history into tables and reports, and millions of tasks in. Needs the extra `pipeline`."""

from __future__ import annotations

import json as json_text
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from fairlead.cli.output import as_json, as_table, duration, one_line_errors, time_of
from fairlead.clock import SYSTEM_CLOCK
from fairlead.config import Settings, lake_of
from fairlead.connect import task_store
from fairlead.errors import ConfigurationError

if TYPE_CHECKING:
    from fairlead.pipeline.export import Exporter
    from fairlead.pipeline.jobs.build import Job
    from fairlead.pipeline.lake.lake import Lake
    from fairlead.pipeline.runs import Run

pipeline = typer.Typer(
    no_args_is_help=True,
    help="History into tables and reports, on Spark; and millions of tasks in. Every job may be run again after any crash.",
)

_Url = Annotated[str | None, typer.Option(help="Where tasks live; else the configured one.")]
_LakeFolder = Annotated[
    str | None,
    typer.Option("--lake", help="Folder of the lake; else FAIRLEAD_LAKE, else ./lake.", envvar="FAIRLEAD_LAKE"),
]
_Master = Annotated[
    str | None, typer.Option(help="Spark's master, such as local[4] or spark://host:7077; else local[*].")
]
_Catalog = Annotated[
    str | None,
    typer.Option(help="Iceberg catalog of the Spark session, with a namespace: lake.fairlead; else Parquet."),
]
_Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", help="A setting of Spark, KEY=VALUE; as often as you like.", metavar="KEY=VALUE"),
]
_SettingsFile = Annotated[
    Path | None, typer.Option("--settings", help="Objectives, prices and bills (TOML).", exists=True, dir_okay=False)
]
_Since = Annotated[str | None, typer.Option(help="From this instant on: 2026-11-01 or 2026-11-01T12:00 (UTC).")]
_Until = Annotated[str | None, typer.Option(help="Before this instant.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


@pipeline.command()
def ingest(
    url: _Url = None,
    lake: _LakeFolder = None,
    every: Annotated[str | None, typer.Option(help="Go on until Ctrl-C, with a round so often: 60s.")] = None,
    dry_run: _DryRun = False,
    json: _Json = False,
) -> None:
    """Move finished attempts, and what else happened to tasks, from the store into the lake, each exactly once.

    Workers of an App with lake= do this by themselves. Example: fairlead pipeline ingest --url sqlite:///tasks.db --lake lake
    """
    with _failures():
        from fairlead.pipeline.jobs.ingest import ingest as run_ingest

        pause = duration(every)
        place = _lake(lake)
        exporter = _exporter(url, place)
        if dry_run:
            behind = exporter.behind()
            _say(json, {"unexported": behind}, f"{behind:,} attempts are not exported yet")
            return
        while True:
            with _watching("exporting") as tell:
                done = run_ingest(exporter, place, SYSTEM_CLOCK, tell)
            _say(json, done, f"{done.attempts:,} attempts and {done.events:,} events in {done.seconds:,.1f} s")
            if pause is None:
                return
            time.sleep(pause.total_seconds())


@pipeline.command()
def build(
    lake: _LakeFolder = None,
    master: _Master = None,
    conf: _Conf = None,
    catalog: _Catalog = None,
    settings: _SettingsFile = None,
    full: Annotated[bool, typer.Option("--full", help="Everything anew, not only what changed.")] = False,
    dry_run: _DryRun = False,
    json: _Json = False,
) -> None:
    """Make silver and gold of what was exported since the last build, check that everything adds up, and show it.

    Exit code 1: a check failed; then the tables stay as they were. Example: fairlead pipeline build --lake lake
    """
    with _failures():
        from fairlead.pipeline import settings as pipeline_settings

        told = pipeline_settings.load(settings)
        place = _lake(lake)
        if dry_run:
            from fairlead.pipeline.jobs.build import what_to_build

            todo = what_to_build(place, told, full)
            hours = sorted(todo.changed_attempts | todo.changed_events)
            text = f"{len(hours)} hours changed{'; everything is built anew' if todo.full else ''}"
            _say(json, {"full": todo.full, "changed_hours": hours}, text)
            return
        with _job(place, master, conf, catalog) as job, _watching("building") as tell:
            from fairlead.pipeline.jobs.build import build as run_build

            run = run_build(job, told, full, tell)
        _tell(run, json)


@pipeline.command()
def report(
    out: Annotated[Path, typer.Option(help="The page to write.", dir_okay=False)] = Path("report.html"),
    lake: _LakeFolder = None,
    master: _Master = None,
    conf: _Conf = None,
    catalog: _Catalog = None,
    since: _Since = None,
    until: _Until = None,
    hash_keys: Annotated[bool, typer.Option("--hash-keys", help="Show digests instead of fairness keys.")] = False,
    url: Annotated[
        str | None, typer.Option(help="Where tasks live: the page then says how many attempts are not exported yet.")
    ] = None,
    json: _Json = False,
) -> None:
    """One HTML page, whole in itself: who got what, who waited, what failed, what it cost, and how fresh all that is.

    Example: fairlead pipeline report --lake lake --out report.html --since 2026-11-01
    """
    with _failures():
        place, period = _lake(lake), (_instant(since), _instant(until))
        unexported = None if url is None else _exporter(url, place).behind()
        with _job(place, master, conf, catalog) as job, _watching("reporting") as tell:
            from fairlead.pipeline.jobs.report import report as run_report

            run = run_report(job, out, *period, hash_keys, tell, unexported=unexported)
    _tell(run, json, f"{out}: {out.stat().st_size / 1024:,.0f} KiB")


@pipeline.command()
def compact(
    lake: _LakeFolder = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every hour but this one, not only those without change for 26 h.")
    ] = False,
    dry_run: _DryRun = False,
    json: _Json = False,
) -> None:
    """Put the files of each closed hour of bronze together, and remove what no table needs any more (after 24 h)."""
    with _failures():
        from fairlead.pipeline.jobs.compact import compact as run_compact
        from fairlead.pipeline.jobs.compact import what_to_compact

        place = _lake(lake)
        if dry_run:
            todo = what_to_compact(place, SYSTEM_CLOCK, everything)
            _say(json, todo, f"{sum(map(len, todo.values()))} hours would be compacted")
            return
        with _watching("compacting") as tell:
            run = run_compact(place, SYSTEM_CLOCK, everything, tell)
        _tell(run, json)


@pipeline.command()
def reconcile(url: _Url = None, lake: _LakeFolder = None, json: _Json = False) -> None:
    """Compare the lake with the store, row by row count and sum; what agrees may be cleaned from the store.

    Exit code 1: they differ; then nothing more is cleaned. Example: fairlead pipeline reconcile --url sqlite:///tasks.db
    """
    with _failures():
        from fairlead.pipeline.jobs.reconcile import reconcile as run_reconcile

        with _watching("comparing") as tell:
            run = run_reconcile(_history(url), _lake(lake), SYSTEM_CLOCK, tell)
        _tell(run, json)


@pipeline.command()
def check(
    lake: _LakeFolder = None,
    master: _Master = None,
    conf: _Conf = None,
    catalog: _Catalog = None,
    json: _Json = False,
) -> None:
    """Look over all tables: schema, keys, and counts and worker time that must agree between the layers.

    Exit code 1: something does not add up.
    """
    with _failures():
        with _job(_lake(lake), master, conf, catalog) as job, _watching("checking") as tell:
            from fairlead.pipeline.jobs.check import check as run_check

            run = run_check(job, tell)
        _tell(run, json)


@pipeline.command()
def status(
    lake: _LakeFolder = None,
    url: _Url = None,
    forget: Annotated[
        str | None, typer.Option(help="Let go of a reader of the history, so that it keeps nothing from being cleaned.")
    ] = None,
    json: _Json = False,
) -> None:
    """How fresh each table is, what each job did last, and how far behind the readers of the history are."""
    with _failures():
        from fairlead.pipeline.jobs.status import forget_reader, look

        try:
            history = _history(url)
        except ConfigurationError:
            if forget is not None or url is not None:
                raise
            history = None
        if forget is not None and history is not None:
            forget_reader(history, forget)
        found = look(_lake(lake), history)
        if json:
            as_json(found)
            return
        as_table(
            ("table", "rows", "partitions", "newest", "written"),
            [(t.name, f"{t.rows:,}", t.parts, t.newest, time_of(t.written_at)) for t in found.tables],
        )
        as_table(
            ("job", "state", "when", "seconds", "rows", "error"),
            [(r.job, r.state, time_of(r.started_at), r.seconds, f"{r.rows_out:,}", r.error) for r in found.runs],
        )
        if history is not None:
            as_table(
                ("reader", "kind", "read", "behind", "checked"),
                [(r.name, r.kind, time_of(r.updated_at), f"{r.behind:,}", r.checked) for r in found.readers],
            )


@pipeline.command()
def submit(
    file: Annotated[Path, typer.Argument(help="Parquet, CSV or JSON lines: one row, one task.", exists=True)],
    queue: Annotated[str, typer.Option(help="The queue; a column `queue` says it row by row.")] = "default",
    task: Annotated[str | None, typer.Option(help="The task's name; else a column `name`.")] = None,
    args: Annotated[
        str | None, typer.Option(help="Columns that are the arguments: a,b; else a column `payload` or `args`.")
    ] = None,
    submission_id: Annotated[
        str | None,
        typer.Option(help="Names the whole job: the same again changes nothing. Default: from path, time, size."),
    ] = None,
    order_by: Annotated[str | None, typer.Option(help="Rows of one ordering_key are submitted in this order.")] = None,
    on_conflict: Annotated[str, typer.Option(help="A unique key that is taken: ignore, or error.")] = "ignore",
    on_error: Annotated[str, typer.Option(help="A row that can be no task: fail, or quarantine.")] = "fail",
    publish: Annotated[str, typer.Option(help="atomic: all or nothing; chunked: by and by, for very many.")] = "atomic",
    url: _Url = None,
    master: _Master = None,
    conf: _Conf = None,
    dry_run: _DryRun = False,
    json: _Json = False,
) -> None:
    """Submit a task for each row, all in one commit, exactly once however often this is run.

    Example: fairlead pipeline submit jobs.parquet --task pay --queue payouts --args partner,amount
    """
    with _failures():
        from fairlead.pipeline.jobs.submit import Submission, run_submit

        submission = Submission(
            file, _place(url), queue, task, args, submission_id, order_by, on_conflict, on_error, publish
        )
        described = submission.described()  # refuses a file of an unknown kind before Spark is started
        if dry_run:
            _say(json, described, f"would submit {file} as {submission.identity!r}")
            return
        with _session(master, conf) as spark, _watching("submitting") as tell:
            totals = run_submit(spark, submission, tell)
        _say(
            json,
            totals,
            f"{totals.inserted:,} tasks submitted, {totals.duplicate:,} were there already, {totals.rejected:,} rejected",
        )


@pipeline.command()
def tables(json: _Json = False) -> None:
    """The data dictionary: every table, its key and its columns."""
    with _failures():
        from fairlead.pipeline.dictionary import TABLES, as_markdown

        if json:
            as_json([table._asdict() | {"columns": [c._asdict() for c in table.columns]} for table in TABLES])
        else:
            print(as_markdown())


# how ------------------------------------------------------------------------------------------------------------------


@contextmanager
def _failures() -> Iterator[None]:
    with one_line_errors():
        try:
            yield
        except KeyboardInterrupt:
            typer.echo("stopped; run it again to go on", err=True)
            raise typer.Exit(130) from None
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in ("pyspark", "pyarrow", "pandas", "matplotlib"):
                raise
            raise ConfigurationError(f"{error.name} is missing: pip install 'fairlead[pipeline]'") from error


def _place(url: str | None) -> str:
    return Settings.load(url=url).url


def _lake(folder: str | None) -> Lake:
    from fairlead.pipeline.lake.lake import Lake

    return Lake(lake_of(folder) or "lake")


def _history(url: str | None) -> Any:
    from fairlead.stores.sql_history import SqlHistory

    return SqlHistory(task_store(_place(url)).database)


def _exporter(url: str | None, lake: Lake) -> Exporter:
    from fairlead.pipeline.export import Exporter

    return Exporter(_history(url), lake, SYSTEM_CLOCK)


@contextmanager
def _session(master: str | None, conf: list[str] | None) -> Iterator[Any]:
    from fairlead.pipeline.session import session

    wrong = [setting for setting in conf or [] if not setting.partition("=")[2]]
    if wrong:
        raise ConfigurationError(f"--conf {wrong[0]!r}: use KEY=VALUE, as in spark.driver.memory=4g")
    spark = session(master, settings=dict(setting.split("=", 1) for setting in conf or []))
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _job(lake: Lake, master: str | None, conf: list[str] | None, catalog: str | None) -> Iterator[Job]:
    with _session(master, conf) as spark:
        from fairlead.pipeline.jobs.build import Job

        yield Job(spark, lake, catalog, SYSTEM_CLOCK)


@contextmanager
def _watching(what: str) -> Iterator[Callable[[str, int], None]]:
    """Progress for whoever watches."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda table, rows: None
        return
    done: dict[str, int] = {}
    with console.status(what) as shown:

        def tell(table: str, rows: int) -> None:
            done[table] = done.get(table, 0) + rows
            shown.update(f"{what}: {table} {done[table]:,} rows")

        yield tell


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"instant {text!r}: use 2026-11-01 or 2026-11-01T12:00") from None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _say(json: bool, value: Any, text: str) -> None:
    if json:
        as_json(value)
    else:
        print(text)


def _tell(run: Run, json: bool, text: str | None = None) -> None:
    if json:
        as_json(json_text.loads(msgspec.json.encode(run)))
        return
    if run.tables:
        as_table(("table", "rows"), [(name, f"{rows:,}") for name, rows in run.tables.items()])
    print(text or f"{run.job}: {run.state}, {run.rows_in:,} rows in, {run.rows_out:,} out, in {run.seconds:,.1f} s")
    for found in run.checks:
        print(f"  {'ok  ' if found.holds else 'FAIL'} {found.name}: {found.found:,.0f}")
    for note in run.notes:
        print(f"  {note}")
    if run.quarantined:
        print(f"  {run.quarantined:,} rows do not make sense and are in bronze.quarantine")
