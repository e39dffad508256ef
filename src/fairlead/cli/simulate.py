"""`fairlead simulate`: fairness experiments without a database."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.options import Json
from fairlead.cli.output import as_json, as_table
from fairlead.cli.parameters import with_options
from fairlead.lab.simulation import MOST_TASKS, Waits, parse_load, simulate


@with_options
def simulate_command(
    keys: Annotated[
        list[str],
        typer.Argument(
            help="Tasks of a key, as in acme=600,weight=2,run=0.5,at=10.", metavar="KEY=TASKS"
        ),
    ],
    slots: Annotated[int, typer.Option(min=1, max=MOST_TASKS, help="Tasks that run at once.")] = 10,
    json: Json = False,
) -> None:
    """Simulate tasks of several keys in memory, in fifo order and in fair order, with the code of
    the workers.

    Each key may have a weight (1 by default), the seconds that each of its tasks runs (1), and the
    seconds after which its tasks arrive (0). The share of a key is its part of all starts until the
    first key has no task left; waits are in seconds, from arrival to start.

    Example: fairlead simulate acme=600 bob=20 carol=20,weight=5,at=3
    """
    found = simulate([parse_load(text) for text in keys], slots)
    if json:
        as_json(found)
        return
    waits = "wait p50 / p99 / most"
    as_table(
        ("key", "weight", "tasks", "fifo share", waits, "fair share", waits),
        [
            (each.key, f"{each.weight:g}", each.tasks, *_cells(each.fifo), *_cells(each.fair))
            for each in found
        ],
    )


def _cells(waits: Waits) -> tuple[str, str]:
    times = " / ".join(f"{seconds:,.1f}" for seconds in (waits.p50, waits.p99, waits.most))
    return f"{100 * waits.share:.0f} %", times
