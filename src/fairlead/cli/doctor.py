"""`fairlead doctor`: find wrong configuration, and say why a task waits."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.options import OutputOptions
from fairlead.cli.output import WORK_FAILED, as_json, say
from fairlead.cli.parameters import with_options
from fairlead.cli.stores import wait_and_close
from fairlead.operate.doctor import examine, explain

_MARKS = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}


class DoctorOptions(OutputOptions, frozen=True, kw_only=True):
    """Options of `doctor`."""

    task: Annotated[str | None, typer.Option(help="Explain the state of this task.")] = None


@with_options
def doctor(options: DoctorOptions) -> None:
    """Check store, workers and queues. Exit code 1 when there is a problem.

    With --app, also check the queues and tasks of the application.

    Example: fairlead doctor --app shop:app; fairlead doctor --task 01938d2c-...
    """
    with options.opened() as app:
        context, task = app.operate_context, options.task
        findings = wait_and_close(app, examine(context) if task is None else explain(context, task))
    if options.json:
        as_json(findings)
    else:
        for finding in findings:
            cure = f"; {finding.cure}" if finding.cure else ""
            say(f"{_MARKS[finding.severity]} {finding.what}{cure}")
    if any(finding.severity == "problem" for finding in findings):
        raise typer.Exit(WORK_FAILED)
