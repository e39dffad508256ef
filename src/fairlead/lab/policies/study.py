"""A study: calibrate, replay every policy on early arrivals, choose, and report on later arrivals
with intervals.

Three rules keep the results honest. A policy chosen on some arrivals is reported on others. One
record is one sample, so its users are resampled. Every comparison states the distance between the
simulation and the record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from fairlead.clock import MICROS
from fairlead.errors import ConfigurationError
from fairlead.lab.policies.arrivals import Arrivals
from fairlead.lab.policies.calibration import CalibrationGap, gap, has_waits, most_at_once
from fairlead.lab.policies.candidate import (
    Candidate,
    CandidateResult,
    Runner,
    Sample,
    Setup,
)
from fairlead.lab.policies.grid import PolicyGrid
from fairlead.lab.policies.objective import Interval, Objective, interval, verdict
from fairlead.lab.policies.policy import CandidatePolicy
from fairlead.lab.policies.samples import WEEK
from fairlead.lab.policies.virtual import run
from fairlead.lab.policies.weighing import weigh

BASELINE = -1
"""Id of the policy that others are compared with, if the grid does not have it."""

HOUR = 3600 * MICROS
FINALISTS = 5
"""Number of best policies that the study reports."""

_FAR = 0.1
_WINDOWS = 100
"""Number of windows in a record that has fewer hours."""


@dataclass(frozen=True)
class StudyPlan:
    """Options of a study. Times are microseconds."""

    grid: PolicyGrid
    objective: Objective
    train_us: int | None = None
    """Length of the part for choosing; None means all whole weeks but the last if there are
    several, otherwise everything."""
    window_us: int | None = None
    """Length of a window; None means an hour, or less for a short record."""
    resamples: int = 20

    def setup(self, arrivals: Arrivals) -> Setup:
        """Return the setup for these arrivals. Raise ConfigurationError if nothing arrives before
        or after the time that divides them."""
        train = usual_train(arrivals.span) if self.train_us is None else self.train_us
        if train is not None and not 0 < train <= arrivals.span:
            raise ConfigurationError(
                f"--train: nothing arrives after it: the record is {arrivals.span / MICROS:,.0f} s"
                " long; give less"
            )
        window = (
            min(HOUR, max(MICROS, arrivals.span // _WINDOWS))
            if self.window_us is None
            else self.window_us
        )
        return Setup(train, window)


class Standing(msgspec.Struct, frozen=True):
    """A finalist, or the baseline, on the arrivals after the part for choosing."""

    policy_id: int
    policy: CandidatePolicy
    trained: float | None
    """The objective on the part for choosing."""
    reported: float | None
    """The objective on the part for reporting."""
    resampled: Interval | None
    against_baseline: str
    """The verdict on resampled users; see `objective.verdict`."""


class Study(msgspec.Struct, frozen=True):
    """The results of a study."""

    setup: Setup
    objective: str
    baseline: int
    gap: CalibrationGap | None
    """None if the record has no waits."""
    found: list[CandidateResult]
    """Every run except the calibration."""
    standings: list[Standing]
    """Finalists, the best on the part for choosing first. The baseline is among them, as the last
    if it is no finalist."""
    notes: list[str]

    @property
    def best(self) -> Standing:
        """The policy that was chosen."""
        return self.standings[0]


def usual_train(span: int) -> int | None:
    """Return the length of all whole weeks but the last begun one; None if there is no second
    week."""
    return (span - 1) // WEEK * WEEK or None if span else None


def study(arrivals: Arrivals, plan: StudyPlan, runner: Runner) -> Study:
    """Replay all policies of the plan. Raise ConfigurationError if no arrival is left to report
    on."""
    setup = plan.setup(arrivals)
    recorded = recorded_policy(arrivals, plan.grid)
    measured = None if recorded is None else calibrate(arrivals, recorded)
    policies = dict(enumerate(plan.grid.policies))
    against = recorded or first_come(plan.grid.policies)
    baseline = next((number for number, policy in policies.items() if policy == against), BASELINE)
    policies[baseline] = against
    trained = runner(
        [Candidate(number, policy, "train") for number, policy in policies.items()], setup
    )
    ranked = sorted(
        (*plan.objective.rank(found.measures), found.candidate.policy_id)
        for found in trained
        if found.candidate.policy_id != BASELINE
    )
    chosen = [number for *_, number in ranked[:FINALISTS]]
    chosen += [baseline] if baseline not in chosen else []
    candidates = [
        Candidate(number, policies[number], "report", sample, seed, with_keys=sample == "recorded")
        for number in chosen
        for sample, seed in _samples(plan)
    ]
    reported = runner(candidates, setup)
    found_best = next(found for found in trained if found.candidate.policy_id == chosen[0])
    return Study(
        setup=setup,
        objective=str(plan.objective),
        baseline=baseline,
        gap=measured,
        found=[*trained, *reported],
        standings=standings(plan.objective, chosen, baseline, trained, reported),
        notes=list(_notes(plan, setup, measured, found_best, policies[baseline])),
    )


def recorded_policy(arrivals: Arrivals, grid: PolicyGrid) -> CandidatePolicy | None:
    """Return the policy of the recorded run: as in the file, or else fifo with the greatest number
    of tasks that ran at once; None if the record has no waits."""
    if grid.recorded is not None:
        return grid.recorded
    return (
        CandidatePolicy(order="fifo", weights="equal", slots=most_at_once(arrivals))
        if has_waits(arrivals)
        else None
    )


def calibrate(arrivals: Arrivals, policy: CandidatePolicy) -> CalibrationGap | None:
    """Compare the record with a simulation of its own policy; None if the record has no waits."""
    if not has_waits(arrivals):
        return None
    simulated = run(arrivals, policy, weigh(policy.weights, arrivals))
    return gap(str(policy), arrivals.wait, simulated.wait)


def standings(
    objective: Objective,
    chosen: Sequence[int],
    baseline: int,
    trained: Sequence[CandidateResult],
    reported: Sequence[CandidateResult],
) -> list[Standing]:
    """Return the standings of the chosen policies, in their order."""
    before = {found.candidate.policy_id: found for found in trained}
    after: defaultdict[tuple[int, Sample], list[CandidateResult]] = defaultdict(list)
    for found in reported:
        after[found.candidate.policy_id, found.candidate.sample].append(found)

    def losses(number: int, sample: Sample) -> list[float]:
        return [objective.loss(found.measures) for found in after[number, sample]]

    def values(number: int, sample: Sample) -> list[float]:
        found = [objective.value(each.measures) for each in after[number, sample]]
        return [value for value in found if value is not None]

    def against(number: int, sample: Sample) -> str:
        return (
            "baseline"
            if number == baseline
            else verdict(losses(number, sample), losses(baseline, sample))
        )

    return [
        Standing(
            policy_id=number,
            policy=before[number].candidate.policy,
            trained=objective.value(before[number].measures),
            reported=next(iter(values(number, "recorded")), None),
            resampled=interval(values(number, "resampled")),
            against_baseline=against(number, "resampled"),
        )
        for number in chosen
    ]


def first_come(policies: Sequence[CandidatePolicy]) -> CandidatePolicy:
    """Return the baseline for a record without a policy: the first policy of the grid, but in the
    order of arrival and without limits."""
    first = policies[0]
    return CandidatePolicy(
        order="fifo", slots=first.slots, nodes=first.nodes, partitions=first.partitions
    ).plain()


def _samples(plan: StudyPlan) -> list[tuple[Sample, int]]:
    return [("recorded", 0), *(("resampled", 1 + n) for n in range(plan.resamples))]


def _notes(
    plan: StudyPlan,
    setup: Setup,
    measured: CalibrationGap | None,
    best: CandidateResult,
    baseline: CandidatePolicy,
) -> Iterator[str]:
    """Yield remarks that a reader of the numbers must know."""
    if setup.train_us is None:
        yield (
            "the best is chosen and reported on the same arrivals, so expect less of it later;"
            " give a longer record, or --train"
        )
    if measured is None:
        yield "the record has no waits, so the error of the simulation is unknown"
    elif (error := measured.error("p99")) is not None and abs(error) > _FAR:
        yield (
            f"simulated p99 waits are {100 * error:+.0f} % off the record; smaller differences"
            " between policies mean nothing"
        )
    yield "arrivals stay as recorded, although users who wait longer send less"
    if not plan.objective.is_met(best.measures):
        yield "no policy meets all requirements; the best is chosen from the others"
    if best.candidate.policy.all_slots != baseline.all_slots:
        slots = f"{best.candidate.policy.all_slots:,} slots, the baseline {baseline.all_slots:,}"
        yield f"the best has {slots}, which explains part of the difference"
