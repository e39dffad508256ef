"""`tune`: weights and limits computed from history. The job judges versions in their canary
windows, computes new ones, and publishes what the guard rails allow."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import msgspec

from fairlead.app import App
from fairlead.clock import to_datetime, to_micros
from fairlead.operate.policies import DECLARED, PolicyManagement
from fairlead.operate.store.policies import KEPT_VERSIONS, Policy, PolicyDraft, PolicyState
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.reading.snapshots import Snapshots
from fairlead.pipeline.runs import NOTHING_TO_DO, JobRun, recorded
from fairlead.pipeline.tuning.canary import Verdict, judge
from fairlead.pipeline.tuning.contracts import TuneSettings
from fairlead.pipeline.tuning.control import DAY, Change, Key, horizon, propose, scaled_to
from fairlead.pipeline.tuning.gold import Gold, KeyUse
from fairlead.pipeline.tuning.limit_control import LimitChange, propose_limits
from fairlead.pipeline.tuning.situations import Situations
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.windows import HOUR

Outcome = Literal["published", "would be published", "nothing to change", "held"]


class TuneOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `tune`."""

    settings: TuneSettings = TuneSettings()
    queues: tuple[str, ...] = ()
    """Queues to tune; empty for all queues in the tables."""
    limits: bool | None = None
    """Whether to compute limits too. False removes the limits in force; None keeps them."""
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
    changes: list[Change[float]]
    limits: list[LimitChange]
    """Changes of keys that have, had or should have a limit."""


@dataclass
class _TuneState:
    """State of a queue during one `tune`."""

    queue: str
    keys: dict[str, Key]
    active: Policy | None
    verdict: str | None
    holds: list[str]
    """Reasons why nothing may be published now."""
    has_passed: bool
    """Whether a version is in force that has passed its canary window."""
    is_busy: bool
    """Whether the queue is in its canary window, or cools down after a rollback."""
    changes: list[Change[float]] = field(init=False)
    limits: list[LimitChange] = field(init=False)

    @property
    def is_change(self) -> bool:
        """Whether there is a change to publish."""
        weights = any(change.is_change for change in self.changes)
        return weights or any(change.is_change for change in self.limits)

    @property
    def worker_seconds(self) -> float:
        return sum(used.busy for key in self.keys.values() for used in key.use)


def tune(app: App, lake: Warehouse, options: TuneOptions) -> list[QueueTuned]:
    """Tune the queues and return the result for each.

    Raise BrokenLake; NotSupported if tasks are not in a SQL database; NotAllowed if another `tune`
    publishes at the same time.
    """
    params = {"queues": options.queues}
    is_dry = nullcontext(JobRun("tune", params))
    with (
        recorded(lake, app.clock, "tune", params) if options.apply else is_dry as run,
        Frames(lake, Snapshots(lake).read()) as tables,
    ):
        return _Tuning(app, lake, tables, options, run).all()


class _Tuning:
    def __init__(
        self, app: App, lake: Warehouse, tables: Frames, options: TuneOptions, run: JobRun
    ) -> None:
        self._options = options
        self._guards = options.settings.guards
        self._limits = options.limits
        self._management = PolicyManagement(app.operate_context)
        self._now = app.clock.now()
        self._since = to_datetime(self._now) - timedelta(seconds=horizon(self._guards))
        self._gold = Gold(tables, to_datetime(self._now))
        self._situations = Situations(app, lake, self._gold, self._guards)
        self._workers = self._gold.workers(self._since) if self._limits else {}
        self._run = run

    def all(self) -> list[QueueTuned]:
        use = self._gold.use(self._since, peaks=bool(self._limits))
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
            else:
                fate = "stays" if judged.is_kept else "rolled back"
                verdict = f"version {active.version} {fate}: {judged.why}"
                if not judged.is_kept:
                    rolled_back = (active.version, 0.0)
                if self._options.apply:
                    active = self._execute(judged, active)
        holds = self._situations.holds(queue)
        if in_canary is not None:
            holds.append(f"version {in_canary} is in its canary window")
        pause, (rolled, ago) = self._guards.cool_down, rolled_back or (0, math.inf)
        if ago < pause:
            holds.append(
                f"version {rolled} was rolled back {ago / HOUR:.1f} h ago; tuning pauses for"
                f" {pause / HOUR:.0f} h after a rollback"
            )
        keys = self._keys(queue, use, {} if active is None else active.limits)
        has_passed = active is not None and in_canary is None and rolled_back is None
        is_busy = in_canary is not None or ago < pause
        state = _TuneState(queue, keys, active, verdict, holds, has_passed, is_busy)
        self._run.rows_in += sum(len(key.use) for key in use.values())
        self._propose(state)
        return state

    def _propose(self, state: _TuneState) -> None:
        """Set the changes of the weights and the limits of a queue."""
        queue, is_held = state.queue, bool(state.holds)
        now = {} if state.active is None else state.active.limits
        state.changes = propose(state.keys, self._guards, is_held)
        found: list[LimitChange] = []
        if self._limits:
            workers, nodes = self._workers.get(queue, []), self._situations.nodes(queue)
            found = propose_limits(state.keys, workers, nodes, is_held, self._guards)
            why = "no tasks for a long time"
        elif self._limits is None:
            why = "unchanged: limits are computed with --limits"
        else:
            why = "limits are switched off"
        of_people = self._management.limits_by_person(queue)
        found = [change for change in found if change.fairness_key not in of_people]
        stays = is_held or self._limits is None
        state.limits = found + [
            Change(
                key,
                now[key],
                None,
                now[key] if stays else None,
                "its limit was set by a person" if key in of_people else why,
            )
            for key in sorted(now.keys() - {change.fairness_key for change in found})
        ]

    def _keys(
        self, queue: str, use: Mapping[str, KeyUse], limits: Mapping[str, int]
    ) -> dict[str, Key]:
        weights, found = self._management.weights(queue), {}
        contracted = self._options.settings.due(queue)
        declared = {name: key.declared(self._guards.half_life) for name, key in use.items()}
        in_force = self._in_force(queue)
        for name, of_key in sorted(use.items()):
            fixed = "its weight was set by a person" if name in weights.by_person else None
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
        since = self._now - round(DAY * 1e6)
        found: list[Mapping[str, float]] = []
        for policy in self._management.policies(queue, KEPT_VERSIONS):
            found.append(policy.guarded)
            if policy.computed_at <= since:
                return found
        return [*found, {}] if found else found

    def _rolled_back(self, active: Policy | None) -> tuple[int, float] | None:
        """Return the rolled-back version and the seconds since then; None if the active version is
        not the result of a rollback."""
        if active is None or active.supersedes is None or active.judged_at != active.computed_at:
            return None
        return active.supersedes, (self._now - active.computed_at) / 1e6

    # verdict --------------------------------------------------------------------------------------

    def _verdict(self, policy: Policy) -> Verdict | None:
        """Return the verdict; None until the tables have the whole canary window of the version."""
        published, newest = to_datetime(policy.computed_at), self._situations.newest_minute
        full_hour = published.replace(minute=0, second=0, microsecond=0)
        hours = timedelta(hours=self._guards.canary_hours)
        after = full_hour if full_hour == published else full_hour + timedelta(hours=1)
        if newest is None or newest < after + hours:
            return None
        return judge(
            self._gold.measured(policy, full_hour - hours, full_hour),
            self._gold.measured(policy, after, after + hours),
            self._guards,
        )

    def _execute(self, verdict: Verdict, policy: Policy) -> Policy:
        """Keep the version or roll it back; return the version in force."""
        if verdict.is_kept:
            self._management.keep(policy.version, verdict.why)
            return policy
        to = DECLARED if policy.supersedes is None else policy.supersedes
        version = self._management.roll_back(policy, to, self._options.author, verdict.why)
        return self._management.policy(version)

    # canaries -------------------------------------------------------------------------------------

    def _canaries(self, states: Collection[_TuneState]) -> frozenset[str]:
        """Return the queues that change before the others: the changing queue with the least work.

        Return an empty set when a canary has passed or no queue has a change, so that all queues
        may change. Otherwise hold the other queues, and name the canaries they wait for.
        """
        if any(state.has_passed for state in states):
            return frozenset()
        ready = sorted(
            (state for state in states if state.is_change), key=lambda state: state.worker_seconds
        )
        busy = [state for state in states if state.is_busy]
        names = frozenset(state.queue for state in busy or ready[:1])
        for state in states:
            if names and state.queue not in names and state.is_change:
                canary = ", ".join(sorted(names))
                state.holds.append(
                    f"queue {canary} is tuned first, and its canary window has not ended"
                )
                self._propose(state)
        return names

    # publish --------------------------------------------------------------------------------------

    def _finish(self, state: _TuneState, is_canary: bool) -> QueueTuned:
        version = None if state.active is None else state.active.version
        outcome: Outcome = "held" if state.holds else "nothing to change"
        if state.is_change:
            outcome = "would be published"
            if self._options.apply:
                version = self._management.publish(self._draft(state, is_canary), version)
                outcome = "published"
                self._run.rows_out += len(state.changes) + len(state.limits)
        return QueueTuned(
            state.queue,
            outcome,
            version,
            state.verdict,
            state.holds,
            state.changes,
            state.limits,
        )

    def _draft(self, state: _TuneState, is_canary: bool) -> PolicyDraft:
        changes = {change.fairness_key: change for change in state.changes}
        raw = {key: change.raw for key, change in changes.items() if change.raw is not None}
        # An earlier weight stays in force while its key has too little data for a new one.
        earlier = {} if state.active is None else state.active.guarded
        kept = {key: changes[key].now for key in changes.keys() - raw.keys() if key in earlier}
        limits = {change.fairness_key: change for change in state.limits}
        newest = self._situations.newest_minute
        return PolicyDraft(
            queue=state.queue,
            author=self._options.author,
            why="shares of worker time",
            computed_at=self._now,
            input_from=to_micros(self._since),
            input_to=None if newest is None else to_micros(newest),
            input_rows=sum(len(key.use) for key in state.keys.values()),
            raw=raw,
            guarded=kept | {key: changes[key].guarded for key in raw},
            reasons={key: changes[key].reason for key in raw},
            due={key: state.keys[key].due for key in raw},
            raw_limits={key: of.raw for key, of in limits.items() if of.raw is not None},
            limits={key: of.guarded for key, of in limits.items() if of.guarded is not None},
            limit_reasons={key: of.reason for key, of in limits.items()},
            is_canary=is_canary,
        )
