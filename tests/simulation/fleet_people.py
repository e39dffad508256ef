"""People who change the tasks and weights of a simulated fleet while it runs."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from fairlead.errors import NotAllowed, StaleVersion, UnknownQueue, UnknownTask
from fairlead.model import State
from fairlead.operate.tasks import Management
from tests.simulation.fleet_plan import KEYS

if TYPE_CHECKING:
    from tests.simulation.fleet_jobs import Job
    from tests.simulation.fleet_simulation import Fleet

NEW_KEYS = (*KEYS, "x/1", "x/2", "later")
"""Fairness keys that people give to tasks; some are paths of a tenant."""
NOT_STARTED = (State.WAITING, State.SUBMITTED)


class People:
    """The commands of people. Each takes no time: its process is not part of the fleet."""

    def __init__(self, fleet: Fleet, management: Management) -> None:
        self._fleet = fleet
        self._management = management
        self._chance = fleet.plan.people
        self._odds = self._chance.choice((0.2, 0.6, 0.9)) if self._chance else 0.0

    async def act(self) -> None:
        """Perhaps make one change."""
        chance = self._chance
        if chance is None or chance.random() >= self._odds:
            return
        await self._fleet.machine.until_free()
        kind = chance.choice(("change", "change", "cancel", "weigh"))
        if kind == "weigh":
            self._weigh(chance.choice([*self._fleet.plan.queues]))
            return
        waiting = [job for job in self._fleet.unstarted() if self._is_waiting(job)]
        for job in chance.sample(waiting, min(len(waiting), chance.choice((1, 4, 12)))):
            if kind == "cancel":
                self._cancel(job)
            else:
                self._change(job)

    def _is_waiting(self, job: Job) -> bool:
        assert job.id is not None
        return self._management.show(job.id).state in NOT_STARTED

    def _change(self, job: Job) -> None:
        """Give a task another priority, fairness key or both."""
        chance = self._chance
        priority = chance.choice((None, 0, 5, 9))
        key = chance.choice((None, *NEW_KEYS)) if priority is not None else chance.choice(NEW_KEYS)
        assert job.id is not None
        with suppress(StaleVersion, NotAllowed, UnknownTask):
            self._management.change(job.id, priority=priority, fairness_key=key)
            job.priority = job.priority if priority is None else priority
            job.fairness_key = job.fairness_key if key is None else key
            self._fleet.log(f"change {job.number}: {priority} {key}")

    def _cancel(self, job: Job) -> None:
        assert job.id is not None
        self._management.cancel(job.id)
        self._fleet.note_cancelled(job)
        self._fleet.log(f"cancel {job.number}")

    def _weigh(self, queue: str) -> None:
        """Give a fairness key of a queue another weight, or remove it."""
        key, weight = self._chance.choice(NEW_KEYS), self._chance.choice((None, 0.1, 3.0, 100.0))
        with suppress(UnknownQueue):
            self._management.set_weight(queue, key, weight)
            self._fleet.log(f"weigh {queue} {key}: {weight}")
