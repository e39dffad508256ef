"""Turns by run time: which key of a lane goes next is settled when its task comes to the fore, not
when it was placed.

A level is given when a task comes, by what its run is expected to take, and is kept. Here each key
has an account of what its runs did take: those that ended, and of those that run what they were
charged, or what they have taken by now if that is more. The first tasks of each key stand in the
trigger table, at the turn that the account says when they come to stand there; the others of the
key wait here, in the order of their levels.

The bound. Let two keys, f and m, both have tasks in memory that no limit holds back, all through an
interval, and let S be the run time of the tasks of a key that were taken in it, in whole. Then

    | S_f / w_f - S_m / w_m |  <=  (c_f + 5 u_f) / w_f + (c_m + 5 u_m) / w_m

where c is the most that one task of the key was charged, and u the most that was in doubt of the
key at one moment: the sum of |took - charged| over its tasks that run or stand in the table. With
exact charges u is 0, and this is the bound of start-time fair queueing (Goyal, Vin and Cheng 1996)
in seconds. Why: let t(k) be the turn of the first task of k that stands in the table. Over the
interval t(k) moves on by S_k / w_k, but for what is in doubt at its two ends (2 u). And t(f) is
never further above t(m) than c_f + u_f + 2 u_m: f was taken last when it was not above, moved on by
its charge and by corrections, and m has since moved back by corrections at most. It holds while the
unit of run times stands still, and no key owes or has saved more than MOST_OWED.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from fairlead.core.fair.passes import STRIDE_SCALE
from fairlead.core.fair.run_times import RunTimes
from fairlead.model import Level, Trigger

MOST_OWED = 1000
"""Units, which are mean runs of the queue: a key is behind or ahead of the others by at most this,
divided by its weight. One run that hangs puts its key off for no longer; the rest is forgiven."""

SHOWN = 50_000
"""Microseconds of expected run time: so much of a key and name stands in the table at once, or one
task."""

MOST_SHOWN = 100

MOST_IDLE = 10_000
"""Keys without a task here that are remembered because they are ahead."""


class Shown(NamedTuple):
    """To be put into the table."""

    trigger: Trigger
    pass_: int
    """Virtual time of this lane, instead of its level's."""


@dataclass(eq=False)
class _Key:
    account: int
    """Virtual time: where the key would stand if nothing of it ran."""
    weight: float
    waiting: int = 0
    """Those in the table included."""
    shown: int = 0
    """What those in the table are charged."""
    running: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    """By task id and version, its charge and since when it runs (monotonic seconds)."""


@dataclass(eq=False)
class _Flow:
    """What the same limits stop: if the first of it cannot run, nor can the others."""

    waiting: list[tuple[Level, Trigger]] = field(default_factory=list)
    """A heap."""
    shown: dict[Level, tuple[int, int]] = field(default_factory=dict)
    """In the table: turn and charge."""


_FlowKey = tuple[str, str, str | None]


class RuntimeShares:
    """Of one lane. What its tasks are charged in virtual time is divided by the weight of their
    key."""

    def __init__(self, weights: Mapping[str, float], run_times: RunTimes) -> None:
        self.virtual_time = 0
        """The furthest turn taken."""
        self._weights = weights
        self._run_times = run_times
        self._keys: dict[str, _Key] = {}
        self._flows: dict[_FlowKey, _Flow] = {}
        self._touched: dict[_FlowKey, None] = {}

    def add(self, triggers: Iterable[Trigger], now: float) -> None:
        """These are in memory and may run. `now`: monotonic seconds."""
        for trigger in triggers:
            key = self._key(trigger)
            if not key.waiting:
                # Whoever had nothing waiting starts with the lane: an idle key saves nothing up.
                self._keep_within(key, now, saved=0)
            key.waiting += 1
            flow = self._flows.setdefault(_flow(trigger), _Flow())
            heappush(flow.waiting, (_level(trigger), trigger))
            self._touched[_flow(trigger)] = None

    def next(self, now: float) -> list[Shown]:
        """What comes to stand in the table now."""
        standing: dict[str, int] = {}
        found: list[Shown] = []
        touched = [
            (flow.waiting[0][0], name)
            for name in self._touched
            if (flow := self._flows.get(name)) and flow.waiting
        ]
        self._touched.clear()
        for _, (fairness_key, name, ordering_key) in sorted(touched):
            flow, key = self._flows[fairness_key, name, ordering_key], self._keys[fairness_key]
            if fairness_key not in standing:
                standing[fairness_key] = self._keep_within(key, now, saved=MOST_OWED)
            room = self._room(name, fairness_key) if ordering_key is None else len(flow.waiting)
            # Never before one of its flow that stands there already, whatever a run that has ended
            # gave back since.
            latest = max(
                (pass_ for pass_, _ in flow.shown.values()), default=standing[fairness_key]
            )
            while flow.waiting and len(flow.shown) < room:
                level, trigger = heappop(flow.waiting)
                pass_ = latest = max(latest, standing[fairness_key] + key.shown)
                charge = self._stride(self._run_times.charge(name, fairness_key), key)
                key.shown += charge
                flow.shown[level] = pass_, charge
                found.append(Shown(trigger, pass_))
        return found

    def taken(self, triggers: Iterable[Trigger], now: float) -> None:
        """These have left the table, to run."""
        for trigger in triggers:
            pass_, charge = self._hide(trigger)
            self._keys[trigger.fairness_key].running[trigger.id, trigger.version] = charge, now
            self.virtual_time = max(self.virtual_time, pass_)

    def ended(self, trigger: Trigger, cost: int) -> None:
        """A run has ended, after so many microseconds; or it never began: 0."""
        key = self._key(trigger)
        key.running.pop((trigger.id, trigger.version), None)
        key.account += round(self._run_times.virtual(cost) / key.weight)
        self._forget_idle(trigger.fairness_key, key)

    def returned(self, triggers: Sequence[Trigger], now: float) -> None:
        """These were taken and have not run: they wait again."""
        for trigger in triggers:
            self._keys[trigger.fairness_key].running.pop((trigger.id, trigger.version), None)
        self.add(triggers, now)

    def remove(self, triggers: Iterable[Trigger]) -> list[Trigger]:
        """Take these out; answers those that stand in the table."""
        shown = []
        gone: dict[_FlowKey, set[Level]] = {}
        for trigger in triggers:
            if _level(trigger) in self._flows[_flow(trigger)].shown:
                shown.append(trigger)
            else:
                gone.setdefault(_flow(trigger), set()).add(_level(trigger))
                self._keys[trigger.fairness_key].waiting -= 1
        for name, levels in gone.items():
            flow = self._flows[name]
            flow.waiting = [entry for entry in flow.waiting if entry[0] not in levels]
            heapify(flow.waiting)
            self._tidy(name, flow)
        for trigger in shown:
            self._hide(trigger)
        return shown

    def behind(self, trigger: Trigger) -> list[Trigger]:
        """What waits here behind one that stands in the table, and would be stopped by the same
        limits; by level."""
        flow = self._flows.get(_flow(trigger))
        return [] if flow is None else [waiting for _, waiting in sorted(flow.waiting)]

    def waiting(self) -> Iterator[Trigger]:
        """All that does not stand in the table."""
        for flow in self._flows.values():
            yield from (trigger for _, trigger in flow.waiting)

    def _key(self, trigger: Trigger) -> _Key:
        key = self._keys.get(trigger.fairness_key)
        weight = self._weights.get(trigger.fairness_key, trigger.weight)
        if key is None:
            key = self._keys[trigger.fairness_key] = _Key(self.virtual_time, weight)
        key.weight = weight
        return key

    def _keep_within(self, key: _Key, now: float, saved: int) -> int:
        """Where the key stands, what runs included; moved so that it owes and has saved no more
        than it may."""
        virtual = self._run_times.virtual
        standing = key.account + sum(
            max(charge, round(virtual(round((now - since) * 1e6)) / key.weight))
            for charge, since in key.running.values()
        )
        unit = STRIDE_SCALE / key.weight
        least, most = (
            self.virtual_time - round(saved * unit),
            self.virtual_time + round(MOST_OWED * unit),
        )
        kept = max(least, min(standing, most))
        key.account += kept - standing
        return kept

    def _hide(self, trigger: Trigger) -> tuple[int, int]:
        """It leaves the table: its turn and its charge."""
        name = _flow(trigger)
        flow, key = self._flows[name], self._keys[trigger.fairness_key]
        pass_, charge = flow.shown.pop(_level(trigger))
        key.shown -= charge
        key.waiting -= 1
        self._tidy(name, flow)
        return pass_, charge

    def _tidy(self, name: _FlowKey, flow: _Flow) -> None:
        if flow.waiting:
            self._touched[name] = None
        elif not flow.shown:
            del self._flows[name]

    def _forget_idle(self, fairness_key: str, key: _Key) -> None:
        if key.waiting or key.running:
            return
        if key.account <= self.virtual_time:
            del self._keys[fairness_key]
        elif len(self._keys) > MOST_IDLE + len(self._flows):
            idle = [
                (k.account, name)
                for name, k in self._keys.items()
                if not k.waiting and not k.running
            ]
            for _, name in sorted(idle)[: max(1, len(idle) - MOST_IDLE // 2)]:
                del self._keys[name]

    def _room(self, name: str, fairness_key: str) -> int:
        expected = self._run_times.expected(name, fairness_key)
        return max(1, min(SHOWN // expected, MOST_SHOWN)) if expected else 1

    @staticmethod
    def _stride(charge: int, key: _Key) -> int:
        return max(1, round(charge / key.weight))


def _flow(trigger: Trigger) -> _FlowKey:
    return trigger.fairness_key, trigger.name, trigger.ordering_key


def _level(trigger: Trigger) -> Level:
    assert trigger.level is not None
    return trigger.level
