"""Tasks that wait for other tasks: chains, the bodies of chords, and callbacks.

Such a task runs at its submit, checks the tasks before it, and then is WAITING in the store; it
counts as left to run. The worker that ends the last task before it wakes it at once. Should that
worker die in between, the task checks by itself, at most a minute later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from fairlead.contrib.celery.exceptions import ChordError
from fairlead.contrib.celery.messages import Ids
from fairlead.errors import ResultNotKept, ResultTimeout, Snooze, TaskFailed, UnknownTask
from fairlead.model import State
from fairlead.operate.changes import Reschedule

if TYPE_CHECKING:
    from fairlead.app import App
    from fairlead.contrib.celery.app import Celery

log = logging.getLogger("fairlead.celery")

FIRST_CHECK = timedelta(seconds=10)
"""Time after its first check at which a waiting task checks again if nothing woke it."""
LONGEST_CHECK = timedelta(seconds=60)
_PAUSES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Seconds before the tries of a wake."""


def results(app: App, after: Ids, checks: int) -> Any:
    """Return the kept results of the tasks, one or a list as deep as `after`. Raise Snooze if one
    has not ended, after `checks` checks; and ChordError naming the first one that failed."""
    if not isinstance(after, str):  # the last one first, which most likely ends last
        return [results(app, each, checks) for each in reversed(after)][::-1]
    try:
        return app.handle(after).result(0)
    except ResultTimeout:
        wait = min(LONGEST_CHECK, FIRST_CHECK * 2.0 ** min(checks - 1, 8))
        raise Snooze(datetime.now(UTC) + wait) from None
    except (ResultNotKept, TaskFailed, UnknownTask) as error:
        raise ChordError(str(error).partition("\n")[0]) from None


class Waker:
    """Threads that wake the tasks which wait for those that end here."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._threads = ThreadPoolExecutor(4, "fairlead-celery")
        self.ends: set[Future[None]] = set()
        """Ends that are awaited, and wakes under way."""

    def ended(self, task_id: str, wakes: Sequence[str]) -> None:
        """Await the end of a run that ends now, and wake the tasks that wait for it."""
        if wakes:
            future = self._threads.submit(self._watch, task_id, wakes)
            self.ends.add(future)
            future.add_done_callback(self.ends.discard)

    def _watch(self, task_id: str, wakes: Sequence[str]) -> None:
        try:
            with suppress(ResultNotKept, ResultTimeout, TaskFailed):
                self._app.fairlead.handle(task_id).result(sum(_PAUSES))
            for each in wakes:
                self._wake(each)
        except Exception as error:  # the store may be away; the waiting tasks look themselves
            log.info("waiting tasks were not woken", extra={"error": str(error)})

    def _wake(self, task_id: str) -> None:
        """Make a waiting task due, without an entry in the audit log, which is for people."""
        fairlead = self._app.fairlead
        store = fairlead.sql_store
        for pause in _PAUSES:
            time.sleep(pause)
            record = fairlead.handle(task_id).record()
            if record.state is State.WAITING:
                steps = Reschedule(run_at=0).steps(store, [record], fairlead.clock.now())
                changed, notification = store.database.run(steps)
                if changed:
                    return fairlead.channel.announce(notification)
            elif record.state is not State.PROCESSING:
                return None
        return None
