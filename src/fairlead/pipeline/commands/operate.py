"""`fairlead pipeline erase`, and the other jobs by which a lake is operated; see
docs/how-to/pipeline-operate.md."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.output import WORK_FAILED, as_json, as_table, duration
from fairlead.clock import MICROS, SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.commands.shared import (
    Catalog,
    Conf,
    Json,
    LakeFolder,
    Master,
    SettingsFile,
    Since,
    Until,
    failures,
    instant_of,
    job_on,
    lake_in,
    session_of,
    small_tables,
    watching,
)

if TYPE_CHECKING:
    from fairlead.pipeline.in_memory import SmallTables
    from fairlead.pipeline.jobs.erase import Erasure
    from fairlead.pipeline.lake.lake import Lake


def register(app: typer.Typer) -> None:
    """Add the commands to `fairlead pipeline`."""
    for command in (capacity, incidents, backfill, gc, erase):
        app.command()(command)


def capacity(
    wait: Annotated[str, typer.Option(help="So long may a task wait: 5s, 2m.")] = "5s",
    quantile: Annotated[
        float, typer.Option(help="And so large a part of the tasks no longer.")
    ] = 0.95,
    weeks: Annotated[int, typer.Option(min=1, help="Whole weeks of history, at most.")] = 8,
    hold_out: Annotated[
        int, typer.Option(min=0, help="Weeks of them on which the forecast is judged.")
    ] = 2,
    until: Annotated[
        str | None,
        typer.Option(help="Forecast the week that begins here; else where the tables end."),
    ] = None,
    lake: LakeFolder = None,
    master: Master = None,
    conf: Conf = None,
    catalog: Catalog = None,
    json: Json = False,
) -> None:
    """How many slots each queue needs in each hour of the week ahead, and how good the forecast was
    on weeks it had not seen.

    The hours are in gold.capacity. Examples: fairlead pipeline capacity --wait 5s --quantile 0.95;
    fairlead pipeline capacity --wait 2m --weeks 12 --json
    """
    with failures():
        from fairlead.pipeline.capacity.plan import Target
        from fairlead.pipeline.jobs.capacity import Horizon
        from fairlead.pipeline.jobs.capacity import capacity as run_capacity

        place, may_wait = lake_in(lake), duration(wait)
        assert may_wait is not None
        target = Target(round(may_wait.total_seconds() * MICROS), quantile)
        with _small(place, master, conf, catalog) as tables, watching("planning") as tell:
            horizon = Horizon(instant_of(until), weeks, hold_out)
            done = run_capacity(place, tables, SYSTEM_CLOCK, target, horizon, tell)
        if json:
            as_json(done)
            return
        columns = (
            "queue",
            "tasks in the week",
            "peak / mean",
            "slots at the peak",
            "hour",
            "in half of the hours",
            "if what may wait is shifted",
            "method",
            "error / naive's",
            "loss saved",
        )
        as_table(
            columns,
            [
                (
                    plan.queue,
                    f"{plan.tasks:,.0f}",
                    f"{plan.peak_ratio:.1f}",
                    plan.slots_peak,
                    _hour_name(plan.peak_hour),
                    plan.slots_median,
                    plan.slots_if_shifted,
                    plan.method,
                    None if plan.mase is None else f"{plan.mase:.2f}",
                    None if plan.skill is None else f"{plan.skill:.0%}",
                )
                for plan in done.queues
            ],
        )
        for note in done.notes:
            print(note)


def incidents(
    since: Since = None,
    until: Until = None,
    lake: LakeFolder = None,
    master: Master = None,
    conf: Conf = None,
    catalog: Catalog = None,
    json: Json = False,
) -> None:
    """When something was wrong, whom it hit and when it was over: stalls, floods, bursts of errors,
    starved keys, lost nodes.

    Looks at whole days, by default the last seven, and keeps what it finds in gold.incidents.
    Example: fairlead pipeline incidents --since 2026-11-01 --until 2026-11-07
    """
    with failures():
        from fairlead.pipeline.jobs.incidents import as_rows
        from fairlead.pipeline.jobs.incidents import incidents as run_incidents

        place = lake_in(lake)
        with _small(place, master, conf, catalog) as tables, watching("looking") as tell:
            found = run_incidents(
                place, tables, SYSTEM_CLOCK, instant_of(since), instant_of(until), tell
            )
        if json:
            as_json(found)
            return
        columns = (
            "kind",
            "queue",
            "subject",
            "from (UTC)",
            "to",
            "keys hit",
            "tasks delayed",
            "extra hours waited",
        )
        as_table(columns, as_rows(found))
        print(f"{len(found):,} incidents")


def backfill(
    since: Annotated[str, typer.Option("--from", help="The first day: 2026-11-01.")],
    until: Annotated[str, typer.Option("--to", help="The day after the last one.")],
    lake: LakeFolder = None,
    master: Master = None,
    conf: Conf = None,
    catalog: Catalog = None,
    settings: SettingsFile = None,
    quiet: Annotated[
        bool, typer.Option("--no-diff", help="Do not compare with what is there: quicker.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Make it aside, show what differs, change nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Make the tables of some days anew with today's code, day by day, and say what differs; run
    again, it goes on.

    Exit code 1: a check failed; the days before it are done. Examples: fairlead pipeline backfill
    --from 2026-11-01 --to 2026-11-08 --dry-run; the same without --dry-run
    """
    with failures():
        from fairlead.pipeline import settings as pipeline_settings

        told, place = pipeline_settings.load(settings), lake_in(lake)
        first, last = instant_of(since), instant_of(until)
        assert first is not None and last is not None
        with job_on(place, master, conf, catalog) as job, watching("making") as tell:
            from fairlead.pipeline.jobs.backfill import backfill as run_backfill

            done = run_backfill(job, told, first, last, dry_run, tell, not quiet)
        if json:
            as_json(done)
            return
        as_table(
            ("table", "day", "rows", "only old", "only new"),
            [
                (d.table, d.day, f"{d.rows:,}", f"{d.only_old:,}", f"{d.only_new:,}")
                for d in done.differences
            ],
        )
        skipped = f", {len(done.skipped):,} were done already" if done.skipped else ""
        print(f"{len(done.days):,} days {'compared' if dry_run else 'made anew'}{skipped}")
        for note in done.notes:
            print(note)


def gc(
    keep: Annotated[
        str | None,
        typer.Option(
            help="Let go of runs of jobs, incidents and capacity plans older than this: 400d."
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Remove them; without it, they are only shown.")
    ] = False,
    lake: LakeFolder = None,
    master: Master = None,
    conf: Conf = None,
    catalog: Catalog = None,
    json: Json = False,
) -> None:
    """Files that were replaced a day ago, and what jobs that died have left; never what a reader
    may still want.

    No row of bronze, silver or gold goes. With --catalog, snapshots older than a day go too.
    Examples: fairlead pipeline gc; fairlead pipeline gc --apply --keep 400d
    """
    with failures():
        from fairlead.pipeline.jobs.gc import gc as run_gc

        place = lake_in(lake)
        with ExitStack() as open_:
            where = (
                None
                if catalog is None or not apply
                else (open_.enter_context(session_of(master, conf)), catalog)
            )
            tell = open_.enter_context(watching("looking"))
            done = run_gc(place, SYSTEM_CLOCK, duration(keep), apply, where, tell)
        if json:
            as_json(done)
            return
        found = Counter((each.table, each.why) for each in done.files)
        as_table(
            ("table", "files", "why"),
            [(table, n, why) for (table, why), n in sorted(found.items())],
        )
        for table, days in done.parts.items():
            print(f"{table}: {len(days):,} days, {days[0]} to {days[-1]}")
        for name, files in done.catalog.items():
            print(f"{name} in the catalog: {files:,} files")
        for who in done.leases:
            print(f"{who} has a lease: what was replaced stays")
        print(
            f"{len(done.files):,} files, {done.bytes:,} bytes"
            f" {'removed' if apply else 'would go: --apply'}"
        )


def erase(
    key: Annotated[
        str,
        typer.Argument(help="The fairness key; - reads it from the standard input.", metavar="KEY"),
    ],
    lake: LakeFolder = None,
    master: Master = None,
    conf: Conf = None,
    catalog: Catalog = None,
    page: Annotated[
        list[Path] | None,
        typer.Option(
            help="A copy of a report, to be removed too if it shows the key; as often as needed."
        ),
    ] = None,
    grace: Annotated[
        str,
        typer.Option(
            help=(
                "Leave files that were replaced to their readers for so long (then run this"
                " again): 1h."
            )
        ),
    ] = "0s",
    readmit: Annotated[
        bool,
        typer.Option(
            "--readmit",
            help="Let the key's tasks into the lake again, from what is exported next on.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say where the key is, and change nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Leave no row of a key in any table or file of the lake, and prove it by reading every file;
    none comes back later.

    Exit code 1: the key is still somewhere. Examples: fairlead pipeline erase acme --dry-run;
    fairlead pipeline erase acme --catalog lake.fairlead; printf acme | fairlead pipeline erase -
    """
    with failures():
        from fairlead.pipeline.jobs import erase as job

        name = sys.stdin.readline().rstrip("\n") if key == "-" else key
        place, kept = lake_in(lake), duration(grace)
        assert kept is not None
        if readmit:
            if not job.let_in_again(place, name, SYSTEM_CLOCK):
                raise ConfigurationError(
                    "this key was not erased here: there is nothing to let in again"
                )
            print("what is exported from now on may be of this key again")
            return
        grace_us = round(kept.total_seconds() * MICROS)
        with ExitStack() as open_:
            where = (
                None
                if catalog is None
                else (open_.enter_context(session_of(master, conf)), catalog)
            )
            tell = open_.enter_context(watching("erasing"))
            how = job.Manner(page or [], grace_us, dry_run)
            done = job.erase(place, name, SYSTEM_CLOCK, how, tell, where)
        if json:
            as_json(done)
        else:
            _print(done)
        if not (dry_run or done.is_clean):
            raise typer.Exit(WORK_FAILED)


@contextmanager
def _small(
    lake: Lake, master: str | None, conf: list[str] | None, catalog: str | None
) -> Iterator[SmallTables]:
    """Where small tables are; Spark is started only to reach a catalog."""
    if catalog is None:
        yield small_tables(lake, None, None)
        return
    with session_of(master, conf) as spark:
        yield small_tables(lake, spark, catalog)


def _hour_name(hour_of_week: int) -> str:
    return (
        f"{['Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun'][hour_of_week // 24]}"
        f" {hour_of_week % 24:02}:00"
    )


def _print(done: Erasure) -> None:
    as_table(
        ("table", "rows of the key", "rows that mention it", "files"),
        [
            (name, f"{each.rows:,}", f"{each.redacted:,}", each.files)
            for name, each in done.tables.items()
        ],
    )
    for name, rows in done.catalog.items():
        print(f"{name}: {rows:,} rows")
    for page in done.pages:
        print(
            f"{page} shows it"
            if done.dry_run
            else f"{page} showed it and was removed; make it anew by report"
        )
    if done.dry_run:
        print("nothing was changed")
        return
    print(
        f"{done.removed:,} files removed; {done.verified.files:,} files read,"
        f" {done.verified.bytes:,} bytes"
    )
    for held in done.verified.held:
        print(f"  STILL THERE {held.file}: {held.where}, {held.count:,} times")
    for name, rows in done.catalog_held.items():
        print(f"  STILL THERE {name}: {rows:,} rows in files below it")
    for path in done.verified.unreadable:
        print(f"  not readable: {path}; run this again in ten minutes")
    for held in done.verified.elsewhere:
        print(f"  the same word, not as a key: {held.file}: {held.where}, {held.count:,} times")
    if done.days:
        print(
            f"{len(done.days):,} days are made anew by the next build; until then their sums count"
            " what is gone"
        )
