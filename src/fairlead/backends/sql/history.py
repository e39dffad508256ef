"""The history of a task store, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.backends.sql.sql_file import load, package_of
from fairlead.model.history import Ended, Feed, Position, Reader, Totals
from fairlead.ports.statements import Row, SqlDatabase, Statement, Steps

_SUBMIT_MICROS = 5_000_000
"""Greatest time in microseconds between making a task's id and the first write of the transaction
that writes its row, with some tolerance for clocks that differ."""

_MOST_MARKS = 1000


class SqlHistory:
    """Attempts and events of one store, in the order in which they were committed. Times are
    microseconds since the epoch."""

    def __init__(self, database: SqlDatabase) -> None:
        self.database = database
        self._sql = load("history.sql", package_of(database))
        self._settled_until = 0
        """Instant before which every transaction that had written has ended."""
        self._marks: list[tuple[int, int]] = []
        """Later instants, each with the next transaction at that time, in order."""

    def store_id(self) -> Steps[str]:
        """Return the id of this store, which its migration made once."""
        return str((yield Statement(self._sql["store_id"]))[0][0])

    def horizon(self, feed: Feed = "attempts") -> Steps[Position]:
        """Return a position before which no further row of the feed will ever appear; rows at or
        after it may still be uncommitted. The horizon never goes back, unless an earlier state of
        the store was restored."""
        return Position(*(yield Statement(self._sql["horizon"], (f"fairlead_{feed}",)))[0])

    def attempts(self, after: Position, until: Position, limit: int) -> Steps[Sequence[Row]]:
        """Return attempts after `after` and before `until`, in order, at most `limit`, with the
        columns ATTEMPT_FIELDS."""
        return (yield Statement(self._sql["attempts"], (*after, *until, limit)))

    def events(self, after: Position, until: Position, limit: int) -> Steps[Sequence[Row]]:
        """Return changes that people made to tasks, after `after` and before `until`, in order, at
        most `limit`, with the columns EVENT_FIELDS."""
        return (yield Statement(self._sql["events"], (*after, *until, limit)))

    def submitted(self, after: str, now: int, limit: int) -> Steps[Sequence[Row]]:
        """Return unfinished tasks without a finished run, in order of their submit, at most
        `limit`, with the columns SUBMITTED_FIELDS. The next `after` is the first field of the last
        row; the first call passes "". Tasks are returned once every transaction that wrote before
        their submit has ended, and only if they have not run until then; the first attempt of the
        others reports them."""
        ((oldest, following, before),) = yield Statement(self._sql["settled"])
        self._settle(now, oldest, following, before or 0)
        params = (after, self._settled_until, _SUBMIT_MICROS, limit)
        return (yield Statement(self._sql["submitted"], params))

    def _settle(self, now: int, oldest: int, following: int, before: int) -> None:
        """Advance `_settled_until`: the transactions from `oldest` to `following` may be open, and
        none of them had written at the instant `before`."""
        if len(self._marks) > _MOST_MARKS:
            del self._marks[::2]
        self._marks.append((now, following))
        ended = [at for at, number in self._marks if number <= oldest]
        del self._marks[: len(ended)]
        self._settled_until = max(self._settled_until, before, *ended)

    def newest_submitted(self, now: int) -> Steps[str]:
        """Return an `after` for `submitted` that skips the tasks submitted before about `now`."""
        return str((yield Statement(self._sql["newest_submitted"], (now,)))[0][0])

    def ended(
        self, after: Position, until: Position, since: int, submitted: int
    ) -> Steps[list[Ended]]:
        """Return counts of the attempts after `after` and at or before `until` that ended from
        `since` on.

        submitted: instant after which the tasks of first attempts were submitted to be counted.
        """
        params = (*after, *until, since, submitted)
        return [Ended(*row) for row in (yield Statement(self._sql["ended"], params))]

    def attempts_between(self, after: Position, until: Position) -> Steps[Totals]:
        """Return the sums over the attempts after `after` and at or before `until`."""
        return Totals(*(yield Statement(self._sql["attempts_between"], (*after, *until)))[0])

    def position_after(self, after: Position, until: Position, rows: int) -> Steps[Position]:
        """Return the position of the attempt `rows` rows after `after`; `until` if fewer rows lie
        before it."""
        found = yield Statement(self._sql["position_after"], (*after, *until, rows - 1))
        return Position(*found[0]) if found else until

    def readers(self) -> Steps[list[Reader]]:
        """Return all registered readers."""
        rows = yield Statement(self._sql["readers"])
        return [
            Reader(
                name,
                kind,
                Position(xid, seq),
                None if checked_at is None else Position(checked_xid, checked_seq),
                updated_at,
                checked_at,
            )
            for name, kind, xid, seq, checked_xid, checked_seq, updated_at, checked_at in rows
        ]

    def reader(self, name: str) -> Steps[Reader | None]:
        """Return the reader of this name; None if it is not registered."""
        readers = yield from self.readers()
        return next((reader for reader in readers if reader.name == name), None)

    def advance(self, name: str, kind: str, position: Position, now: int) -> Steps[None]:
        """Register a reader, or record that it has read everything up to `position`; its position
        never goes back. Once this has committed, rows that the reader has not read are not
        cleaned."""
        yield Statement(self._sql["advance"], (name, kind, *position, now))

    def checked(self, name: str, position: Position, now: int) -> Steps[None]:
        """Record that a lake agrees with this store up to `position`: the store may clean up to
        there."""
        yield Statement(self._sql["checked"], (name, *position, now))

    def drop_reader(self, name: str) -> Steps[bool]:
        """Drop a reader, so that rows it has not read may be cleaned; return False if there is no
        such reader."""
        return bool((yield Statement(self._sql["drop_reader"], (name,))))
