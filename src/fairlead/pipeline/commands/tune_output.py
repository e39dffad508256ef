"""Output of `fairlead pipeline tune` and `policies`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.cli.output import say
from fairlead.pipeline.commands.output import show_rows

if TYPE_CHECKING:
    from fairlead.core.tuning.control import Change
    from fairlead.core.tuning.limit_control import LimitChange
    from fairlead.pipeline.jobs.tune import QueueTuned
    from fairlead.ports.policy_store import Policy


def show_tuned(found: list[QueueTuned], most: int, applied: bool) -> None:
    """Print the result for each queue, with at most `most` of its keys."""
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
        # The greatest change comes first.
        changes = sorted(tuned.changes, key=_size, reverse=True)
        if changes:
            show_rows(
                changes[:most],
                {
                    "fairness key": lambda c: c.fairness_key,
                    "now": lambda c: weight_text(c.now),
                    "raw": lambda c: weight_text(c.raw),
                    "guarded": lambda c: weight_text(c.guarded),
                    "change": _change,
                    "why": lambda c: c.reason,
                },
            )
            say("computed from gold.tenant_share: use of each key")
            show_rows(
                changes[:most],
                {
                    "fairness key": lambda c: c.fairness_key,
                    "hours": lambda c: c.evidence.hours,
                    "tasks": lambda c: f"{c.evidence.tasks:,}",
                    "weight by task": lambda c: weight_text(c.evidence.by_task),
                    "by time": lambda c: weight_text(c.evidence.by_time),
                    "run s": lambda c: weight_text(c.evidence.run),
                    "worker time s": lambda c: f"{c.evidence.busy:,.0f}",
                    "due": lambda c: f"{c.evidence.due:.1%}",
                    "got": lambda c: f"{c.evidence.got:.1%}",
                },
            )
        limits = sorted(tuned.limits, key=_size_of_limit, reverse=True)
        if limits:
            say("limits: slots of the key on each node")
            show_rows(
                limits[:most],
                {
                    "fairness key": lambda c: c.fairness_key,
                    "now": lambda c: limit_text(c.now),
                    "raw": lambda c: weight_text(c.raw),
                    "guarded": lambda c: limit_text(c.guarded),
                    "change": _change_of_limit,
                    "why": lambda c: c.reason,
                },
            )
        if (more := max(0, len(changes) - most) + max(0, len(limits) - most)) > 0:
            say(f"and {more:,} more keys; --keys or --json shows them")
    if not applied and any(tuned.outcome == "would be published" for tuned in found):
        say("\nnothing was changed: this was a dry run; `tune apply` publishes")


def _size(change: Change) -> tuple[float, float]:
    ratio, wanted = change.factor, change.raw / change.now
    return max(ratio, 1 / ratio), max(wanted, 1 / wanted)


def _change(change: Change) -> str:
    return "" if change.guarded == change.now else f"{change.factor - 1:+.1%}"


def _size_of_limit(change: LimitChange) -> tuple[bool, float]:
    return change.is_change, abs((change.guarded or 0) - (change.now or 0))


def _change_of_limit(change: LimitChange) -> str:
    if not change.is_change:
        return ""
    if change.now is None or change.guarded is None:
        return "new" if change.now is None else "removed"
    return f"{change.guarded - change.now:+d}"


def limit_text(slots: int | None) -> str:
    """Return a limit in slots; `none` without one."""
    return "none" if slots is None else str(slots)


def weight_text(weight: float | None) -> str:
    """Return a weight as text; empty without one."""
    return "" if weight is None else f"{weight:.4g}"


def state_text(policy: Policy) -> str:
    """Return the state of a version as text."""
    is_new = policy.state == "active" and policy.judged_at is None
    window = ", in its canary window" if is_new else ""
    return f"{policy.state}{window}{', canary queue' if policy.is_canary else ''}"
