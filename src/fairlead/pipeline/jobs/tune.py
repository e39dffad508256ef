"""`tune`: weights and limits computed from history. The job judges versions in their canary
windows, computes new ones, and publishes what the guard rails allow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from fairlead.app import App
from fairlead.clock import to_datetime, to_micros
from fairlead.core.tuning.canary import Measured, Verdict, judge
from fairlead.core.tuning.control import (
    DAY,
    Change,
    Key,
    Proposal,
    horizon,
    propose,
    scaled_to,
)
from fairlead.core.tuning.guard_rails import Situation
from fairlead.core.tuning.limit_control import LimitChange, Workers, propose_limits
from fairlead.errors import NotSupported
from fairlead.operate.policies import DECLARED, PolicyManagement
from fairlead.pipeline.hashing import is_hashed
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.runs import NOTHING_TO_DO, JobRun, OnRows, last_runs, recorded
from fairlead.pipeline.tuning.contracts import TuneObjective, TuneSettings
from fairlead.pipeline.tuning.gold import Gold, KeyUse
from fairlead.pipeline.tuning.incidents import Incidents
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.policy_store import (
    EVERY_QUEUE,
    KEPT_VERSIONS,
    Policy,
    PolicyDraft,
    PolicyState,
    Switch,
    SwitchMode,
    Weights,
)

_HOUR = timedelta(hours=1)
_JOBS_THAT_CHECK = ("build", "check", "reconcile")

Outcome = Literal["published", "would be published", "nothing to change", "held"]


class TuneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `tune`."""

    settings: TuneSettings = TuneSettings()
    objective: TuneObjective = TuneObjective.WORKER_SECONDS
    queues: tuple[str, ...] = ()
    """Queues to tune; empty for all queues in the tables."""
    canary: tuple[str, ...] = ()
    """Queues that change first; if empty, the changing queue with the least work."""
    limits: bool | None = None
    """Whether to compute limits too. False removes the limits in force; None keeps them unless the
    settings decide."""
    author: str
    apply: bool = False
    """Whether to publish; False only reports."""


class QueueTuned(msgspec.Struct, frozen=True):
    """Result of `tune` for one queue."""

    queue: str
    outcome: Outcome
    version: int | None
    """Version in force; None for the declared weights and limits."""
    verdict: str | None
    """Verdict on a version whose canary window ended, in words; None without one."""
    holds: list[str]
    changes: list[Change]
    limits: list[LimitChange]
    """Changes of keys that have, had or should have a limit."""


class _TuneState(msgspec.Struct):
    """State of a queue during one `tune`."""

    queue: str
    keys: dict[str, Key]
    situation: Situation
    active: Policy | None
    verdict: str | None
    rows: int
    proposal: Proposal
    limits: list[LimitChange]

    @property
    def is_change(self) -> bool:
        """Whether there is a change to publish."""
        return self.proposal.is_change or any(change.is_change for change in self.limits)

    @property
    def worker_seconds(self) -> float:
        return sum(used.busy for key in self.keys.values() for used in key.use)


def tune(
    app: App,
    lake: Warehouse,
    options: TuneOptions,
    on_rows: OnRows = lambda table, rows: None,
) -> list[QueueTuned]:
    """Tune the queues and return the result for each.

    Raise BrokenLake; NotSupported if tasks are not in a SQL database or the lake's keys are hashed;
    NotAllowed if another `tune` publishes at the same time.
    """
    if is_hashed(lake):
        raise NotSupported(
            "the fairness keys of this lake are hashed and match no key of a queue;"
            " tune from a lake that was filled without --hash-keys"
        )
    params = {"objective": options.objective, "queues": options.queues}
    if not options.apply:
        return _Tuning(app, lake, options, JobRun("tune", params), on_rows).all()
    with recorded(lake, app.clock, "tune", params) as run:
        return _Tuning(app, lake, options, run, on_rows).all()


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """State of the store and of the tables when `tune` runs."""

    now: int
    """Microseconds since the epoch."""
    newest_minute: datetime | None
    """Newest minute that the tables have."""
    known: Collection[str]
    """Queues that the store knows."""
    switches: Mapping[str, Switch]
    failed: str | None
    """Failure of the last run of a job that checks the tables, as text; None if all passed."""

    @property
    def instant(self) -> datetime:
        """`now` as a datetime."""
        return to_datetime(self.now)

    @property
    def input_age(self) -> float | None:
        """Seconds since the newest minute; None where the tables have none."""
        if self.newest_minute is None:
            return None
        return (self.instant - self.newest_minute).total_seconds()


class _Tuning:
    def __init__(
        self, app: App, lake: Warehouse, options: TuneOptions, run: JobRun, on_rows: OnRows
    ) -> None:
        self._options = options
        self._guards = options.settings.guards
        self._limits = options.settings.limits if options.limits is None else options.limits
        self._management = PolicyManagement(app.operate_context)
        self._gold = Gold(SmallTables(lake), to_datetime(app.clock.now()))
        self._incidents = Incidents(app, self._gold)
        self._facts = _Facts(
            now=app.clock.now(),
            newest_minute=self._gold.newest(timedelta(seconds=horizon(self._guards))),
            known=app.sql_store.database.read_now(app.sql_store.queue_settings()).keys(),
            switches={switch.queue: switch for switch in self._management.switches()},
            failed=_failed(lake),
        )
        self._run = run
        self._on_rows = on_rows

    def all(self) -> list[QueueTuned]:
        since = self._facts.instant - timedelta(seconds=horizon(self._guards))
        use = self._gold.use(since)
        self._workers = self._gold.at_once(since, use) if self._limits else {}
        newest = self._management.newest()
        wanted = sorted(set(self._options.queues) or use.keys() | newest.keys())
        states = [self._assess(queue, use.get(queue, {}), newest.get(queue)) for queue in wanted]
        canaries = self._canaries(states)
        found = [self._finish(state, state.queue in canaries) for state in states]
        if not any(tuned.outcome == "published" or tuned.verdict for tuned in found):
            self._run.state = NOTHING_TO_DO
        return found

    # one queue ------------------------------------------------------------------------------------

    def _assess(self, queue: str, use: Mapping[str, KeyUse], newest: Policy | None) -> _TuneState:
        active = newest if newest is not None and newest.state == PolicyState.ACTIVE else None
        verdict, in_canary, rolled_back = None, None, self._rolled_back(active)
        if active is not None and active.judged_at is None:
            judged = self._verdict(active)
            if judged is None:
                in_canary = active.version
            elif judged.is_kept:
                verdict = self._keep(active, judged)
            else:
                verdict = f"version {active.version} rolled back: {judged.why}"
                rolled_back = (active.version, 0.0)
                if self._options.apply:
                    active = self._roll_back(active, judged.why)
        limits = {} if active is None else active.limits
        keys = self._keys(queue, use, self._management.weights(queue), limits)
        situation = Situation(
            input_age=self._facts.input_age,
            is_known=queue in self._facts.known,
            failed=self._facts.failed,
            incidents=self._incidents.of(queue),
            switch=self._switch(queue),
            in_canary=in_canary,
            rolled_back=rolled_back,
        )
        rows = sum(len(key.use) for key in use.values())
        self._run.rows_in += rows
        self._on_rows(queue, rows)
        proposal = propose(keys, situation, self._guards)
        return _TuneState(
            queue,
            keys,
            situation,
            active,
            verdict,
            rows,
            proposal,
            self._propose_limits(queue, keys, limits, proposal),
        )

    def _propose_limits(
        self, queue: str, keys: Mapping[str, Key], limits: Mapping[str, int], proposal: Proposal
    ) -> list[LimitChange]:
        is_held = bool(proposal.holds)
        if self._limits:
            workers: list[Workers] = self._workers.get(queue, [])
            found = propose_limits(
                keys, workers, self._incidents.nodes(queue), is_held, self._guards
            )
            why = "no tasks for a long time"
        else:
            found = []
            why = (
                "unchanged: limits are computed with --limits"
                if self._limits is None
                else "limits are switched off"
            )
        of_people = self._management.limits_by_person(queue)
        found = [change for change in found if change.fairness_key not in of_people]
        rest = limits.keys() - {change.fairness_key for change in found}
        stays = is_held or self._limits is None
        return found + [
            LimitChange(
                key,
                limits[key],
                None,
                limits[key] if stays else None,
                "its limit was set by a person" if key in of_people else why,
            )
            for key in sorted(rest)
        ]

    def _keys(
        self, queue: str, use: Mapping[str, KeyUse], weights: Weights, limits: Mapping[str, int]
    ) -> dict[str, Key]:
        settings, found = self._options.settings, {}
        contracted = (
            settings.due(queue) if self._options.objective == TuneObjective.CONTRACTS else {}
        )
        by_contract = settings.fixed(queue)
        declared = {name: key.declared(self._guards.half_life) for name, key in use.items()}
        in_force = self._in_force(queue)
        for name, of_key in sorted(use.items()):
            fixed = "fixed by its contract" if name in by_contract else None
            if name in weights.by_person:
                fixed = "its weight was set by a person"
            # The weights of the tasks are in force until a weight is computed. Of their mean and
            # that of the latest hour take the lower, so that the first step starts at no weight
            # that few tasks have.
            mine = min(declared[name], of_key.weight)
            now = weights.by_person.get(name, weights.by_policy.get(name, mine))
            of_day = [now, *(policy.get(name, mine) for policy in in_force)]
            found[name] = Key(
                contracted.get(name, declared[name]),
                now,
                of_key.use,
                fixed,
                limits.get(name),
                (min(of_day), max(of_day)),
            )
        return scaled_to(declared, found, self._guards)

    def _in_force(self, queue: str) -> list[Mapping[str, float]]:
        """Return the computed weights that were in force at some time of the last 24 hours; the
        first are none if there was no version a day ago."""
        since = self._facts.now - round(DAY * 1e6)
        found: list[Mapping[str, float]] = []
        for policy in self._management.policies(queue, KEPT_VERSIONS):
            found.append(policy.guarded)
            if policy.computed_at <= since:
                return found
        return [*found, {}] if found else found

    def _switch(self, queue: str) -> str | None:
        switch = self._facts.switches.get(EVERY_QUEUE) or self._facts.switches.get(queue)
        if switch is None:
            return None
        what = "switched off" if switch.mode == SwitchMode.OFF else "frozen"
        where = f" --queue {switch.queue}" if switch.queue else ""
        undo = f"undo with `fairlead pipeline tune on{where}`"
        return f"{what} by {switch.author}: {switch.why}; {undo}"

    def _rolled_back(self, active: Policy | None) -> tuple[int, float] | None:
        """Return the rolled-back version and the seconds since then; None if the active version is
        not the result of a rollback."""
        if active is None or active.supersedes is None or active.judged_at != active.computed_at:
            return None
        return active.supersedes, (self._facts.now - active.computed_at) / 1e6

    # verdict --------------------------------------------------------------------------------------

    def _verdict(self, policy: Policy) -> Verdict | None:
        """Return the verdict; None until the tables have the whole canary window of the version."""
        published = to_datetime(policy.computed_at)
        full_hour = published.replace(minute=0, second=0, microsecond=0)
        hours = timedelta(hours=self._guards.canary_hours)
        after = full_hour if full_hour == published else full_hour + _HOUR
        if self._facts.newest_minute is None or self._facts.newest_minute < after + hours:
            return None
        return judge(
            self._measured(policy, full_hour - hours, full_hour),
            self._measured(policy, after, after + hours),
            self._guards,
        )

    def _measured(self, policy: Policy, since: datetime, until: datetime) -> Measured:
        queue, limited = policy.queue, policy.limits.keys()
        misallocated = self._gold.misallocated(queue, since, until, dict(policy.due))
        waits = self._gold.waits(queue, since, until, policy.raw.keys())
        by_key = {key: wait for key, wait in waits.items() if key is not None}
        if not limited:
            return Measured(by_key, misallocated)
        busy, kept_waiting = self._gold.kept_waiting(queue, since, until, limited)
        every = self._gold.waits(queue, since, until, limited).get(None)
        return Measured(by_key, misallocated, busy, kept_waiting, every)

    def _keep(self, policy: Policy, verdict: Verdict) -> str:
        if self._options.apply:
            self._management.keep(policy.version, verdict.why)
        return f"version {policy.version} stays: {verdict.why}"

    def _roll_back(self, policy: Policy, why: str) -> Policy:
        to = DECLARED if policy.supersedes is None else policy.supersedes
        return self._management.policy(
            self._management.roll_back(policy, to, self._options.author, why)
        )

    # canaries -------------------------------------------------------------------------------------

    def _canaries(self, states: Collection[_TuneState]) -> frozenset[str]:
        """Return the queues that change before the others.

        Return an empty set when a canary has passed or no canary has a change, so that all queues
        may change. Otherwise hold the other queues, and name the canaries they wait for.
        """
        first = [
            state
            for state in states
            if not self._options.canary or state.queue in self._options.canary
        ]
        if any(self._has_passed(state) for state in first):
            return frozenset()
        busy = [state for state in first if self._is_busy(state)]
        ready = [state for state in first if state.is_change]
        if not busy and not ready:
            return frozenset()
        chosen = busy or (
            ready if self._options.canary else [min(ready, key=lambda state: state.worker_seconds)]
        )
        names = frozenset(state.queue for state in chosen)
        for state in states:
            if state.queue not in names and state.is_change:
                state.situation = msgspec.structs.replace(
                    state.situation, canary=", ".join(sorted(names))
                )
                state.proposal = propose(state.keys, state.situation, self._guards)
                limits = {} if state.active is None else state.active.limits
                state.limits = self._propose_limits(state.queue, state.keys, limits, state.proposal)
        return names

    def _is_busy(self, state: _TuneState) -> bool:
        """Whether the queue is in its canary window, or cools down after a rollback."""
        situation = state.situation
        is_cooling_down = (
            situation.rolled_back is not None and situation.rolled_back[1] < self._guards.cool_down
        )
        return situation.in_canary is not None or is_cooling_down

    @staticmethod
    def _has_passed(state: _TuneState) -> bool:
        situation = state.situation
        if (
            state.active is None
            or situation.in_canary is not None
            or situation.rolled_back is not None
        ):
            return False
        return state.active.judged_at is not None or state.verdict is not None

    # publish --------------------------------------------------------------------------------------

    def _finish(self, state: _TuneState, is_canary: bool) -> QueueTuned:
        active, proposal, limits = state.active, state.proposal, state.limits
        version = None if active is None else active.version
        outcome: Outcome = "held" if proposal.holds else "nothing to change"
        if state.is_change:
            outcome = "would be published"
            if self._options.apply:
                version = self._management.publish(self._draft(state, is_canary), version)
                outcome = "published"
                self._run.rows_out += len(proposal.changes) + len(limits)
        return QueueTuned(
            state.queue, outcome, version, state.verdict, proposal.holds, proposal.changes, limits
        )

    def _draft(self, state: _TuneState, is_canary: bool) -> PolicyDraft:
        tuned = [change for change in state.proposal.changes if change.is_tuned]
        newest = self._facts.newest_minute
        # An earlier weight stays in force while its key has too little data for a new one.
        earlier = {} if state.active is None else state.active.guarded
        kept = {
            c.fairness_key: c.now
            for c in state.proposal.changes
            if not c.is_tuned and c.fairness_key in earlier
        }
        return PolicyDraft(
            queue=state.queue,
            author=self._options.author,
            why=self._options.objective,
            computed_at=self._facts.now,
            input_from=to_micros(self._facts.instant - timedelta(seconds=horizon(self._guards))),
            input_to=None if newest is None else to_micros(newest),
            input_rows=state.rows,
            raw={change.fairness_key: change.raw for change in tuned},
            guarded=kept | {change.fairness_key: change.guarded for change in tuned},
            reasons={change.fairness_key: change.reason for change in tuned},
            due={change.fairness_key: state.keys[change.fairness_key].due for change in tuned},
            raw_limits={
                change.fairness_key: change.raw for change in state.limits if change.raw is not None
            },
            limits={
                change.fairness_key: change.guarded
                for change in state.limits
                if change.guarded is not None
            },
            limit_reasons={change.fairness_key: change.reason for change in state.limits},
            is_canary=is_canary,
        )


def _failed(lake: Warehouse) -> str | None:
    """Return the failure of the last run of a job that checks the tables; None if all passed."""
    runs = last_runs(lake)
    for job in _JOBS_THAT_CHECK:
        if job in runs and runs[job]["state"] == "failed":
            return (
                f"the last {job} failed: {runs[job]['error']}; run `fairlead pipeline {job}` again"
            )
    return None
