"""What happens on a node and at submits, for metrics. Called with whole batches, never per task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fairlead.model import ClaimedTask, Finish, NewTask, TaskRecord, Trigger


class OrderedGauges(NamedTuple):
    """An ordered queue on this node."""

    loaded: int
    """Tasks in memory."""
    in_flight: int
    """Handed out, and their ends not yet written."""
    stale: int
    """Of those in memory, due more than 5 minutes ago."""
    look_ahead: float
    """Seconds from now up to which everything is in memory, in the partition that is behind most;
    negative: it catches up."""
    failing: int
    """Partitions that are being loaded anew."""


class Observer(Protocol):
    """All methods must be quick and must not raise. They run on the node's event loop, `submitted`
    in any thread."""

    def submitted(self, tasks: Sequence[NewTask]) -> None:
        """These tasks were inserted, or will be when the caller's transaction commits."""

    def claimed(self, tasks: Sequence[tuple[Trigger, ClaimedTask]]) -> None:
        """This node won these tasks."""

    def finished(self, runs: Sequence[tuple[Trigger, ClaimedTask, Finish]]) -> None:
        """These runs ended, and their ends are in the store."""

    def gauges(self, look_ahead: int, in_flight: int) -> None:
        """Triggers in memory and tasks claimed but not completed, now."""

    def ordered(self, queues: dict[str, OrderedGauges]) -> None:
        """The ordered queues of this node, now. Called only where there are any."""

    def oldest_ready(self, ages: dict[str, float]) -> None:
        """Seconds that the oldest SUBMITTED task of each queue has waited."""

    def incident(self, tasks: Sequence[TaskRecord]) -> None:
        """These tasks are in ERROR or stuck, and a person should look."""

    def counted(self, what: str, count: int = 1) -> None:
        """Something else worth counting: `healed_triggers`, `lost_claims`, `refused_completions`,
        `resumed_tasks`, `unsent_triggers`, `corrupt_triggers` ... Of these two, in any thread."""


class Silent:
    """Observes nothing."""

    def submitted(self, tasks: Sequence[NewTask]) -> None: ...
    def claimed(self, tasks: Sequence[tuple[Trigger, ClaimedTask]]) -> None: ...
    def finished(self, runs: Sequence[tuple[Trigger, ClaimedTask, Finish]]) -> None: ...
    def gauges(self, look_ahead: int, in_flight: int) -> None: ...
    def ordered(self, queues: dict[str, OrderedGauges]) -> None: ...
    def oldest_ready(self, ages: dict[str, float]) -> None: ...
    def incident(self, tasks: Sequence[TaskRecord]) -> None: ...
    def counted(self, what: str, count: int = 1) -> None: ...
