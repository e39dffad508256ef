"""`fairlead ordered repartition`, beside the commands that are made from operations."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from fairlead.cli.commands import NOUNS
from fairlead.cli.options import OutputOptions
from fairlead.cli.output import as_json, ask, print_result, say, say_error
from fairlead.cli.parameters import with_options
from fairlead.cli.stores import wait_and_close
from fairlead.declare.queue import MOST_PARTITIONS
from fairlead.operate.ordered import OrderedManagement, RepartitionPlan
from fairlead.ordered.repartition import Repartitioned

ordered: typer.Typer = NOUNS.ordered


class RepartitionOptions(OutputOptions, frozen=True, kw_only=True):
    """Options of `ordered repartition`."""

    to: Annotated[int, typer.Option(min=1, max=MOST_PARTITIONS, help="New number of partitions.")]
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be moved.")] = (
        False
    )
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before the move.")] = False


@ordered.command("repartition")
@with_options
def repartition(queue: str, options: RepartitionOptions) -> None:
    """Move the tasks of an ordered queue to another number of partitions.

    Stop the workers of the queue before. Submitters go on, and use the new number within seconds.
    Then declare the queue with the new number, and start the workers. Run a command that was cut
    off again, to the same number or to another one.

    Example: fairlead ordered repartition reminders --app shop:app --to 240 --dry-run
    """
    with options.opened() as app:
        moved = wait_and_close(app, _repartition(app.management.ordered, queue, options))
    if moved is None:
        return
    if options.json:
        as_json(moved)
    else:
        say(
            f"{queue} has {moved.partitions} partitions: moved {moved.tasks:,} tasks and"
            f" {moved.completed:,} completed keys, wrote {moved.entries:,} entries of the log"
            " to the schedule"
        )
        say(f"now declare it with partitions={moved.partitions}, and start its workers")
    if moved.left_out:
        say_error(f"left out {moved.left_out:,} entries of the log that no schedule can hold")


async def _repartition(
    management: OrderedManagement, queue: str, options: RepartitionOptions
) -> Repartitioned | None:
    """Print or ask what is to be moved, then move it; return None after a dry run."""
    if options.dry_run or not options.yes:
        plan = await management.repartition_plan(queue, options.to)
        if options.dry_run:
            print_result(options.json, plan, _text_of(plan))
            return None
        ask(_text_of(plan), "see it with --dry-run, then add --yes")
    with Console(stderr=True).status("") as shown:
        return await management.repartition(queue, options.to, shown.update)


def _text_of(plan: RepartitionPlan) -> str:
    text = (
        f"{plan.queue}: {plan.before} partitions to {plan.partitions}; {plan.tasks:,} of"
        f" {plan.unfinished:,} tasks in the schedule would move, {plan.entries:,} entries of the"
        " log would be written to it"
    )
    if plan.workers:
        text += f"; stop first: {', '.join(plan.workers)}"
    return text
