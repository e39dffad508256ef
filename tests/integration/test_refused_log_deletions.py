"""Deletions of stored entries that PostgreSQL refuses, in the log of an ordered queue: the queue runs
on, one incident says so, and the deletion is tried again."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from fairlead import App
from fairlead.operate.incidents import latest_incidents
from fairlead.testing import running
from tests.waiting import until

REFUSAL = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'nothing is deleted before Monday'; END $$;
CREATE TRIGGER refusal BEFORE DELETE ON fairlead_task_log
FOR EACH ROW WHEN (OLD.queue = 'kept') EXECUTE FUNCTION refuse();
"""


async def test_a_refused_deletion_of_log_entries_stops_no_queue_and_is_tried_again(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, ran = App(postgres_url), list[tuple[str, int]]()
    for name in ("kept", "other"):
        app.queue(name, kind="ordered", partitions=1)
    app.migrate()

    @app.task(queue="kept")
    async def note(n: int) -> None:
        ran.append(("kept", n))

    @app.task(queue="other")
    async def note_other(n: int) -> None:
        ran.append(("other", n))

    def submit(n: int) -> None:
        note.options(ordering_key="a").submit(n=n)
        note_other.options(ordering_key="a").submit(n=n)

    def incidents() -> list[str]:
        return [each.details for each in latest_incidents(app.operate_context, None, 100)]

    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(REFUSAL)

        def left() -> int:
            found = admin.execute("SELECT count(*) FROM fairlead_task_log").fetchone()
            assert found is not None
            return int(found[0])

        submit(1)
        async with running(app):
            await until(lambda: {("kept", 1), ("other", 1)} <= set(ran))
            submit(2)
            await until(lambda: ("other", 2) in ran)
            await until(lambda: any("nothing is deleted" in text for text in incidents()))
            assert ("kept", 2) not in ran and left() >= 2
            assert not [each for each in caplog.records if "is reloaded" in each.message]
            await asyncio.to_thread(admin.execute, "DROP TRIGGER refusal ON fairlead_task_log")
            await until(lambda: ("kept", 2) in ran and left() == 0)
    assert sorted(ran) == [("kept", 1), ("kept", 2), ("other", 1), ("other", 2)]
    app.close()
