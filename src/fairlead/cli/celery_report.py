"""`fairlead celery-report`: find what of a Celery project is not carried over by changing its
imports."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.application import load_value
from fairlead.cli.options import Json
from fairlead.cli.output import WORK_FAILED, as_json, one_line_errors, say
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.contrib.celery.report import Report, changes, folder_of, report
from fairlead.contrib.celery.report_reader import CHANGE


class CeleryReportOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `celery-report`."""

    project: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP|FOLDER", help="The Celery application, or a folder of source."
        ),
    ]
    source_only: Annotated[
        bool, typer.Option("--source-only", help="Read the source; import nothing.")
    ] = False
    json: Json = False


@with_options
def celery_report(options: CeleryReportOptions) -> None:
    """Find what of a Celery project is not carried over by changing its imports, line by line.

    Exit code 1 if a line must change, 0 if none must; lines without effect are notes. The source is
    read without importing it; the application is imported if Celery is installed.

    Example: fairlead celery-report shop.celery:app

    Example: fairlead celery-report src --json
    """
    with one_line_errors():
        found = _report(options)
        if options.json:
            as_json(found)
        else:
            _print(found)
        if changes(found):
            raise typer.Exit(WORK_FAILED)


def _report(options: CeleryReportOptions) -> Report:
    with suppress(OSError):  # a name that is too long for a file
        if Path(options.project).exists():
            return report(Path(options.project))
    module, _, attribute = options.project.partition(":")
    application: Any = None
    if attribute and not options.source_only and importlib.util.find_spec("celery") is not None:
        application = load_value(options.project)
    return report(folder_of(module), application)


def _print(found: Report) -> None:
    for each in found.findings:
        where = f"{each.file}:{each.line}" if each.line else each.file
        mark = "" if each.severity == CHANGE else "note: "
        say(f"{where}: {mark}{each.what}: {each.why}; instead: {each.instead}")
    if found.application is not None:
        app = found.application
        say(
            f"application {app['name']}: {len(app['tasks'])} tasks,"
            f" {len(app['periodic'])} periodic, queues {', '.join(app['queues']) or 'by default'}"
        )
    shown = ", ".join(f"{what} {count}" for what, count in found.carried.items())
    say(f"carried over: {shown or 'nothing was found'}")
    to_change = len(changes(found))
    notes = len(found.findings) - to_change
    say(f"{to_change} to change, {notes} notes, in {found.files} files")
