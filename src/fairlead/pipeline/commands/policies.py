"""`fairlead pipeline policies`: versions of computed weights and limits, and rollback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from fairlead.cli.options import Actor, Json, actor_of
from fairlead.cli.output import as_json, print_result, readable, say, time_of
from fairlead.cli.parameters import CommandOptions, with_options
from fairlead.cli.stores import app_on
from fairlead.operate.policies import PolicyManagement
from fairlead.operate.store.policies import Policy
from fairlead.pipeline.commands.options import Url, Why
from fairlead.pipeline.commands.output import failures, show_rows

LIMITS = "limits: slots of the key on each node"
"""Title of a table of limits."""

policies = typer.Typer(
    invoke_without_command=True,
    help=(
        "Show versions of computed weights and limits, and roll back.\n\n"
        "Example: fairlead pipeline policies --queue payouts"
    ),
)


class ListOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `policies`."""

    queue: Annotated[str | None, typer.Option(help="Only this queue.")] = None
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of versions, newest first.")] = (
        20
    )
    url: Url = None
    json: Json = False


@policies.callback()
@with_options
def list_policies(context: typer.Context, options: ListOptions) -> None:
    """List published versions, newest first, and the queues whose tuning is off."""
    if context.invoked_subcommand is not None:
        return
    with failures():
        management = PolicyManagement(app_on(options.url).operate_context)
        found, switches = management.policies(options.queue, options.limit), management.switches()
        if options.json:
            as_json(
                {
                    "policies": [readable(policy) for policy in found],
                    "switches": [s._asdict() for s in switches],
                }
            )
            return
        show_rows(
            found,
            {
                "version": lambda p: p.version,
                "queue": lambda p: p.queue,
                "state": state_text,
                "published": lambda p: time_of(p.computed_at),
                "by": lambda p: p.author,
                "why": lambda p: p.why,
                "keys": lambda p: len(p.guarded),
                "limits": lambda p: len(p.limits),
                "verdict": lambda p: p.verdict,
            },
        )
        for switch in switches:
            say(
                f"{switch.queue or 'every queue'}: {switch.mode} since {time_of(switch.at)} by"
                f" {switch.author}: {switch.why}"
            )


class ShowOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `policies show`."""

    url: Url = None
    json: Json = False


@policies.command("show")
@with_options
def show(version: int, options: ShowOptions) -> None:
    """Show one version: computed and published weight and limit of each key, with reasons.

    Example: fairlead pipeline policies show 12
    """
    with failures():
        found = PolicyManagement(app_on(options.url).operate_context).policy(version)
        if options.json:
            as_json(readable(found))
            return
        say(
            f"version {found.version} of {found.queue}: {state_text(found)},"
            f" {time_of(found.computed_at)} by {found.author}"
        )
        say(f"{found.why}; {found.input_rows:,} rows up to {time_of(found.input_to) or 'nothing'}")
        if found.verdict:
            say(found.verdict)
        _show_values(found.raw, found.guarded, found.reasons)
        if found.limit_reasons:
            say(LIMITS)
            _show_values(found.raw_limits, found.limits, found.limit_reasons)


def _show_values(
    raw: Mapping[str, float], published: Mapping[str, float], why: Mapping[str, str]
) -> None:
    show_rows(
        sorted(published.keys() | why.keys()),
        {
            "fairness key": str,
            "raw": lambda key: shown(raw.get(key), none=""),
            "published": lambda key: shown(published.get(key)),
            "why": lambda key: why.get(key, "as before"),
        },
    )


class RollbackOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `policies rollback`."""

    version: Annotated[
        int, typer.Argument(min=0, help="Version to put in force; 0 for the declared weights.")
    ]
    queue: Annotated[str | None, typer.Option(help="Queue; needed with 0.")] = None
    why: Why = ""
    actor: Actor = None
    url: Url = None
    json: Json = False


@policies.command("rollback")
@with_options
def rollback(options: RollbackOptions) -> None:
    """Put the weights of an earlier version back in force in its queue, within seconds. Nothing is
    published there for a day.

    Example: fairlead pipeline policies rollback 11 --why "odd waits"
    """
    with failures():
        new = PolicyManagement(app_on(options.url).operate_context).roll_back_to(
            options.version,
            actor_of(options.actor),
            options.why or "no reason given",
            options.queue,
        )
        old = options.version
        content = "the declared weights" if old == 0 else f"copy of version {old}"
        print_result(options.json, {"version": new}, f"version {new} is in force: {content}")


def shown(value: float | None, none: str = "none") -> str:
    """Return a weight, or a limit in slots, as text; `none` without one."""
    return none if value is None else f"{value:.4g}"


def state_text(policy: Policy) -> str:
    """Return the state of a version as text."""
    is_new = policy.state == "active" and policy.judged_at is None
    window = ", in its canary window" if is_new else ""
    return f"{policy.state}{window}{', canary queue' if policy.is_canary else ''}"
