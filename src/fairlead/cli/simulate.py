"""`fairlead simulate`: fairness experiments without a database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from fairlead.cli.options import Json
from fairlead.cli.output import WRONG_USE, as_json, console, one_line_errors, say, say_error, shown
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.lab.simulate.plot import check_plot, plot
from fairlead.lab.simulate.report import OrderReport, SimulationReport
from fairlead.lab.simulate.run import CounterKind, SimulationSettings, simulate
from fairlead.lab.simulate.workload import ArrivalMode
from fairlead.lab.trace import BrokenTrace, Tenants
from fairlead.lab.waits import Percentiles

_LONGEST_SEQUENCE = 200


class SimulateOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `simulate`."""

    script: Annotated[
        str | None, typer.Option(help="Steps of push and poll, see below.", metavar="STEPS")
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            help="A trace in the Standard Workload Format; each job is one task.", metavar="FILE"
        ),
    ] = None
    tenants: Annotated[Tenants, typer.Option(help="With a trace: field that names the tenant.")] = (
        SimulationSettings.tenants
    )
    limit: Annotated[int | None, typer.Option(help="With a trace: use only this many jobs.")] = None
    tasks: Annotated[int, typer.Option(help="Generated workload: number of tasks.")] = (
        SimulationSettings.tasks
    )
    keys: Annotated[int, typer.Option(help="Generated workload: number of keys, k1, k2, ...")] = (
        SimulationSettings.keys
    )
    zipf: Annotated[
        float,
        typer.Option(help="Generated workload: frequency of key n is 1 / n ** zipf."),
    ] = SimulationSettings.zipf
    weights: Annotated[
        str | None,
        typer.Option(
            help="KEY=WEIGHT,..., uniform:LOW:HIGH or log:LOW:HIGH; default: 1.", metavar="WEIGHTS"
        ),
    ] = None
    arrivals: Annotated[
        ArrivalMode | None,
        typer.Option(help="Arrival of tasks; default: recorded with a trace, else all-first."),
    ] = None
    rate: Annotated[
        float, typer.Option(help="Poisson or recorded: mean number of new tasks for each poll.")
    ] = SimulationSettings.rate
    slots: Annotated[int, typer.Option(help="Tasks that one poll takes.")] = (
        SimulationSettings.slots
    )
    partitions: Annotated[
        int,
        typer.Option(help="Number of partitions; tasks are spread at random."),
    ] = SimulationSettings.partitions
    counters: Annotated[
        CounterKind, typer.Option(help="Counters of keys: all exact, or a sketch as in a worker.")
    ] = SimulationSettings.counters
    exact_keys: Annotated[
        int, typer.Option(help="With a sketch: number of exact keys; others are estimated.")
    ] = SimulationSettings.exact_keys
    buffer: Annotated[
        int,
        typer.Option(help="Maximum number of tasks of a partition in memory; others are stored."),
    ] = SimulationSettings.buffer
    seed: Annotated[int, typer.Option(help="The same seed makes the same workload.")] = (
        SimulationSettings.seed
    )
    top: Annotated[
        int, typer.Option(help="Number of keys to show and compare: those with most tasks.")
    ] = SimulationSettings.top
    picture: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw waits by key: .svg, .png or .pdf.", metavar="FILE"),
    ] = None
    json: Json = False

    def settings(self) -> SimulationSettings:
        """Return the settings of the simulation."""
        given = msgspec.structs.asdict(self)
        return SimulationSettings(
            **{name: given[name] for name in given.keys() - {"picture", "json"}}
        )


@with_options
def simulate_command(options: SimulateOptions) -> None:
    """Simulate a workload in memory, in fifo order and in fair order, with the code of the workers.

    Time is counted in polls. Steps of a script are separated by ';':

    'push aab' (a task of key a, another, one of b), 'push b*20' (20 of b), 'push c@2' (priority 2),
    'push 4 2 3 as priorities', 'poll 2', 'poll all'.

    Example: fairlead simulate --script "push aaaab; poll 2; push cc; poll all"

    Example: fairlead simulate --script "push a*20 b*20" --weights b=5

    Example: fairlead simulate --keys 1000 --tasks 100000 --arrivals poisson --partitions 4 --plot
    waits.svg
    """
    try:
        with one_line_errors():
            if options.picture is not None:
                check_plot(options.picture)
            try:
                simulated = simulate(options.settings())
            except BrokenTrace as error:
                say_error(str(error))
                raise typer.Exit(WRONG_USE) from None
            if options.picture is not None:
                plot(simulated, options.picture)
    except KeyboardInterrupt:
        say_error("stopped")
        raise typer.Exit(130) from None
    if options.json:
        as_json(simulated.report)
    else:
        # Without a terminal, nothing is cut.
        _print(simulated.report, console if console.is_terminal else Console(width=240))


def _print(report: SimulationReport, console: Console) -> None:
    partitions = "1 partition" if report.partitions == 1 else f"{report.partitions:,} partitions"
    say(
        f"{report.workload}: {report.tasks:,} tasks of {report.keys:,} keys, {partitions}, "
        f"{report.counters} counters, buffer {report.buffer:,}, seed {report.seed}"
    )
    for order in report.orders:
        if order.sequence is not None and order.picked <= _LONGEST_SEQUENCE:
            polled = " | ".join(" ".join(keys) for keys in order.sequence)
            left = f" ({order.left} left)" if order.left else ""
            say(f"{order.order}: {polled}{left}")
    console.print(_whole(report))
    console.print(_by_key(report))


def _whole(report: SimulationReport) -> Table:
    table = Table("", *(order.order for order in report.orders), box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for title, cells in (
        (
            "waits of tasks, polls p50 / p90 / p99 / most",
            [_waits(order.waits_of_tasks) for order in report.orders],
        ),
        ("mean waits of keys", [_waits(order.waits_of_keys) for order in report.orders]),
        (
            f"Jain's index, windows of {report.jain_window:,} pick-ups: mean / least",
            [_jain(order) for order in report.orders],
        ),
        ("largest gap / SFQ bound", [f"{order.gap:,.3f}" for order in report.orders]),
    ):
        table.add_row(title, *cells)
    return table


def _by_key(report: SimulationReport) -> Table:
    table = Table("key", "weight", "tasks", box=None, pad_edge=False)
    for order in report.orders:
        table.add_column(f"{order.order} p50 / p90 / p99 / most")
    for column in table.columns[1:]:
        column.justify = "right"
    for rows in zip(*(order.keys for order in report.orders), strict=True):
        key = rows[0]
        table.add_row(
            shown(key.key),
            f"{key.weight:.4g}",
            f"{key.tasks:,}",
            *(_waits(row.waits) for row in rows),
        )
    return table


def _waits(waits: Percentiles | None) -> str:
    return (
        "-"
        if waits is None
        else f"{waits.p50:,.0f} / {waits.p90:,.0f} / {waits.p99:,.0f} / {waits.most:,.0f}"
    )


def _jain(order: OrderReport) -> str:
    return "-" if order.jain_mean is None else f"{order.jain_mean:.4f} / {order.jain_least:.4f}"
