"""Output of `fairlead pipeline replay`: the plan, and the measures of each policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.cli.output import as_json, as_table, say
from fairlead.clock import MICROS
from fairlead.pipeline.commands.output import show_rows

if TYPE_CHECKING:
    from fairlead.lab.policies.arrivals import Arrivals
    from fairlead.lab.policies.calibration import CalibrationGap
    from fairlead.lab.policies.candidate import CandidateResult
    from fairlead.lab.policies.objective import Interval
    from fairlead.lab.policies.study import StudyPlan
    from fairlead.pipeline.jobs.replay import Replayed

_SHOWN = 10
"""Number of policies in the table that ranks all of them."""


def show_plan(plan: StudyPlan, arrivals: Arrivals, json: bool) -> None:
    """Print the plan of a dry run."""
    setup = plan.setup(arrivals)
    if json:
        as_json(
            {
                "tasks": len(arrivals),
                "keys": _keys(arrivals),
                "runs": runs(plan),
                "objective": str(plan.objective),
                "setup": setup,
                "policies": plan.grid.policies,
            }
        )
        return
    _print_arrivals(plan, arrivals, setup.train_us)
    as_table(
        ("policy", ""), [(number, str(policy)) for number, policy in enumerate(plan.grid.policies)]
    )


def runs(plan: StudyPlan) -> int:
    """Return the approximate number of runs: all policies, then the finalists and the baseline on
    every sample."""
    chosen = min(plan.finalists, len(plan.grid.policies)) + 1
    return len(plan.grid.policies) + chosen * (1 + plan.perturbations + plan.resamples)


def show(replayed: Replayed, plan: StudyPlan, arrivals: Arrivals, json: bool) -> None:
    """Print the best policies, and the measures of all."""
    study = replayed.study
    trained = [found for found in study.found if found.candidate.part == "train"]
    if json:
        as_json(
            {
                "replay_id": replayed.replay_id,
                "seconds": replayed.run.seconds,
                "tasks": len(arrivals),
                "objective": study.objective,
                "setup": study.setup,
                "calibration": study.gap,
                "best": study.best,
                "baseline": study.baseline,
                "standings": study.standings,
                "policies": [
                    {
                        "policy_id": found.candidate.policy_id,
                        "policy": found.candidate.policy,
                        "seconds": found.seconds,
                        "measures": found.measures,
                    }
                    for found in trained
                ],
                "notes": study.notes,
            }
        )
        return
    _print_arrivals(plan, arrivals, study.setup.train_us)
    if study.gap is not None:
        _print_gap(study.gap)
    say(
        f"\nBest policies, {study.objective} on the arrivals for choosing; each interval holds 95"
        " of 100 samples:"
    )
    name = plan.objective.name
    show_rows(
        study.standings,
        {
            "id": lambda each: _id(each.policy_id),
            "policy": lambda each: str(each.policy),
            "chosen on": lambda each: _value(name, each.trained),
            "reported": lambda each: _value(name, each.reported),
            "perturbed": lambda each: _interval(name, each.perturbed),
            "resampled users": lambda each: _interval(name, each.resampled),
            "against the baseline": lambda each: each.against_baseline,
        },
    )
    say("\nThese policies on later arrivals:")
    reported = [
        found
        for found in study.found
        if found.candidate.part == "report" and found.candidate.sample == "recorded"
    ]
    _print_measures(reported)
    ranked = sorted(trained, key=lambda found: plan.objective.rank(found.measures))[:_SHOWN]
    say(f"\nThe first {len(ranked)} of {len(trained)} on the arrivals for choosing:")
    _print_measures(ranked)
    for note in study.notes:
        say(f"  {note}")
    say(
        f"replay {replayed.replay_id}: {replayed.run.seconds:,.1f} s; gold.replays and"
        " gold.replay_waits have the details"
    )


def _print_arrivals(plan: StudyPlan, arrivals: Arrivals, train_us: int | None) -> None:
    chosen_on = (
        "everything" if train_us is None else f"the first {_time(train_us)}, reported on the rest"
    )
    say(
        f"{arrivals.queue}: {len(arrivals):,} tasks of {_keys(arrivals):,} keys in"
        f" {_time(arrivals.span)}; {len(plan.grid.policies):,} policies of"
        f" {plan.grid.combinations:,} combinations, chosen on {chosen_on}"
    )


def _print_gap(gap: CalibrationGap) -> None:
    say(
        f"\nThe record and a simulation of its policy ({gap.policy}), Kolmogorov-Smirnov distance"
        f" {gap.ks:.3f}:"
    )
    as_table(
        ("wait", "recorded", "simulated", "gap"),
        [
            (
                which,
                _time(getattr(gap, f"recorded_{which}_us")),
                _time(getattr(gap, f"simulated_{which}_us")),
                "" if (error := gap.error(which)) is None else f"{100 * error:+.1f} %",
            )
            for which in ("p50", "p99", "mean")
        ],
    )


def _print_measures(found: list[CandidateResult]) -> None:
    show_rows(
        found,
        {
            "id": lambda each: _id(each.candidate.policy_id),
            "wait p50": lambda each: _time(each.measures.wait_p50_us),
            "p99": lambda each: _time(each.measures.wait_p99_us),
            "most": lambda each: _time(each.measures.wait_max_us),
            "key p50": lambda each: _time(each.measures.key_wait_p50_us),
            "slowdown": lambda each: f"{each.measures.slowdown_mean:,.2f}",
            "Jain": lambda each: _value("jain_mean", each.measures.jain_mean, ".3f"),
            "starved": lambda each: f"{each.measures.starved_keys:,}",
            "used": lambda each: f"{100 * each.measures.utilisation:.1f} %",
            "makespan": lambda each: _time(each.measures.makespan_us),
            "seconds": lambda each: f"{each.seconds:.2f}",
        },
    )


def _keys(arrivals: Arrivals) -> int:
    return len(set(arrivals.key.tolist()))


def _id(policy_id: int) -> str:
    return "baseline" if policy_id < 0 else str(policy_id)


def _value(name: str, value: Any, format: str = ",.4g") -> str:
    from fairlead.lab.policies.objective import is_time

    if value is None:
        return "-"
    return _time(value) if is_time(name) else f"{value:{format}}"


def _interval(name: str, found: Interval | None) -> str:
    return "-" if found is None else f"{_value(name, found.low)} to {_value(name, found.high)}"


def _time(micros: float) -> str:
    seconds = micros / MICROS
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.3f} s"
