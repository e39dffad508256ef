"""Rules for tasks of an ordered queue: an ordering key, a time that is not too late, and a unique
key."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import msgspec

from fairlead.clock import MICROS, to_datetime
from fairlead.core.ids import id_of, id_text
from fairlead.declare.options import Options
from fairlead.declare.queue import OrderedQueue
from fairlead.errors import InvalidTask
from fairlead.model import NewTask, PartitionKey, ScheduledTask
from fairlead.model.columns import StoredTask
from fairlead.ports.task_log import Entry, Submit, partition_of


def check(entry: Entry, partition: PartitionKey | None = None) -> None:
    """Raise InvalidTask for an entry that no schedule can hold, because it would stop its partition
    for good. Submits are checked earlier, but other programs may write to a log, and people type
    the keys of tasks to drop. `partition`: partition of the log that has the entry, if it comes
    from a log."""
    if partition not in (None, partition_of(entry)):
        raise InvalidTask(f"an entry for {partition_of(entry)} is in the log of {partition}")
    if isinstance(entry, Submit):
        task = entry.task
        key = ScheduledTask.of(task).key
        options = Options(
            fairness_key=task.fairness_key, weight=task.weight, priority=task.priority
        )
    else:
        key, options = entry.key, Options()
    options.changed({"ordering_key": key.ordering_key, "unique_key": key.unique_key})
    try:
        to_datetime(key.run_at)
    except OverflowError:
        raise InvalidTask(
            f"run_at {key.run_at}: use microseconds since 1970, within the years 1 to 9999"
        ) from None
    if isinstance(entry, Submit):
        try:
            msgspec.convert(entry.task, StoredTask, from_attributes=True)
        except msgspec.ValidationError as error:
            raise InvalidTask(f"task {entry.task.id!r}: {error}") from None


class Acceptance:
    """Checks and completes tasks for the log. Thread-safe."""

    def __init__(self, queues: Mapping[str, OrderedQueue]) -> None:
        self._queues = queues
        self._lock = threading.Lock()
        self._last = 0

    def entries(self, tasks: Sequence[NewTask], now: int) -> list[Submit]:
        """Return the tasks as entries of the log.

        Each task for "now" gets a different time, so that tasks of one process keep the order of
        their submits. A task without a unique key gets its id as unique key. Raise InvalidTask
        before any task is accepted.
        """
        accepted = []
        for task in tasks:
            _check_keys(task)
            late = (now - task.run_at) / MICROS
            if late > (grace := self._queues[task.queue].grace):
                raise InvalidTask(
                    f"task {task.name!r}: run_at {to_datetime(task.run_at).isoformat()} is"
                    f" {late:.1f} s ago, more than the grace of {grace:g} s of queue"
                    f" {task.queue!r}; leave run_at out to have it run now, or declare the queue"
                    " with a greater grace"
                )
            is_now = task.run_at == task.submitted_at
            accepted.append(
                Submit(
                    msgspec.structs.replace(
                        task,
                        run_at=self._next_time(task.run_at) if is_now else task.run_at,
                        unique_key=task.unique_key or task.id,
                    )
                )
            )
        return accepted

    def slots(self, tasks: Sequence[NewTask]) -> list[Submit]:
        """Return the tasks of slots of periodic tasks as entries of the log, however late they are.

        A slot has the same entry from every node, with the same id, so the schedule drops what
        comes twice. Raise InvalidTask before any task is accepted.
        """
        entries = []
        for task in tasks:
            _check_keys(task)
            key = ScheduledTask.of(task).key
            name = msgspec.json.encode((task.queue, key.ordering_key, key.unique_key)).decode()
            task_id = id_text(id_of(name, key.run_at))
            entries.append(Submit(msgspec.structs.replace(task, id=task_id)))
        return entries

    def _next_time(self, now: int) -> int:
        """Return a time above the last one returned, unless the clock was set back."""
        with self._lock:
            self._last = max(now, self._last + 1) if self._last < now + MICROS else now
            return self._last


def _check_keys(task: NewTask) -> None:
    if task.ordering_key is None:
        raise InvalidTask(
            f"task {task.name!r}: queue {task.queue!r} is ordered, so its tasks need an"
            f" ordering_key; submit it by {task.name}.options(ordering_key=...)"
        )
    if task.unique_until is not None:
        raise InvalidTask(
            f"task {task.name!r}: queue {task.queue!r} is ordered, so it knows the keys of ended"
            " tasks without unique_for; leave it out"
        )
