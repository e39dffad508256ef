"""The slots of each kind of executor on a node."""

from __future__ import annotations

from fairlead.core.limits.limits import ConcurrencyPolicy, Limit
from fairlead.declare.handler import ExecutorKind


class Slots:
    """Slots for threads and processes, so that a task that waits for one holds up no other task."""

    def __init__(self, threads: int, processes: int) -> None:
        self._of_kind: dict[ExecutorKind, ConcurrencyPolicy] = {
            ExecutorKind.THREAD: Limit(threads),
            ExecutorKind.PROCESS: Limit(processes),
        }

    def of(self, kind: ExecutorKind) -> ConcurrencyPolicy | None:
        """Return the slots of a kind of executor; None when only the node's slots limit it."""
        return self._of_kind.get(kind)
