"""`fairlead pipeline submit`: one task for each row of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fairlead.cli.options import Json
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.pipeline.commands.access import session_of, url_of
from fairlead.pipeline.commands.options import DryRun, SparkOptions, Url
from fairlead.pipeline.commands.output import failures, print_result, watching


class SubmitOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `pipeline submit`."""

    file: Annotated[
        Path, typer.Argument(help="Parquet, CSV or JSON lines file, one task per row.", exists=True)
    ]
    queue: Annotated[str, typer.Option(help="The queue; a column `queue` overrides it.")] = (
        "default"
    )
    task: Annotated[str | None, typer.Option(help="Name of the task; default: column `name`.")] = (
        None
    )
    args: Annotated[
        str | None,
        typer.Option(help="Columns of the arguments: a,b; default: column `payload` or `args`."),
    ] = None
    types: Annotated[
        str | None,
        typer.Option(
            help=(
                "Types of columns of text: amount=decimal,count=int; others stay text. Known: text,"
                " int, decimal, float, bool, date, timestamp."
            )
        ),
    ] = None
    submission_id: Annotated[
        str | None,
        typer.Option(
            help=(
                "Id of the job: a repeated id with the same content changes nothing. Default: a"
                " digest of the content."
            )
        ),
    ] = None
    order_by: Annotated[
        str | None, typer.Option(help="Column that orders the tasks of an ordering_key.")
    ] = None
    on_conflict: Annotated[str, typer.Option(help="For a taken unique key: ignore or error.")] = (
        "ignore"
    )
    on_error: Annotated[
        str, typer.Option(help="For a row that cannot be a task: fail or quarantine.")
    ] = "fail"
    publish: Annotated[
        str, typer.Option(help="atomic: all or nothing; chunked: in several commits.")
    ] = "atomic"
    url: Url = None
    spark: SparkOptions
    dry_run: DryRun = False
    json: Json = False


@with_options
def submit(options: SubmitOptions) -> None:
    """Submit a task for each row, all in one commit. A repeated run of the same content changes
    nothing, whatever the file is called.

    Example: fairlead pipeline submit jobs.parquet --task pay --queue payouts --args partner,amount
    """
    with failures():
        from fairlead.pipeline.jobs.submit import FileSubmission, run_submit

        names = FileSubmission.__dataclass_fields__.keys() - {"url"}
        given = {name: getattr(options, name) for name in names}
        submission = FileSubmission(url=url_of(options.url), **given)
        # Refuse a file of an unknown kind before Spark starts.
        described = submission.described()
        if options.dry_run:
            print_result(
                options.json,
                described,
                f"would submit {options.file} as {submission.identity!r}; types:"
                f" {_shown(described['types'])}",
            )
            return
        with session_of(options.spark) as spark, watching("submitting") as on_rows:
            totals, types = run_submit(spark, submission, on_rows)
        print_result(
            options.json,
            msgspec.structs.asdict(totals) | {"types": types or described["types"]},
            f"{totals.inserted:,} tasks submitted, {totals.duplicate:,} existed already,"
            f" {totals.rejected:,} rejected; types: {_shown(types or described['types'])}",
        )


def _shown(types: dict[str, str] | str) -> str:
    if isinstance(types, str):
        return types
    return ", ".join(f"{name} {type_}" for name, type_ in types.items())
