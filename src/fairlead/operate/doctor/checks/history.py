"""Checks of the readers of the history: a silent reader, or a lake that was not compared, stops the
cleaning of history."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import MICROS
from fairlead.model.history import START, Reader
from fairlead.operate.doctor.finding import Finding, ok, problem
from fairlead.operate.doctor.survey import Survey

QUIET_SECONDS = 86_400
"""Silence of a reader, in seconds, from which it is reported for stopping the cleaning."""

MOST_COUNTED = 10_000
"""Maximum number of unread attempts that are counted."""


async def check_readers(survey: Survey) -> AsyncIterator[Finding]:
    """Report each reader of the history, its position, and whether it is active."""
    if survey.sql is None:
        return
    history = SqlHistory(survey.sql.database)
    read = history.database.read_now
    horizon = read(history.horizon())
    for reader in read(history.readers()):
        if reader.kind == "events":
            continue  # reported with its lake
        until = read(history.position_after(reader.position, horizon, MOST_COUNTED))
        behind = read(history.attempts_between(reader.position, until)).rows
        more = " or more" if behind == MOST_COUNTED else ""
        yield ok(f"{reader.name}: {behind:,}{more} finished attempts are not read yet")
        if survey.now - reader.updated_at > QUIET_SECONDS * MICROS:
            yield _quiet(reader, survey.now)
        is_unchecked = reader.kind == "lake" and reader.position > (reader.checked or START)
        if is_unchecked and survey.now - (reader.checked_at or 0) > QUIET_SECONDS * MICROS:
            yield _unchecked(reader)


def _quiet(reader: Reader, now: int) -> Finding:
    days = (now - reader.updated_at) / MICROS / 86_400
    is_lake = reader.kind == "lake"
    start = "start `fairlead pipeline ingest`" if is_lake else "start its stream"
    return problem(
        f"{reader.name} has read nothing for {days:,.1f} days, so the store keeps history for it",
        f"{start}, or {_drop_reader(reader)}",
    )


def _unchecked(reader: Reader) -> Finding:
    is_new = reader.checked_at is None
    compared = "never been compared" if is_new else "not been compared in the last day"
    return problem(
        f"{reader.name} has {compared}, so the store keeps the history",
        f"`fairlead pipeline maintain`, or {_drop_reader(reader)}",
    )


def _drop_reader(reader: Reader) -> str:
    return f"`fairlead pipeline status --forget '{reader.name}'`"
