"""What the commands of `fairlead pipeline` share: their options, a Spark session, progress, how
they fail and what they say."""

from __future__ import annotations

import json as json_text
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from fairlead.cli.output import as_json, as_table, one_line_errors
from fairlead.clock import SYSTEM_CLOCK
from fairlead.config import Settings, lake_of
from fairlead.connect import task_store
from fairlead.errors import ConfigurationError

if TYPE_CHECKING:
    from fairlead.backends.kafka.endpoint import Place
    from fairlead.pipeline.export import Exporter
    from fairlead.pipeline.in_memory import SmallTables
    from fairlead.pipeline.jobs.build import Job
    from fairlead.pipeline.lake.lake import Lake
    from fairlead.pipeline.runs import Run

Url = Annotated[str | None, typer.Option(help="Where tasks live; else the configured one.")]
LakeFolder = Annotated[
    str | None,
    typer.Option(
        "--lake",
        help="Folder of the lake; else FAIRLEAD_LAKE, else ./lake.",
        envvar="FAIRLEAD_LAKE",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(help="Spark's master, such as local[4] or spark://host:7077; else local[*]."),
]
Catalog = Annotated[
    str | None,
    typer.Option(
        help="Iceberg catalog of the Spark session, with a namespace: lake.fairlead; else Parquet."
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", help="A setting of Spark, KEY=VALUE; as often as you like.", metavar="KEY=VALUE"
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings", help="Objectives, prices and bills (TOML).", exists=True, dir_okay=False
    ),
]
Since = Annotated[
    str | None, typer.Option(help="From this instant on: 2026-11-01 or 2026-11-01T12:00 (UTC).")
]
Until = Annotated[str | None, typer.Option(help="Before this instant.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


@contextmanager
def failures() -> Iterator[None]:
    """Whatever goes wrong is one line, and an exit code."""
    with one_line_errors():
        try:
            yield
        except KeyboardInterrupt:
            typer.echo("stopped; run it again to go on", err=True)
            raise typer.Exit(130) from None
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in (
                "pyspark",
                "pyarrow",
                "pandas",
                "matplotlib",
            ):
                raise
            raise ConfigurationError(
                f"{error.name} is missing: pip install 'fairlead[pipeline]'"
            ) from error


def url_of(url: str | None) -> str:
    """Where tasks live. Raises ConfigurationError when nothing says."""
    return Settings.load(url=url).url


def lake_in(folder: str | None) -> Lake:
    """The lake in this folder, or in the configured one, or in ./lake."""
    from fairlead.pipeline.lake.lake import Lake

    return Lake(lake_of(folder) or "lake")


def history_of(url: str | None) -> Any:
    """Of the store there."""
    from fairlead.backends.sql.history import SqlHistory

    return SqlHistory(task_store(url_of(url)).database)


def exporter_of(url: str | None, lake: Lake) -> Exporter:
    """From that store into the lake."""
    from fairlead.pipeline.export import Exporter

    return Exporter(history_of(url), lake, SYSTEM_CLOCK)


@contextmanager
def session_of(master: str | None, conf: list[str] | None) -> Iterator[Any]:
    """A Spark session, stopped at the end. Raises ConfigurationError for a wrong setting."""
    from fairlead.pipeline.session import session

    wrong = [setting for setting in conf or [] if not setting.partition("=")[2]]
    if wrong:
        raise ConfigurationError(
            f"--conf {wrong[0]!r}: use KEY=VALUE, as in spark.driver.memory=4g"
        )
    spark = session(master, settings=dict(setting.split("=", 1) for setting in conf or []))
    try:
        yield spark
    finally:
        spark.stop()


def small_tables(lake: Lake, spark: Any, catalog: str | None) -> SmallTables:
    """Where tables are whose rows fit into memory: in the lake's folder, or in a catalog of this
    Spark session."""
    from fairlead.pipeline.in_memory import CatalogRows, LakeRows

    if catalog is None:
        return LakeRows(lake, SYSTEM_CLOCK)
    from fairlead.pipeline.tables import lake_tables

    return CatalogRows(spark, lake_tables(spark, lake, catalog, SYSTEM_CLOCK))


@contextmanager
def job_on(
    lake: Lake, master: str | None, conf: list[str] | None, catalog: str | None
) -> Iterator[Job]:
    """What a job on Spark works with."""
    with session_of(master, conf) as spark:
        from fairlead.pipeline.jobs.build import Job

        yield Job(spark, lake, catalog, SYSTEM_CLOCK)


@contextmanager
def watching(what: str) -> Iterator[Callable[[str, int], None]]:
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


def kafka_at(url: str) -> Place:
    """The place at a `kafka://` URL. Raises ConfigurationError, also when the client is missing."""
    if not url.startswith("kafka:"):
        raise ConfigurationError(f"--kafka {url!r}: use kafka://host:9092/?prefix=shop.")
    try:
        from fairlead.backends.kafka.endpoint import Place
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error.name} is missing: pip install 'fairlead[kafka,pipeline]'"
        ) from error
    return Place.of(url)


def stop_by_signals(stop: Callable[[], None]) -> None:
    """The first SIGTERM or Ctrl-C ends what runs in good order; a second Ctrl-C at once."""

    def told(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told)


def instant_of(text: str | None) -> datetime | None:
    """UTC, if it names no offset. Raises ConfigurationError."""
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"instant {text!r}: use 2026-11-01 or 2026-11-01T12:00") from None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def say(json: bool, value: Any, text: str) -> None:
    """As JSON, or for people."""
    if json:
        as_json(value)
    else:
        print(text)


def tell_run(run: Run, json: bool, text: str | None = None) -> None:
    """What a job has done."""
    if json:
        as_json(json_text.loads(msgspec.json.encode(run)))
        return
    if run.tables:
        as_table(("table", "rows"), [(name, f"{rows:,}") for name, rows in run.tables.items()])
    print(
        text
        or f"{run.job}: {run.state}, {run.rows_in:,} rows in, {run.rows_out:,} out, "
        f"in {run.seconds:,.1f} s"
    )
    for found in run.checks:
        print(f"  {'ok  ' if found.holds else 'FAIL'} {found.name}: {found.found:,.0f}")
    for note in run.notes:
        print(f"  {note}")
    if run.quarantined:
        print(f"  {run.quarantined:,} rows do not make sense and are in bronze.quarantine")
