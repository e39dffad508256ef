"""`fairlead pipeline tune` and `fairlead pipeline policies`: weights and limits from the history,
behind guard rails."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from fairlead.app import App
from fairlead.cli.output import as_json, as_table, duration, readable, time_of
from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.operate.policies import PolicyManagement
from fairlead.pipeline.commands.shared import (
    Catalog,
    Conf,
    Json,
    LakeFolder,
    Master,
    Url,
    failures,
    lake_in,
    session_of,
    watching,
)
from fairlead.pipeline.commands.tune_output import limit_text, show_tuned, state_text, weight_text
from fairlead.ports.policy_store import EVERY_QUEUE, SwitchMode

if TYPE_CHECKING:
    from fairlead.pipeline.lake.lake import Lake
    from fairlead.pipeline.tuning.gold import Load

policies = typer.Typer(
    invoke_without_command=True,
    help="Versions of computed weights and limits: what was published, why, and the way back.",
)

_Author = Annotated[str | None, typer.Option(help="Who does this; else the user's name.")]
_Why = Annotated[str, typer.Option(help="Why; it is kept with the version.")]


def register(pipeline: typer.Typer) -> None:
    """Add the commands to `fairlead pipeline`."""
    pipeline.command()(tune)
    pipeline.add_typer(policies, name="policies")


def tune(
    apply: Annotated[
        bool,
        typer.Option("--apply/--dry-run", help="Publish, or only say what would be published."),
    ] = False,
    objective: Annotated[
        str | None,
        typer.Option(
            help=(
                "worker-seconds: to each key by the weight of its tasks; contracts: by its share in"
                " --contracts. "
                "Default: contracts if the file has any."
            ),
            metavar="worker-seconds|contracts",
        ),
    ] = None,
    contracts: Annotated[
        Path | None,
        typer.Option(help="Contracts and guard rails (TOML).", exists=True, dir_okay=False),
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option(help="Only this queue; as often as you like.")
    ] = None,
    canary: Annotated[
        list[str] | None, typer.Option(help="This queue goes first; else the one with least work.")
    ] = None,
    limits: Annotated[
        bool | None,
        typer.Option(
            "--limits/--no-limits",
            help=(
                "Compute limits too: how many tasks of a key run at once on each node; or take them"
                " away. "
                "Default: as the file says, else they stay."
            ),
            show_default=False,
        ),
    ] = None,
    half_life: Annotated[
        str | None, typer.Option(help="What was used so long ago counts half: 24h.")
    ] = None,
    keys: Annotated[int, typer.Option(min=1, help="How many keys of each queue are shown.")] = 20,
    off: Annotated[
        bool,
        typer.Option(
            "--off",
            help="Kill switch: workers go back to the declared weights and limits, at once.",
        ),
    ] = False,
    freeze: Annotated[
        bool, typer.Option("--freeze", help="Keep what was published, publish nothing more.")
    ] = False,
    on: Annotated[bool, typer.Option("--on", help="Take --off or --freeze back.")] = False,
    why: _Why = "",
    author: _Author = None,
    url: Url = None,
    lake: LakeFolder = None,
    catalog: Catalog = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Compute weights that give each key its due of the worker time, and publish them step by step;
    with --limits also how many slots of a worker each key may hold. Without --apply it changes
    nothing.

    Run it hourly, after build. Each version stands a trial of an hour and is rolled back if others
    wait much longer for it.

    Example: fairlead pipeline tune; fairlead pipeline tune --apply; fairlead pipeline tune --off
    --why "odd waits"
    """
    with failures():
        if off + freeze + on + apply > 1:
            raise ConfigurationError(
                "--apply, --off, --freeze and --on are four commands: give one"
            )
        app, who = App(url), _who(author)
        if off or freeze or on:
            _switch(
                app,
                None if on else SwitchMode.OFF if off else SwitchMode.FROZEN,
                queue or [EVERY_QUEUE],
                who,
                why,
            )
            return
        from fairlead.pipeline.jobs.tune import Options
        from fairlead.pipeline.jobs.tune import tune as run_tune
        from fairlead.pipeline.tuning.contracts import Objective, load

        settings, wanted = load(
            contracts, None if objective is None else _objective(objective, Objective)
        )
        if (lasts := duration(half_life)) is not None:
            guards = msgspec.structs.replace(settings.guards, half_life=lasts.total_seconds())
            settings = msgspec.structs.replace(settings, guards=guards)
        options = Options(
            settings=settings,
            objective=wanted,
            queues=tuple(queue or ()),
            canary=tuple(canary or ()),
            limits=limits,
            author=who,
            apply=apply,
        )
        place = lake_in(lake)
        with _reading(place, master, conf, catalog) as reading, watching("tuning") as tell:
            found = run_tune(app, place, options, reading, tell)
        if json:
            as_json({"objective": wanted, "applied": apply, "queues": found})
            return
        show_tuned(found, keys, apply)


@policies.callback()
def list_policies(
    context: typer.Context,
    queue: Annotated[str | None, typer.Option(help="Only of this queue.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    url: Url = None,
    json: Json = False,
) -> None:
    """Versions that were published, newest first, and where the feedback is switched off.

    Example: fairlead pipeline policies --queue payouts
    """
    if context.invoked_subcommand is not None:
        return
    with failures():
        management = PolicyManagement(App(url))
        found, switches = management.policies(queue, limit), management.switches()
        if json:
            as_json(
                {
                    "policies": [readable(policy) for policy in found],
                    "switches": [s._asdict() for s in switches],
                }
            )
            return
        as_table(
            ("version", "queue", "state", "published", "by", "why", "keys", "limits", "verdict"),
            [
                (
                    p.version,
                    p.queue,
                    state_text(p),
                    time_of(p.computed_at),
                    p.author,
                    p.why,
                    len(p.guarded),
                    len(p.limits),
                    p.verdict,
                )
                for p in found
            ],
        )
        for switch in switches:
            print(
                f"{switch.queue or 'every queue'}: {switch.mode} since {time_of(switch.at)} by"
                f" {switch.author}: {switch.why}"
            )


@policies.command("show")
def show(version: int, url: Url = None, json: Json = False) -> None:
    """One version: each key's weight and limit as computed and as published, and why.

    Example: fairlead pipeline policies show 12
    """
    with failures():
        found = PolicyManagement(App(url)).policy(version)
        if json:
            as_json(readable(found))
            return
        print(
            f"version {found.version} of {found.queue}: {state_text(found)},"
            f" {time_of(found.computed_at)} by {found.author}"
        )
        print(
            f"{found.why}; {found.input_rows:,} rows up to {time_of(found.input_to) or 'nothing'}"
        )
        if found.verdict:
            print(found.verdict)
        as_table(
            ("fairness key", "raw", "published", "why"),
            [
                (
                    key,
                    weight_text(found.raw.get(key)),
                    weight_text(weight),
                    found.reasons.get(key, "as before"),
                )
                for key, weight in sorted(found.guarded.items())
            ],
        )
        if found.limit_reasons:
            print("\nlimits: slots of the key on each node")
            as_table(
                ("fairness key", "raw", "published", "why"),
                [
                    (
                        key,
                        weight_text(found.raw_limits.get(key)),
                        limit_text(found.limits.get(key)),
                        why,
                    )
                    for key, why in sorted(found.limit_reasons.items())
                ],
            )


@policies.command("rollback")
def rollback(
    version: Annotated[
        int, typer.Argument(min=0, help="What is to count again; 0: the declared weights.")
    ],
    queue: Annotated[str | None, typer.Option(help="Of this queue; needed with 0.")] = None,
    why: _Why = "",
    author: _Author = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Let the weights of an earlier version count again, in its queue, within seconds; nothing is
    published there for a day.

    Example: fairlead pipeline policies rollback 11 --why "odd waits"
    """
    with failures():
        new = PolicyManagement(App(url)).roll_back_to(
            version, _who(author), why or "no reason given", queue
        )
        if json:
            as_json({"version": new})
        else:
            print(
                f"version {new} counts now:"
                f" {'the declared weights' if version == 0 else f'as version {version}'}"
            )


# how ----------------------------------------------------------------------------------------------


def _switch(app: App, mode: SwitchMode | None, queues: list[str], author: str, why: str) -> None:
    management = PolicyManagement(app)
    for queue in queues:
        name = queue or "every queue"
        if mode is None:
            print(f"{name}: on" if management.switch_on(queue) else f"{name}: was on")
            continue
        management.switch(mode, author, why or "no reason given", queue)
        print(
            f"{name}: "
            + (
                "the declared weights count"
                if mode == SwitchMode.OFF
                else "nothing more is published"
            )
        )


def _objective(text: str, kind: Any) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ConfigurationError(f"--objective {text!r}: use {' or '.join(kind)}") from None


def _who(author: str | None) -> str:
    if author is not None:
        return author
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        return "nobody"


@contextmanager
def _reading(
    lake: Lake, master: str | None, conf: list[str] | None, catalog: str | None
) -> Iterator[Load | None]:
    """How gold is read: from Parquet without Spark, from Iceberg with it."""
    if catalog is None:
        yield None
        return
    with session_of(master, conf) as spark:
        from fairlead.pipeline.tables import lake_tables

        tables = lake_tables(spark, lake, catalog, SYSTEM_CLOCK)
        yield lambda table, dates, columns: tables.read(table, dates).select(*columns).toArrow()
