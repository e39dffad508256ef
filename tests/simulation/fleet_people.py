"""People who change the tasks and weights of a simulated fleet while it runs."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from fairlead.clock import MICROS, SYSTEM_CLOCK, to_datetime
from fairlead.errors import UnknownQueue, UnknownTask
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
        kind = chance.choice(("change", "change", "cancel", "weigh", "retry", "resume", "postpone"))
        if kind == "weigh":
            self._weigh(chance.choice([*self._fleet.plan.queues]))
            return
        states, change = {
            "change": (NOT_STARTED, self._change),
            "cancel": (NOT_STARTED, self._cancel),
            "retry": ((State.ERROR,), self._retry),
            "resume": ((State.WAITING,), self._resume),
            "postpone": ((State.WAITING,), self._postpone),
        }[kind]
        jobs = [*self._fleet.unstarted()] if states == NOT_STARTED else self._fleet.jobs
        fit = [job for job in jobs if job.id is not None and self._state(job) in states]
        for job in chance.sample(fit, min(len(fit), chance.choice((1, 4, 12)))):
            assert job.id is not None
            change(job, job.id)

    def _state(self, job: Job) -> State | None:
        assert job.id is not None
        try:
            return self._management.show(job.id).state
        except UnknownTask:
            return None

    def _change(self, job: Job, task_id: str) -> None:
        """Give a task another priority, fairness key or both."""
        chance = self._chance
        priority = chance.choice((None, 0, 5, 9))
        key = chance.choice((None, *NEW_KEYS)) if priority is not None else chance.choice(NEW_KEYS)
        self._management.change(task_id, priority=priority, fairness_key=key)
        job.priority = job.priority if priority is None else priority
        job.fairness_key = job.fairness_key if key is None else key
        self._fleet.log(f"change {job.number}: {priority} {key}")

    def _cancel(self, job: Job, task_id: str) -> None:
        self._management.cancel(task_id)
        self._fleet.note_cancelled(job)
        self._fleet.log(f"cancel {job.number}")

    def _retry(self, job: Job, task_id: str) -> None:
        """Run a task in ERROR again."""
        self._management.retry(task_id)
        job.retries += 1
        self._fleet.log(f"retry {job.number}")

    def _resume(self, job: Job, task_id: str) -> None:
        """Run a waiting task now."""
        self._management.resume(task_id)
        job.due_at = self._fleet.now
        self._fleet.log(f"resume {job.number}")

    def _postpone(self, job: Job, task_id: str) -> None:
        """Give a waiting task another time, perhaps an earlier one."""
        seconds = self._chance.choice((0.0, 0.5, 6.0))
        run_at = to_datetime(SYSTEM_CLOCK.now() + round(seconds * MICROS))
        self._management.reschedule(task_id, run_at)
        job.due_at = self._fleet.now + seconds
        self._fleet.log(f"postpone {job.number} by {seconds}")

    def _weigh(self, queue: str) -> None:
        """Give a fairness key of a queue another weight, or remove it."""
        key, weight = self._chance.choice(NEW_KEYS), self._chance.choice((None, 0.1, 3.0, 100.0))
        with suppress(UnknownQueue):
            self._management.set_weight(queue, key, weight)
            self._fleet.log(f"weigh {queue} {key}: {weight}")
