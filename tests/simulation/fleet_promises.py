"""The promises of a fleet of workers, checked from outside all the time while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fairlead.engine.liveness import LEASE_SECONDS, SILENT_SECONDS
from fairlead.model import PartitionKey
from tests.simulation.fleet_jobs import Job, Run
from tests.simulation.fleet_plan import QueuePlan
from tests.simulation.fleet_worker import Worker

if TYPE_CHECKING:
    from tests.simulation.fleet_simulation import Fleet

IDLE_SECONDS = 6.0
"""Seconds for which a task may wait while some node has a free slot for it, once all nodes are well.
Nodes notice a new node and a dead owner within this time."""
HEAL_SECONDS = 20.0
"""Seconds within which nodes make up for lost notifications and messages."""
PERMIT_SECONDS = 20.0
"""Seconds within which permits of cluster-wide limits, of up to four levels, reach a node that can use
them."""
OWNER_SECONDS = LEASE_SECONDS + 5.0
"""Seconds for which a partition of a served queue may have no living owner."""
CALM_SECONDS = LEASE_SECONDS + 2.0
"""Seconds after a fault of a node in which its leases may still keep tasks waiting."""
WRITE_SECONDS = 1.0
"""Seconds within which the end of a run is in the store."""
PAUSE_SECONDS = 4.0
"""Seconds within which nodes notice that a queue is paused."""


class Broken(Exception):
    """Raised for a broken promise."""


class Promises:
    """Checks of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._waiting: dict[Job, float] = {}
        """Time since when some node could run each waiting job."""
        self._unowned: dict[PartitionKey, float] = {}
        """Time since when each partition has no living owner."""

    # at each start --------------------------------------------------------------------------------

    def on_start(self, job: Job, run: Run) -> None:
        """Check one start, already noted in the job and its worker."""
        fleet, worker = self._fleet, run.worker
        if len(job.runs) > job.wanted_runs:
            unexplained = [each for each in job.runs[:-1] if not self._may_repeat(each)]
            if len(unexplained) > job.wanted_runs - 1:
                raise Broken(f"{fleet.show(job)} ran again without a reason")
        paused_at = fleet.paused.get(job.queue)
        if (
            paused_at is not None
            and run.at > paused_at + PAUSE_SECONDS
            and not worker.had_fault(paused_at, run.at)
        ):
            raise Broken(f"{fleet.show(job)} started in a paused queue")
        # A process that hung between a claim and its run does not know of the cancellation.
        if job.is_cancelled and not worker.had_fault(run.at - WRITE_SECONDS, run.at):
            raise Broken(f"{fleet.show(job)} started after it was cancelled")
        self._check_limits(job, worker)
        if run.at < job.due_at - 1e-3:
            raise Broken(f"{fleet.show(job)} started before {job.due_at:.2f}")
        if job.ordering_key is not None:
            self._check_order(job)

    def _may_repeat(self, run: Run) -> bool:
        """Return whether a run may be repeated: its end may not have reached the store."""
        worker = run.worker
        written_at = float("inf") if run.ended_at is None else run.ended_at + WRITE_SECONDS
        was_killed = worker.killed_at is not None and worker.killed_at <= written_at
        return was_killed or worker.had_fault(run.at - SILENT_SECONDS, written_at)

    def _check_limits(self, job: Job, worker: Worker) -> None:
        fleet = self._fleet
        for scope, most, is_cluster_wide in fleet.limits(job):
            users = fleet.living if is_cluster_wide else [worker]
            if sum(user.counts[scope] for user in users) > most:
                raise Broken(f"{fleet.show(job)} exceeds the limit {most} of {scope}")

    def _check_order(self, job: Job) -> None:
        for other in self._fleet.of_key(job):
            if other.number < job.number and not other.is_over:
                raise Broken(f"{self._fleet.show(job)} overtook {self._fleet.show(other)}")
            if other is not job and any(
                each.ended_at is None and not self._may_repeat(each) for each in other.runs
            ):
                raise Broken(f"{self._fleet.show(job)} and {self._fleet.show(other)} run at once")

    # all the time ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Check everything that holds at any time; called several times a second."""
        for worker in self._fleet.living:
            if worker.task.done() and not worker.node._stopping.is_set():
                error = None if worker.task.cancelled() else worker.task.exception()
                raise Broken(f"node {worker.name} died of {error!r}")
        self._check_idle()
        self._check_owners()

    def _check_idle(self) -> None:
        fleet, now = self._fleet, self._fleet.now
        if any(self._is_unwell(worker) for worker in fleet.workers):
            self._waiting.clear()
            return
        self._waiting = {
            job: self._waiting.get(job, now) for job in fleet.unstarted() if fleet.can_run(job)
        }
        for job, since in self._waiting.items():
            bound = IDLE_SECONDS + (HEAL_SECONDS if fleet.plan.loss else 0.0)
            if fleet.plan.queues[job.queue].needs_permits:
                bound += PERMIT_SECONDS
            if now - since > bound:
                raise Broken(f"{fleet.show(job)} waits since {since:.2f} while a node is idle")

    def _is_unwell(self, worker: Worker) -> bool:
        now = self._fleet.now
        if worker.killed_at is not None and worker.restart_seconds:
            # The others leave its partitions free until it should be back.
            return now < worker.killed_at + worker.restart_seconds + CALM_SECONDS
        return worker.had_fault(now - CALM_SECONDS, now)

    def _check_owners(self) -> None:
        fleet, now = self._fleet, self._fleet.now
        names = {worker.name for worker in fleet.living}
        owners = fleet.owners()
        unowned = [
            PartitionKey(plan.name, partition)
            for plan in self._served()
            for partition in range(plan.partitions)
            if owners.get(PartitionKey(plan.name, partition)) not in names
        ]
        self._unowned = {key: self._unowned.get(key, now) for key in unowned}
        # A fault of the node that was to take a partition begins the wait anew.
        faults = [begin for worker in fleet.workers for begin, _ in worker.faults]
        for key, since in self._unowned.items():
            if now - max([since, *faults]) > OWNER_SECONDS:
                raise Broken(f"partition {tuple(key)} has no owner since {since:.2f}")

    def _served(self) -> Iterable[QueuePlan]:
        """Yield the queues that a healthy node serves."""
        fleet = self._fleet
        healthy = [
            worker for worker in fleet.living if worker.is_serving and not self._is_unwell(worker)
        ]
        for plan in fleet.plan.queues.values():
            if any(plan.name in worker.queues for worker in healthy):
                yield plan

    # at the end -----------------------------------------------------------------------------------

    def check_end(self, left: int, in_error: Mapping[str, str], effects: Mapping[int, int]) -> None:
        """Check that each job has run and ended as it should. `left`: number of tasks in the store.
        `in_error`: text of the error by id of each task in ERROR. `effects`: number of committed
        writes by number of the job."""
        show = self._fleet.show
        for job in self._fleet.jobs:
            if job.is_cancelled:
                continue
            if not job.runs:
                raise Broken(f"{show(job)} never ran")
            error = in_error.get(job.id or "")
            if (error is not None) != job.ends_in_error and len(job.runs) < 5:
                raise Broken(f"{show(job)} ended with {error!r}")
            if job.name == "joined" and effects.get(job.number) != 1:
                raise Broken(f"{show(job)} committed {effects.get(job.number)} times")
        if left:
            raise Broken(f"{left} tasks are left")
