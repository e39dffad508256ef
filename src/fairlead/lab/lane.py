"""A fair backlog over a list: the core of a worker, with reads and writes that take no time and
never fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from fairlead.core.fair.backlog import Backlog, BacklogWrite, Changes, Timing
from fairlead.core.fair.counters import Counters
from fairlead.core.fair.passes import Passes
from fairlead.lab.list_store import ListStore
from fairlead.model import LaneRecord, Trigger

_NO_CLOCK = 0.0
_RANGE_ID = 1


class ListedBacklog:
    """One lane. `apply` is called with each change of the triggers that may be dispatched."""

    def __init__(
        self,
        counters: Counters,
        capacity: int,
        apply: Callable[[Changes], None],
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """`capacity`: triggers in memory; the list holds the others. `weights`: weights set at run
        time, by key; the mapping may change while the lane is in use."""
        self._backlog = Backlog(
            _RANGE_ID,
            LaneRecord(),
            _UnstoredPasses(counters, weights),
            capacity,
            Timing(),
            is_new=True,
        )
        self._store = ListStore()
        self._apply = apply

    def push(self, tasks: Sequence[Trigger]) -> None:
        """Add tasks that arrive."""
        added = self._backlog.add(tasks)
        if isinstance(added, BacklogWrite):
            self._store.write(added.entries)
            added = self._backlog.written(added)
        self._apply(added)
        self._read_and_delete()

    def dispatch(self, tasks: Sequence[Trigger]) -> None:
        """Take tasks that were picked, and ack them at once."""
        self._backlog.take(tasks)
        self._backlog.ack(tasks)
        self._read_and_delete()

    def _read_and_delete(self) -> None:
        while (read := self._backlog.next_read()) is not None:
            self._apply(self._backlog.read(self._store.read_above(read.above, read.limit)))
        if (through := self._backlog.next_delete(_NO_CLOCK)) is not None:
            self._store.delete_through(through)
            self._backlog.deleted(through, _NO_CLOCK)


class _UnstoredPasses(Passes):
    def heaviest(
        self, most: int, unstored: Iterable[tuple[str, int]] = ()
    ) -> list[tuple[str, int]]:
        """Return nothing: nobody takes over a lane of a simulation, and sorting a million keys at
        every write is slow."""
        return []
