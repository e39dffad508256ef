"""Output of `fairlead pipeline tune` and `policies`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.cli.output import as_table, say

if TYPE_CHECKING:
    from fairlead.core.tuning.control import Change, Evidence
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
            as_table(
                ("fairness key", "now", "raw", "guarded", "change", "why"),
                [
                    (
                        c.fairness_key,
                        weight_text(c.now),
                        weight_text(c.raw),
                        weight_text(c.guarded),
                        _change(c),
                        c.reason,
                    )
                    for c in changes[:most]
                ],
            )
            say("computed from gold.tenant_share: use of each key")
            as_table(
                (
                    "fairness key",
                    "hours",
                    "tasks",
                    "weight by task",
                    "by time",
                    "run s",
                    "worker time s",
                    "due",
                    "got",
                ),
                [(c.fairness_key, *_evidence(c.evidence)) for c in changes[:most]],
            )
        limits = sorted(tuned.limits, key=_size_of_limit, reverse=True)
        if limits:
            say("limits: slots of the key on each node")
            as_table(
                ("fairness key", "now", "raw", "guarded", "change", "why"),
                [
                    (
                        c.fairness_key,
                        limit_text(c.now),
                        weight_text(c.raw),
                        limit_text(c.guarded),
                        _change_of_limit(c),
                        c.reason,
                    )
                    for c in limits[:most]
                ],
            )
        if (more := max(0, len(changes) - most) + max(0, len(limits) - most)) > 0:
            say(f"and {more:,} more keys; --keys or --json shows them")
    if not applied and any(tuned.outcome == "would be published" for tuned in found):
        say("\nnothing was changed: this was a dry run; `tune apply` publishes")


def _evidence(of: Evidence) -> tuple[object, ...]:
    return (
        of.hours,
        f"{of.tasks:,}",
        weight_text(of.by_task),
        weight_text(of.by_time),
        weight_text(of.run),
        f"{of.busy:,.0f}",
        f"{of.due:.1%}",
        f"{of.got:.1%}",
    )


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
