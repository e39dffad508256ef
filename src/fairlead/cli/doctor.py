"""`fairlead doctor`: find wrong configuration."""

from __future__ import annotations

import typer

from fairlead.cli.options import OutputOptions
from fairlead.cli.output import WORK_FAILED, as_json, say
from fairlead.cli.parameters import with_options
from fairlead.cli.stores import wait_and_close
from fairlead.operate.doctor import examine

_MARKS = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}


@with_options
def doctor(options: OutputOptions) -> None:
    """Check store, workers and queues. Exit code 1 when there is a problem.

    With --app, also check the queues and tasks of the application.

    Example: fairlead doctor --app shop:app
    """
    with options.opened() as app:
        findings = wait_and_close(app, examine(app.operate_context))
    if options.json:
        as_json(findings)
    else:
        for finding in findings:
            cure = f"; {finding.cure}" if finding.cure else ""
            say(f"{_MARKS[finding.severity]} {finding.what}{cure}")
    if any(finding.severity == "problem" for finding in findings):
        raise typer.Exit(WORK_FAILED)
