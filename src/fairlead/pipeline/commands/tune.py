"""`fairlead pipeline tune`: compute weights and limits from the history, within guard rails, and
switch them off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.options import Actor, Json, actor_of
from fairlead.cli.output import as_json, say
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.cli.stores import app_on
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.policies import EVERY_QUEUE, SwitchMode
from fairlead.pipeline.commands.access import existing_lake
from fairlead.pipeline.commands.options import LakeOptions, Url, Why
from fairlead.pipeline.commands.output import failures, show_rows, watching
from fairlead.pipeline.commands.policies import LIMITS, shown
from fairlead.pipeline.tuning.contracts import load

if TYPE_CHECKING:
    from fairlead.pipeline.jobs.tune import QueueTuned
    from fairlead.pipeline.tuning.control import Change

tune = typer.Typer(
    no_args_is_help=True,
    help=(
        "Compute weights that give each key its share of worker time, publish them in steps, or"
        " switch them off."
    ),
)

Queues = Annotated[list[str] | None, typer.Option(help="Only this queue; repeatable.")]


class PlanOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `tune plan`: the rules and the tables of the computation."""

    contracts: Annotated[
        Path | None,
        typer.Option(help="Contracts and guard rails (TOML).", exists=True, dir_okay=False),
    ] = None
    queue: Queues = None
    limits: Annotated[
        bool | None,
        typer.Option(
            "--limits/--no-limits",
            help=(
                "Compute limits too (tasks of a key that each node may run at once), or remove all"
                " limits. Default: limits stay unchanged."
            ),
            show_default=False,
        ),
    ] = None
    keys: Annotated[int, typer.Option(min=1, help="Keys to show for each queue, at most.")] = 20
    url: Url = None
    lake: LakeOptions
    json: Json = False


class ApplyOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `tune apply`: the options of `tune plan`, and the person."""

    plan: PlanOptions
    actor: Actor = None


class OnOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `tune on`."""

    queue: Queues = None
    actor: Actor = None
    url: Url = None


class SwitchOptions(OnOptions, frozen=True, kw_only=True):
    """Options of `tune off` and `tune freeze`."""

    why: Why = ""


@tune.command("plan")
@with_options
def plan(options: PlanOptions) -> None:
    """Show the weights and, with --limits, the limits that `tune apply` would publish. Change
    nothing.

    Example: fairlead pipeline tune plan --limits --queue payouts
    """
    _tune(options, author=None, apply=False)


@tune.command("apply")
@with_options
def apply(options: ApplyOptions) -> None:
    """Compute weights and, with --limits, limits, and publish one step towards them.

    Run `tune apply` hourly, after `build`. Each version has a canary window of an hour. If other
    keys wait much longer in that hour, the version is rolled back.

    Example: fairlead pipeline tune apply --contracts contracts.toml
    """
    _tune(options.plan, author=options.actor, apply=True)


@tune.command("off")
@with_options
def off(options: SwitchOptions) -> None:
    """Kill switch: make workers return to the declared weights and limits at once.

    Example: fairlead pipeline tune off --why "odd waits"
    """
    _switch(options, SwitchMode.OFF, "the declared weights and limits are in force")


@tune.command("on")
@with_options
def on(options: OnOptions) -> None:
    """Undo `tune off` or `tune freeze`. Use the same --queue as the command that you undo.

    Example: fairlead pipeline tune on
    """
    with failures():
        management = PolicyManagement(app_on(options.url).operate_context)
        for queue in options.queue or [EVERY_QUEUE]:
            was_off = management.switch_on(queue, actor_of(options.actor))
            say(f"{queue or 'every queue'}: {'on' if was_off else 'was already on'}")


@tune.command("freeze")
@with_options
def freeze(options: SwitchOptions) -> None:
    """Keep the published version. `tune apply` publishes no other version until `tune on`.

    Example: fairlead pipeline tune freeze --queue payouts --why "month end"
    """
    _switch(options, SwitchMode.FROZEN, "the published version stays")


def _switch(options: SwitchOptions, mode: SwitchMode, effect: str) -> None:
    with failures():
        management = PolicyManagement(app_on(options.url).operate_context)
        author, why = actor_of(options.actor), options.why or "no reason given"
        for queue in options.queue or [EVERY_QUEUE]:
            management.switch(mode, author, why, queue)
            say(f"{queue or 'every queue'}: {effect}")


def _tune(asked: PlanOptions, *, author: str | None, apply: bool) -> None:
    with failures():
        app = app_on(asked.url)
        from fairlead.pipeline.jobs.tune import TuneOptions
        from fairlead.pipeline.jobs.tune import tune as run_tune

        options = TuneOptions(
            settings=load(asked.contracts),
            queues=tuple(asked.queue or ()),
            limits=asked.limits,
            author=actor_of(author),
            apply=apply,
        )
        lake = existing_lake(asked.lake.lake, asked.lake.catalog)
        with watching("tuning"):
            found = run_tune(app, lake, options)
        if asked.json:
            as_json({"applied": apply, "queues": found})
            return
        _show(found, asked.keys, apply)


def _show(found: list[QueueTuned], most: int, applied: bool) -> None:
    """Print the result for each queue, with at most `most` of its keys, the greatest change
    first."""
    if not found:
        say("the tables contain no queue; run `fairlead pipeline ingest` and `build` first")
    for tuned in found:
        counts = (
            "the declared weights stay in force"
            if tuned.version is None
            else f"version {tuned.version} is in force"
        )
        say(f"\n{tuned.queue}: {tuned.outcome}; {counts}")
        for line in (*((tuned.verdict,) if tuned.verdict else ()), *tuned.holds):
            say(f"  {line}")
        tables: dict[str, Sequence[Change[Any]]] = {"": tuned.changes, LIMITS: tuned.limits}
        for title, changes in tables.items():
            if changes:
                if title:
                    say(title)
                show_rows(
                    sorted(changes, key=_size, reverse=True)[:most],
                    {
                        "fairness key": lambda c: c.fairness_key,
                        "now": lambda c: shown(c.now),
                        "raw": lambda c: shown(c.raw, none=""),
                        "guarded": lambda c: shown(c.guarded),
                        "change": _change,
                        "why": lambda c: c.reason,
                    },
                )
        if more := sum(max(0, len(changes) - most) for changes in tables.values()):
            say(f"and {more:,} more keys; --keys or --json shows them")
    if not applied and any(tuned.outcome == "would be published" for tuned in found):
        say("\nnothing was changed: this was a dry run; `tune apply` publishes")


def _size(change: Change[Any]) -> list[float]:
    """Return how far the value moves, and how far it should move."""
    now = change.now or 0
    goals = change.guarded or 0, now if change.raw is None else change.raw
    return [abs(goal - now) for goal in goals]


def _change(change: Change[Any]) -> str:
    if not change.is_change:
        return ""
    if change.now is None or change.guarded is None:
        return "new" if change.now is None else "removed"
    return f"{change.guarded / change.now - 1:+.1%}"
