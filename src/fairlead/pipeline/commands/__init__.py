"""`fairlead pipeline`: export history into tables and reports, and submit millions of tasks. Needs
the extra `pipeline`."""

from __future__ import annotations

import typer

from fairlead.cli.lazy import entry_points_of, lazy_group

_MODULES = {
    "run": "run",
    "build": "build",
    "report": "report",
    "check": "build",
    "maintain": "maintain",
    "sql": "sql",
    "status": "status",
    "submit": "submit",
    "replay": "replay",
    "tables": "status",
    "ingest": "ingest",
    "incidents": "incidents",
    "erase": "erase",
    "restore": "restore",
    "tune": "tune",
    "policies": "policies",
}
"""Module of each command, in this folder. A command is the function or group of the same name."""

pipeline = typer.Typer(
    cls=lazy_group(
        entry_points_of({name: f"{__name__}.{module}:{name}" for name, module in _MODULES.items()})
    ),
    no_args_is_help=True,
    help=(
        "Export history into tables and reports, and submit millions of tasks, on Spark. After a"
        " crash, run the job again."
    ),
)
