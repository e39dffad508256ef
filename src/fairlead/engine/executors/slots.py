"""The slots of each kind of executor on a node."""

from __future__ import annotations

from fairlead.core.limits.limits import ConcurrencyPolicy, Limit
from fairlead.declare.handler import ExecutorKind


class Slots:
    """Threads and processes are few: a task that needs one books it, and holds up no task that does
    not."""

    def __init__(self, threads: int, processes: int) -> None:
        self._of_kind: dict[ExecutorKind, ConcurrencyPolicy] = {
            ExecutorKind.THREAD: Limit(threads),
            ExecutorKind.PROCESS: Limit(processes),
        }

    def of(self, kind: ExecutorKind) -> ConcurrencyPolicy | None:
        """The slots of one kind of executor; None: only the node's own bound them."""
        return self._of_kind.get(kind)
