"""`fairlead pipeline submit`: one task for each row of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fairlead.cli.options import Json
from fairlead.cli.output import print_result
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.pipeline.commands.access import session_of
from fairlead.pipeline.commands.options import DryRun, SparkOptions
from fairlead.pipeline.commands.output import failures, watching


class SubmitOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline submit`."""

    submission_id: Annotated[
        str | None,
        typer.Option(
            help=(
                "Id of the submission: a repeat with the same id changes nothing. Default: a digest"
                " of the file and the task."
            )
        ),
    ] = None
    url: Annotated[str | None, typer.Option(help="URL of the store; default: the App's.")] = None
    spark: SparkOptions
    dry_run: DryRun = False
    json: Json = False


@with_options
def submit(
    application: Annotated[str, typer.Argument(metavar="MODULE:APP")],
    task: Annotated[str, typer.Argument(help="The task's name.")],
    file: Annotated[
        Path, typer.Argument(help="Parquet, CSV or JSON lines, one task per row.", exists=True)
    ],
    *,
    options: SubmitOptions,
) -> None:
    """Submit a task for each row, all in one commit. A repeated run of the same content changes
    nothing, whatever the file is called.

    Example: fairlead pipeline submit shop:app pay payouts.csv
    """
    with failures():
        from fairlead.pipeline.jobs.submit import FileSubmission, run_submit

        submission = FileSubmission(application, task, file, options.submission_id, options.url)
        id = submission.options["submission_id"]  # refuses a wrong task or file before Spark starts
        if options.dry_run:
            text = f"would submit {file} as {id!r}"
            shown = {key: value for key, value in submission.options.items() if key != "url"}
            print_result(options.json, shown, text)
            return
        with session_of(options.spark) as spark, watching("submitting"):
            totals = run_submit(spark, submission)
        what = "were submitted before" if totals.is_repeat else "tasks submitted"
        print_result(
            options.json,
            msgspec.structs.asdict(totals),
            f"{totals.inserted:,} {what}, {totals.duplicate:,} unique keys were taken ({id})",
        )
