"""`fairlead demo`: show the four promises on one SQLite file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fairlead.cli.output import as_json, as_table, say
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.cli.web import DEFAULT_PORT, ServeOptions, listening, made, need_libraries, serve
from fairlead.errors import ConfigurationError
from fairlead.lab import demo as lab

_BAR = 24
"""Characters of the longest bar."""


class DemoOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `demo`."""

    keep: Annotated[
        Path | None,
        typer.Option(help="Keep the SQLite file under this name.", metavar="FILE"),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
    web: Annotated[
        bool, typer.Option("--web", help="Run tasks under the web console until Ctrl-C.")
    ] = False
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the console; 0 takes a free one.")
    ] = DEFAULT_PORT


@with_options
def demo_command(options: DemoOptions) -> None:
    """Show on one SQLite file what Fairlead promises: fair shares, your transaction, no loss by
    kill -9, history. Ten seconds.

    The file is deleted at the end unless --keep names it.

    Examples: fairlead demo --keep demo.db; fairlead demo --web
    """
    try:
        if options.web:
            _show_on_the_web(options)
        elif options.json:
            as_json(list(lab.run_demo(options.keep)))
        else:
            _show(options.keep)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; nothing is left behind")
        raise typer.Exit(130) from None


def _show_on_the_web(options: DemoOptions) -> None:
    """Serve the console while tasks come and run. Raise ConfigurationError."""
    if options.json:
        raise ConfigurationError("give --web or --json, not both")
    need_libraries()
    serving = ServeOptions(port=options.port, title="Fairlead demo")
    with listening(serving.host, serving.port) as port, lab.endless_demo(options.keep) as app:
        serve(made(app, serving), serving, port)


def _show(keep: Path | None) -> None:
    proofs = lab.run_demo(keep)
    say(
        f"1. No tenant's flood delays another. {lab.FLOOD} tasks of {lab.FLOODING} wait before"
        f" {lab.FEW} of each other tenant; {lab.SLOTS} run at once."
    )
    for proof in proofs:
        match proof:
            case lab.Fairness():
                _show_waits(proof.fifo_s, proof.fair_s)
                say("2. A task exists only if your transaction commits.")
            case lab.Transactions():
                say(
                    "   Order 1 was rolled back, order 2 committed:"
                    f" {proof.orders} order stored, {proof.tasks} task run.\n"
                )
                say("3. kill -9 loses nothing.")
            case lab.Kill():
                say(
                    f"   A worker was killed while {proof.running} of its {proof.tasks} tasks ran:"
                    f" {proof.done} done, {proof.lost_runs} of them by a second run.\n"
                )
                say("4. Every attempt is kept as data.")
            case lab.History():
                columns = ("   tenant", "runs", "failed or lost", "need a person", "worker seconds")
                as_table(columns, [_cells(each) for each in proof.tenants])
    file = keep or "demo.db"
    say("\nTry next:")
    if keep is None:
        say(f"   fairlead demo --keep {file}")
    say(f"   fairlead tasks --state ERROR --url sqlite:///{file}")
    say("   fairlead demo --web    # the console; needs the extra `web`")


def _show_waits(fifo: Mapping[str, float], fair: Mapping[str, float]) -> None:
    longest = max(*fifo.values(), *fair.values(), 0.001)

    def bar(seconds: float) -> str:
        return f"{'█' * max(1, round(_BAR * seconds / longest))} {seconds:.2f} s"

    as_table(
        ("   median wait", "in order of arrival", "in fair order"),
        [(f"   {tenant}", bar(fifo[tenant]), bar(fair[tenant])) for tenant in fifo],
    )
    say()


def _cells(each: lab.Tenant) -> tuple[str, ...]:
    counts = (each.runs, each.failed_runs, each.needs_person)
    return (f"   {each.tenant}", *map(str, counts), f"{each.worker_s:.1f}")
