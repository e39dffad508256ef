"""The further methods of a task store in SQL tables: records for people, notes of
runs, periodic tasks, statements, and transactions of handlers.
`TaskStore.as_sql` returns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fairlead.ports.notification import Notification
from fairlead.ports.periodic_store import PeriodicStore
from fairlead.ports.run_notes import RunNotesStore
from fairlead.ports.statements import SqlDatabase, Statement, Steps
from fairlead.ports.task_records import TaskRecords


class SqlStore(TaskRecords, Protocol):
    """Tasks in the tables of a SQL database. Import this class for type annotations only; get a
    store from `App.sql_store` or `fairlead.connect.task_store`."""

    @property
    def database(self) -> SqlDatabase:
        """Database that runs the steps."""

    @property
    def keeps_levels(self) -> bool:
        """Whether the application keeps the levels of fair queues in this database, so that the
        store makes and checks their tables."""

    @property
    def run_notes(self) -> RunNotesStore:
        """Progress, checkpoints and log lines of runs."""

    @property
    def periodics(self) -> PeriodicStore:
        """Periodic tasks of all applications on this store."""

    @property
    def sql(self) -> Mapping[str, str]:
        """Statements by name, in the dialect of the database."""

    def statement(self, name: str, *params: Any) -> Statement:
        """Return the named statement with its parameters."""

    def announce(self, notification: Notification) -> Steps[None]:
        """Send the notification with the commit of this transaction if the database can; otherwise
        the caller announces it after the commit."""

    def shared_clock(self, now: int) -> Steps[int]:
        """Return the clock for heartbeats (microseconds since the epoch): the database's if nodes
        may be on many machines, else `now`."""

    def bound_pauses(self, seconds: float) -> Steps[None]:
        """Let the database end this transaction, and release its locks, if the process pauses for
        longer between two statements. Nothing on SQLite, whose locks end with the process."""

    def set_weights(self, queue: str, keys: Sequence[str], weight: float | None) -> Steps[int]:
        """Set the weight of different keys of a queue, as `set_weight` does for one; return the
        number of keys that were changed, none in a queue that was never registered."""

    def set_limits(self, queue: str, keys: Sequence[str], limit: int | None) -> Steps[int]:
        """Set the limit of different keys of a queue, as `set_limit` does for one; return the
        number of keys that were changed."""
