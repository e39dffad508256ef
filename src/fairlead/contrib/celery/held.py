"""Tasks that wait for other tasks: chains, the bodies of chords, and callbacks.

Such a task runs at its submit, looks for the tasks before it, and then is WAITING in the store; it
counts as left to run. The worker that ends the last task before it wakes it at once. Should that
worker die in between, the task looks by itself, at most a minute later.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.contrib.celery.messages import Ids, ignored
from fairlead.contrib.celery.states import BROKEN_DEPENDENCY
from fairlead.errors import (
    FairleadError,
    ResultNotKept,
    ResultTimeout,
    TaskFailed,
    UnknownTask,
)
from fairlead.model import State
from fairlead.operate.changes import Cancel, Change, Reschedule

if TYPE_CHECKING:
    from fairlead.app import App

log = logging.getLogger("fairlead.celery")

FIRST_LOOK = timedelta(seconds=10)
"""Time after its first look at which a waiting task looks again if nothing woke it."""
LONGEST_LOOK = timedelta(seconds=60)
MANY_PAUSE = 1.0
"""Seconds by which the wakes of a task with many before it are put off, so that one serves many."""
_PAUSES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_UNFINISHED = frozenset({State.SUBMITTED, State.PROCESSING})


class BrokenDependency(FairleadError):
    """Raised if a task before this one ended without success."""


class NotYet(FairleadError):
    """Raised while a task before this one has not ended."""


def results(app: App, after: Ids) -> Any:
    """Return the kept results of the tasks, one or a list as deep as `after`. Raise NotYet, and
    BrokenDependency naming the first task that failed."""
    if not isinstance(after, str):
        return [results(app, each) for each in after]
    try:
        found = app.handle(after).result(0)
    except ResultTimeout:
        raise NotYet(f"task {after} has not ended") from None
    except (ResultNotKept, TaskFailed, UnknownTask) as error:
        raise BrokenDependency(str(error).partition("\n")[0]) from None
    if ignored(found) is not None:
        raise BrokenDependency(f"task {after} raised Ignore, and has no result")
    return found


def next_look(runs: int) -> datetime:
    """Return the time at which a task looks again after `runs` looks."""
    wait = min(LONGEST_LOOK, FIRST_LOOK * 2.0 ** min(runs - 1, 8))
    return datetime.now(UTC) + wait


def ids_in(after: Ids) -> Iterator[str]:
    """Yield the ids in order."""
    if isinstance(after, str):
        yield after
    else:
        for each in after:
            yield from ids_in(each)


def cancel(app: App, task_id: str, reason: str) -> None:
    """End a task as CANCELLED because one before it failed, which its record names."""
    _change(app, task_id, Cancel(actor=(BROKEN_DEPENDENCY + reason)[:1000]))


def _change(app: App, task_id: str, change: Change) -> bool:
    """Change a task without an entry in the audit log, which is for people; return whether it was
    in a state for the change."""
    record = app.handle(task_id).record()
    if record.state not in change.states:
        return record.state not in _UNFINISHED
    store = app.store.records
    steps = change.steps(store, [record], app.clock.now())
    changed, notification = store.database.run(steps)
    if changed:
        app.channel.announce(notification)
    return bool(changed)


class Ended(NamedTuple):
    """A run that is about to end, and what depends on the task."""

    id: str
    wakes: Sequence[str]
    is_partial: bool
    on_failure: Callable[[], Sequence[str]] | None
    """Submits the errbacks of a task that the store has as failed although its run did not fail
    itself, and returns their ids."""


class Waker:
    """A thread that wakes the tasks which wait for one that ended here. Stops when idle."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._condition = threading.Condition()
        self._due: list[tuple[float, int, int, Ended | str]] = []
        self._count = 0
        self._pending: set[str] = set()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether tasks are still to be woken or watched."""
        return self._thread is not None

    def ended(self, ended: Ended) -> None:
        """Watch a task whose run ends now, until the store has its end."""
        self._add(_PAUSES[0], 0, ended)

    def wake(self, ids: Sequence[str], is_partial: bool) -> None:
        """Wake waiting tasks."""
        for each in ids:
            if is_partial:
                with self._condition:
                    if each in self._pending:
                        continue
                    self._pending.add(each)
            self._add(MANY_PAUSE if is_partial else 0.0, 0, each)

    def _add(self, pause: float, tries: int, what: Ended | str) -> None:
        with self._condition:
            self._count += 1
            heapq.heappush(self._due, (time.monotonic() + pause, self._count, tries, what))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="fairlead-celery-waker", daemon=True
                )
                self._thread.start()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._due:
                    self._thread = None
                    return
                wait = self._due[0][0] - time.monotonic()
                if wait > 0:
                    self._condition.wait(wait)
                    continue
                _, _, tries, what = heapq.heappop(self._due)
                if isinstance(what, str):
                    self._pending.discard(what)
            try:
                is_settled = self._wake(what) if isinstance(what, str) else self._look(what)
            except Exception as error:  # the store may be away; the waiting tasks look themselves
                log.info("a waiting task could not be woken", extra={"error": str(error)})
                is_settled = False
            if not is_settled and tries + 1 < len(_PAUSES):
                self._add(_PAUSES[tries + 1], tries + 1, what)

    def _wake(self, task_id: str) -> bool:
        return _change(self._app, task_id, Reschedule(run_at=0))

    def _look(self, ended: Ended) -> bool:
        """Return whether the store has the end of the run."""
        state = self._app.handle(ended.id).state()
        if state in _UNFINISHED:
            return False
        if state is State.WAITING:  # it is retried
            return True
        self.wake(ended.wakes, ended.is_partial)
        if ended.on_failure is not None and state in (State.ERROR, State.FAILED):
            self.wake(ended.on_failure(), False)
        return True
