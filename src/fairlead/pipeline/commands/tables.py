"""`fairlead pipeline build` and the other jobs that make tables, read them, submit from files."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.output import as_json, as_table, time_of
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.lab.replay.trace import Tenants
from fairlead.pipeline.commands.shared import (
    Catalog,
    Conf,
    DryRun,
    Json,
    LakeFolder,
    Master,
    SettingsFile,
    Since,
    Until,
    Url,
    exporter_of,
    failures,
    history_of,
    instant_of,
    job_on,
    lake_in,
    say,
    session_of,
    tell_run,
    url_of,
    watching,
)


def register(app: typer.Typer) -> None:
    """Add the commands to `fairlead pipeline`."""
    for command in (build, report, compact, reconcile, check, status, submit, replay, tables):
        app.command()(command)


def build(
    lake: LakeFolder = None,
    master: Master = None,
    conf: Conf = None,
    catalog: Catalog = None,
    settings: SettingsFile = None,
    full: Annotated[
        bool, typer.Option("--full", help="Everything anew, not only what changed.")
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Make silver and gold of what was exported since the last build, check that everything adds
    up, and show it.

    Exit code 1: a check failed; then the tables stay as they were. Example: fairlead pipeline build
    --lake lake
    """
    with failures():
        from fairlead.pipeline import settings as pipeline_settings

        told = pipeline_settings.load(settings)
        place = lake_in(lake)
        if dry_run:
            from fairlead.pipeline.jobs.build import what_to_build

            todo = what_to_build(place, told, full)
            hours = sorted(todo.changed_attempts | todo.changed_events)
            text = f"{len(hours)} hours changed{'; everything is built anew' if todo.full else ''}"
            say(json, {"full": todo.full, "changed_hours": hours}, text)
            return
        with job_on(place, master, conf, catalog) as job, watching("building") as tell:
            from fairlead.pipeline.jobs.build import build as run_build

            run = run_build(job, told, full, tell)
        tell_run(run, json)


def report(
    out: Annotated[Path, typer.Option(help="The page to write.", dir_okay=False)] = Path(
        "report.html"
    ),
    lake: LakeFolder = None,
    master: Master = None,
    conf: Conf = None,
    catalog: Catalog = None,
    since: Since = None,
    until: Until = None,
    hash_keys: Annotated[
        bool, typer.Option("--hash-keys", help="Show digests instead of fairness keys.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            help="Where tasks live: the page then says how many attempts are not exported yet."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """One HTML page, whole in itself: who got what, who waited, what failed, what it cost, and how
    fresh all that is.

    Example: fairlead pipeline report --lake lake --out report.html --since 2026-11-01
    """
    with failures():
        place, period = lake_in(lake), (instant_of(since), instant_of(until))
        unexported = None if url is None else exporter_of(url, place).behind()
        with job_on(place, master, conf, catalog) as job, watching("reporting") as tell:
            from fairlead.pipeline.jobs.report import report as run_report
            from fairlead.pipeline.report.data import Selection

            selection = Selection(
                since=period[0], until=period[1], hash_keys=hash_keys, unexported=unexported
            )
            run = run_report(job, out, selection, tell)
    tell_run(run, json, f"{out}: {out.stat().st_size / 1024:,.0f} KiB")


def compact(
    lake: LakeFolder = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Every hour but this one, not only those without change for 26 h."
        ),
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Put the files of each closed hour of bronze together, and remove what no table needs any more
    (after 24 h)."""
    with failures():
        from fairlead.pipeline.jobs.compact import compact as run_compact
        from fairlead.pipeline.jobs.compact import what_to_compact

        place = lake_in(lake)
        if dry_run:
            todo = what_to_compact(place, SYSTEM_CLOCK, everything)
            say(json, todo, f"{sum(map(len, todo.values()))} hours would be compacted")
            return
        with watching("compacting") as tell:
            run = run_compact(place, SYSTEM_CLOCK, everything, tell)
        tell_run(run, json)


def reconcile(url: Url = None, lake: LakeFolder = None, json: Json = False) -> None:
    """Compare the lake with the store, row by row count and sum; what agrees may be cleaned from
    the store.

    Exit code 1: they differ; then nothing more is cleaned. Example: fairlead pipeline reconcile
    --url sqlite:///tasks.db
    """
    with failures():
        from fairlead.pipeline.jobs.reconcile import reconcile as run_reconcile

        with watching("comparing") as tell:
            run = run_reconcile(history_of(url), lake_in(lake), SYSTEM_CLOCK, tell)
        tell_run(run, json)


def check(
    lake: LakeFolder = None,
    master: Master = None,
    conf: Conf = None,
    catalog: Catalog = None,
    json: Json = False,
) -> None:
    """Look over all tables: schema, keys, and counts and worker time that must agree between the
    layers.

    Exit code 1: something does not add up.
    """
    with failures():
        with job_on(lake_in(lake), master, conf, catalog) as job, watching("checking") as tell:
            from fairlead.pipeline.jobs.check import check as run_check

            run = run_check(job, tell)
        tell_run(run, json)


def status(
    lake: LakeFolder = None,
    url: Url = None,
    forget: Annotated[
        str | None,
        typer.Option(
            help="Let go of a reader of the history, so that it keeps nothing from being cleaned."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """How fresh each table is, what each job did last, and how far behind the readers of the
    history are."""
    with failures():
        from fairlead.pipeline.jobs.status import forget_reader, look

        try:
            history = history_of(url)
        except ConfigurationError:
            if forget is not None or url is not None:
                raise
            history = None
        if forget is not None and history is not None:
            forget_reader(history, forget)
        found = look(lake_in(lake), history)
        if json:
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
            as_table(
                ("reader", "kind", "read", "behind", "checked"),
                [
                    (r.name, r.kind, time_of(r.updated_at), f"{r.behind:,}", r.checked)
                    for r in found.readers
                ],
            )


def submit(
    file: Annotated[
        Path, typer.Argument(help="Parquet, CSV or JSON lines: one row, one task.", exists=True)
    ],
    queue: Annotated[
        str, typer.Option(help="The queue; a column `queue` says it row by row.")
    ] = "default",
    task: Annotated[str | None, typer.Option(help="The task's name; else a column `name`.")] = None,
    args: Annotated[
        str | None,
        typer.Option(
            help="Columns that are the arguments: a,b; else a column `payload` or `args`."
        ),
    ] = None,
    submission_id: Annotated[
        str | None,
        typer.Option(
            help=(
                "Names the whole job: the same again changes nothing. Default: from path, time,"
                " size."
            )
        ),
    ] = None,
    order_by: Annotated[
        str | None, typer.Option(help="Rows of one ordering_key are submitted in this order.")
    ] = None,
    on_conflict: Annotated[
        str, typer.Option(help="A unique key that is taken: ignore, or error.")
    ] = "ignore",
    on_error: Annotated[
        str, typer.Option(help="A row that can be no task: fail, or quarantine.")
    ] = "fail",
    publish: Annotated[
        str, typer.Option(help="atomic: all or nothing; chunked: by and by, for very many.")
    ] = "atomic",
    url: Url = None,
    master: Master = None,
    conf: Conf = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Submit a task for each row, all in one commit, exactly once however often this is run.

    Example: fairlead pipeline submit jobs.parquet --task pay --queue payouts --args partner,amount
    """
    with failures():
        from fairlead.pipeline.jobs.submit import Submission, run_submit

        submission = Submission(
            file,
            url_of(url),
            queue,
            task,
            args,
            submission_id,
            order_by,
            on_conflict,
            on_error,
            publish,
        )
        described = (
            submission.described()
        )  # refuses a file of an unknown kind before Spark is started
        if dry_run:
            say(json, described, f"would submit {file} as {submission.identity!r}")
            return
        with session_of(master, conf) as spark, watching("submitting") as tell:
            totals = run_submit(spark, submission, tell)
        say(
            json,
            totals,
            f"{totals.inserted:,} tasks submitted, {totals.duplicate:,} were there already,"
            f" {totals.rejected:,} rejected",
        )


def replay(
    policies: Annotated[
        Path, typer.Option(help="The grid (TOML): lists, of which every combination is a policy.")
    ],
    trace: Annotated[
        Path | None,
        typer.Option(help="Arrivals of a trace in the Standard Workload Format; else of the lake."),
    ] = None,
    tenants: Annotated[
        Tenants, typer.Option(help="Of a trace: whose work a job is.")
    ] = Tenants.USER,
    queue: Annotated[str | None, typer.Option(help="Of a lake: whose attempts.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
    objective: Annotated[
        str,
        typer.Option(
            help=(
                "The measure by which the best is chosen: wait_p99, key_p99_p50, slowdown_mean,"
                " jain_mean, ..."
            )
        ),
    ] = "slowdown_mean",
    require: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "What must hold besides: 'wait_p99 <= 60s', 'utilisation >= 0.7'; as often as you"
                " like."
            )
        ),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            help=(
                "Choose on the first 7d, report on the rest; default: whole weeks, all but the"
                " last."
            )
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            help="Fairness is taken over such windows; a longer wait starves. Default: 1h or less."
        ),
    ] = None,
    shake: Annotated[
        str | None,
        typer.Option(
            help="Arrivals of a shaken sample are moved by up to this. Default: 10s or less."
        ),
    ] = None,
    shakes: Annotated[int, typer.Option(min=0, help="Shaken samples of each finalist.")] = 20,
    resamples: Annotated[
        int, typer.Option(min=0, help="Samples with users drawn anew, of each finalist.")
    ] = 20,
    finalists: Annotated[
        int, typer.Option(min=1, help="So many of the best are reported with intervals.")
    ] = 5,
    closed: Annotated[
        bool,
        typer.Option(
            "--closed", help="Users send their next tasks when they have the results of the last."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the first sample.")] = 1,
    here: Annotated[bool, typer.Option("--here", help="In this process, without Spark.")] = False,
    lake: LakeFolder = None,
    master: Master = None,
    conf: Conf = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """What would another policy have done? Recorded arrivals through the core on a virtual clock, a
    policy per Spark task.

    Example: fairlead pipeline replay --policies grid.toml --lake lake --queue payouts --objective
    wait_p99

    Example: fairlead pipeline replay --policies grid.toml --trace lcg-2005.swf.gz --train 7d
    --require 'utilisation >= 0.7'
    """
    with failures():
        from fairlead.pipeline.commands import replay_output as body
        from fairlead.pipeline.jobs.replay import replay as run_replay

        asked = body.Asked(
            policies=policies,
            trace=trace,
            tenants=tenants,
            queue=queue,
            since=instant_of(since),
            until=instant_of(until),
            limit=limit,
            objective=objective,
            require=require or [],
            train=train,
            window=window,
            shake=shake,
            shakes=shakes,
            resamples=resamples,
            finalists=finalists,
            closed=closed,
            seed=seed,
        )
        plan = asked.plan()
        arrivals = asked.arrivals(lambda: lake_in(lake))
        if dry_run:
            body.show_plan(plan, arrivals, json)
            return
        place = lake_in(lake)
        plan.setup(arrivals)  # what does not fit is told before Spark is started
        with (
            nullcontext() if here else session_of(master, conf) as spark,
            body.watching(body.runs(plan)) as tell,
        ):
            replayed = run_replay(arrivals, plan, place, SYSTEM_CLOCK, spark, tell)
        body.show(replayed, plan, arrivals, json)


def tables(json: Json = False) -> None:
    """The data dictionary: every table, its key and its columns."""
    with failures():
        from fairlead.pipeline.dictionary import TABLES, as_markdown

        if json:
            as_json(
                [
                    table._asdict() | {"columns": [c._asdict() for c in table.columns]}
                    for table in TABLES
                ]
            )
        else:
            print(as_markdown())
